"""Playbooks in the Python API: from a text or a file into the catalog, submitted and run like pipelines."""

from pathlib import Path

import pytest

from holdfast import Holdfast
from holdfast.core.errors import InvalidInput
from holdfast.playbook.faults import PlaybookInvalid
from playbook_files import BROKEN, CHAIN, written
from running import run


def test_a_playbook_is_added_submitted_and_run(store_url: str) -> None:
    async def main() -> None:
        async with Holdfast(store_url) as hf, hf.working(allow_code=True):
            added = await hf.add_playbook(CHAIN)
            assert (added.entry.path, added.entry.version, added.change) == ("tests/flow", 1, "new")
            view = await (await hf.submit("tests/flow", {"who": "bobby"})).wait("60s")
            assert view.result == {"chars": 11, "deep": {"left": 1, "right": 2}}

    run(main())


def test_a_file_is_named_and_versions_are_told_apart(sqlite_url: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with Holdfast(sqlite_url) as hf:
            file = written(tmp_path, CHAIN)
            assert (await hf.add_playbook(file)).change == "new"
            assert (await hf.add_playbook(Path(file))).change == "same"
            assert (await hf.add_playbook(CHAIN.replace("who: ann", "who: bob"))).entry.version == 2
            assert [(item.path, item.version) for item in await hf.playbooks()] == [("tests/flow", 2)]
            assert [item.version for item in await hf.playbook_versions("tests/flow")] == [2, 1]
            assert (await hf.playbook_text("tests/flow", 1)).text == CHAIN
            assert "+workload: {who: bob," in (await hf.playbook_diff("tests/flow")).text

    run(main())


def test_what_is_no_playbook_is_refused_with_its_place(sqlite_url: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with Holdfast(sqlite_url) as hf:
            with pytest.raises(PlaybookInvalid, match=r"playbook:6: "):
                await hf.add_playbook(BROKEN)
            with pytest.raises(PlaybookInvalid, match=r"bad\.yaml:6: "):
                await hf.add_playbook(written(tmp_path, BROKEN, "bad.yaml"))
            with pytest.raises(PlaybookInvalid, match="playbook:1: "):
                await hf.add_playbook("{a: 1}")
            for wrong in ("missing.yaml", str(tmp_path), "a\0b"):
                with pytest.raises(InvalidInput, match="cannot be read"):
                    await hf.add_playbook(wrong)
            with pytest.raises(InvalidInput, match="a text or the name of a file"):
                await hf.add_playbook(3)  # type: ignore[arg-type]
            assert await hf.playbooks() == []

    run(main())
