"""What people steer by: how much may run at once, and where nothing new begins.

Limits and pauses hold across all processes from the next claim on; nothing that runs is touched by them.
Here names are checked before a store sees them, and what is in force is put into records and words.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from difflib import get_close_matches

import msgspec

from holdfast.core import describe
from holdfast.core.errors import InvalidInput, UnknownName
from holdfast.core.limits import FLEET_LIMIT, Limit, Room, checked_limit
from holdfast.core.model import JobRow, JobStatus, Lane, WorkerRow
from holdfast.core.pauses import Pause, PauseKind, narrowest
from holdfast.core.payload import a_type, check_name, member
from holdfast.engine.definitions import Definitions
from holdfast.store.controlling import LimitRow
from holdfast.store.interface import OpenWork, Store

REASON_CHARS_MAX = 500
# A step's path and name, each as long as it may be.
NAME_CHARS_MAX = 500
KNOWN_SHOWN_MAX = 50
WORKERS_MAX = 10_000


class LimitView(msgspec.Struct, frozen=True, kw_only=True):
    """A limit and what it does: `in_use` counts what is leased under it, `waiting` what is ready, by lane.
    `steps` name it; the limit over everything holds for all of them and is named by none. Where nobody has
    set it, `max_concurrency` is None and it limits nothing."""

    name: str
    max_concurrency: int | None
    manual_reserve: int | None
    in_use: dict[str, int]
    waiting: dict[str, int]
    steps: tuple[str, ...]
    set_by: str | None
    set_at: float | None
    pause: Pause | None

    def is_full(self, lane: Lane) -> bool:
        """Whether work of this lane finds no room under it."""
        if self.max_concurrency is None:
            return False
        limit = Limit(self.name, self.max_concurrency, self.manual_reserve)
        return _is_full(limit, lane, self.in_use[Lane.MANUAL], self.in_use[Lane.BULK])


class Controls:
    def __init__(self, store: Store, definitions: Definitions) -> None:
        self._store = store
        self._definitions = definitions

    # limits

    async def set_limit(
        self, name: str, max_concurrency: int, manual_reserve: int | None = None, *, by: str = ""
    ) -> LimitView:
        """At most `max_concurrency` at once in the whole fleet, from the next claim on; what runs goes on.
        Without a `manual_reserve` one place is kept for manual work where there is more than one."""
        limit = checked_limit(name, max_concurrency, manual_reserve)
        _check_by(by)
        now = await self._store.now()
        await self._store.set_limit(limit, by, now)
        self._store.announce_work()
        for view in await self.limits():
            if view.name == limit.name:
                return view
        # Somebody has removed it since: what was asked for was done all the same.
        row = LimitRow(limit.name, limit.max_concurrency, limit.manual_reserve, by, now, 0, 0)
        return _view(row, (), (), None)

    async def remove_limit(self, name: str, *, by: str = "") -> bool:
        """Whether it was set. What it held back may run then."""
        check_name(name, what="name of a limit")
        _check_by(by)
        removed = await self._store.remove_limit(name, by, await self._store.now())
        self._store.announce_work()
        return removed

    async def limits(self, ready: Sequence[OpenWork] | None = None) -> list[LimitView]:
        """Those that are set and those that steps name, by name. `ready` saves a look where it is known."""
        if ready is None:
            ready = ready_work(await self._store.open_work(await self._store.now()))
        steps = await self._steps_by_limit()
        paused = {pause.name: pause for pause in await self.pauses() if pause.kind is PauseKind.LIMIT}
        rows = {row.name: row for row in await self._store.limits()}
        # A pipeline that was never run has its limits nowhere but in its definition.
        for name in (steps.keys() | paused.keys()) - rows.keys():
            rows[name] = await self._unset(name)
        waiting = {item.limit for item in ready}
        return [
            _view(row, ready, tuple(steps.get(name, ())), paused.get(name))
            for name, row in sorted(rows.items())
            # What only an older version named, and nothing is left of, is of no use to anybody.
            if row.max_concurrency is not None
            or name in steps
            or name in paused
            or name in waiting
            or row.leased_manual + row.leased_bulk
        ]

    async def _unset(self, name: str) -> LimitRow:
        """Nothing is leased under a name that no job has; all of it is under the limit over everything."""
        leased = dict.fromkeys(Lane, 0)
        if name == FLEET_LIMIT:
            for item in await self._store.open_work(await self._store.now()):
                leased[item.lane] += item.jobs if item.status is JobStatus.LEASED else 0
        return LimitRow(name, None, None, None, None, leased[Lane.MANUAL], leased[Lane.BULK])

    async def _steps_by_limit(self) -> dict[str, list[str]]:
        steps: dict[str, list[str]] = {}
        for definition in await self._definitions.all_latest():
            for step in definition.steps:
                if step.limit:
                    steps.setdefault(step.limit, []).append(f"{definition.path}/{step.name}")
        return steps

    # pauses

    async def pause(
        self, kind: PauseKind | str, name: str, *, by: str = "", reason: str = "", force: bool = False
    ) -> Pause:
        """Lease nothing new there; what runs goes on. What nobody knows is most likely a slip of the pen, and
        is refused unless it is forced. Paused already, it stays as it is."""
        kind = member(PauseKind, kind, "kind of pause")
        name = _checked_target(kind, name)
        _check_by(by)
        _check_reason(reason)
        if not force and kind is not PauseKind.LANE:
            known = await self._known(kind)
            if name not in known:
                raise _unknown(kind, name, known)
        return await self._store.pause(kind, name, by, reason, await self._store.now())

    async def resume(self, kind: PauseKind | str, name: str, *, by: str = "") -> Pause | None:
        """The pause that has ended with this; None where there was none."""
        kind = member(PauseKind, kind, "kind of pause")
        name = _checked_target(kind, name)
        _check_by(by)
        ended = await self._store.resume(kind, name, by, await self._store.now())
        self._store.announce_work()
        return ended

    async def pauses(self) -> list[Pause]:
        """The oldest first."""
        return await self._store.pauses()

    async def _known(self, kind: PauseKind) -> set[str]:
        definitions = await self._definitions.all_latest()
        if kind is PauseKind.PLAYBOOK:
            return {definition.path for definition in definitions}
        steps = [(definition.path, step) for definition in definitions for step in definition.steps]
        if kind is PauseKind.STEP:
            return {f"{path}/{step.name}" for path, step in steps}
        stored = {row.name for row in await self._store.limits()}
        return {FLEET_LIMIT, *stored, *(step.limit for _, step in steps if step.limit)}

    # in words

    async def hindrance(self, job: JobRow) -> str:
        """What keeps a waiting job from being leased, to be put behind the sentence about it; empty where
        nothing does, or where it waits for something else than these."""
        if job.status not in (JobStatus.QUEUED, JobStatus.RETRY) or job.held_by is not None:
            return ""
        now = await self._store.now()
        pause = narrowest(held_by_pauses(await self.pauses(), job.path, job.step, job.lane, job.limit))
        if pause is not None:
            return describe.paused(pause, clock_time(pause.since, now))
        if job.available_at > now:
            return ""
        full = told_full(await self._store.limits(), job.limit, job.lane)
        if full:
            return full
        is_offered = (job.handler, job.lane) in offers(await living_workers(self._store, now))
        return "" if is_offered else describe.unoffered()


async def living_workers(store: Store, now: float) -> list[WorkerRow]:
    return [worker for worker in await store.workers(WORKERS_MAX) if worker.is_living(now)]


def offers(living: Iterable[WorkerRow]) -> set[tuple[str, Lane]]:
    """The handlers and lanes that somebody living works for."""
    return {(handler, lane) for worker in living for handler in worker.handlers for lane in worker.lanes}


def told_full(rows: Iterable[LimitRow], limit_name: str, lane: Lane) -> str:
    """In the words of `describe.full`, where a job under this limit finds no room; empty where it does."""
    for row in rows:
        if row.name in (limit_name, FLEET_LIMIT) and row.max_concurrency is not None:
            limit = Limit(row.name, row.max_concurrency, row.manual_reserve)
            if _is_full(limit, lane, row.leased_manual, row.leased_bulk):
                return describe.full(limit, lane, row.leased_manual, row.leased_bulk)
    return ""


def ready_work(work: Iterable[OpenWork]) -> list[OpenWork]:
    """Of what is open, that which could be leased now, but for limits and pauses."""
    return [item._replace(jobs=item.ready) for item in work if item.ready]


def held_by_pauses(pauses: Iterable[Pause], path: str, step: str, lane: Lane, limit: str) -> list[Pause]:
    return [pause for pause in pauses if pause.holds(path=path, step=step, lane=lane, limit=limit)]


def clock_time(at: float, now: float) -> str:
    """Local time as people say it: the hour, with the date where that was on another day."""
    try:
        then, today = datetime.fromtimestamp(at), datetime.fromtimestamp(now).date()
    except (ValueError, OverflowError, OSError):  # beyond the calendar
        return f"{at:.0f}"
    return then.strftime("%H:%M" if then.date() == today else "%Y-%m-%d %H:%M")


def _is_full(limit: Limit, lane: Lane, manual: int, bulk: int) -> bool:
    leased: dict[tuple[str, str], int] = {(limit.name, Lane.MANUAL): manual, (limit.name, Lane.BULK): bulk}
    return Room([limit], leased).left(limit.name, lane) == 0


def _view(row: LimitRow, ready: Sequence[OpenWork], steps: tuple[str, ...], pause: Pause | None) -> LimitView:
    limit = None
    if row.max_concurrency is not None:
        limit = Limit(row.name, row.max_concurrency, row.manual_reserve)
    waiting = {lane.value: 0 for lane in Lane}
    for item in ready:
        if row.name in (item.limit, FLEET_LIMIT):
            waiting[item.lane.value] += item.jobs
    return LimitView(
        name=row.name,
        max_concurrency=row.max_concurrency,
        manual_reserve=None if limit is None else limit.reserve,
        in_use={Lane.MANUAL.value: row.leased_manual, Lane.BULK.value: row.leased_bulk},
        waiting=waiting,
        steps=steps,
        set_by=row.set_by,
        set_at=row.set_at,
        pause=pause,
    )


def _checked_target(kind: PauseKind, name: object) -> str:
    if kind is PauseKind.LANE:
        return member(Lane, name, "lane").value
    return check_name(name, what=f"name of a {kind.value}", length_max=NAME_CHARS_MAX)


def _check_by(by: object) -> None:
    if by != "":
        check_name(by, what="name of who asks")


def _check_reason(reason: object) -> None:
    if not isinstance(reason, str):
        raise InvalidInput(f"The reason is a text, not {a_type(reason)}.")
    if len(reason) > REASON_CHARS_MAX:
        raise InvalidInput(
            f"The reason is {len(reason)} characters long; the limit is {REASON_CHARS_MAX}.",
            guidance="One line for those who will wonder; put the rest where it can be read up.",
        )
    if not reason.isprintable():
        raise InvalidInput(
            f"The reason {reason!r} has characters that cannot be printed on one line.",
            guidance="Leave out line breaks, tabs and control characters.",
        )


def _unknown(kind: PauseKind, name: str, known: set[str]) -> UnknownName:
    forced = "With --force (force=True) a name that is yet to come is paused."
    if not known:
        return UnknownName(
            f"There is no {kind.value} {name!r}: no pipeline is known to this database.", guidance=forced
        )
    shown = sorted(known)
    alike = [one for one in shown if one.endswith(f"/{name}")]
    if alike:
        meant = " or ".join(alike[:KNOWN_SHOWN_MAX])
        return UnknownName(f"There is no {kind.value} {name!r}.", guidance=f"Did you mean {meant}? {forced}")
    more = ""
    if len(shown) > KNOWN_SHOWN_MAX:
        shown = get_close_matches(name, shown, 5, cutoff=0.0)
        more = f" and {len(known) - len(shown):,} more"
    return UnknownName(
        f"There is no {kind.value} {name!r}.", guidance=f"Known are: {', '.join(shown)}{more}. {forced}"
    )
