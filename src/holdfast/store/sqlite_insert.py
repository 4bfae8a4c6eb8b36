"""Inserting into SQLite: executions with their first jobs and events, in statements over many rows.

Keys are looked up first: there is one writer, so nobody can come in between. What is new is written by runs:
items that follow one another and differ in nothing but workload and key. A run is one JSON text that SQLite
takes apart by itself, so what Python does is not done per row and table. Times are bound as numbers and are
never a part of that text, in which their last digit could change.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import apsw
import msgspec

from holdfast.core.model import ClaimGroup
from holdfast.store.new_executions import Inserted, NewExecution

# A run is held in memory as text, and SQLite takes no text of a gigabyte.
RUN_ITEMS_MAX = 1_000
RUN_CHARACTERS_MAX = 10_000_000


def insert(
    db: apsw.Connection,
    sql: Mapping[str, str],
    executions: Sequence[NewExecution],
    groups: Mapping[ClaimGroup, int],
    now: float,
) -> list[Inserted]:
    last_id: int = db.execute(sql["last_execution_id"]).get
    known = _known(db, sql, executions)
    answers: list[Inserted] = []
    new: list[NewExecution] = []
    for item in executions:
        if item.idempotency_key is not None:
            key = (item.kind.path, item.idempotency_key)
            if key in known:
                answers.append(known[key].checked(item))
                continue
            known[key] = Inserted(last_id + len(new) + 1, False, item.workload_hash)
        new.append(item)
        answers.append(Inserted(last_id + len(new), True, item.workload_hash))
    next_id = last_id + 1
    for run in _runs(new):
        _insert_run(db, sql, next_id, run, groups, now)
        next_id += len(run)
    return answers


def _known(
    db: apsw.Connection, sql: Mapping[str, str], executions: Sequence[NewExecution]
) -> dict[tuple[str, str], Inserted]:
    keys = [(item.kind.path, item.idempotency_key) for item in executions if item.idempotency_key is not None]
    if not keys:
        return {}
    found = db.execute(sql["executions_by_key"], (msgspec.json.encode(keys).decode(),))
    return {(path, key): Inserted(id_, False, hash_) for path, key, id_, hash_ in found}


def _runs(items: Sequence[NewExecution]) -> Iterator[list[NewExecution]]:
    run: list[NewExecution] = []
    characters = 0
    for item in items:
        characters += len(item.workload)
        if run and (
            item.kind is not run[0].kind
            or item.delay_seconds != run[0].delay_seconds
            or item.deadline_seconds != run[0].deadline_seconds
            or len(run) == RUN_ITEMS_MAX
            or characters > RUN_CHARACTERS_MAX
        ):
            yield run
            run, characters = [], len(item.workload)
        run.append(item)
    if run:
        yield run


def _insert_run(
    db: apsw.Connection,
    sql: Mapping[str, str],
    first_id: int,
    run: Sequence[NewExecution],
    groups: Mapping[ClaimGroup, int],
    now: float,
) -> None:
    kind, deadline, delay = run[0].kind, run[0].deadline_seconds, run[0].delay_seconds
    ids = (first_id, first_id + len(run) - 1)
    own = msgspec.json.encode([(item.workload, item.workload_hash, item.idempotency_key) for item in run])
    common = (kind.path, kind.definition_id, kind.lane, kind.mode, kind.batch_id)
    further = (kind.plan, kind.parent_job, kind.depth)
    due = None if deadline is None else now + deadline
    db.execute(sql["insert_executions"], (first_id, own.decode(), *common, deadline, due, now, *further))
    db.execute(
        sql["insert_first_jobs"],
        (
            *ids,
            kind.step,
            groups[kind.group],
            kind.max_attempts,
            now + delay,
            bool(kind.group.limit),
            now,
            kind.input,
        ),
    )
    db.execute(sql["insert_first_events"], (*ids, now, kind.events))
