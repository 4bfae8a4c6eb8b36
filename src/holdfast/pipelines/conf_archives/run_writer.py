"""What one attempt writes of a run: the rows of its files and stanzas, in parts.

    begin ──▶ PARSING, by this task ──▶ clear what another one left ──▶ parts ──▶ (COMPLETE, by the step)

Each part is one transaction that asks first whether the run is still this attempt's. One that was taken for
dead and goes on is refused there, so that nothing of two attempts can be mixed. Nobody reads a run's rows
before it is COMPLETE, which is written with the completion of its step. What is left of a run that came to
another end is removed by attempts at others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from sys import getsizeof

import msgspec

from holdfast.pipelines.conf_archives.archive_refusals import shown, too_much
from holdfast.pipelines.conf_archives.conf_parser import Fault, Stanza
from holdfast.pipelines.conf_archives.placing import Place
from holdfast.pipelines.conf_archives.tables import ADD_RUN, IS_OVER, executions_in, tables_for
from holdfast.pipelines.conf_archives.words import IndexedWords
from holdfast.pipelines.held_row import HeldRow
from holdfast.pipelines.upload import Upload
from holdfast.store.tables import Row, TableTransaction, TableWriter

PART_ROWS_MAX = 5_000  # each commit merges the index for the search a little
PART_BYTES_MAX = 6 * 1024**2  # in memory, where a single strange character makes four bytes of each
FILE_ROW_BYTES = 500
CLEAR_ROWS = 2_000
LEFTOVER_PARTS_MAX = 20
FAULTS_KEPT_MAX = 100  # of a file; all of them are counted
ROW_BYTES = 100  # that a row takes beside its texts
SHORT_BYTES = 100_000

_encode = msgspec.json.Encoder().encode

_FILES = {
    "sqlite": "INSERT INTO holdfast_conf_files VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
    "postgresql": """
        INSERT INTO holdfast_conf_files
        SELECT * FROM unnest($1::bigint[], $2::int[], $3::text[], $4::text[], $5::text[], $6::text[],
                             $7::text[], $8::bigint[], $9::text[], $10::int[], $11::int[], $12::text[])""",
}
_STANZAS = {
    "sqlite": "INSERT INTO holdfast_conf_stanzas VALUES (?, ?, ?, ?, ?, ?, ?, ?, CAST(? AS text))",
    "postgresql": """
        INSERT INTO holdfast_conf_stanzas
        SELECT run, file, name, path, position, line, header, convert_from(entries, 'UTF8'),
               array_to_tsvector(string_to_array(words, ' '))
        FROM unnest($1::bigint[], $2::int[], $3::text[], $4::text[], $5::int[], $6::int[], $7::boolean[],
                    $8::bytea[], $9::text[])
             AS new (run, file, name, path, position, line, header, entries, words)""",
}


@dataclass(slots=True)
class FileRead:
    """One file of the archive, while it is read."""

    path: str
    place: Place
    encoding: str
    size: int
    sha256: str
    stanzas: int = 0
    fault_count: int = 0
    faults: list[Fault] = field(default_factory=list)

    def add_fault(self, fault: Fault) -> None:
        self.fault_count += 1
        if len(self.faults) < FAULTS_KEPT_MAX:
            self.faults.append(fault)


class RunWriter:
    """Used by one thread. `task_id` is `job-lease`, both of which only grow. What is more than
    `stored_bytes_max` is refused: a few bytes that are packed well may become a great many rows."""

    def __init__(
        self,
        writer: TableWriter,
        run_id: int,
        task_id: str,
        now: Callable[[], float],
        stored_bytes_max: int,
    ) -> None:
        self._writer = writer
        self._run_id = run_id
        self._task_id = task_id
        self._now = now
        self._words_of = IndexedWords(run_id).of
        self._stored_bytes_max = stored_bytes_max
        self._stored_bytes_left = stored_bytes_max
        self._is_sqlite = writer.dialect == "sqlite"
        self._held = HeldRow(
            writer,
            "holdfast_conf_runs",
            run_id,
            task_id,
            now,
            what="Run",
            condition=" AND status = 'PARSING'",
        )
        self._stanzas: list[Row] = []
        self._words: list[str] = []
        self._files: list[Row] = []
        self._bytes = 0
        self._file_id = 0
        self.files_parsed = 0
        self.stanzas_created = 0
        self.parse_errors = 0

    def begin(self, upload: Upload) -> bool:
        """Make the run this attempt's; False where it is COMPLETE already."""
        self._writer.make_tables(tables_for(self._writer.dialect))
        now = self._now()

        def begin(tx: TableTransaction) -> bool:
            tx.execute(ADD_RUN, self._run_id, upload.filename, upload.size, upload.sha256, now)
            [(status, holder)] = tx.fetch(
                f"SELECT status, task_id FROM holdfast_conf_runs WHERE id = $1{self._held.lock}", self._run_id
            )
            if status == "COMPLETE":
                return False
            self._held.check(holder)
            tx.execute(
                "UPDATE holdfast_conf_runs SET status = 'PARSING', task_id = $2, last_heartbeat = $3,"
                " started_at = $3 WHERE id = $1",
                self._run_id,
                self._task_id,
                now,
            )
            return True

        return self._writer.write(begin)

    def clear(self, between: Callable[[], None]) -> None:
        """Remove what an earlier attempt has left, in parts; `between` may end it."""
        while self._held.write(self._clear_some):
            between()

    def is_cancelled(self) -> bool:
        return self._held.is_cancelled()

    def _clear_some(self, tx: TableTransaction) -> int:
        return _clear_rows(tx, self._run_id, is_sqlite=self._is_sqlite)

    def add_stanza(self, file: FileRead, stanza: Stanza) -> None:
        name, position, line, has_header, entries = stanza
        # As bytes: a text of them takes four times as much memory where a single character is a strange one.
        encoded = _encode(entries)
        words = self._words_of(name, entries, is_short=len(encoded) < SHORT_BYTES)
        self._count_stored(file, len(name) + len(encoded) + len(file.path))
        self._make_room(len(encoded) + getsizeof(words) + getsizeof(name))
        self._stanzas.append(
            (self._run_id, self._file_id, name, file.path, position, line, has_header, encoded)
        )
        self._words.append(words)
        file.stanzas += 1
        if len(self._stanzas) >= PART_ROWS_MAX or self._bytes >= PART_BYTES_MAX:
            self.flush()

    def _count_stored(self, file: FileRead, size: int) -> None:
        self._stored_bytes_left -= size + ROW_BYTES
        if self._stored_bytes_left < 0:
            raise too_much(
                f"What the archive says takes more than {self._stored_bytes_max:,} bytes to be stored; the"
                f" limit is passed in {shown(file.path)}, by stanza {file.stanzas + 1:,} of it."
            )

    def _make_room(self, bytes_more: int) -> None:
        if self._bytes and self._bytes + bytes_more > PART_BYTES_MAX:
            self.flush()
        self._bytes += bytes_more

    def end_file(self, file: FileRead) -> None:
        place = file.place
        where = (self._run_id, self._file_id, file.path, place.app, place.layer, place.conf)
        faults = _encode(file.faults).decode()
        self._count_stored(file, len(file.path) + len(faults))
        counted = (file.stanzas, file.fault_count, faults)
        self._make_room(getsizeof(faults) + getsizeof(file.path) + FILE_ROW_BYTES)
        self._files.append((*where, file.encoding, file.size, file.sha256, *counted))
        self._file_id += 1
        self.files_parsed += 1
        self.stanzas_created += file.stanzas
        self.parse_errors += file.fault_count
        if len(self._files) >= PART_ROWS_MAX:
            self.flush()

    def flush(self) -> None:
        """Write what was gathered, in one transaction; also where it is nothing, as a sign of life."""
        stanzas, words, files = self._stanzas, self._words, self._files
        self._stanzas, self._words, self._files, self._bytes = [], [], [], 0

        def write(tx: TableTransaction) -> None:
            if self._is_sqlite:
                [(last,)] = tx.fetch("SELECT coalesce(max(id), 0) FROM holdfast_conf_stanzas")
                numbered = list(enumerate(stanzas, last + 1))
                tx.execute_many(_STANZAS["sqlite"], [(id_, *row) for id_, row in numbered])
                tx.execute_many(
                    "INSERT INTO holdfast_conf_words (rowid, words) VALUES (?, ?)",
                    list(enumerate(words, last + 1)),
                )
                tx.execute_many(_FILES["sqlite"], files)
            else:
                rows = [(*row, found) for row, found in zip(stanzas, words, strict=True)]
                tx.execute_many(_STANZAS["postgresql"], rows)
                tx.execute_many(_FILES["postgresql"], files)

        self._held.write(write)


def clear_leftovers(writer: TableWriter, between: Callable[[], None]) -> None:
    """Remove some of what is left of runs that have failed or were cancelled; a few at a time, as nobody
    waits for it. A run that has nothing left is STORED again, for nobody to look into it once more."""
    is_sqlite = writer.dialect == "sqlite"
    of_one = f"FROM holdfast_conf_runs r LEFT JOIN {executions_in(writer.dialect)} e ON e.id = r.id"
    find = f"SELECT r.id {of_one} WHERE r.status = 'PARSING' AND {IS_OVER} ORDER BY r.id LIMIT 1"
    lock = "" if is_sqlite else " FOR UPDATE OF r SKIP LOCKED"
    # Asked again under the lock: it may have been started again, and be at work, since the first look.
    check = f"SELECT r.id {of_one} WHERE r.id = $1 AND {IS_OVER}"

    def clear_some(tx: TableTransaction) -> bool:
        found = tx.fetch(find + lock)
        if not found or not tx.fetch(check, *found[0]):
            return False
        [(run_id,)] = found
        if not _clear_rows(tx, run_id, is_sqlite=is_sqlite):
            tx.execute("UPDATE holdfast_conf_runs SET status = 'STORED' WHERE id = $1", run_id)
        return True

    for _ in range(LEFTOVER_PARTS_MAX):
        if not writer.write(clear_some):
            return
        between()


def _clear_rows(tx: TableTransaction, run_id: int, *, is_sqlite: bool) -> int:
    """Some of the stanzas; where there are none, the files."""
    key = "id" if is_sqlite else "ctid"
    removed = tx.fetch(
        f"DELETE FROM holdfast_conf_stanzas WHERE {key} IN"
        f" (SELECT {key} FROM holdfast_conf_stanzas WHERE run_id = $1 LIMIT {CLEAR_ROWS}) RETURNING {key}",
        run_id,
    )
    if is_sqlite:
        tx.execute_many("DELETE FROM holdfast_conf_words WHERE rowid = ?", removed)
    if not removed:
        tx.execute("DELETE FROM holdfast_conf_files WHERE run_id = $1", run_id)
    return len(removed)
