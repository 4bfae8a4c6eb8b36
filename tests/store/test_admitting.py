"""Tokens and the audit trail as the stores keep them."""

import msgspec
import pytest

from holdfast.core.access import Role, TokenRow
from holdfast.core.audit import AuditEntry, Deed, audited
from holdfast.core.limits import Limit
from holdfast.core.pauses import PauseKind
from holdfast.store.changes import Changes
from running import run
from store_scenario import NOW, opened

MADE = audited("ann", Deed.CREATE_TOKEN, "token ops")


def token_row(id_: str = "0123456789ab", name: str = "ops", **more: object) -> TokenRow:
    row = TokenRow(
        id=id_,
        name=name,
        role=Role.OPERATOR,
        created_at=NOW,
        created_by="ann",
        expires_at=None,
        revoked_at=None,
        revoked_by=None,
        last_used_at=None,
    )
    return msgspec.structs.replace(row, **more)


def test_a_token_is_kept_found_used_and_revoked(store_url: str) -> None:
    async def main() -> None:
        async with opened(store_url) as store:
            assert await store.token("0123456789ab") is None
            made = token_row(expires_at=NOW + 5)
            assert await store.add_token(made, "hash", MADE)
            assert await store.token(made.id) == (made, "hash")
            await store.token_used(made.id, NOW + 2)
            await store.token_used(made.id, NOW + 1)  # the later one of two that meet stays
            used = msgspec.structs.replace(made, last_used_at=NOW + 2)
            assert await store.tokens(10) == [used]
            assert await store.revoke_token(made.id, "bob", MADE, NOW + 3)
            assert not await store.revoke_token(made.id, "eve", MADE, NOW + 4)
            revoked = msgspec.structs.replace(used, revoked_at=NOW + 3, revoked_by="bob")
            assert await store.tokens(10) == [revoked]
            assert len(await store.audit(limit=10)) == 2  # and none of what did not happen

    run(main())


def test_a_name_is_free_again_once_its_token_is_revoked(store_url: str) -> None:
    async def main() -> None:
        async with opened(store_url) as store:
            assert await store.add_token(token_row(), "hash", MADE)
            assert not await store.add_token(token_row("ba9876543210"), "other", MADE)
            await store.revoke_token("0123456789ab", "bob", MADE, NOW)
            assert await store.add_token(token_row("ba9876543210"), "other", MADE)
            assert {row.id for row in await store.tokens(10)} == {"0123456789ab", "ba9876543210"}

    run(main())


def test_what_people_steer_is_written_down_with_it(store_url: str) -> None:
    async def main() -> None:
        async with opened(store_url) as store:
            await store.set_limit(Limit("portal", 5, 1), "ann", NOW)
            assert await store.remove_limit("portal", "bob", NOW + 1)
            assert not await store.remove_limit("portal", "eve", NOW + 2)
            for by in ("ann", "eve"):  # the second finds it paused
                await store.pause(PauseKind.LANE, "bulk", by, "maintenance", NOW + 3)
            await store.resume(PauseKind.LANE, "bulk", "bob", NOW + 4)
            assert await store.resume(PauseKind.LANE, "bulk", "eve", NOW + 5) is None
            told = [
                (row.at, row.actor, row.action, row.target, row.details) for row in await store.audit(limit=9)
            ]
            assert told == [
                (NOW + 4, "bob", Deed.RESUME, "lane bulk", {}),
                (NOW + 3, "ann", Deed.PAUSE, "lane bulk", {"reason": "maintenance"}),
                (NOW + 1, "bob", Deed.REMOVE_LIMIT, "limit portal", {}),
                (NOW, "ann", Deed.SET_LIMIT, "limit portal", {"max_concurrency": 5, "manual_reserve": 1}),
            ]

    run(main())


def test_the_trail_is_read_in_pages_and_by_what_is_asked_for(store_url: str) -> None:
    async def main() -> None:
        async with opened(store_url) as store:
            entries = [
                AuditEntry(actor, deed, target, "{}")
                for actor, deed, target in (
                    ("ann", Deed.RETRY, "execution 1"),
                    ("bob", Deed.CANCEL, "execution 1"),
                    ("ann", Deed.CANCEL, "execution 2"),
                )
            ]
            await store.amend_executions([], lambda *_: Changes(audit=entries), NOW)
            assert [row.id for row in await store.audit(limit=2)] == [3, 2]
            assert [row.id for row in await store.audit(limit=2, before=2)] == [1]
            assert [row.id for row in await store.audit(limit=9, actor="ann")] == [3, 1]
            assert [row.id for row in await store.audit(limit=9, action=Deed.CANCEL)] == [3, 2]
            assert [row.id for row in await store.audit(limit=9, target="execution 1")] == [2, 1]

    run(main())


def test_what_is_not_done_is_not_written_down(store_url: str) -> None:
    async def main() -> None:
        async with opened(store_url) as store:

            def refuse(*_: object) -> Changes:
                raise RuntimeError("no")

            with pytest.raises(RuntimeError):
                await store.amend_executions([], refuse, NOW)
            assert await store.audit(limit=9) == []

    run(main())
