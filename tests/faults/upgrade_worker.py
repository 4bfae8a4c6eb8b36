"""A worker of an older Holdfast, or of this one: the programs of the storm and of the gates, with so many
migrations as the version has that it stands for.

    upgrade_worker.py URL FOLDER NAME PARENT storm|gate MIGRATIONS LEASE_SECONDS
"""

from __future__ import annotations

import sys

from faults import gate_worker, storm_worker
from holdfast.store.queries import load_migrations
from schema_versions import dialect_of, know


def main(
    url: str, folder: str, name: str, parent: str, program: str, migrations: str, lease_seconds: str
) -> None:
    know(load_migrations(dialect_of(url))[: int(migrations)])
    {"storm": storm_worker, "gate": gate_worker}[program].main(url, folder, name, parent, lease_seconds)


if __name__ == "__main__":
    main(*sys.argv[1:])
