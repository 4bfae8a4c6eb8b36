"""A rehearsal of a built-in pipeline, on a clock that jumps: the real engine, a storage in a folder."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest

from holdfast import Holdfast
from holdfast.core.model import EventType
from holdfast.engine import Engine, RetryRequest
from holdfast.pipelines.registry import all_functions
from holdfast.testing import AsyncRehearsal

T = TypeVar("T")
P = TypeVar("P", bound="RehearsedPipeline")


async def pieces(content: bytes, size: int = 1000) -> AsyncIterator[bytes]:
    for start in range(0, len(content), size):
        yield content[start : start + size]


class RehearsedPipeline:
    def __init__(
        self, rehearsal: AsyncRehearsal, runner: asyncio.Runner, engine: Engine, folder: Path
    ) -> None:
        self.rehearsal = rehearsal
        self.folder = folder
        self.engine = engine
        self._runner = runner

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(work)

    def drain(self, within: float | None = None) -> None:
        self.do(self.rehearsal.drain(within))

    def rows_of(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        return self.do(self.engine.store.fetch_rows(sql, *values))

    def delays(self, execution_id: int) -> list[float]:
        """Before each retry."""
        events = self.do(self.engine.events(execution_id, limit=1_000))
        return [event.data["delay"] for event in events if event.type is EventType.STEP_RETRY]

    def events_of(self, execution_id: int) -> list[str]:
        return [event.type.value for event in self.do(self.engine.events(execution_id, limit=1_000))]

    def retry(self, execution_id: int, **more: Any) -> None:
        self.do(self.engine.retry(execution_id, RetryRequest(by="a person", **more)))


@contextmanager
def rehearsed_pipeline(
    kind: type[P],
    playbook: Callable[[], str],
    folder: Path,
    *,
    url: str | None = None,
    prefix: str,
    **environ: str,
) -> Iterator[P]:
    """`playbook` is asked for once the environment is set. Nothing may be left of its folders of work."""
    hf = Holdfast("sqlite:///nowhere.db")
    hf.add_functions(all_functions())
    with pytest.MonkeyPatch.context() as patch, asyncio.Runner() as runner:
        patch.setenv("HOLDFAST_STORAGE", str(folder / "files"))
        patch.setenv("HOLDFAST_SPOOL", str(folder / "spool"))
        for name, value in environ.items():
            patch.setenv(name, value)
        # Plain functions run in threads, as in a worker.
        rehearsal = AsyncRehearsal(hf, url=url)
        runner.run(rehearsal.__aenter__())
        try:
            runner.run(hf.add_playbook(playbook()))
            engine = runner.run(hf.engine())
            assert isinstance(engine, Engine)
            yield kind(rehearsal, runner, engine, folder)
        finally:
            runner.run(rehearsal.__aexit__(None, None, None))
        assert [path.name for path in (folder / "spool").glob(f"{prefix}-*")] == []
