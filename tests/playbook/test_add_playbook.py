"""A playbook is loaded beside the event loop: whoever else runs on it goes on meanwhile."""

from __future__ import annotations

import threading

import pytest

from holdfast import Holdfast
from holdfast.playbook import load
from holdfast.playbook.load import Playbook, load_playbook
from playbook_files import CHAIN
from running import run


def test_a_playbook_is_loaded_in_a_thread_of_its_own(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[int] = []

    def noting(source: bytes | str, *, name: str) -> Playbook:
        threads.append(threading.get_ident())
        return load_playbook(source, name=name)

    monkeypatch.setattr(load, "load_playbook", noting)

    async def main() -> int:
        async with Holdfast(sqlite_url) as hf:
            await hf.add_playbook(CHAIN)
            return threading.get_ident()

    own = run(main())
    assert len(threads) == 1 and threads[0] != own
