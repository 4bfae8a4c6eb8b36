"""Watching through an outage: told once, and bounded where a time was set."""

import time

import pytest

from holdfast.cli import outages
from holdfast.core.errors import StoreUnavailable
from running import run


def test_an_outage_is_told_once_and_so_is_its_end(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outages, "FIRST_WAIT_SECONDS", 0.0)
    answers = iter([True, True, False])

    async def look() -> str:
        if next(answers):
            raise StoreUnavailable("The database does not answer")
        return "found"

    assert run(outages.through_outages(look)) == "found"
    assert capsys.readouterr().err == (
        "The database does not answer. The watching goes on when it is back.\nThe database is back.\n"
    )


def test_an_outage_that_outlasts_the_time_set_is_told_as_what_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outages, "FIRST_WAIT_SECONDS", 0.01)

    async def look() -> None:
        raise StoreUnavailable("The database does not answer")

    with pytest.raises(StoreUnavailable):
        run(outages.through_outages(look, until=time.monotonic() + 0.05))
