"""Several versions at once: `holdfast doctor` tells who is of which, and what to bring up to date."""

import pytest

from command_scenario import holdfast
from holdfast import Holdfast, __version__
from holdfast.cli.versions import order_of
from holdfast.core.handlers import SLEEP
from holdfast.core.model import Lane, WorkerRecord
from holdfast.store.queries import load_migrations
from running import run
from schema_versions import dialect_of, following, knowing, previous
from served_stores import served
from store_scenario import opened

ADDED = "CREATE TABLE {}added (id integer)"


async def announced(url: str, **versions: str) -> None:
    """Workers that live, by their versions; names that begin with `foreign` are of other languages."""
    async with Holdfast(url) as hf:
        engine = await hf.engine()
        now = await engine.store.now()
        for worker_id, version in versions.items():
            is_foreign = worker_id.startswith("foreign")
            await engine.announce(
                WorkerRecord(
                    worker_id=worker_id,
                    host="host",
                    pid=1,
                    version=version,
                    concurrency=1,
                    lanes=tuple(Lane),
                    handlers=("mail/send",) if is_foreign else ("mail/send", SLEEP),
                    started_at=now,
                    announce_seconds=600.0,
                )
            )


def of_versions(url: str, check: str = "versions") -> list[tuple[str, str, str]]:
    found = holdfast(url, "doctor", "--json").json["findings"]
    return [(one["level"], one["message"], one["action"]) for one in found if one["check"] == check]


@pytest.mark.parametrize(
    ("older", "newer"),
    [
        ("0.1.0", "0.2.0"),
        ("0.9", "0.10"),
        ("0.1.0.dev3", "0.1.0a1"),
        ("0.1.0a2", "0.1.0b1"),
        ("0.1.0rc1", "0.1.0"),
        ("0.1.0rc2", "0.1.0RC10"),
        ("1", "1.0.1"),
        ("0.1.0", "999999999.0"),
    ],
)
def test_versions_have_an_order(older: str, newer: str) -> None:
    one, two = order_of(older), order_of(newer)
    assert one is not None and two is not None and one < two


def test_versions_that_differ_in_zeros_or_builds_are_the_same() -> None:
    assert order_of("1.0") == order_of("1") == order_of("1.0.0+local.7")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "unknown",
        "v",
        "1.",
        ".1",
        "1..2",
        "latest",
        "1.0-rust",
        "\u0663.\u0661",
        "1" * 10,
        "1." * 50 + "1",
        "1.0\n",
    ],
)
def test_any_other_text_has_no_order(text: str) -> None:
    assert order_of(text) is None


def test_workers_of_one_version_which_is_this_one_are_no_finding(store_url: str) -> None:
    run(announced(store_url, w1=__version__, w2=__version__))
    assert of_versions(store_url) == []


def test_workers_of_several_versions_are_told_the_oldest_first(store_url: str) -> None:
    run(announced(store_url, w1=__version__, w2="0.0.10", w3="0.0.9", w4="unknown", w5="0.0.9"))
    [(level, message, action)] = of_versions(store_url)
    assert (level, "servers before workers" in action) == ("warn", True)
    told = f"0.0.9: w3, w5; 0.0.10: w2; {__version__}: w1; unknown: w4."
    assert message == f"The living workers are of 4 versions of Holdfast. {told}"


@pytest.mark.parametrize(
    ("version", "older"), [("0.0.9", "the workers"), ("99.0", None), ("unknown", "same version")]
)
def test_workers_that_are_all_of_another_version_are_told_with_what_to_bring_up_to_date(
    store_url: str, version: str, older: str | None
) -> None:
    run(announced(store_url, w1=version))
    [(level, message, action)] = of_versions(store_url)
    assert level == "warn" and message.startswith(f"All living workers are Holdfast {version} (w1); ")
    if older is None:
        assert action in ("Bring the Holdfast here up to date.", "Bring the server up to date.")
    else:
        assert older in action


def test_workers_in_other_languages_are_named_apart_and_never_compared(store_url: str) -> None:
    versions = {
        "foreign_none": "",
        "foreign_new": "99.0",
        "foreign_words": "the blue one",
        "foreign_long": "1" * 200,
    }
    run(announced(store_url, w1=__version__, **versions))
    [(level, message, _)] = of_versions(store_url)
    assert level == "ok" and message.startswith("Not Holdfast's own")
    for told in ("foreign_none (no version)", "foreign_new (99.0)", "foreign_words (the blue one)"):
        assert told in message
    assert f"({'1' * 40}…)" in message


def test_workers_are_held_against_the_server_that_was_asked(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(announced(sqlite_url, w1=__version__))
    with served(sqlite_url) as address:
        monkeypatch.setattr("holdfast.__version__", "99.0")
        assert of_versions(address) == []
        [(level, message, action)] = of_versions(address, "server")
        assert level == "warn" and "here is 99.0" in message and "Bring the server up to date." in action
        run(announced(sqlite_url, w1="99.0"))
        [(_, message, action)] = of_versions(address)
        assert f"the server is {__version__}" in message and action == "Bring the server up to date."


# schemas


def test_a_newer_schema_that_may_be_used_is_a_warning_and_the_rest_is_looked_at(unserved_url: str) -> None:
    known = len(load_migrations(dialect_of(unserved_url)))
    assert holdfast(unserved_url, "migrate").code == 0
    with knowing(previous(unserved_url)):
        [(level, message, action)] = of_versions(unserved_url, "schema")
        assert level == "warn" and message.startswith(f"Version {known} is newer than {known - 1}")
        assert "Bring this Holdfast up to date" in action
        assert of_versions(unserved_url, "leases") == [("ok", "No lease is left behind.", "")]
        for options in ((), ("--check",)):
            said = holdfast(unserved_url, "migrate", *options)
            assert said.code == 0 and f"newer than {known - 1}, which this Holdfast knows" in said.out, said
            told = holdfast(unserved_url, "migrate", *options, "--json").json
            assert told == {"from": known, "to": known, "known": known - 1, "check": bool(options)}
    assert of_versions(unserved_url, "schema")[0][0] == "ok"


def test_an_older_server_on_a_newer_database_goes_on_and_says_so(sqlite_url: str) -> None:
    known = len(load_migrations("sqlite"))

    async def migrated() -> None:
        with knowing(following(sqlite_url, ADDED.format(""), works_with=known)):
            async with opened(sqlite_url):
                pass

    with served(sqlite_url) as address:
        run(migrated())
        [(level, message, action)] = of_versions(address, "schema")
        assert level == "warn" and message.startswith(
            f"Version {known + 1} is newer than {known}, which the server"
        )
        assert "Bring the server up to date" in action
        assert of_versions(address, "leases")[0][0] == "ok"
        said = holdfast(address, "migrate", "--json")
        assert said.json == {"from": known + 1, "to": known + 1, "known": known, "check": False}
        assert f"schema version {known + 1}, newer than {known}" in holdfast(address, "migrate").out
