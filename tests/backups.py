"""Backups as people make them, of both stores: with `holdfast backup`, and with pg_dump and pg_restore."""

import shutil
import subprocess
import sys
from pathlib import Path
from uuid import uuid4

from holdfast.bench.postgres import TemporaryPostgres, find_binaries, server_environment
from store_scenario import ENVIRONMENT

LIMIT_SECONDS = 120


class Backups:
    """Of one database; what is restored is another one, beside it."""

    def __init__(self, url: str, folder: Path, server: TemporaryPostgres | None) -> None:
        self.url = url
        self._folder = folder
        self._server = server
        self._databases: list[str] = []

    def take(self) -> Path:
        file = self._folder / f"backup-{uuid4().hex[:8]}"
        if self._server is None:
            _run(sys.executable, "-m", "holdfast", "backup", str(file), "--db", self.url)
        else:
            _run(find_binaries() / "pg_dump", "--format=custom", f"--file={file}", self.url)
        return file

    def restore(self, file: Path) -> str:
        """The address of a database with what was in the backup."""
        name = f"restored_{uuid4().hex[:8]}"
        if self._server is None:
            shutil.copyfile(file, self._folder / name)
            return f"sqlite:///{self._folder / name}"
        self._server.create_database(name)
        self._databases.append(name)
        url = self._server.url(name)
        _run(find_binaries() / "pg_restore", "--exit-on-error", f"--dbname={url}", str(file))
        return url

    def remove(self) -> None:
        for name in self._databases:
            assert self._server is not None
            self._server.drop_database(name)


def begun_anew(url: str) -> None:
    """What whoever has restored a database does next."""
    _run(sys.executable, "-m", "holdfast", "restored", "--yes", "--db", url)


def _run(*command: str | Path) -> None:
    done = subprocess.run(
        list(map(str, command)),
        env=ENVIRONMENT if command[0] == sys.executable else server_environment(),
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
