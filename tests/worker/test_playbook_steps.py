"""Steps with a type on the real engine: parked, with or without leave, cancelled, masked, rehearsed."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast import ExecutionStatus, Holdfast, JobStatus
from holdfast.testing import Rehearsal
from running import eventually, run

ENDS_SOON = 120.0

CHILD = """
apiVersion: holdfast/v1
kind: Playbook
metadata: {name: child, path: child}
workflow:
  - step: work
    type: python
    code: |
      def main(n):
          if n < 0:
              raise ValueError("negative")
          return n * n
    with: {n: "{{ workload.n }}"}
"""

PARENT = """
apiVersion: holdfast/v1
kind: Playbook
metadata: {name: parent, path: parent}
workload: {rows: [1, 2, 3], n: 5}
workflow:
  - step: total
    type: python
    code: |
      def main(rows):
          return {"total": sum(rows)}
    with: {rows: "{{ workload.rows }}"}
    next: nap
  - step: nap
    type: sleep
    seconds: 0.2
    next: print
  - step: print
    type: shell
    command: [printf, "%s", "{{ total.total }}"]
    next: double
  - step: double
    type: python
    call: tests:double
    with: {n: "{{ print.data }}"}
    next: each
  - step: each
    type: python
    code: "def main(row, index): return [row, index]"
    for_each: {items: "{{ workload.rows }}", as: row, concurrency: 2}
    next: sub
  - step: sub
    type: playbook
    path: child
    with: {n: "{{ workload.n }}"}
"""


def holdfast(url: str) -> Holdfast:
    hf = Holdfast(url)
    hf.add_functions({"tests:double": lambda n: {"n": 2 * n}})
    return hf


def test_a_playbook_of_all_kinds_of_steps_runs_to_its_end(store_url: str) -> None:
    async def scenario() -> None:
        async with holdfast(store_url) as hf:
            await hf.add_playbook(CHILD)
            await hf.add_playbook(PARENT)
            async with hf.working(allow_code=True, allow_shell=True):
                view = await (await hf.submit("parent")).wait(ENDS_SOON)
                failed = await (await hf.submit("parent", {"n": -1})).wait(ENDS_SOON)
        assert view.execution.status is ExecutionStatus.COMPLETED, view.summary
        assert view.outputs["total"] == {"total": 6}
        assert view.outputs["nap"] == {"seconds": 0.2}
        assert (view.outputs["print"]["stdout"], view.outputs["print"]["data"]) == ("6", 6)
        assert view.outputs["double"] == {"n": 12}
        assert view.outputs["each"] == [[1, 0], [2, 1], [3, 2]]
        assert view.outputs["sub"]["data"] == 25
        error = failed.execution.error
        assert error is not None and (error.stage, error.error_type) == ("sub", "validation_error")
        assert "failed at work: negative" in error.message

    run(scenario())


def test_code_waits_for_a_worker_with_leave(sqlite_url: str) -> None:
    async def scenario() -> None:
        async with holdfast(sqlite_url) as hf:
            await hf.add_playbook(CHILD)
            async with hf.working():
                execution = await hf.submit("child", {"n": 2})
                other = await hf.submit("child", {"n": 3})
                assert {job.status for job in (await hf.queue()).items} == {JobStatus.QUEUED}
                async with hf.working(allow_code=True):
                    assert (await execution.wait(ENDS_SOON)).outputs == {"work": 4}
                    assert (await other.wait(ENDS_SOON)).outputs == {"work": 9}

    run(scenario())


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_a_cancelled_execution_ends_the_program_that_it_runs(sqlite_url: str, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    playbook = {
        "apiVersion": "holdfast/v1",
        "kind": "Playbook",
        "metadata": {"name": "long", "path": "long"},
        "workflow": [
            {
                "step": "wait",
                "type": "shell",
                "shell": True,
                "command": 'setsid sleep 1000 & echo $! > "$OUT.new"; mv "$OUT.new" "$OUT"; sleep 1000',
                "env": {"OUT": str(pids)},
            }
        ],
    }

    async def scenario() -> None:
        async with holdfast(sqlite_url) as hf:
            await hf.add_playbook(json.dumps(playbook))
            async with hf.working(allow_shell=True, lease_seconds=2):
                execution = await hf.submit("long")
                pid = int(await eventually(lambda: pids.exists() and pids.read_text()))
                program = Path(f"/proc/{pid}")
                assert await eventually(program.exists)
                await hf.cancel(execution.id)
                await eventually(lambda: not program.exists())

    run(scenario())


def test_a_secret_reaches_no_event_and_no_row(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_SECRET_TOKEN", "hunter2-hunter2")
    playbook = """
apiVersion: holdfast/v1
kind: Playbook
metadata: {name: leaky, path: leaky}
workflow:
  - step: echo
    type: python
    code: |
      def main(token):
          return {"echo": token}
    with: {token: '{{ secret("TOKEN") }}'}
    next: fail
  - step: fail
    type: shell
    command: [sh, -c, 'echo "$TOKEN" >&2; exit 3']
    env: {TOKEN: '{{ secret("TOKEN") }}'}
"""

    async def scenario() -> None:
        async with holdfast(sqlite_url) as hf:
            await hf.add_playbook(playbook)
            async with hf.working(allow_code=True, allow_shell=True):
                execution = await hf.submit("leaky")
                view = await execution.wait(ENDS_SOON)
            told = str([event.to_dict() for event in await execution.events()])
        assert view.outputs == {"echo": {"echo": "***"}}
        assert view.execution.error is not None
        assert view.execution.error.message == "The command ended with exit code 3: ***"
        assert "***" in told and "hunter2" not in told

    run(scenario())
    file = Path(sqlite_url.removeprefix("sqlite:///"))
    assert not [part for part in file.parent.glob(f"{file.name}*") if b"hunter2" in part.read_bytes()]


# rehearsals


def rehearsed(hf: Holdfast, path: str, workload: Any, *playbooks: str) -> Any:
    with Rehearsal(hf) as rehearsal:
        for playbook in playbooks:
            rehearsal.do(hf.add_playbook(playbook))
        return rehearsal.run(path, workload)


def test_a_rehearsal_runs_steps_with_a_type_and_jumps_over_a_sleep(sqlite_url: str) -> None:
    hf = holdfast(sqlite_url)
    asleep = PARENT.replace("seconds: 0.2", "seconds: 30d")
    done = rehearsed(hf, "parent", {"n": 3}, CHILD, asleep)
    assert done.view.outputs["nap"] == {"seconds": 30 * 86_400}
    assert done.view.outputs["sub"]["data"] == 9
