"""What a test is told of a coroutine that does not end."""

import asyncio

import pytest

import running
from running import run


async def waits_for_nobody() -> None:
    await asyncio.Event().wait()


async def waits_on_its_way_out() -> None:
    try:
        await waits_for_nobody()
    finally:
        await waits_for_nobody()


def test_the_place_where_it_stood_is_told_and_what_it_waits_for_on_its_way_out_is_cut_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(running, "CANCELLED_SECONDS", 0.01)
    with pytest.raises(TimeoutError, match=r"in waits_on_its_way_out\n.*in waits_for_nobody"):
        run(waits_on_its_way_out(), timeout=0.01)
