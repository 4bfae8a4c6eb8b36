"""The playbook of configuration archives, its settings, and who offers its functions."""

from __future__ import annotations

import pytest

from holdfast.core.errors import InvalidInput, PermanentError
from holdfast.pipelines.conf_archives.intake import CONF_UPLOADS
from holdfast.pipelines.conf_archives.playbook import PATH, playbook_text
from holdfast.pipelines.conf_archives.settings import ConfSettings
from holdfast.pipelines.registry import all_functions, built_in, check_settings, taking_in
from holdfast.playbook.load import load_playbook

OURS = {"holdfast.pipelines.conf_archives:parse", "holdfast.pipelines.conf_archives:store"}


def test_both_steps_are_retried_after_60_180_and_600_seconds() -> None:
    definition = load_playbook(playbook_text(ConfSettings.from_environment({}))).definition
    assert [step.name for step in definition.steps] == ["store", "parse"]
    for step in definition.steps:
        assert (step.retry.max_attempts, step.retry.delays) == (4, (60.0, 180.0, 600.0))


def test_delays_and_bounds_can_be_set() -> None:
    settings = ConfSettings.from_environment(
        {
            "HOLDFAST_CONF_RETRY_DELAYS": "5, 1m",
            "HOLDFAST_CONF_UPLOAD_BYTES_MAX": "2MB",
            "HOLDFAST_CONF_UNPACKED_BYTES_MAX": "1GB",
            "HOLDFAST_CONF_ENTRIES_MAX": "7",
        }
    )
    assert "delays: [5, 60]" in playbook_text(settings)
    assert settings.limits.entries_max == 7
    assert settings.upload_bytes_max < settings.limits.total_bytes_max


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("HOLDFAST_CONF_RETRY_DELAYS", "soon"),
        ("HOLDFAST_CONF_RETRY_DELAYS", ",".join(["1"] * 10_000)),
        ("HOLDFAST_CONF_UPLOAD_BYTES_MAX", "much"),
        ("HOLDFAST_CONF_UNPACKED_BYTES_MAX", "0"),
        ("HOLDFAST_CONF_ENTRIES_MAX", "-1"),
        ("HOLDFAST_CONF_ENTRIES_MAX", "12345678"),
    ],
)
def test_a_wrong_setting_is_told_by_its_name(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidInput, match=name) as refused:
        ConfSettings.from_environment({name: value})
    assert name in refused.value.guidance
    monkeypatch.setenv(name, value)
    with pytest.raises(InvalidInput, match=name):
        check_settings(of_worker=True)
    with pytest.raises(InvalidInput, match=name):
        check_settings(of_worker=False)


def test_a_storage_that_is_none_is_told_by_servers_and_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_STORAGE", "ftp://somewhere")
    for of_worker in (True, False):
        with pytest.raises(InvalidInput, match="HOLDFAST_STORAGE"):
            check_settings(of_worker=of_worker)


def test_a_worker_that_has_only_a_server_does_not_offer_it() -> None:
    assert set(all_functions()) >= OURS
    assert not OURS & set(all_functions(has_database=False))
    assert all_functions(has_database=False)


def test_it_is_no_pipeline_of_items() -> None:
    assert built_in(PATH) is not None
    assert taking_in(PATH) is None


SHA256 = "ab" * 32
UPLOAD = {"filename": "a.tgz", "size": 1, "sha256": SHA256, "file": f"conf_archives/ab/{SHA256}"}


def test_an_upload_is_what_it_was_taken_in_as() -> None:
    assert CONF_UPLOADS.upload_of(UPLOAD).draft is None
    assert CONF_UPLOADS.upload_of(UPLOAD | {"draft": f"conf-{'0' * 32}"}).draft == f"conf-{'0' * 32}"


@pytest.mark.parametrize(
    "workload",
    [
        *(None, {}, [], "x", {"filename": 1}, {"filename": "x", "size": "y"}),
        UPLOAD | {"filename": ""},
        UPLOAD | {"filename": "x" * 500},
        UPLOAD | {"size": -1},
        UPLOAD | {"sha256": "AB" * 32},
        UPLOAD | {"sha256": f"{SHA256}\n"},
        UPLOAD | {"file": "downloads/1/report.csv"},
        UPLOAD | {"draft": "somebody-elses"},
    ],
)
def test_what_is_no_upload_says_how_to_make_one(workload: object) -> None:
    with pytest.raises(PermanentError, match="no upload") as refused:
        CONF_UPLOADS.upload_of(workload)
    assert "holdfast ingest" in (refused.value.guidance or "")
