"""From what is submitted to what is stored: checked and encoded before any connection is touched, then
written by the store, or said on the caller's own connection as a part of the caller's transaction."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.core.errors import InvalidInput
from holdfast.core.model import Lane, Mode
from holdfast.core.payload import check_name, encode_payload, member, payload_hash
from holdfast.core.retry import parse_duration
from holdfast.engine.beginning import beginning_of, with_defaults
from holdfast.engine.events import started
from holdfast.engine.flow import attempts_of, constant_sleep, handler_of
from holdfast.engine.group_commit import GroupCommit
from holdfast.engine.records import Submission, Submitted
from holdfast.engine.tallies import Tallies, Verb
from holdfast.engine.tally_keeper import TallyKeeper
from holdfast.playbook import plan
from holdfast.playbook.definition import Definition, content_hash
from holdfast.store.exchange import StoredDefinition, submission, submission_unprepared
from holdfast.store.foreign import converse, converse_sync
from holdfast.store.interface import Store
from holdfast.store.new_executions import ExecutionKind, Inserted, NewExecution, groups_of

# The keys of a batch's items, which hold within the batch, and of child executions begin so.
_OF_OUR_OWN = re.compile(r"batch \d+: |job \d+ attempt ")


class Kinds:
    """The kinds of executions submitted here, each made once; with a `batch_id`, those of its items; with a
    `parent`, its job and the depth, those that are started for it."""

    def __init__(self, batch_id: int | None = None, parent: tuple[int, int] | None = None) -> None:
        self._batch_id = batch_id
        self._parent = parent or (None, None)
        self._known: dict[tuple[int, Lane, Mode | None], ExecutionKind] = {}

    def of(self, latest: tuple[int, Definition], lane: Lane, mode: Mode | None) -> ExecutionKind:
        try:
            return self._known[latest[0], lane, mode]
        except (KeyError, TypeError):  # a new one, or what is no lane or mode at all
            lane, mode = member(Lane, lane, "lane"), None if mode is None else member(Mode, mode, "mode")
            kind = self._known[latest[0], lane, mode] = self._made(latest, lane, mode)
            return kind

    def _made(self, latest: tuple[int, Definition], lane: Lane, mode: Mode | None) -> ExecutionKind:
        definition_id, definition = latest
        first, beginning = plan.first_step(definition), None
        if not definition.is_linear:
            beginning = beginning_of(definition)
            first = definition.step(beginning.step)
        return ExecutionKind(
            path=definition.path,
            definition_id=definition_id,
            lane=lane,
            mode=Mode(lane.value) if mode is None else mode,
            batch_id=self._batch_id,
            step=first.name,
            group=first.claim_group(definition.path, lane, handler=handler_of(first, is_element=False)),
            max_attempts=attempts_of(first),
            events=started(first.name) if beginning is None else beginning.events,
            plan=None if beginning is None else beginning.plan,
            input=None if beginning is None else beginning.input,
            parent_job=self._parent[0],
            depth=self._parent[1],
            sleep_seconds=constant_sleep(first),
        )


def _new_execution(
    item: Submission, latest: tuple[int, Definition], kinds: Kinds, payload_bytes_max: int
) -> NewExecution:
    workload = encode_payload(item.workload, what="workload", bytes_max=payload_bytes_max)
    key, key_hash = item.idempotency_key, None
    if key is not None:
        check_name(key, what="idempotency key")
        if _OF_OUR_OWN.match(key):
            raise InvalidInput(
                f"The idempotency key {key!r} begins as those of a batch's items or of child executions do.",
                guidance="Choose another one.",
            )
        key_hash = payload_hash(workload)
    if latest[1].workload:
        whole = with_defaults(latest[1], item.workload)
        workload = encode_payload(whole, what="workload", bytes_max=payload_bytes_max)
    kind = kinds.of(latest, item.lane, item.mode)
    delay, deadline = item.delay_seconds, item.deadline_seconds
    if delay != 0 or type(delay) is not float:  # most have none
        delay = parse_duration(delay, field="delay")
    delay += kind.sleep_seconds
    if deadline is not None and (deadline := parse_duration(deadline, field="deadline")) <= 0:
        raise InvalidInput(
            "The deadline must be longer than 0 seconds.", guidance="Leave it out where there is none."
        )
    return NewExecution(kind, workload, key_hash, key, deadline, delay)


def new_executions(
    items: Sequence[Submission],
    versions: Mapping[tuple[str, int | None], tuple[int, Definition]],
    kinds: Kinds,
    *,
    payload_bytes_max: int,
    first_place: int = 0,
) -> list[NewExecution]:
    """Of many, the one that cannot be accepted is named by its place, from 1."""
    new: list[NewExecution] = []
    try:
        for item in items:
            new.append(_new_execution(item, versions[item.path, item.version], kinds, payload_bytes_max))
    except InvalidInput as error:
        if len(items) == 1 and not first_place:
            raise
        place = first_place + len(new) + 1
        raise type(error)(f"Item {place}: {error}", guidance=error.guidance) from error
    return new


def submits(store: Store, tallies: Tallies, keeper: TallyKeeper) -> GroupCommit[NewExecution, Inserted]:
    """Submits that come at the same time share a transaction."""

    async def insert(items: list[NewExecution]) -> list[Inserted]:
        now, began = await store.now(), time.perf_counter()
        inserted = await store.insert(items, now)
        store.announce_work()
        tallies.took(Verb.SUBMIT, time.perf_counter() - began)
        tallies.started(inserted)
        keeper.nudge()
        return inserted

    return GroupCommit(insert, at_once=store.inserts_at_once)


def submitted(inserted: Sequence[Inserted]) -> list[Submitted]:
    return [Submitted(item.execution_id, item.created) for item in inserted]


def no_database_to_join() -> InvalidInput:
    return InvalidInput(
        "A rehearsal has no PostgreSQL whose transaction a submit could join.",
        guidance="Leave out `connection` in it, or test this against a real database.",
    )


async def submit_on(connection: Any, new: Sequence[NewExecution], store: Store) -> list[Submitted]:
    """In the caller's transaction. Claim groups are made before, by a connection of the store's own: made
    in that transaction, they would keep other makers waiting for its end."""
    from holdfast.store.postgres import PostgresStore

    if not isinstance(store, PostgresStore):
        raise no_database_to_join()
    own = await store.own_database(groups_of(new))
    return submitted(await converse(connection, submission(new, own)))


def submit_on_sync(
    connection: Any, submissions: Sequence[Submission], definition: Definition, *, payload_bytes_max: int
) -> list[Submitted]:
    """In the caller's transaction, without an event loop and without any connection but the caller's."""
    latest = (0, definition)  # its id is looked up on the way
    versions: dict[tuple[str, int | None], tuple[int, Definition]] = {(definition.path, None): latest}
    new = new_executions(submissions, versions, Kinds(), payload_bytes_max=payload_bytes_max)
    if not new:
        return []
    content = definition.to_json()
    stored = StoredDefinition(definition.path, content, content_hash(content))
    return submitted(converse_sync(connection, submission_unprepared(new, stored)))
