"""What can be wrong with a server, its address or the way to it, and what the PostgreSQL store says."""

import asyncio
import socket
from typing import Any

import asyncpg
import pytest

from holdfast.bench.postgres import TemporaryPostgres
from holdfast.core.errors import StoreError, StoreUnavailable, StoreUnusable
from holdfast.store import Store, store_from_url
from holdfast.store.changes import Changes
from holdfast.store.interface import Locked
from holdfast.store.postgres import PostgresStore
from running import eventually, run
from store_scenario import NOW, contents, new, opened, raw, raw_connection, submit


async def fault_of_opening(url: str) -> StoreError:
    store = store_from_url(url)
    with pytest.raises(StoreError) as fault:
        await store.open()
    await store.close()
    assert fault.value.guidance
    return fault.value


def test_a_port_where_nothing_listens_is_unavailable() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and never listening: nobody else can take it
        port = taken.getsockname()[1]
        fault = run(fault_of_opening(f"postgresql://ann:hunter2@127.0.0.1:{port}/name"))
    assert isinstance(fault, StoreUnavailable)
    assert f"127.0.0.1:{port}" in str(fault) and "hunter2" not in str(fault)


def test_a_socket_folder_that_is_missing_is_unavailable() -> None:
    fault = run(fault_of_opening("postgresql://ann@/name?host=/nowhere&password=hunter2"))
    assert isinstance(fault, StoreUnavailable)
    assert "hunter2" not in str(fault)


def test_a_database_that_does_not_exist_is_unusable(postgres_server: TemporaryPostgres) -> None:
    url = postgres_server.url("no_such_database").replace("postgres@", "postgres:hunter2@")
    fault = run(fault_of_opening(url))
    assert isinstance(fault, StoreUnusable)
    assert 'database "no_such_database" does not exist' in str(fault)
    assert "hunter2" not in str(fault) + fault.guidance


def test_a_user_that_does_not_exist_is_unusable(postgres_url: str) -> None:
    fault = run(fault_of_opening(postgres_url.replace("postgres@", "stranger@")))
    assert isinstance(fault, StoreUnusable) and "stranger" in str(fault)


def test_a_user_without_rights_is_unusable(postgres_url: str) -> None:
    async def main() -> None:
        role = "guest_" + postgres_url.partition("/test_")[2][:8]
        await raw(postgres_url, f"CREATE ROLE {role} LOGIN")
        fault = await fault_of_opening(postgres_url.replace("postgres@", f"{role}@"))
        assert isinstance(fault, StoreUnusable) and "permission denied" in str(fault)
        await raw(postgres_url, f"DROP ROLE {role}")

    run(main())


def test_a_read_only_database_is_unusable(postgres_url: str) -> None:
    async def main() -> None:
        async with opened(postgres_url):
            pass
        name = postgres_url.partition("/test_")[2].partition("?")[0]
        await raw(postgres_url, f"ALTER DATABASE test_{name} SET default_transaction_read_only = on")
        async with opened(postgres_url, migrate=False) as store:
            with pytest.raises(StoreUnusable, match="read-only transaction"):
                await submit(store)

    run(main())


def test_a_connection_that_dies_in_a_transaction_writes_nothing(postgres_url: str) -> None:
    async def main() -> None:
        async with opened(postgres_url) as store:
            await submit(store, new(), new())
            before = await contents(postgres_url)
            other = await raw_connection(postgres_url)
            async with other.transaction():
                await other.execute("SELECT 1 FROM executions WHERE id = 2 FOR UPDATE")
                amend = asyncio.create_task(store.amend_jobs([1, 2], _planned, NOW))
                killed = False
                while not killed:
                    killed = await other.fetchval(
                        "SELECT bool_or(pg_terminate_backend(pid)) FROM pg_stat_activity"
                        " WHERE wait_event_type = 'Lock' AND datname = current_database()"
                    )
                with pytest.raises(StoreUnavailable, match="does not answer"):
                    await amend
            await other.close()
            assert await contents(postgres_url) == before
            assert await submit(store) == [3]

    run(main())


def _planned(locked: list[Locked]) -> Changes:
    return Changes(events=[(item.execution.id, "[]") for item in locked])


def test_a_server_that_restarts_is_unavailable_for_a_while_and_then_works_again() -> None:
    async def recovered(store: Store) -> int:
        """How many times a verb said that the store was unavailable before it worked."""
        for failures in range(20):
            try:
                await submit(store)
                return failures
            except StoreUnavailable:
                continue
        raise AssertionError("the store did not come back")

    async def main(server: TemporaryPostgres) -> None:
        async with opened(server.url()) as store:
            await submit(store)
            # Several connections in the pool, so that several are broken.
            await asyncio.gather(*(store.execution(1) for _ in range(5)))
            for mode in ("immediate", "fast"):
                server.halt(mode)  # type: ignore[arg-type]
                with pytest.raises(StoreUnavailable):
                    await submit(store)
                with pytest.raises(StoreUnavailable):
                    await store.execution(1)
                server.start()
                assert await recovered(store) <= 5
            assert await raw(server.url(), "SELECT count(*) FROM executions") == [(3,)]

    with TemporaryPostgres(durable=False) as server:
        run(main(server))


def test_a_value_that_cannot_be_sent_is_no_outage(postgres_url: str) -> None:
    """Told as an outage it would be tried again for ever."""

    async def main() -> None:
        async with opened(postgres_url) as store:
            with pytest.raises(asyncpg.DataError, match="out of int64 range"):
                await store.peek_jobs([2**70])

    run(main())


def test_a_user_who_may_not_create_schemas_can_use_one_that_is_there(postgres_url: str) -> None:
    async def main() -> None:
        role = "clerk_" + postgres_url.partition("/test_")[2][:8]
        async with opened(postgres_url):
            pass
        await raw(postgres_url, f"CREATE ROLE {role} LOGIN")
        await raw(postgres_url, f"GRANT ALL ON SCHEMA holdfast TO {role}")
        await raw(postgres_url, f"GRANT ALL ON ALL TABLES IN SCHEMA holdfast TO {role}")
        await raw(postgres_url, f"GRANT ALL ON ALL SEQUENCES IN SCHEMA holdfast TO {role}")
        async with opened(postgres_url.replace("postgres@", f"{role}@")) as store:
            assert len(await submit(store, new())) == 1
        await raw(postgres_url, f"DROP OWNED BY {role}")
        await raw(postgres_url, f"DROP ROLE {role}")

    run(main())


def test_a_call_that_is_cut_off_leaves_no_session_behind_that_could_hold_locks(postgres_url: str) -> None:
    sleepers = "SELECT pid FROM pg_stat_activity WHERE query LIKE 'SELECT pg_sleep%'"

    async def main() -> None:
        async with opened(postgres_url) as store:
            connection = await raw_connection(postgres_url)

            async def is_asleep() -> bool:
                return bool(await connection.fetch(sleepers))

            async def is_gone() -> bool:
                return not await is_asleep()

            call = asyncio.create_task(store._fetch("SELECT pg_sleep(60)"))  # type: ignore[attr-defined]
            await eventually(is_asleep, 20)
            call.cancel()
            await asyncio.wait([call])
            await eventually(is_gone, 20)
            assert await store.execution(1) is None
            await connection.close()

    run(main())


def test_what_others_have_committed_is_seen_however_the_server_is_set_up(postgres_url: str) -> None:
    """Rows are locked first and what they guard is read then: an older snapshot would not do."""

    async def main() -> None:
        other = await asyncpg.connect(postgres_url)
        try:
            name = await other.fetchval("SELECT quote_ident(current_database())")
            await other.execute(f"ALTER DATABASE {name} SET default_transaction_isolation = 'serializable'")
        finally:
            await other.close()
        async with opened(postgres_url) as store:
            [(own,)] = await store._fetch("SELECT current_setting('transaction_isolation')")  # type: ignore[attr-defined]
            transaction = store.transaction()
            handlers = await transaction.fetch("SELECT current_setting('transaction_isolation') AS it", [])
            await transaction.rollback()
            assert (own, handlers[0]["it"]) == ("read committed", "read committed")

    run(main())


def test_a_migration_that_met_old_processes_is_tried_again(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        migrate, tries = PostgresStore._migrate, []

        async def in_the_way(store: Any, db: Any, asked: bool) -> None:
            tries.append(1)
            if len(tries) < 3:
                raise asyncpg.DeadlockDetectedError("deadlock detected")
            await migrate(store, db, asked)

        monkeypatch.setattr(PostgresStore, "_migrate", in_the_way)
        async with opened(postgres_url):
            assert len(tries) == 3
        monkeypatch.setattr(PostgresStore, "_migrate", always_in_the_way)
        with pytest.raises(StoreUnavailable, match="could not be migrated"):
            async with opened(postgres_url):
                pass

    async def always_in_the_way(*_: Any) -> None:
        raise asyncpg.DeadlockDetectedError("deadlock detected")

    run(main())
