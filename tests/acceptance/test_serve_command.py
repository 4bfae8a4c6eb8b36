"""`holdfast serve` as users start it: a process, stopped by signals."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from store_scenario import ENVIRONMENT

STOP_SECONDS_MAX = 60
HELLO = """
apiVersion: holdfast/v1
kind: Playbook
metadata: {name: hello, path: hello}
workflow:
  - step: nap
    type: sleep
    seconds: 0
"""


class Serve:
    def __init__(self, process: subprocess.Popen[str], told: dict[str, Any]) -> None:
        self.process = process
        self.url: str = told["url"]
        self.told = told

    def ended(self) -> tuple[int, str]:
        _, err = self.process.communicate(timeout=STOP_SECONDS_MAX)
        return self.process.returncode, err


@contextmanager
def served(folder: Path, *arguments: str, **environment: str) -> Iterator[Serve]:
    command = [sys.executable, "-m", "holdfast", "serve", "--json", "--port", "0", *arguments]
    process = subprocess.Popen(
        command,
        cwd=folder,
        env={**ENVIRONMENT, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        text = ""
        while not text.rstrip().endswith("}"):
            line = process.stdout.readline()
            assert line, process.communicate()[1]
            text += line
        yield Serve(process, json.loads(text))
    finally:
        process.kill()
        process.communicate()


def refused(folder: Path, *arguments: str, **environment: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "holdfast", "serve", *arguments],
        cwd=folder,
        env={**ENVIRONMENT, **environment},
        capture_output=True,
        text=True,
        timeout=STOP_SECONDS_MAX,
        check=False,
    )
    return done.returncode, done.stderr


def test_one_command_serves_the_api_and_works_on_what_is_submitted(tmp_path: Path) -> None:
    with served(tmp_path) as serve:
        assert serve.told["worker"] is True and (tmp_path / "holdfast.db").exists()
        with httpx.Client(base_url=serve.url, timeout=60) as http:
            http.post("/api/catalog", content=HELLO, headers={"content-type": "application/yaml"})
            id_ = http.post("/api/executions", json={"path": "hello"}).json()["id"]
            shown = http.get(f"/api/executions/{id_}", params={"wait": 60}).json()
        assert shown["status"] == "completed"
        serve.process.send_signal(signal.SIGINT)
        code, said = serve.ended()
        assert code == 0 and "Traceback" not in said


def test_the_first_signal_ends_waiting_leases_and_open_streams_at_once(tmp_path: Path) -> None:
    with served(tmp_path, "--no-worker") as serve, httpx.Client(base_url=serve.url, timeout=60) as http:
        assert serve.told["worker"] is False
        with http.stream("GET", "/api/events/stream") as stream:
            lines = stream.iter_lines()
            assert next(lines)
            lease = subprocess.Popen(
                [
                    sys.executable,
                    "-c",
                    "import httpx, sys; print(httpx.post(sys.argv[1], json={'worker_id': 'w', 'wait': 60},"
                    " timeout=90).text)",
                    f"{serve.url}/api/queue/lease",
                ],
                stdout=subprocess.PIPE,
                text=True,
            )
            deadline = time.monotonic() + 60
            while "holdfast_leases_waiting 1" not in httpx.get(f"{serve.url}/metrics", timeout=60).text:
                assert time.monotonic() < deadline
                time.sleep(0.05)
            serve.process.send_signal(signal.SIGTERM)
            for _ in lines:
                pass  # the stream comes to its end
        told, _ = lease.communicate(timeout=STOP_SECONDS_MAX)
        assert json.loads(told)["jobs"] == []
        assert serve.ended()[0] == 0


def test_a_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text("import time\n\ndef nap():\n    time.sleep(600)\n")
    text = HELLO.replace("type: sleep\n    seconds: 0", "type: function\n    call: slow:nap")
    with served(tmp_path, "--functions", "slow") as serve:
        with httpx.Client(base_url=serve.url, timeout=60) as http:
            http.post("/api/catalog", content=text, headers={"content-type": "application/yaml"})
            http.post("/api/executions", json={"path": "hello"})
            deadline = time.monotonic() + 60
            while not http.get("/api/queue", params={"status": "leased"}).json()["items"]:
                assert time.monotonic() < deadline
                time.sleep(0.05)
        serve.process.send_signal(signal.SIGINT)
        deadline = time.monotonic() + 60
        while _answers(serve.url):  # it has heard the first one
            assert time.monotonic() < deadline
            time.sleep(0.05)
        serve.process.send_signal(signal.SIGINT)
        code, said = serve.ended()
        assert code == 1 and "second signal" in said


def _answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/healthz", timeout=60).status_code == 200
    except httpx.TransportError:
        return False


def test_a_port_that_is_taken_is_told_in_a_sentence(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, said = refused(tmp_path, "--port", str(port))
    assert code == 2 and f"Port {port}" in said and "--port" in said and "Traceback" not in said


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_it_refuses_to_listen_for_everybody_without_a_token_and_says_how(tmp_path: Path, host: str) -> None:
    code, said = refused(tmp_path, "--host", host)
    assert code == 2 and "HOLDFAST_TOKEN" in said
    assert not (tmp_path / "holdfast.db").exists()


def test_with_a_token_it_lets_in_whoever_has_it(tmp_path: Path) -> None:
    token = "a-long-enough-secret"
    with (
        served(tmp_path, "--host", "127.0.0.1", HOLDFAST_TOKEN=token) as serve,
        httpx.Client(base_url=serve.url, timeout=60) as http,
    ):
        assert http.get("/api/info").status_code == 401
        allowed = http.get("/api/info", headers={"authorization": f"Bearer {token}"})
        assert allowed.status_code == 200


def test_a_database_that_is_not_there_is_exit_code_3(tmp_path: Path) -> None:
    code, said = refused(tmp_path, "--db", "postgresql://127.0.0.1:1/nothing")
    assert code == 3 and "does not answer" in said


def test_a_server_cannot_serve_another_server(tmp_path: Path) -> None:
    code, said = refused(tmp_path, "--db", "http://127.0.0.1:1")
    assert code == 2 and "needs a database" in said


def test_options_of_a_worker_need_one(tmp_path: Path) -> None:
    code, said = refused(tmp_path, "--no-worker", "--allow-code")
    assert code == 2 and "--no-worker" in said
    assert os.listdir(tmp_path) == []
