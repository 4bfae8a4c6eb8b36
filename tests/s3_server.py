"""A real S3 server for tests: SeaweedFS, on loopback, with signatures checked and one bucket made.

A test that asks for `s3_url` has a prefix of its own in the bucket of the one server of its process, and the
environment that leads there. The server is never skipped: if it cannot start, the tests that need it end with
an error that says why. It ends with the process that started it, also where that is killed. A test that must
kill a server starts its own: `with started_s3() as server`.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import httpx
import pytest

from ports import kept_ports

BUCKET = "holdfast-tests"
KEY, SECRET = "holdfast-tests-key", "holdfast-tests-secret"
START_SECONDS_MAX = 90.0
LOOK_SECONDS = 0.05


class S3Server:
    def __init__(self, folder: Path, ports: list[int]) -> None:
        self._folder = folder
        self._ports = ports
        self._process: subprocess.Popen[bytes] | None = None
        self.url = f"http://127.0.0.1:{ports[0]}"
        self.environment = {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_REGION": "us-east-1",
        }

    def start(self) -> None:
        """Also again, after a kill, with what it had."""
        from celery_fleet import dying_with_us
        from store_scenario import ENVIRONMENT

        log = self._folder / "server.log"
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                dying_with_us(self._command()),
                env={**ENVIRONMENT, "GOMAXPROCS": "2"},
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        deadline = time.monotonic() + START_SECONDS_MAX
        while not self._answers():
            assert self._process.poll() is None, f"the S3 server ended:\n{log.read_text()[-4000:]}"
            assert time.monotonic() < deadline, f"the S3 server does not answer:\n{log.read_text()[-4000:]}"
            time.sleep(LOOK_SECONDS)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def _command(self) -> list[str]:
        data = self._folder / "data"
        data.mkdir(exist_ok=True)
        keys = [{"accessKey": KEY, "secretKey": SECRET}]
        who = {"name": "tests", "credentials": keys, "actions": ["Admin"]}
        (self._folder / "identities.json").write_text(json.dumps({"identities": [who]}))
        parts = ("s3.port", "s3.port.grpc", "filer.port", "filer.port.grpc")
        parts += ("master.port", "master.port.grpc", "volume.port", "volume.port.grpc")
        options = {
            **dict(zip(parts, self._ports, strict=True)),
            **{"ip": "127.0.0.1", "ip.bind": "127.0.0.1", "dir": data},
            **{"s3.config": self._folder / "identities.json", "s3.autoCreateBucket": "false"},
            **{"s3.port.iceberg": 0, "s3.port.lance": 0},
            **{"s3.localSocket": self._folder / "s3.sock", "filer.localSocket": self._folder / "filer.sock"},
            **{"master.telemetry": "false", "master.volumeSizeLimitMB": 1024, "volume.max": 100},
        }
        weed = str(Path(sysconfig.get_path("scripts")) / "weed")
        told = [f"-{option}={value}" for option, value in options.items()]
        return [weed, "-logtostderr=true", "server", "-filer", "-s3", *told]

    def _answers(self) -> bool:
        """Once the bucket is there and keeps something."""
        import obstore
        from obstore.exceptions import BaseError
        from obstore.store import S3Store

        store = S3Store(
            BUCKET,
            endpoint=self.url,
            access_key_id=KEY,
            secret_access_key=SECRET,
            region="us-east-1",
            client_options={"allow_http": True, "timeout": timedelta(seconds=10)},
            retry_config={"max_retries": 0},
        )
        with contextlib.suppress(httpx.HTTPError, BaseError, OSError):
            address = obstore.sign(store, "PUT", "", timedelta(minutes=5))
            made = httpx.put(address, timeout=10.0, trust_env=False)
            if made.status_code in (200, 409):
                obstore.put(store, "ready", b"yes")
                return bytes(obstore.get(store, "ready").bytes()) == b"yes"
        return False


@contextlib.contextmanager
def started_s3() -> Iterator[S3Server]:
    # In a folder of a short name: that of a socket has at most 107 bytes.
    folder = Path(tempfile.mkdtemp(prefix="holdfast-s3-"))
    try:
        with kept_ports(8) as ports:
            server = S3Server(folder, ports)
            try:
                server.start()
                yield server
            finally:
                server.kill()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    """One server for all tests of this process, which must not kill it."""
    with started_s3() as server:
        yield server


@pytest.fixture
def s3_url(s3_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The address of an empty storage; this process, and those it starts, know how to reach it."""
    only_s3(s3_server, tmp_path, monkeypatch)
    return f"s3://{BUCKET}/{uuid4().hex}"


def only_s3(server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever else the environment says of AWS does not count."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("HOLDFAST_SPOOL", str(tmp_path / "spool"))
