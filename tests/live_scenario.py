"""How tests listen to the live feed: a stream read in the background, its events taken apart."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import msgspec

from holdfast.core.errors import StoreUnavailable
from holdfast.server.live import Live
from holdfast.store import Store
from running import eventually


class Told(NamedTuple):
    """One event of a stream; `token` is what a client would give back after it."""

    token: str | None
    type: str
    data: dict[str, Any]

    @property
    def row(self) -> str:
        return str(self.data["id"])


class Ear:
    """Reads a stream for as long as it is open."""

    def __init__(self, chunks: AsyncIterator[bytes]) -> None:
        self.chunks: list[bytes] = []
        self.events: list[Told] = []
        # The last id that was heard, of an event or of none.
        self.token: str | None = None
        self._part = b""
        self.task = asyncio.create_task(self._read(chunks))

    async def _read(self, chunks: AsyncIterator[bytes]) -> None:
        async with contextlib.aclosing(chunks):  # type: ignore[type-var]
            async for chunk in chunks:
                self.take(chunk)

    def take(self, chunk: bytes) -> None:
        self.chunks.append(chunk)
        *blocks, self._part = (self._part + chunk).split(b"\n\n")
        for block in blocks:
            lines = [line.partition(b": ") for line in block.split(b"\n")]
            fields = {name.decode(): value for name, _, value in lines}
            if "id" in fields:
                self.token = fields["id"].decode()
            if "data" in fields:
                data = msgspec.json.decode(fields["data"])
                assert data["type"] == fields["event"].decode()
                self.events.append(Told(self.token, data["type"], data))

    async def opened(self) -> "Ear":
        await eventually(lambda: self.token is not None)
        return self

    async def hears(self, count: int) -> list[Told]:
        """Wait until so many events were heard, at least; all of them."""
        await eventually(lambda: len(self.events) >= count)
        return self.events

    @property
    def rows(self) -> list[str]:
        return [event.row for event in self.events]

    @property
    def types(self) -> list[str]:
        return [event.type for event in self.events]

    async def leave(self) -> None:
        self.task.cancel()
        await asyncio.wait([self.task])


async def listen(live: Live, **asked: Any) -> Ear:
    """Somebody who listens, once the stream is open."""
    return await Ear(live.stream(**asked)).opened()


@contextlib.asynccontextmanager
async def broadcasting(store: Store, **options: Any) -> AsyncIterator[Live]:
    live = Live(store, **options)
    try:
        yield live
    finally:
        await live.close()


class Absence:
    """Makes the verbs that a feed reads with fail for a while."""

    VERBS = (
        "last_event_row", "event_rows", "event_rows_at", "event_gaps", "open_transactions", "begun_since",
        "highest_event_row",
    )  # fmt: skip

    def __init__(self, store: Any) -> None:
        self.is_away = False
        for verb in self.VERBS:
            setattr(store, verb, self._unless_away(getattr(store, verb)))

    def _unless_away(self, verb: Any) -> Any:
        async def called(*asked: Any, **more: Any) -> Any:
            if self.is_away:
                raise StoreUnavailable("away")
            return await verb(*asked, **more)

        return called
