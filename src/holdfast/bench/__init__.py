"""The scenarios behind `holdfast bench`, and the private PostgreSQL they run on."""
