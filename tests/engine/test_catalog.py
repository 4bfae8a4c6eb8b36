"""The catalog: playbooks with their texts beside pipelines of programs, versions by what they mean."""

import pytest

from engine_scenario import Scenario, on_both_stores, stage
from holdfast.core.errors import InvalidInput, UnknownPipeline, UnknownVersion
from holdfast.engine import Submission
from holdfast.engine.catalog import AddedPlaybook, CatalogEntry, Change, Kind
from holdfast.playbook.definition import Definition
from holdfast.playbook.load import load_playbook

FLOW = """
apiVersion: holdfast/v1
kind: Playbook
metadata: {name: flow, path: p}
workflow:
  - step: a
    type: sleep
    seconds: 1
"""
OTHER = FLOW.replace("seconds: 1", "seconds: 2")


async def add(s: Scenario, source: str) -> AddedPlaybook:
    s.tick(1)
    loaded = load_playbook(source)
    return await s.engine.catalog.add(loaded.definition, loaded.source)


@on_both_stores
async def test_a_text_that_means_the_same_is_the_same_version(s: Scenario) -> None:
    first = await add(s, FLOW)
    assert (first.change, first.entry.version, first.entry.steps, first.replaces) == (Change.NEW, 1, 1, None)
    same = await add(s, f"# why it waits\n{FLOW}")
    assert (same.change, same.entry.version, same.entry.versions) == (Change.SAME, 1, 1)
    assert (await s.engine.catalog.text("p")).text == f"# why it waits\n{FLOW}"
    assert same.entry.created_at == first.entry.created_at <= same.entry.registered_at


@on_both_stores
async def test_an_older_text_is_the_current_version_again_when_it_is_added_again(s: Scenario) -> None:
    await add(s, FLOW)
    second = await add(s, OTHER)
    assert (second.change, second.entry.version) == (Change.NEW, 2)
    assert second.replaces is not None and second.replaces.version == 1
    again = await add(s, FLOW)
    assert (again.change, again.entry.version, again.entry.is_current) == (Change.AGAIN, 1, True)
    assert again.replaces is not None and again.replaces.version == 2
    assert [(item.version, item.is_current) for item in await s.engine.catalog.all_versions("p")] == [
        (2, False),
        (1, True),
    ]
    [listed] = (await s.engine.catalog.entries()).items
    assert (listed.version, listed.versions) == (1, 2)


@on_both_stores
async def test_a_playbook_takes_the_place_of_a_pipeline_and_says_so(s: Scenario) -> None:
    await s.define(stage("a", attempts=3), stage("b"))
    added = await add(s, FLOW)
    assert (added.change, added.entry.version, added.entry.kind) == (Change.NEW, 2, Kind.YAML)
    assert added.replaces is not None and added.replaces.kind is Kind.PYTHON
    shown = await s.engine.catalog.text("p", 1)
    assert shown.entry.kind is Kind.PYTHON
    assert shown.text.startswith("a\n    ● ─") and "\nb\n" in shown.text
    differs = (await s.engine.catalog.diff("p")).text
    assert "--- p version 1\n+++ p version 2\n" in differs
    assert "\n-b\n" in differs and "\n+workflow:\n" in differs


@on_both_stores
async def test_an_execution_keeps_the_version_it_began_with(s: Scenario) -> None:
    await s.define(stage("a"), stage("old"))
    running = await s.submit()
    await add(s, FLOW)
    [started] = await s.another_engine().submit([Submission(path="p")])
    assert (await s.execution(started.id)).version == 2
    await s.complete(await s.lease_one())
    assert (await s.lease_one()).step == "old"
    assert (await s.execution(running)).version == 1


@on_both_stores
async def test_two_versions_are_compared_by_their_texts(s: Scenario) -> None:
    for source in (FLOW, OTHER, FLOW.replace("seconds: 1", "seconds: 3")):
        await add(s, source)
    catalog = s.engine.catalog
    newest = await catalog.diff("p")
    assert (newest.old.version, newest.new.version) == (2, 3)
    assert "-    seconds: 2\n+    seconds: 3\n" in newest.text
    chosen = await catalog.diff("p", 1)
    assert (chosen.old.version, chosen.new.version) == (1, 3)
    both = await catalog.diff("p", 2, 1)
    assert "-    seconds: 2\n+    seconds: 1\n" in both.text
    assert (await catalog.diff("p", 2, 2)).text == ""


@on_both_stores
async def test_what_is_not_there_is_told_with_what_is(s: Scenario) -> None:
    catalog = s.engine.catalog
    with pytest.raises(UnknownPipeline, match="no 'p'") as nothing:
        await catalog.text("p")
    assert "holdfast catalog add" in nothing.value.guidance
    await add(s, FLOW)
    with pytest.raises(UnknownPipeline, match="'q\\\\x00'") as unknown:
        await catalog.versions("q\0")
    assert unknown.value.guidance == "It has: p."
    for version in (0, 2, -1, 10**30):
        with pytest.raises(UnknownVersion, match=f"no version {version}") as missing:
            await catalog.text("p", version)
        assert missing.value.guidance == "It has: 1."
    with pytest.raises(InvalidInput, match="whole number"):
        await catalog.text("p", "1")  # type: ignore[arg-type]
    with pytest.raises(UnknownVersion, match="one version, 1"):
        await catalog.diff("p")


@on_both_stores
async def test_the_catalog_is_read_page_by_page(s: Scenario) -> None:
    for name in ("c", "a", "b"):
        await s.define(stage("only"), path=name)
    seen: list[CatalogEntry] = []
    cursor = None
    while True:
        page = await s.engine.catalog.entries(limit=2, cursor=cursor)
        seen += page.items
        cursor = page.next
        if cursor is None:
            break
    assert [entry.path for entry in seen] == ["a", "b", "c"]


@on_both_stores
async def test_versions_are_read_page_by_page(s: Scenario) -> None:
    for seconds in range(1, 6):
        await add(s, FLOW.replace("seconds: 1", f"seconds: {seconds}"))
    await s.define(stage("only"), path="other")
    catalog = s.engine.catalog
    pages, cursor = [], None
    for _ in range(3):
        page = await catalog.versions("p", limit=2, cursor=cursor)
        pages.append([item.version for item in page.items])
        cursor = page.next
    assert (pages, cursor) == ([[5, 4], [3, 2], [1]], None)
    assert (await catalog.versions("p", cursor="1")).items == []
    assert len((await catalog.versions("p", cursor=str(2**63 - 1))).items) == 5
    with pytest.raises(InvalidInput, match="not a cursor"):
        await catalog.versions("p", cursor="x")
    with pytest.raises(UnknownPipeline):
        await catalog.versions("q", cursor="4")


@on_both_stores
async def test_of_many_versions_only_the_newest_are_named(
    s: Scenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.engine.catalog.KNOWN_SHOWN_MAX", 2)
    for seconds in range(1, 4):
        await add(s, FLOW.replace("seconds: 1", f"seconds: {seconds}"))
    with pytest.raises(UnknownVersion) as missing:
        await s.engine.catalog.text("p", 9)
    assert missing.value.guidance == "It has: 3, 2 and older ones."


@on_both_stores
async def test_a_version_is_given_back_as_the_engine_runs_it(s: Scenario) -> None:
    await add(s, FLOW)
    await add(s, OTHER)
    assert await s.engine.catalog.definition("p", 1) == load_playbook(FLOW).definition
    assert isinstance(await s.engine.catalog.definition("p"), Definition)
    assert await s.engine.catalog.definition("p") == load_playbook(OTHER).definition


@on_both_stores
async def test_what_was_added_here_gives_way_to_what_another_program_adds(s: Scenario) -> None:
    await add(s, FLOW)
    s.tick(1)
    loaded = load_playbook(OTHER)
    await s.another_engine().catalog.add(loaded.definition, loaded.source)
    assert (await s.execution(await s.submit())).version == 2
