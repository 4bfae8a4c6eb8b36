"""`holdfast serve` as users start it, in a process that ends with the test's.

http_server.py URL FOLDER NAME PARENT PORT LEASE_SECONDS
"""

from __future__ import annotations

import sys

from faults.processes import die_with
from holdfast.cli import main as holdfast


def main(url: str, _folder: str, _name: str, parent: str, port: str, lease_seconds: str) -> None:
    die_with(int(parent))
    sys.argv = ["holdfast", "serve", "--no-worker", "--db", url, "--port", port, "--lease", lease_seconds]
    holdfast()


if __name__ == "__main__":
    main(*sys.argv[1:])
