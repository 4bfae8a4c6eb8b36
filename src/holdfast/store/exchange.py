"""What a submit says to PostgreSQL, apart from who sends it.

An exchange is a generator: it yields a statement with its values and is sent the rows of the answer, or is
thrown the error. So one text serves the store's own connections and those of callers, asynchronous and
synchronous, whose libraries differ in everything but the server behind them:

    Exchange ── (sql, values) ─▶ the store, or store/foreign.py ─▶ PostgreSQL
             ◀──── rows ───────

On a caller's connection an exchange runs inside a savepoint: what goes wrong in it is undone, and the
caller's transaction is as it was before.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar

from holdfast.core.errors import InvalidInput, SchemaTooOld, StoreError, StoreUnavailable, StoreUnusable
from holdfast.core.failures import sqlstate_of
from holdfast.core.model import ClaimGroup
from holdfast.store import rows
from holdfast.store.new_executions import Inserted, NewExecution, groups_of, has_keys, kinds_of
from holdfast.store.queries import check_schema_version, load_migrations, load_queries

T = TypeVar("T")
Statement: TypeAlias = tuple[str, Sequence[Any]]
Exchange: TypeAlias = Generator[Statement, Sequence[rows.Row], T]
Send: TypeAlias = Callable[[str, Sequence[Any]], Sequence[rows.Row]]
SendAsync: TypeAlias = Callable[[str, Sequence[Any]], Awaitable[Sequence[rows.Row]]]

CHANNEL = "holdfast_work"
# What only feeds of events want to know: that something has ended.
EVENTS_CHANNEL = "holdfast_events"
# No process has this name, so every listener takes the hint, the submitter's own too.
SENDER = "a caller's transaction"
LOCK_DEFINITIONS = "SELECT pg_advisory_xact_lock(hashtext('holdfast'), hashtext($1))"
_NOTIFY: Statement = ("SELECT pg_notify($1, $2)", (CHANNEL, SENDER))

_SAVEPOINT: Statement = ("SAVEPOINT holdfast_submit", ())
_ROLLBACK: Statement = ("ROLLBACK TO SAVEPOINT holdfast_submit", ())
_RELEASE: Statement = ("RELEASE SAVEPOINT holdfast_submit", ())

_NO_TRANSACTION = "25P01"
_NO_TABLES = frozenset({"3F000", "42P01", "42703"})  # no such schema, table or column
_NO_RIGHT = "42501"
_MIGRATE = "Run `holdfast migrate` on this database, or check that the connection leads to the right one."


async def hold(exchange: Exchange[T], send: SendAsync) -> T:
    try:
        statement = next(exchange)
        while True:
            try:
                answer = await send(*statement)
            except BaseException as error:
                statement = exchange.throw(error)
            else:
                statement = exchange.send(answer)
    except StopIteration as end:
        result: T = end.value
        return result


def hold_sync(exchange: Exchange[T], send: Send) -> T:
    try:
        statement = next(exchange)
        while True:
            try:
                answer = send(*statement)
            except BaseException as error:
                statement = exchange.throw(error)
            else:
                statement = exchange.send(answer)
    except StopIteration as end:
        result: T = end.value
        return result


class OwnDatabase(NamedTuple):
    """What Holdfast knows of its own database: which one it is, and the claim groups in it."""

    identity: str
    groups: Mapping[ClaimGroup, int]


class StoredDefinition(NamedTuple):
    """A version of a pipeline as the store keeps it."""

    path: str
    content: str
    hash: str


def insertion(
    executions: Sequence[NewExecution], groups: Mapping[ClaimGroup, int], now: float
) -> Exchange[list[Inserted]]:
    """Write executions with their first jobs and events, or find them by their idempotency keys."""
    sql = load_queries("postgresql")
    if not has_keys(executions):
        # One statement, which can be a transaction by itself.
        [(ids,)] = yield sql["insert"], _insert_values(executions, groups, now)
        return [Inserted(id_, True, None) for id_ in ids]
    [(ids, added)] = yield sql["insert_keyed"], _insert_values(executions, groups, now)
    created = set(added or ())
    repeated = [
        (item.kind.path, item.idempotency_key)
        for item, id_ in zip(executions, ids, strict=True)
        if id_ not in created
    ]
    known = {}
    if repeated:
        for path, key, id_, hash_ in (yield sql["executions_by_key"], _columns(repeated)):
            known[path, key] = Inserted(id_, False, hash_)
    if len(known) < len(set(repeated)):
        raise StoreUnavailable(
            "An execution with this idempotency key was pruned a moment ago.",
            guidance="Nothing was written. Submit again.",
        )
    return [
        Inserted(id_, True, item.workload_hash)
        if id_ in created
        else known[item.kind.path, item.idempotency_key].checked(item)
        for item, id_ in zip(executions, ids, strict=True)
    ]


def _insert_values(
    executions: Sequence[NewExecution], groups: Mapping[ClaimGroup, int], now: float
) -> Sequence[Any]:
    """One list per column. What belongs to a kind is sent once for each kind, and a column in which all
    items have what is usual as an empty list: encoding a value in Python costs more than storing it."""
    kinds = kinds_of(executions)
    each_kind, workloads, hashes, keys, deadlines, delays = _columns(executions)
    numbers = {id(kind): number for number, kind in enumerate(kinds, 1)}
    return (
        *_columns(
            (*kind[:6], groups[kind.group], kind.max_attempts, kind.events, bool(kind.group.limit))
            for kind in kinds
        ),
        [numbers[id(kind)] for kind in each_kind] if len(kinds) > 1 else [],
        workloads,
        *(column if any(column) else [] for column in (hashes, keys, deadlines, delays)),
        now,
        *_columns((kind.plan, kind.input, kind.parent_job, kind.depth) for kind in kinds),
    )


def submission(executions: Sequence[NewExecution], own: OwnDatabase) -> Exchange[list[Inserted]]:
    """Insert in a caller's transaction what Holdfast has prepared by connections of its own, so that the
    transaction creates nothing that others could wait for. Times count from the moment of insertion."""
    now, identity = yield from _facts()
    if identity != own.identity:
        raise InvalidInput(
            "The connection leads to another database than the one this Holdfast works on.",
            guidance="Submit on a connection to the database of Holdfast's own address.",
        )
    return (yield from _insertion_with_hint(executions, own.groups, now))


def submission_unprepared(
    executions: Sequence[NewExecution], definition: StoredDefinition
) -> Exchange[list[Inserted]]:
    """Insert where there is no other connection: the definition and the claim groups are looked up, and
    made in the caller's transaction only where they are missing."""
    sql = load_queries("postgresql")
    now, _ = yield from _facts()
    found = yield sql["definition_by_hash"], (definition.path, definition.hash)
    if not found:
        yield LOCK_DEFINITIONS, (definition.path,)
        yield sql["save_definition"], (definition.path, definition.hash, definition.content, now)
        found = yield sql["definition_by_hash"], (definition.path, definition.hash)
    groups = rows.claim_groups((yield sql["groups"], ()))
    missing = groups_of(executions) - groups.keys()
    if missing:
        yield sql["add_groups"], _columns(sorted(missing))
        groups = rows.claim_groups((yield sql["groups"], ()))
    stored = {id(kind): kind._replace(definition_id=found[0][0]) for kind in kinds_of(executions)}
    known = [item._replace(kind=stored[id(item.kind)]) for item in executions]
    return (yield from _insertion_with_hint(known, groups, now))


def _facts() -> Exchange[tuple[float, str]]:
    """The clock and the identity of the database, where it has a schema that this version may use."""
    sql = load_queries("postgresql")
    [(now, version, identity)] = yield sql["facts"], ()
    known, oldest = len(load_migrations("postgresql")), None
    if version > known:
        told = yield sql["oldest_that_works"], (version,)
        oldest = told[0][0] if told else None
    check_schema_version(version, known, oldest=oldest, migrate=False, where="of this connection")
    return now, identity


def _insertion_with_hint(
    executions: Sequence[NewExecution], groups: Mapping[ClaimGroup, int], now: float
) -> Exchange[list[Inserted]]:
    inserted = yield from insertion(executions, groups, now)
    if any(item.created for item in inserted):
        yield _NOTIFY  # the server sends it when the caller commits, and not before
    return inserted


def in_savepoint(exchange: Exchange[T], *, how_to_begin: str) -> Exchange[T]:
    """The exchange as a part of the caller's transaction that can be undone without it.

    Plain statements, and not each library's own nested blocks: those would flush and expire a session's
    objects, or refuse a transaction that was begun by hand. An error of the server that the caller may
    want to handle (a deadlock, a lost connection) stays the error of the caller's library.
    """
    try:
        yield _SAVEPOINT
    except Exception as error:
        if sqlstate_of(error) == _NO_TRANSACTION:
            raise InvalidInput(
                "The connection is not in a transaction, so there is none to join.", guidance=how_to_begin
            ) from error
        raise
    try:
        answer = yield from exchange
        yield _RELEASE
    except GeneratorExit:
        raise
    except BaseException as error:
        with contextlib.suppress(Exception):  # a connection that is gone has taken the transaction with it
            yield _ROLLBACK
            yield _RELEASE
        if (explained := _explained(error)) is not None:
            raise explained from error
        raise
    return answer


def _explained(error: BaseException) -> StoreError | None:
    """What the database lacks, in our words; None where the error says it better itself."""
    code = sqlstate_of(error)
    if code in _NO_TABLES:
        return SchemaTooOld(
            f"The database of this connection has no tables of Holdfast, or old ones: {error}",
            guidance=_MIGRATE,
        )
    if code == _NO_RIGHT:
        return StoreUnusable(
            f"The user of this connection may not submit: {error}",
            guidance="Grant it USAGE on the schema holdfast, SELECT and INSERT on its tables, and USAGE on"
            " its sequences.",
        )
    return None


def _columns(records: Iterable[tuple[Any, ...]]) -> list[list[Any]]:
    """Rows turned into one list per column: psycopg takes lists for arrays, and tuples for records."""
    return [list(column) for column in zip(*records, strict=True)]
