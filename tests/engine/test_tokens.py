"""Tokens: made, recognised, ended."""

import pytest

from engine_scenario import START, Scenario, on_both_stores
from holdfast.core.access import RIGHTS, Right, Role, parse_token
from holdfast.core.errors import InvalidInput, PolicyInvalid, UnknownName
from holdfast.engine import tokens as tokens_module
from holdfast.engine.tokens import OWN_NAME
from store_scenario import raw


def test_who_may_do_what() -> None:
    rights = (Right.LOOK, Right.WORK, Right.ACT, Right.MANAGE)
    may = {role: "".join(right[0] for right in rights if right in has) for role, has in RIGHTS.items()}
    assert may == {Role.VIEWER: "l", Role.WORKER: "w", Role.OPERATOR: "lwa", Role.ADMIN: "lwam"}


@on_both_stores
async def test_a_token_is_recognised_by_its_secret_alone(s: Scenario) -> None:
    tokens = s.engine.tokens
    made = await tokens.create("ops", "operator", by="ann")
    assert (made.token.role, made.token.created_by, made.token.created_at) == (Role.OPERATOR, "ann", START)
    assert await tokens.recognised(made.text) == (made.token, "")
    other = (await tokens.create("other", Role.VIEWER)).text
    wrong = parse_token(other)
    assert wrong is not None
    for text in (
        made.text[:-1],
        made.text + "x",
        made.text.upper(),
        f"holdfast_{made.token.id}_{wrong.secret}",
        f"holdfast_ffffffffffff_{wrong.secret}",
        made.token.id,
        "",
        "holdfast__",
        "ü" * 60,
    ):
        assert await tokens.recognised(text) is None, text


@on_both_stores
async def test_only_a_hash_of_it_is_kept(s: Scenario) -> None:
    made = await s.engine.tokens.create("ops", "admin")
    table = "holdfast_tokens" if s.store.url.startswith("sqlite") else "tokens"
    [row] = await raw(s.store.url, f"SELECT * FROM {table}")
    secret = made.text.rpartition("_" + made.token.id + "_")[2]
    assert len(secret) == 43 and not any(secret in str(value) for value in row)


@on_both_stores
async def test_it_counts_until_it_expires_or_is_revoked(s: Scenario) -> None:
    tokens = s.engine.tokens
    made = await tokens.create("nightly", "worker", expires="90d")
    assert made.token.expires_at == START + 90 * 86_400
    s.tick(90 * 86_400 - 1)
    assert await tokens.recognised(made.text) == (made.token, "")
    assert await tokens.any_counts()
    s.tick(1)
    assert await tokens.recognised(made.text) == (made.token, "expired")
    assert await tokens.why_not(made.token.id) == "expired"
    assert not await tokens.any_counts()
    with pytest.raises(InvalidInput, match="already, which has expired"):
        await tokens.create("nightly", "worker")
    revoked = await tokens.revoke("nightly", by="bob")
    assert (revoked.revoked_by, await tokens.recognised(made.text)) == ("bob", (revoked, "revoked"))
    with pytest.raises(UnknownName, match="revoked already"):
        await tokens.revoke("nightly")
    again = await tokens.create("nightly", "worker")  # the name is free
    assert (await tokens.revoke(again.token.id)).id == again.token.id
    with pytest.raises(UnknownName, match="no token"):
        await tokens.revoke("nobody")
    deeds = [(row.action, row.actor, row.details.get("role")) for row in (await s.engine.audit()).items]
    assert deeds == [
        ("revoke_token", "", "worker"), ("create_token", "", "worker"),
        ("revoke_token", "bob", "worker"), ("create_token", "", "worker"),
    ]  # fmt: skip


@on_both_stores
async def test_its_use_is_noted_now_and_then(s: Scenario) -> None:
    tokens = s.engine.tokens
    await tokens.create("ops", "viewer")

    async def used() -> float | None:
        [token] = await tokens.all()
        await tokens.used(token)
        [token] = await tokens.all()
        return token.last_used_at

    assert await used() == START
    s.tick(599)
    assert await used() == START
    s.tick(1)
    assert await used() == START + 600


@on_both_stores
async def test_what_cannot_be_is_refused(s: Scenario) -> None:
    tokens = s.engine.tokens
    await tokens.create("ops", "viewer")
    with pytest.raises(InvalidInput, match="already") as refusal:
        await tokens.create("ops", "admin")
    assert "token revoke ops" in refusal.value.guidance
    for name in ("", " ", "a\nb", "a\0b", "x" * 101, 5, ".", "..", "a/../b", "a/.", "0123456789ab", OWN_NAME):
        with pytest.raises(InvalidInput):
            await tokens.create(name, "viewer")  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="viewer"):
        await tokens.create("other", "root")
    for expires in ("soon", -1, 0):
        with pytest.raises(PolicyInvalid):
            await tokens.create("other", "viewer", expires=expires)
    assert len(await tokens.all()) == 1


@on_both_stores
async def test_however_many_there_were_the_newest_are_found(
    s: Scenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokens_module, "TOKENS_MAX", 2)
    tokens = s.engine.tokens
    for name in ("a", "b", "c"):
        await tokens.create(name, "viewer")
        if name != "c":
            await tokens.revoke(name)
        s.tick(1)
    assert [token.name for token in await tokens.all()] == ["b", "c"]
    assert await tokens.any_counts()
    await tokens.revoke("c")
    assert not await tokens.any_counts()
