"""Commands about who may and who did: token, audit."""

import re

import pytest

from command_scenario import holdfast, told
from engine_scenario import Scenario, stage
from holdfast.engine import Engine
from running import run
from store_scenario import opened


@pytest.fixture
def url(store_url: str) -> str:
    async def nothing(s: Scenario) -> None:
        await s.define(stage("a"))

    told(store_url, nothing)
    return store_url


def test_a_token_is_made_listed_and_revoked(url: str) -> None:
    said = holdfast(url, "token", "list")
    assert (said.code, said.out) == (0, "No tokens.\n")
    assert "holdfast token create NAME --role operator" in said.err
    said = holdfast(url, "token", "create", "nightly", "--role", "worker", "--expires", "90d", "--by", "ann")
    assert said.code == 0
    assert said.out.startswith(
        "Token nightly, role worker, counts for 90 d. It is shown this once:\n\nholdfast_"
    )
    assert "HOLDFAST_TOKEN" in said.err
    text = said.out.split("\n")[2]

    async def recognised() -> bool:
        async with opened(url) as store:
            found = await Engine(store).tokens.recognised(text)
            return found is not None and not found[1]

    assert run(recognised())
    said = holdfast(url, "token", "list")
    assert re.search(r"nightly +worker +ann, .* ago +in 90 d +never +[0-9a-f]{12}\n", said.out), said
    assert text not in said.out
    [item] = holdfast(url, "token", "list", "--json").json["items"]
    assert (item["name"], item["role"], item["created_by"], item["revoked_at"]) == (
        "nightly",
        "worker",
        "ann",
        None,
    )
    said = holdfast(url, "token", "revoke", "nightly", "--by", "bob")
    assert (said.code, said.out) == (0, "Token nightly, role worker, is revoked.\n")
    assert not run(recognised())
    said = holdfast(url, "token", "list")
    assert said.out == "No token counts; --all shows those that did.\n"
    assert re.search(
        r"nightly +worker +ann, .* ago +revoked +never", holdfast(url, "token", "list", "--all").out
    )


def test_a_token_that_lasts_is_told_as_json(url: str) -> None:
    made = holdfast(url, "token", "create", "ops", "--role", "admin", "--json").json
    assert made["text"].startswith(f"holdfast_{made['token']['id']}_")
    assert made["token"]["expires_at"] is None
    assert holdfast(url, "token", "revoke", made["token"]["id"], "--json").json["revoked_at"] is not None


def test_what_cannot_be_is_refused(url: str) -> None:
    assert holdfast(url, "token", "create", "ops", "--role", "admin").code == 0
    said = holdfast(url, "token", "create", "ops", "--role", "viewer")
    assert said.code == 2 and "already" in said.err
    for wrong in (("--role", "root"), (), ("--role", "viewer", "--expires", "soon")):
        assert holdfast(url, "token", "create", "other", *wrong).code == 2
    said = holdfast(url, "token", "revoke", "nobody")
    assert said.code == 2 and "There is no token 'nobody'" in said.err
    assert len(holdfast(url, "token", "list", "--json").json["items"]) == 1


def test_what_people_did_is_shown(url: str) -> None:
    said = holdfast(url, "audit")
    assert (said.code, said.out) == (0, "Nobody has done anything yet.\n")
    holdfast(url, "limits", "set", "portal", 3, "--by", "ann")
    holdfast(url, "limits", "remove", "portal", "--by", "bob")
    holdfast(url, "pause", "lane", "bulk", "--by", "ann", "--reason", "quiet, please")
    holdfast(url, "resume", "lane", "bulk", "--by", "bob")
    lines = holdfast(url, "audit").out.splitlines()
    assert re.search(r"bob +resume +lane bulk$", lines[1]), lines
    assert re.search(r"ann +pause +lane bulk +reason quiet, please$", lines[2])
    assert re.search(r"bob +remove limit +limit portal$", lines[3])
    assert re.search(r"ann +set limit +limit portal +max_concurrency 3$", lines[4])
    first = holdfast(url, "audit", "--actor", "ann", "--limit", 1, "--json").json
    assert [item["action"] for item in first["items"]] == ["pause"]
    rest = holdfast(url, "audit", "--actor", "ann", "--limit", 1, "--cursor", first["next"], "--json").json
    assert [item["action"] for item in rest["items"]] == ["set_limit"]
    assert (
        holdfast(url, "audit", "--target", "lane bulk", "--action", "resume", "--json").json["items"][0][
            "actor"
        ]
        == "bob"
    )
    said = holdfast(url, "audit", "--actor", "eve")
    assert said.out == "Nobody has done any of that.\n"
    assert holdfast(url, "audit", "--action", "guess").code == 2
    assert holdfast(url, "audit", "--cursor", "x").code == 2
