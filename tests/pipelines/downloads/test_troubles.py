"""Every trouble of the portal, in both phases: what people are told of it, and whether it is tried again.

All items of a phase are one batch each for troubles that pass and for those that stay; a test looks at one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from downloads_scenario import Downloads, entries, item, rehearsed
from holdfast.pipelines.downloads import asking, fetching
from holdfast.testing.run import Run
from portal_scenario import TROUBLES, Portal, content_of

SIZE = 20_000
ATTEMPTS = 4  # the first, and three retries

# What a trouble is called where it stays, whether it may heal, and what people are told. None: no trouble.
Told = tuple[str, str, str] | None

NOT_LET_IN = ("auth_error", "permanent", "The portal does not let us in")
NOT_GIVEN = ("auth_error", "permanent", "The portal does not give us this report")
WRONG = ("validation_error", "permanent", "The data is not valid")
LATE = ("timeout", "transient", "The portal did not answer in time")
BUSY = ("rate_limit", "transient", "Service temporarily busy")
TOO_OFTEN = ("rate_limit", "transient", "The portal is asked too often")
DOWN = ("service_unavailable", "transient", "Processing service unavailable")
BROKEN = ("connection_error", "transient", "Network connection error")
UNREADABLE = ("answer_invalid", "unknown", "The portal answered with something that cannot be used")
ANY_PHASE: dict[str, Told] = {
    **dict.fromkeys(("400", "405", "409", "413", "422", "451", "499"), WRONG),
    **{"401": NOT_LET_IN, "403": NOT_GIVEN},
    **dict.fromkeys(("408", "504"), LATE),
    **{"425": BUSY, "429": TOO_OFTEN},
    **dict.fromkeys(("500", "501", "502", "503", "599"), DOWN),
    **dict.fromkeys(("reset", "close", "garbage"), BROKEN),
    **dict.fromkeys(("slow", "chunked", "gzip"), None),
}

INCOMPLETE = ("answer_incomplete", "unknown", "The portal did not say where the file will be")
TOO_LONG = ("response_too_large", "permanent", "The portal answered the request with more than is read of it")
REQUESTS: dict[str, Told] = {
    **ANY_PHASE,
    "404": ("not_found", "permanent", "The portal does not have what was asked for"),
    "410": ("not_found", "permanent", "The portal does not have what was asked for"),
    **dict.fromkeys(("202", "204", "html", "empty", "no-ticket"), INCOMPLETE),
    **dict.fromkeys(("break", "break-reset", "chunked-break"), BROKEN),
    **dict.fromkeys(("no-length", "not-json"), UNREADABLE),
    **dict.fromkeys(("huge", "huge-chunked"), TOO_LONG),
}

NOT_READY = ("not_ready", "transient", "The report is not ready yet")
DAMAGED = "The file is not the one that was meant, or was damaged on its way"
OTHER_CHECKSUM = ("checksum_mismatch", "transient", DAMAGED)
TOO_LARGE = ("file_too_large", "permanent", "The file is larger than is allowed")
DOWNLOADS: dict[str, Told] = {
    **ANY_PHASE,
    **dict.fromkeys(("404", "202", "204"), NOT_READY),
    "410": ("not_found", "permanent", "The portal does not have this report any more"),
    "416": WRONG,
    **dict.fromkeys(("break", "break-reset", "chunked-break"), BROKEN),
    **dict.fromkeys(("html", "empty", "no-length", "corrupt", "changed"), OTHER_CHECKSUM),
    **dict.fromkeys(("huge", "huge-chunked"), TOO_LARGE),
    "wrong-range": UNREADABLE,
    "redirect": (
        "validation_error",
        "permanent",
        "The portal leads from one address to the next, and to no answer",
    ),
    # Its checksum was told with the answer to the request, and that one counts.
    **dict.fromkeys(("no-range", "wrong-checksum", "name:a.csv"), None),
}
# Once, they are overcome within the attempt.
HEALED_AT_ONCE = ("break", "break-reset", "chunked-break", "redirect")
# Of these the file is another one for good, whatever the trouble does next.
NEVER_HEALED = ("changed",)

Batch = dict[str, Run]


@contextmanager
def batch_of(phase: str, told: dict[str, Told], mark: str, folder: Path) -> Iterator[Batch]:
    """A run for each trouble, by its name."""
    with (
        Portal(obeys=True, size=SIZE) as portal,
        rehearsed(folder, HOLDFAST_DOWNLOAD_BYTES_MAX="1MB") as downloads,
    ):
        items = [item(portal, trouble, **{phase: [trouble + mark]}) for trouble in told]
        yield dict(zip(told, downloads.all(*items), strict=True))


@pytest.fixture(scope="module")
def requests_for_ever(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Batch]:
    with batch_of("request", REQUESTS, "!", tmp_path_factory.mktemp("requests")) as runs:
        yield runs


@pytest.fixture(scope="module")
def requests_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Batch]:
    with batch_of("request", REQUESTS, "", tmp_path_factory.mktemp("requests")) as runs:
        yield runs


@pytest.fixture(scope="module")
def downloads_for_ever(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Batch]:
    with batch_of("download", DOWNLOADS, "!", tmp_path_factory.mktemp("downloads")) as runs:
        yield runs


@pytest.fixture(scope="module")
def downloads_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Batch]:
    with batch_of("download", DOWNLOADS, "", tmp_path_factory.mktemp("downloads")) as runs:
        yield runs


def test_every_trouble_of_the_portal_is_met_here() -> None:
    tried = {name.partition(":")[0] for name in {*REQUESTS, *DOWNLOADS}}
    tried |= {"hang", "stall", "corrupt"}  # below
    assert {name.partition(":")[0] for name in TROUBLES if name != "400 to 599"} <= tried


@pytest.mark.parametrize("trouble", REQUESTS)
def test_a_request_that_meets_a_trouble_for_ever(requests_for_ever: Batch, trouble: str) -> None:
    check_for_ever(requests_for_ever[trouble], "request", REQUESTS[trouble])


@pytest.mark.parametrize("trouble", DOWNLOADS)
def test_a_download_that_meets_a_trouble_for_ever(downloads_for_ever: Batch, trouble: str) -> None:
    check_for_ever(downloads_for_ever[trouble], "download", DOWNLOADS[trouble])


def check_for_ever(run: Run, phase: str, told: Told) -> None:
    """What heals is tried to the last attempt, what does not once; then it is dead in plain words."""
    if told is None:
        run.expect("completed")
        assert run.attempts == {"request": 1, "download": 1}
        return
    error_type, category, user_message = told
    run.expect("failed")
    assert run.error is not None
    assert (run.error.stage, run.error.error_type, run.error.category) == (phase, error_type, category)
    assert run.error.user_message == user_message
    is_permanent = category == "permanent"
    assert run.attempts[phase] == (1 if is_permanent else ATTEMPTS)
    assert run.dead_reason == ("permanent" if is_permanent else "exhausted") or phase == "request"


@pytest.mark.parametrize("trouble", REQUESTS)
def test_a_request_that_meets_a_trouble_once(requests_once: Batch, trouble: str) -> None:
    check_once(requests_once[trouble], "request", REQUESTS[trouble], trouble)


@pytest.mark.parametrize("trouble", DOWNLOADS)
def test_a_download_that_meets_a_trouble_once(downloads_once: Batch, trouble: str) -> None:
    check_once(downloads_once[trouble], "download", DOWNLOADS[trouble], trouble)


def check_once(run: Run, phase: str, told: Told, trouble: str) -> None:
    is_noticed = told is not None and not (phase == "download" and trouble in HEALED_AT_ONCE)
    if told is not None and is_noticed and (told[1] == "permanent" or trouble in NEVER_HEALED):
        run.expect("failed")
        return
    run.expect("completed")
    assert run.error_types == ([told[0]] if told is not None and is_noticed else [])
    assert run.attempts[phase] == 1 + is_noticed
    assert run.outputs["download"]["size"] == SIZE


# Silence


def test_a_portal_that_never_answers_a_request(
    downloads: Downloads, portal: Portal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asking, "SILENCE_SECONDS_MAX", 0.05)
    check_for_ever(downloads.one(item(portal, request=["hang!"])), "request", LATE)


def test_a_portal_that_never_sends_a_file(
    downloads: Downloads, portal: Portal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetching, "SILENCE_SECONDS_MAX", 0.05)
    check_for_ever(downloads.one(item(portal, download=["hang!"])), "download", LATE)
    assert downloads.drafts == []


def test_a_portal_that_falls_silent_in_the_middle_of_a_file(
    downloads: Downloads, portal: Portal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetching, "SILENCE_SECONDS_MAX", 0.05)
    monkeypatch.setattr(fetching, "RESUMES_MAX", 2)
    check_for_ever(downloads.one(item(portal, download=["stall!"])), "download", LATE)
    [draft] = downloads.drafts
    assert content_of("north").startswith(draft)


def test_a_portal_that_falls_silent_in_the_middle_of_its_answer(
    downloads: Downloads, portal: Portal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asking, "SILENCE_SECONDS_MAX", 0.05)
    check_for_ever(downloads.one(item(portal, request=["stall!"])), "request", LATE)


def test_an_answer_that_was_damaged_on_its_way_leads_to_the_right_file_or_to_none(
    downloads: Downloads, portal: Portal
) -> None:
    # The longer the name, the further on in the answer is the byte that is another one.
    names = ["n" * length for length in range(1, 200, 12)]
    runs = downloads.all(*[item(portal, name, request=["corrupt"]) for name in names])
    got = {
        run.outputs["download"]["file"]: name for name, run in zip(names, runs, strict=True) if not run.error
    }
    assert downloads.files == {file: content_of(name) for file, name in got.items()}
    assert 0 < len(got) < len(names)


# Words


def test_a_retry_that_waits_says_so_and_a_last_one_promises_nothing(
    downloads: Downloads, portal: Portal
) -> None:
    run = downloads.one(item(portal, download=["503!"]))
    told = [event.data["guidance"] for event in run.events if event.type == "action_error"]
    assert told[0] == "Will retry automatically."
    assert told[-1].startswith("The service was still unavailable at the last attempt.")


def test_a_portal_that_nobody_listens_at(downloads: Downloads, tmp_path: Path) -> None:
    with Portal() as gone:
        pass
    run = downloads.one(item(gone))
    assert run.error_types == ["connection_error"] * ATTEMPTS
    assert f"POST {gone.url}/reports failed" in run.error.message
    assert entries(gone, "request") == []
