"""Limits and pauses as people use them: set, seen, refused, and told to whoever waits."""

import asyncio
from datetime import datetime
from typing import Any

import pytest

from engine_scenario import START, Scenario, on_both_stores, stage
from holdfast import Context, Holdfast
from holdfast.core.errors import InvalidInput, UnknownName
from holdfast.core.limits import FLEET_LIMIT
from holdfast.core.model import Lane
from holdfast.core.pauses import PauseKind
from holdfast.engine.controls import LimitView, clock_time
from running import eventually, run

WITHIN = 60.0


def at(seconds: float) -> str:
    """A time on the day of the story, as the words have it."""
    return datetime.fromtimestamp(seconds).strftime("%H:%M")


async def reports(s: Scenario) -> None:
    await s.define(
        stage("request", path="reports"),
        stage("download", path="reports", limit="portal", attempts=2),
        path="reports",
    )
    await s.define(stage("send", path="mail"), path="mail")


async def limit(s: Scenario, name: str) -> LimitView:
    [found] = [view for view in await s.engine.controls.limits() if view.name == name]
    return found


# limits


@on_both_stores
async def test_a_limit_is_set_changed_and_removed(s: Scenario) -> None:
    controls = s.engine.controls
    assert await controls.limits() == []
    made = await controls.set_limit("portal", 5, by="ann")
    assert (made.name, made.max_concurrency, made.manual_reserve, made.set_by, made.set_at) == (
        *("portal", 5, 1),
        *("ann", START),
    )
    assert [await limit(s, "portal")] == await controls.limits() == [made]
    s.tick(5)
    changed = await controls.set_limit("portal", 2, 0)
    assert (changed.max_concurrency, changed.manual_reserve, changed.set_by, changed.set_at) == (
        *(2, 0),
        *("", START + 5),
    )
    assert (await controls.set_limit("single", 1)).manual_reserve == 0  # there is nothing to share
    assert [view.name for view in await controls.limits()] == ["portal", "single"]
    assert await controls.remove_limit("portal") is True
    assert await controls.remove_limit("portal") is False
    assert [view.name for view in await controls.limits()] == ["single"]


@on_both_stores
async def test_what_is_no_limit_is_refused_and_nothing_is_kept(s: Scenario) -> None:
    wrong: list[tuple[Any, ...]] = [
        *[("", 1), ("a b", 1), ("a\0", 1), ("x" * 101, 1), (None, 1), ("'; DROP TABLE limits", 1)],
        *[("p", 0), ("p", -1), ("p", True), ("p", 1.5), ("p", "5"), ("p", 10**12), ("p", None)],
        *[("p", 5, -1), ("p", 5, 6), ("p", 5, "1")],
    ]
    for arguments in wrong:
        with pytest.raises(InvalidInput):
            await s.engine.controls.set_limit(*arguments)
    for by in ("a\nb", "x" * 201, 7):
        with pytest.raises(InvalidInput, match="who asks"):
            await s.engine.controls.set_limit("p", 1, by=by)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="name of a limit"):
        await s.engine.controls.remove_limit("")
    assert await s.engine.controls.limits() == []


@on_both_stores
async def test_a_limit_that_steps_name_is_known_before_anybody_sets_it_or_runs_them(s: Scenario) -> None:
    await reports(s)
    found = await limit(s, "portal")
    assert (found.max_concurrency, found.manual_reserve, found.set_at) == (None, None, None)
    assert found.steps == ("reports/download",)
    assert not found.is_full(Lane.BULK)
    # A version without it has come and the last job of the old one has gone: nobody needs it any more.
    await s.submit(path="reports")
    await s.complete(await s.lease_one())
    await s.define(stage("request", path="reports"), path="reports")
    assert (await limit(s, "portal")).steps == ()
    assert (await limit(s, "portal")).waiting == {"manual": 0, "bulk": 1}
    await s.complete(await s.lease_one())
    assert await s.engine.controls.limits() == []


@on_both_stores
async def test_what_is_in_use_and_what_waits_is_counted_by_lane(s: Scenario) -> None:
    await s.define(stage("a", limit="portal"))
    await s.define(stage("free", path="q"), path="q")
    await s.engine.controls.set_limit("portal", 5, 0)
    await s.engine.controls.set_limit(FLEET_LIMIT, 50)
    for lane in (Lane.MANUAL, Lane.BULK, Lane.BULK, Lane.BULK):
        await s.submit(lane=lane)
    await s.submit(delay_seconds=60)
    [one, two] = await s.lease(2)
    await s.submit(path="q")
    await s.lease(1, worker="w2", lanes=(Lane.BULK,))
    portal, fleet = await limit(s, "portal"), await limit(s, FLEET_LIMIT)
    assert portal.in_use["manual"] == 1
    assert sum(fleet.in_use.values()) == 3
    assert portal.in_use["bulk"] + portal.waiting["bulk"] == 3  # the delayed one is not ready
    assert fleet.in_use["bulk"] + fleet.waiting["bulk"] == 4
    assert (portal.steps, fleet.steps) == (("p/a",), ())
    for job in (one, two):
        await s.complete(job)
    assert (await limit(s, "portal")).in_use["manual"] == 0


@on_both_stores
async def test_a_limit_says_for_which_lane_it_is_full(s: Scenario) -> None:
    await s.define(stage("a", limit="portal"))
    for lane in (Lane.BULK, Lane.BULK, Lane.MANUAL):
        await s.submit(lane=lane)
    await s.lease(2, lanes=(Lane.BULK,))

    async def full() -> list[str]:
        found = await limit(s, "portal")
        return [lane.value for lane in Lane if found.is_full(lane)]

    assert await full() == []
    for most, reserve, lanes in ((3, 1, ["bulk"]), (3, 0, []), (2, 0, ["manual", "bulk"])):
        await s.engine.controls.set_limit("portal", most, reserve)
        assert await full() == lanes, (most, reserve)
    await s.engine.controls.set_limit("portal", 1)  # fewer than run already: they go on
    assert await full() == ["manual", "bulk"]
    assert (await limit(s, "portal")).in_use == {"manual": 0, "bulk": 2}


# pauses


@on_both_stores
async def test_what_is_paused_is_kept_with_who_and_why_until_it_is_resumed(s: Scenario) -> None:
    await reports(s)
    controls = s.engine.controls
    made = await controls.pause("step", "reports/download", by="ann", reason="portal maintenance")
    assert (made.kind, made.name, made.by, made.reason, made.since, made.already) == (
        *(PauseKind.STEP, "reports/download"),
        *("ann", "portal maintenance", START, False),
    )
    for kind, name in (("playbook", "mail"), ("lane", "bulk"), ("limit", "portal"), ("limit", FLEET_LIMIT)):
        s.tick(1)
        assert not (await controls.pause(kind, name)).already
    told = [pause.what for pause in await controls.pauses()]
    assert told == [
        *["step reports/download", "playbook mail", "the bulk lane", "limit portal"],
        "limit max_concurrency",
    ]
    assert (await limit(s, "portal")).pause == (await controls.pauses())[3]
    assert await controls.resume("step", "reports/download") == made
    assert await controls.resume("step", "reports/download") is None
    assert len(await controls.pauses()) == 4


@on_both_stores
async def test_pausing_again_keeps_who_was_first(s: Scenario) -> None:
    first = await s.engine.controls.pause("lane", Lane.BULK, by="ann", reason="why")
    s.tick(60)
    again = await s.another_engine().controls.pause("lane", "bulk", by="bob", reason="other")
    assert again.already
    assert (again.by, again.reason, again.since) == (first.by, first.reason, START)
    assert await s.engine.controls.pauses() == [first]


@on_both_stores
async def test_a_name_that_nobody_knows_is_refused_unless_it_is_forced(s: Scenario) -> None:
    controls = s.engine.controls
    with pytest.raises(UnknownName, match="no pipeline is known"):
        await controls.pause("step", "reports/download")
    await reports(s)
    for kind, name, known in (
        ("step", "reports/dwnload", "mail/send, reports/download, reports/request"),
        ("step", "download", "Did you mean reports/download?"),
        ("playbook", "report", "mail, reports"),
        ("limit", "portl", "max_concurrency, portal"),
    ):
        with pytest.raises(UnknownName, match=f"no {kind} '{name}'") as refusal:
            await controls.pause(kind, name)
        assert known in refusal.value.guidance and "--force" in refusal.value.guidance
    assert await controls.pauses() == []
    assert not (await controls.pause("step", "reports/to_come", force=True)).already
    await controls.set_limit("only.set", 1)
    await controls.pause("limit", "only.set")


@on_both_stores
async def test_of_many_known_names_the_nearest_are_told(s: Scenario) -> None:
    for number in range(60):
        await s.define(stage("send", path=f"mail{number}"), path=f"mail{number}")
    with pytest.raises(UnknownName) as refusal:
        await s.engine.controls.pause("playbook", "mail59x")
    assert "mail59" in refusal.value.guidance and "and 55 more" in refusal.value.guidance


@on_both_stores
async def test_a_pause_that_cannot_be_kept_or_shown_is_refused(s: Scenario) -> None:
    controls = s.engine.controls
    wrong: list[tuple[Any, Any, dict[str, Any]]] = [
        *[("worker", "w", {}), (None, "x", {}), ("lane", "fast", {}), ("lane", "", {})],
        *[("step", "", {}), ("step", "a\0b", {}), ("step", 7, {}), ("limit", "x" * 501, {})],
        *[("lane", "bulk", {"reason": "a\nb"}), ("lane", "bulk", {"reason": "\x1b[31m"})],
        *[("lane", "bulk", {"reason": "x" * 501}), ("lane", "bulk", {"reason": None})],
        *[("lane", "bulk", {"by": "a\0"}), ("lane", "bulk", {"by": "x" * 201}), ("lane", "bulk", {"by": 7})],
    ]
    for kind, name, more in wrong:
        with pytest.raises(InvalidInput):
            await controls.pause(kind, name, force=True, **more)
    for kind, name in (("worker", "w"), ("lane", "fast"), ("step", "")):
        with pytest.raises(InvalidInput):
            await controls.resume(kind, name)
    assert await controls.pauses() == []
    kept = await controls.pause("lane", "bulk", by="Ünal \N{ROCKET}", reason="x" * 500)
    assert await controls.pauses() == [kept]


@on_both_stores
async def test_many_who_pause_and_resume_at_once_are_all_answered(s: Scenario) -> None:
    controls = s.engine.controls
    answers = await asyncio.gather(
        *(controls.pause("lane", "bulk") if n % 2 else controls.resume("lane", "bulk") for n in range(40))
    )
    paused = [pause for pause in answers[1::2] if pause is not None and not pause.already]
    resumed = [pause for pause in answers[0::2] if pause is not None]
    assert len(paused) - len(resumed) == len(await controls.pauses())  # each pause ended once
    assert all(pause is not None for pause in answers[1::2])


@on_both_stores
async def test_workers_are_woken_by_what_may_have_made_work_ready_and_by_nothing_else(s: Scenario) -> None:
    controls = s.engine.controls

    async def wakes(action: Any) -> bool:
        ticket = s.store.work_ticket()
        await action
        return s.store.work_ticket() != ticket

    assert await wakes(controls.set_limit("portal", 1))
    assert await wakes(controls.remove_limit("portal"))
    assert not await wakes(controls.pause("lane", "bulk"))
    assert not await wakes(controls.limits())
    assert await wakes(controls.resume("lane", "bulk"))


# in words


@on_both_stores
async def test_a_job_that_a_pause_keeps_says_so(s: Scenario) -> None:
    await reports(s)
    await s.staff()
    id_ = await s.submit(path="reports")
    controls = s.engine.controls

    async def summary() -> str:
        return (await s.engine.view(id_)).summary

    since = at(START)
    assert await summary() == "Waiting to run request"
    await controls.pause("limit", "portal")  # which its next step names
    await controls.pause("step", "mail/send")
    await controls.pause("lane", "manual")
    assert await summary() == "Waiting to run request"
    for kind, name, words in (
        ("lane", "bulk", f"; the bulk lane is paused by ann since {since}: why"),
        ("playbook", "reports", f"; playbook reports is paused by ann since {since}: why"),
        ("step", "reports/request", f"; paused by ann since {since}: why"),
    ):
        await controls.pause(kind, name, by="ann", reason="why")
        assert await summary() == f"Waiting to run request{words}"
    for kind, name in (("lane", "bulk"), ("playbook", "reports"), ("step", "reports/request")):
        await controls.resume(kind, name)
    job = await s.lease_one()
    assert await summary() == "Running request"
    await s.complete(job)
    assert await summary() == f"Waiting to run download; limit portal is paused since {since}"
    s.tick(2 * 86_400)
    day = datetime.fromtimestamp(START).strftime("%Y-%m-%d %H:%M")
    assert await summary() == f"Waiting to run download; limit portal is paused since {day}"
    await controls.resume("limit", "portal")
    await s.fail(await s.lease_one())
    await controls.pause("step", "reports/download", reason="why")
    assert await summary() == f"Retrying (attempt 1/1); paused since {at(s.now)}: why"
    await s.engine.cancel(id_)
    assert await summary() == "Cancelled"


@on_both_stores
async def test_running_work_goes_on_during_a_pause_and_ends(s: Scenario) -> None:
    await s.define(stage("a"))
    id_ = await s.submit()
    job = await s.lease_one()
    await s.engine.controls.pause("step", "p/a")
    assert (await s.engine.view(id_)).summary == "Running a"
    await s.complete(job)
    assert (await s.engine.view(id_)).summary == "Complete"


@on_both_stores
async def test_a_ready_job_under_a_full_limit_says_so(s: Scenario) -> None:
    await s.define(stage("a", limit="portal"))
    await s.staff()
    first = [await s.submit() for _ in range(2)]
    await s.lease()
    bulk, manual = await s.submit(), await s.submit(lane=Lane.MANUAL)
    later = await s.submit(delay_seconds=60)

    async def summaries() -> list[str]:
        return [(await s.engine.view(id_)).summary.partition("a: ")[2] for id_ in (bulk, manual, later)]

    controls = s.engine.controls
    assert await summaries() == ["", "", ""]
    await controls.set_limit("portal", 3)
    for_bulk = "full for bulk work (2 of 3, 1 kept for manual work)"
    assert await summaries() == [f"limit portal is {for_bulk}", "", ""]
    await controls.set_limit("portal", 2)
    assert await summaries() == ["limit portal is full (2 of 2)", "limit portal is full (2 of 2)", ""]
    await controls.set_limit("portal", 1)
    assert (await summaries())[0] == "limit portal is full (2 of 1)"  # it was lowered; they go on
    await controls.remove_limit("portal")
    await controls.set_limit("another", 1)
    await controls.set_limit(FLEET_LIMIT, 2, 0)
    assert await summaries() == [*["limit max_concurrency is full (2 of 2)"] * 2, ""]
    assert (await s.engine.view(first[0])).summary == "Running a"
    await controls.pause("lane", "bulk")
    assert (await s.engine.view(bulk)).summary.endswith(f"; the bulk lane is paused since {at(START)}")


def test_a_time_beyond_the_calendar_is_told_as_a_number() -> None:
    assert clock_time(1e18, 0.0) == "1000000000000000000"


# at a glance


@on_both_stores
async def test_the_overview_tells_pauses_with_what_they_keep_and_calls_none_of_it_unoffered(
    s: Scenario,
) -> None:
    await reports(s)
    for path in ("reports", "reports", "mail"):
        await s.submit(path=path)
    await s.submit(path="reports", delay_seconds=60)
    await s.engine.controls.set_limit("portal", 5)
    before = await s.engine.overview()
    assert (before.paused, before.pauses) == (0, ())
    assert [item.handler for item in before.unoffered] == ["mail/send", "reports/request"]
    await s.engine.controls.pause("step", "reports/request")
    await s.engine.controls.pause("playbook", "reports")
    overview = await s.engine.overview()
    assert (overview.ready, overview.paused) == (3, 2)
    assert [(item.pause.what, item.jobs) for item in overview.pauses] == [
        ("playbook reports", 2),
        ("step reports/request", 2),
    ]
    assert [item.handler for item in overview.unoffered] == ["mail/send"]
    assert overview.limits == tuple(await s.engine.controls.limits())
    await s.engine.controls.pause("lane", "bulk")
    overview = await s.engine.overview()
    assert (overview.paused, overview.unoffered) == (3, ())


# as programs and workers have it


def test_a_paused_step_begins_once_it_is_resumed(store_url: str) -> None:
    began: list[str] = []
    hf = Holdfast(store_url)

    def note(ctx: Context) -> None:
        began.append(ctx.pipeline)

    hf.pipeline("reports", [hf.step(note, name="download")])
    hf.pipeline("mail", [hf.step(note, name="send")])

    async def main() -> None:
        async with hf, hf.working():
            made = await hf.pause(step="reports/download", by="ann", reason="portal maintenance")
            assert (await hf.pauses(), made.already) == ([made], False)
            paused = await hf.submit("reports")
            await (await hf.submit("mail")).wait(WITHIN)  # the worker is at work, and took this only
            assert began == ["mail"]
            assert "; paused by ann since" in (await paused.status()).summary
            assert await hf.resume(step="reports/download") == made
            assert await hf.resume(step="reports/download") is None
            assert (await paused.wait(WITHIN)).summary == "Complete"
            assert began == ["mail", "reports"]

    run(main(), timeout=120)


def test_a_limit_set_by_a_program_holds_for_its_workers_and_ends_with_its_removal(store_url: str) -> None:
    hf = Holdfast(store_url)
    going, gate = [], asyncio.Event()

    async def download(ctx: Context) -> None:
        going.append(ctx.execution_id)
        await gate.wait()

    hf.pipeline("reports", [hf.step(download, limit="portal")])

    async def main() -> None:
        async with hf, hf.working(concurrency=8):
            view = await hf.set_limit("portal", 2, manual_reserve=1, by="ann")
            assert (view.max_concurrency, view.manual_reserve, view.set_by) == (2, 1, "ann")
            executions = await hf.submit_many("reports", range(3))

            async def is_full() -> bool:
                [limit] = await hf.limits()
                return limit.in_use["bulk"] == 1 and limit.is_full(Lane.BULK) and len(going) == 1

            await eventually(is_full, WITHIN)
            waiting = [execution for execution in executions if execution.id not in going]
            assert "limit portal is full for bulk work" in (await waiting[0].status()).summary
            assert await hf.remove_limit("portal")
            await eventually(lambda: len(going) == 3, WITHIN)
            gate.set()
            for execution in executions:
                await execution.wait(WITHIN)

    run(main(), timeout=180)


def test_one_thing_is_paused_or_resumed_at_a_time(sqlite_url: str) -> None:
    hf = Holdfast(sqlite_url)

    async def main() -> None:
        async with hf:
            for act in (hf.pause, hf.resume):
                for targets in ({}, {"step": "a/b", "lane": "bulk"}):
                    with pytest.raises(InvalidInput) as refusal:
                        await act(**targets)  # type: ignore[operator]
                    assert "Name one of step=" in refusal.value.guidance
            for target in ({"lane": Lane.BULK}, {"playbook": "to/come"}, {"limit": "portal"}):
                await hf.pause(**target, force=True)  # type: ignore[arg-type]
            assert len(await hf.pauses()) == 3

    run(main())


@on_both_stores
async def test_a_ready_job_for_which_nobody_works_says_so(s: Scenario) -> None:
    await s.define(stage("a", attempts=2), stage("b"))
    bulk, manual = await s.submit(), await s.submit(lane=Lane.MANUAL)
    later = await s.submit(delay_seconds=60)

    async def summaries() -> list[str]:
        return [(await s.engine.view(id_)).summary for id_ in (bulk, manual, later)]

    nobody, free = "Waiting to run a: no living worker offers it", "Waiting to run a"
    assert await summaries() == [nobody, nobody, free]
    await s.staff("p/b")
    assert await summaries() == [nobody, nobody, free]
    await s.staff("p/a", lanes=[Lane.MANUAL])
    assert await summaries() == [nobody, free, free]
    await s.staff()
    assert await summaries() == [free, free, free]


@on_both_stores
async def test_a_pause_of_everything_is_listed_where_no_such_limit_is_set(s: Scenario) -> None:
    await s.define(stage("a"))
    for _ in range(3):
        await s.submit()
    assert await s.engine.controls.limits() == []
    await s.engine.controls.pause("limit", "max_concurrency", by="ann")
    [limit] = await s.engine.controls.limits()
    assert limit.in_use == {"manual": 0, "bulk": 0}
    await s.engine.controls.resume("limit", "max_concurrency")
    await s.lease(1)
    await s.engine.controls.pause("limit", "max_concurrency", by="ann")
    [limit] = await s.engine.controls.limits()
    assert (limit.name, limit.max_concurrency, limit.in_use, limit.waiting) == (
        *("max_concurrency", None),
        *({"manual": 0, "bulk": 1}, {"manual": 0, "bulk": 2}),
    )
    assert limit.pause is not None and limit.pause.by == "ann"
