"""The playbook `downloads`: what it says for which settings, and how it comes into a database."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from downloads_scenario import item, rehearsed
from holdfast import Holdfast
from holdfast.core.errors import InvalidInput
from holdfast.pipelines.downloads.playbook import PATH, playbook_text
from holdfast.pipelines.downloads.settings import Credential, DownloadSettings
from holdfast.pipelines.registry import (
    PIPELINES,
    all_endpoints,
    all_functions,
    built_in,
    provide_all,
    taking_in,
)
from holdfast.playbook.definition import Step
from holdfast.playbook.load import load_playbook
from portal_scenario import Portal
from running import run

TOKEN = Credential("https://portal.example:443", "authorization", "PORTAL", is_bearer=True)
KEY = Credential("http://[::1]:80", "x-api'key", "team/portal.key", is_bearer=False)


def steps_of(settings: DownloadSettings) -> tuple[Step, Step]:
    request, download = load_playbook(playbook_text(settings)).definition.steps
    return request, download


def test_it_is_one_playbook_of_two_steps() -> None:
    playbook = load_playbook(playbook_text(DownloadSettings()))
    assert playbook.definition.path == PATH == "downloads"
    request, download = playbook.definition.steps
    assert [(step.name, step.operation, step.limit) for step in (request, download)] == [
        ("request", "request", "portal"),
        ("download", "download", "portal"),
    ]


def test_downloads_wait_until_all_have_asked_and_then_for_the_delay() -> None:
    request, download = steps_of(DownloadSettings())
    assert request.barrier is None
    assert download.barrier is not None
    assert (download.barrier.after, download.barrier.delay_seconds) == ("request", 900)


def test_only_downloads_are_retried_in_waves() -> None:
    request, download = [step.retry for step in steps_of(DownloadSettings())]
    assert (request.wave, download.wave) == (False, True)


def test_each_step_has_its_first_attempt_and_its_retries() -> None:
    for step in steps_of(DownloadSettings(retries=5, retry_delays=(1, 2))):
        assert (step.retry.max_attempts, step.retry.delays) == (6, (1, 2))
    for step in steps_of(DownloadSettings(retries=0)):
        assert step.retry.max_attempts == 1


DURATIONS = st.one_of(
    st.integers(0, 36_500 * 86_400).map(float),
    st.integers(0, 10**9).map(lambda thousandths: thousandths / 1000),
)


@given(DURATIONS, st.integers(0, 999), st.lists(DURATIONS, min_size=1, max_size=100))
def test_no_delay_is_rounded_however_long_it_is(delay: float, retries: int, delays: list[float]) -> None:
    settings = DownloadSettings(delay_seconds=delay, retries=retries, retry_delays=tuple(delays))
    request, download = steps_of(settings)
    assert download.barrier is not None
    assert download.barrier.delay_seconds == delay
    assert request.retry.delays == download.retry.delays == tuple(delays)
    assert request.retry.max_attempts == retries + 1


def test_credentials_are_in_it_by_the_names_of_their_secrets_only() -> None:
    text = playbook_text(DownloadSettings(credentials=(TOKEN, KEY)))
    playbook = load_playbook(text)
    expected = {
        "https://portal.example:443 authorization": "Bearer {{ secret('PORTAL') }}",
        "http://[::1]:80 x-api'key": "{{ secret('team/portal.key') }}",
    }
    assert [step.inputs["auth"] for step in playbook.definition.steps] == [expected, expected]
    assert playbook.definition.steps[1].inputs["requested"] == "{{ request }}"


def test_without_credentials_nothing_secret_is_asked_for() -> None:
    assert "secret(" not in playbook_text(DownloadSettings())


# The registry


def test_the_functions_are_those_that_the_playbook_calls() -> None:
    pipeline = built_in(PATH)
    assert pipeline is not None
    functions = pipeline.functions()
    assert functions.items() <= all_functions().items()
    assert sorted(functions) == [
        "holdfast.pipelines.downloads:download",
        "holdfast.pipelines.downloads:request",
    ]
    assert all(map(inspect.iscoroutinefunction, functions.values()))
    for name in functions:
        assert f"call: {name}\n" in playbook_text(DownloadSettings())


def test_the_routes_are_below_the_path_of_the_pipeline() -> None:
    pipeline = built_in(PATH)
    assert pipeline is not None
    endpoints = pipeline.endpoints()
    assert {endpoint.path.split("{")[0].rstrip("/") for endpoint in endpoints} == {"/api/downloads"}
    assert all(endpoint in all_endpoints() for endpoint in endpoints)


def test_items_of_built_in_pipelines_are_checked_and_others_are_not_its_affair() -> None:
    take_in = taking_in(PATH, "june")
    assert take_in is not None
    stored = take_in({"request": "https://portal.example/reports"}, 3)
    assert stored == {"request": "https://portal.example/reports", "key": stored["key"]}
    with pytest.raises(InvalidInput, match="An item of downloads is an object"):
        take_in("https://portal.example/reports")
    assert taking_in("orders") is None
    assert built_in(PATH) in PIPELINES
    assert built_in("orders") is None


def test_it_is_registered_when_something_is_submitted_to_it(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_DOWNLOAD_MAX_RETRIES", "7")

    async def story() -> None:
        async with Holdfast(store_url) as hf:
            engine = await hf.own_engine()
            provide_all(engine)
            assert await hf.playbooks() == []
            await hf.batch(PATH, [{"request": "https://portal.example"}])
            [entry] = await hf.playbooks()
            assert (entry.path, entry.version) == (PATH, 1)
            text = await hf.playbook_text(PATH)
            assert text.text == playbook_text(DownloadSettings(retries=7))

    run(story())


# Through a batch, on both stores


def test_nobody_downloads_before_all_have_asked_and_the_delay_is_over(
    store_url: str, tmp_path: Path, portal: Portal
) -> None:
    with rehearsed(tmp_path, url=None if store_url.startswith("sqlite") else store_url) as downloads:
        downloads.submit(*[item(portal, name) for name in ("a", "b")], item(portal, "c", request=["503"]))
        runs = downloads.rehearsal.drain(within=60 + 900 - 1)
        assert [run.attempts for run in runs] == [{"request": 1}, {"request": 1}, {"request": 2}]
        runs = downloads.rehearsal.drain(within=1)
        assert [run.status for run in runs] == ["completed"] * 3
        assert [entry.phase for entry in portal.log] == ["request"] * 4 + ["download"] * 3
