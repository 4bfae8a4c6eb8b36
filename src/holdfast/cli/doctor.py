"""`holdfast doctor`: is all well, and if not, what is to be done.

Each check is a function that looks at one thing and returns findings. Nothing is changed by them, not
even the schema of an old database, and nothing they meet is an error of the command: a database or a server
that does not answer is what it was called to find.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from holdfast.cli.findings import BAD, OK, WARN, Finding, names
from holdfast.cli.options import (
    EXIT_FAILED,
    FOREIGN_ADVICE,
    URL_VARIABLE,
    database_option,
    json_option,
    opened_client,
    refuse_missing_file,
    store_of,
)
from holdfast.cli.versions import about_the_server, about_versions
from holdfast.core.errors import HoldfastError
from holdfast.core.model import CELERY_PREFIX, DISPATCHER_PREFIX

if TYPE_CHECKING:
    from holdfast.client import AnyEngine
    from holdfast.engine.overview import Overview
    from holdfast.store.inspection import Inspection

CLOCK_LEAD_SECONDS_MAX = 1.0
# Workers sweep every few seconds; a lease that is over for so long was seen by nobody.
EXPIRED_SECONDS = 60.0
EXPIRED_COUNTED_MAX = 1_000
VANISHED_SHOWN_MAX = 10
LEASED_SEEN_MAX = 500
UNTAKEN_SECONDS_MAX = 60.0
PAUSE_SECONDS_MAX = 86_400.0
OPEN_BATCH_SECONDS_MAX = 3_600.0


@click.command(
    epilog="Example:  holdfast doctor --db postgresql://holdfast@db/holdfast",
    short_help="Check database, workers and waiting work, and say what to do.",
)
@database_option
@json_option
def doctor(url: str, as_json: bool) -> None:
    """Check the database (reachable, writable, version, durable, schema, clock), the workers (living or
    vanished, of which versions), and the work (waiting for nobody, paused or left open for long, stuck,
    dead). Each finding says what to do. With --server first the server, then the database as the server sees
    it.

    Changes nothing. Exit code 0 where nothing is bad, 1 otherwise; a warning is not bad.
    """
    from holdfast.cli.output import show_json

    findings = asyncio.run(examine(url))
    worst = [finding for finding in findings if finding.level == BAD]
    if as_json:
        show_json({"ok": not worst, "findings": findings})
    else:
        _show(findings)
    sys.exit(EXIT_FAILED if worst else 0)


def _show(findings: list[Finding]) -> None:
    from holdfast.cli.output import STATUS_STYLES, counted, say

    width = max(len(finding.check) for finding in findings)
    for finding in findings:
        line = f"{finding.level:4}  {finding.check:{width}}  {finding.message}"
        say(line, STATUS_STYLES[finding.level], hang=width + 8)
        if finding.action:
            say(f"{'':{width + 8}}{finding.action}")
    say()
    bad, warn = (sum(finding.level == level for finding in findings) for level in (BAD, WARN))
    if not bad and not warn:
        say("All is well.", STATUS_STYLES[OK])
    else:
        say(f"{counted(bad, 'problem')}, {counted(warn, 'warning')}.", STATUS_STYLES[BAD if bad else WARN])


async def examine(url: str) -> list[Finding]:
    """All findings, in the order of the checks; never raises for what it finds."""
    from holdfast.addresses import is_server
    from holdfast.store.inspection import inspect

    if is_server(url):
        return await _examine_server(url)
    try:
        store = store_of(url)
        refuse_missing_file(store)
        seen = await inspect(url)
    except HoldfastError as error:
        return [Finding("database", BAD, str(error), error.guidance or "")]
    except Exception as error:
        return [_broken("database", error)]
    findings = list(_about_the_database(seen))
    if _is_in_the_way(seen):
        return [*findings, _NOT_LOOKED_AT]
    try:
        from holdfast.engine import Engine

        await store.open(migrate=False)
        try:
            return findings + await _about_the_work(Engine(store))
        finally:
            await store.close()
    except HoldfastError as error:
        return [*findings, Finding("work", BAD, str(error), error.guidance or "")]
    except Exception as error:
        return [*findings, _broken("work", error)]


async def _examine_server(url: str) -> list[Finding]:
    """The server, the database as it is seen from there, and the work."""
    findings: list[Finding] = []
    check = "server"
    try:
        async with opened_client(url) as client:
            info = await client.info()
            findings.append(about_the_server(info))
            check = "database"
            seen = await client.inspection()
            findings += _about_the_database(seen, await client.now())
            if _is_in_the_way(seen):
                return [*findings, _NOT_LOOKED_AT]
            check = "work"
            return findings + await _about_the_work(client, info.version)
    except HoldfastError as error:
        return [*findings, Finding(check, BAD, str(error), error.guidance or "")]
    except Exception as error:
        return [*findings, _broken(check, error)]


_NOT_LOOKED_AT = Finding("work", WARN, "Workers and work were not looked at.", "Solve the above first.")


def _is_in_the_way(seen: Inspection) -> bool:
    return seen.schema_found < seen.schema_known or not seen.can_be_used or bool(seen.unwritable)


def _broken(check: str, error: Exception) -> Finding:
    return Finding(
        check, BAD, f"The check itself failed: {type(error).__name__}: {error}", "See the database's own log."
    )


def _about_the_database(seen: Inspection, server_now: float | None = None) -> Iterator[Finding]:
    """Seen from here, or by a server, from where that is and with its clock."""
    name = {"sqlite": "SQLite", "postgresql": "PostgreSQL"}[seen.kind]
    if seen.unwritable:
        yield Finding(
            "database",
            BAD,
            f"It can be read but not written: {seen.unwritable}.",
            "Give this user the right to write, or wait for the other process to end.",
        )
    else:
        yield Finding("database", OK, "It can be reached and written.")
    yield Finding("version", OK, f"{name} {seen.version}.")
    if seen.foreign_tables:
        yield Finding(
            "schema",
            BAD,
            f"It belongs to another program, whose tables have names that Holdfast needs:"
            f" {names(seen.foreign_tables, str)}.",
            FOREIGN_ADVICE,
        )
        return
    yield _durability(seen)
    yield _schema(seen, by_server=server_now is not None)
    yield _clock(seen, server_now)


def _durability(seen: Inspection) -> Finding:
    if seen.kind == "sqlite":
        if seen.settings["journal_mode"] != "wal":
            return Finding(
                "durability",
                WARN,
                f"Its journal mode is {seen.settings['journal_mode']}, not WAL.",
                "The first program that opens it with Holdfast changes that.",
            )
        return Finding("durability", OK, "WAL mode; Holdfast writes with synchronous=FULL.")
    risky = [f"{name}=off" for name in ("fsync", "full_page_writes") if seen.settings[name] == "off"]
    if risky:
        return Finding(
            "durability",
            BAD,
            f"The server runs with {' and '.join(risky)}: a crash of its machine can destroy the database.",
            "Switch it on in postgresql.conf and restart the server.",
        )
    if seen.settings["synchronous_commit"] == "off":
        return Finding(
            "durability",
            WARN,
            "synchronous_commit=off: work that was accepted in the last moments before a crash can be lost.",
            "Switch it on for this database: ALTER DATABASE … SET synchronous_commit = on.",
        )
    told = ", ".join(f"{name}={value}" for name, value in seen.settings.items())
    return Finding("durability", OK, f"{told}.")


def _schema(seen: Inspection, *, by_server: bool) -> Finding:
    if seen.schema_found == seen.schema_known:
        who = "the server" if by_server else "this Holdfast"
        return Finding("schema", OK, f"Version {seen.schema_found}, as {who} needs.")
    if seen.schema_found > seen.schema_known and seen.can_be_used:
        who = "the server" if by_server else "this Holdfast"
        return Finding(
            "schema",
            WARN,
            f"Version {seen.schema_found} is newer than {seen.schema_known}, which {who} knows. It can still"
            " be used.",
            f"Bring {who} up to date: an upgrade is under way, or was left half done.",
        )
    if by_server:  # it was changed under the server, which had brought it up to date
        return Finding(
            "schema",
            BAD,
            f"Version {seen.schema_found}; the server needs {seen.schema_known}.",
            "Start the server again, with the Holdfast that the database is for.",
        )
    if seen.schema_found > seen.schema_known:
        return Finding(
            "schema",
            BAD,
            f"Version {seen.schema_found} is newer than {seen.schema_known}, which this Holdfast knows.",
            "Install the newer Holdfast that made it.",
        )
    if not seen.schema_found:
        return Finding(
            "schema",
            BAD,
            "There are no tables of Holdfast in it.",
            f"Is it the right database (--db, {URL_VARIABLE})? If so:  holdfast migrate",
        )
    return Finding(
        "schema",
        BAD,
        f"Version {seen.schema_found}; this Holdfast needs {seen.schema_known}.",
        "Make a backup, then:  holdfast migrate",
    )


def _clock(seen: Inspection, server_now: float | None) -> Finding:
    import time

    machine = "this machine's" if server_now is None else "the server's machine's"
    lead = seen.clock_lead_seconds
    if abs(lead) - seen.clock_error_seconds > CLOCK_LEAD_SECONDS_MAX:
        which = "ahead of" if lead > 0 else "behind"
        return Finding(
            "clock",
            WARN,
            f"The database's clock is {abs(lead):.1f} s {which} {machine}.",
            "Holdfast goes by the database's. Synchronise both (NTP), or times in logs will not agree.",
        )
    now = time.time() + lead if server_now is None else server_now
    ahead = (seen.newest_event_at or 0.0) - now
    if ahead > CLOCK_LEAD_SECONDS_MAX:
        return Finding(
            "clock",
            WARN,
            f"The newest event is from {ahead:.0f} s in the future: the clock was set back.",
            "Retries and leases wait until the clock has caught up. Set it right (NTP).",
        )
    told = (
        f"It is {machine}." if seen.kind == "sqlite" else f"It agrees within {max(abs(lead), 0.001):.3f} s."
    )
    return Finding("clock", OK, told)


async def _about_the_work(engine: AnyEngine, servers_version: str | None = None) -> list[Finding]:
    from holdfast.cli.going_on import typed
    from holdfast.cli.output import counted
    from holdfast.cli.status import ALONE_ADVICE, start_advice, told_alone, told_vanished, told_waiting

    overview = await engine.overview()
    expired = await engine.expired_leases(EXPIRED_SECONDS, EXPIRED_COUNTED_MAX)
    findings: list[Finding] = []

    def add(check: str, level: str, message: str, action: str = "") -> None:
        findings.append(Finding(check, level, message, action))

    living = overview.workers
    if living:
        slots = sum(worker.concurrency for worker in living)
        add(
            "workers",
            OK,
            f"{counted(len(living), 'living worker')} with {counted(slots, 'slot')}:"
            f" {names(living, lambda worker: worker.worker_id)}.",
        )
    else:
        start = typed("holdfast worker --app your_module:hf", app=True)
        add("workers", WARN, "No worker lives.", f"Start one:  {start}")
    findings += about_versions(living, servers_version)
    for worker in overview.vanished[-VANISHED_SHOWN_MAX:]:
        add(
            "workers",
            WARN,
            told_vanished(worker, overview.at),
            "It was killed, or is cut off. What it held is retried by others; see its log.",
        )
    for item in overview.unoffered:
        add("waiting", BAD, told_waiting(item, overview.at), start_advice(item))
    if not overview.unoffered:
        ready = counted(overview.ready, "job is ready", "jobs are ready")
        if not overview.ready:
            add("waiting", OK, "Nothing waits.")
        elif overview.paused:
            add("waiting", OK, f"{ready}, {overview.paused:,} of them paused; workers offer the others.")
        else:
            add("waiting", OK, f"{ready}, and workers offer what is needed.")
    if overview.alone:
        add("waiting", WARN, told_alone(overview.alone), ALONE_ADVICE)
    findings += _about_the_controls(overview)
    findings += await _about_the_fleet(engine, overview)
    if expired:
        more = " or more" if expired == EXPIRED_COUNTED_MAX else ""
        add(
            "leases",
            BAD,
            f"{counted(expired, 'job is', 'jobs are')}{more} leased by a worker that is gone, for over"
            f" {EXPIRED_SECONDS:.0f} s, and nobody takes them back.",
            "Every worker at the database and every server sweeps up such leases: start one, or see why the"
            " running ones do not.",
        )
    else:
        add("leases", OK, "No lease is left behind.")
    failed = overview.executions["failed"]
    if failed:
        add(
            "dead",
            WARN,
            f"{counted(failed, 'execution failed and waits', 'executions failed and wait')} for somebody.",
            f"See why:  {typed('holdfast dead')}",
        )
    else:
        add("dead", OK, "Nothing has failed, or all of it was retried.")
    return findings


async def _about_the_fleet(engine: AnyEngine, overview: Overview) -> list[Finding]:
    """Whether anybody takes what dispatchers have put into their brokers."""
    from holdfast.cli.output import counted

    if not any(worker.worker_id.startswith(DISPATCHER_PREFIX) for worker in overview.workers):
        return []
    leased = [
        (job.worker_id or "", overview.at - (job.last_attempt_at or overview.at))
        for job in (await engine.queue(status="leased", limit=LEASED_SEEN_MAX)).items
    ]
    waits = [seconds for worker, seconds in leased if worker.startswith(DISPATCHER_PREFIX)]
    is_taken = any(worker.startswith(CELERY_PREFIX) for worker, _ in leased)
    attempts = counted(len(waits), "attempt waits", "attempts wait")
    if is_taken or max(waits, default=0.0) < UNTAKEN_SECONDS_MAX:
        return [
            Finding("fleet", OK, f"{attempts} in the broker." if waits else "Nothing waits in the broker.")
        ]
    return [
        Finding(
            "fleet",
            WARN,
            f"{attempts} in the broker, the oldest for {max(waits):.0f} s, and no Celery worker runs any.",
            "Check that Celery workers run, with the dispatcher's broker, and consume its two queues"
            " (holdfast.manual and holdfast.bulk, or those of --queue).",
        )
    ]


def _about_the_controls(overview: Overview) -> Iterator[Finding]:
    """Pauses and open batches that may have been forgotten, and limits that limit nothing or everything."""
    from holdfast.cli.going_on import typed
    from holdfast.cli.pause import resume_command
    from holdfast.cli.status import close_advice, told_open, told_paused

    for item in overview.pauses:
        told = told_paused(item, overview.at)
        if overview.at - item.pause.since > PAUSE_SECONDS_MAX:
            forgotten = f"Where it was forgotten:  {resume_command(item.pause)}"
            yield Finding("paused", WARN, f"For over a day: {told}", forgotten)
        else:
            yield Finding("paused", OK, told)
    for batch in overview.open_batches:
        if overview.at - batch.created_at > OPEN_BATCH_SECONDS_MAX:
            cancel = f"or cancel it:  {typed(f'holdfast batch cancel {batch.id}')}"
            yield Finding("batches", WARN, told_open(batch, overview.at), f"{close_advice(batch)} , {cancel}")
    for limit in overview.limits:
        most = limit.max_concurrency
        if most is None and (limit.steps or limit.pause is None):
            yield Finding(
                "limits",
                WARN,
                f"Nobody has set the limit {limit.name}, which is named by"
                f" {names(limit.steps, str) or 'jobs of an older version'}: nothing is limited.",
                f"Set it:  {typed(f'holdfast limits set {limit.name} N')}",
            )
        elif most is not None and limit.manual_reserve == most and limit.waiting["bulk"]:
            yield Finding(
                "limits",
                WARN,
                f"The limit {limit.name} keeps all of its {most} for manual work; bulk work waits for ever.",
                "Leave it some:  " + typed(f"holdfast limits set {limit.name} {most} --manual-reserve 0"),
            )
