"""What the catalog shows of a definition without its content: its place among the versions of its path."""

from __future__ import annotations

from typing import NamedTuple


class CatalogRow(NamedTuple):
    """One version. `is_yaml` where its text is kept, `is_current` where new submissions of its path get it,
    `versions` how many its path has. It was made at `created_at`, and registered last at `registered_at`."""

    id: int
    path: str
    version: int
    hash: str
    is_yaml: bool
    steps: int
    created_at: float
    registered_at: float
    is_current: bool
    versions: int
