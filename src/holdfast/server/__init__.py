"""The HTTP server: the engine behind an API, and the live stream of events."""
