"""The tables of configuration runs, on both stores, and the statements that read and write them.

    conf_runs      one upload; its number is that of its execution
    conf_files     the files of a run that were read, with what is wrong in them
    conf_stanzas   their stanzas in order; keys and values as a JSON list [[key, value, line], …]

A run's state is what is stored here and what has become of its execution (`STATE`): only the pipeline's own
steps write here, and only an execution can fail. On SQLite the words of stanzas (`words.py`) are a full-text
index of their own, on PostgreSQL a column.
"""

from __future__ import annotations

from holdfast.store.tables import TableSet

NAME = "conf_archives"

_SQLITE = """
CREATE TABLE holdfast_conf_runs (
    id integer PRIMARY KEY,
    status text NOT NULL CHECK (status IN ('PENDING', 'STORED', 'PARSING', 'COMPLETE')),
    filename text NOT NULL,
    size integer NOT NULL,
    sha256 text NOT NULL,
    task_id text,
    created_at real NOT NULL,
    started_at real,
    last_heartbeat real,
    completed_at real,
    duration_seconds real,
    files_parsed integer NOT NULL DEFAULT 0,
    stanzas_created integer NOT NULL DEFAULT 0,
    parse_errors integer NOT NULL DEFAULT 0,
    CHECK (status NOT IN ('PARSING', 'COMPLETE') OR (task_id IS NOT NULL AND started_at IS NOT NULL)),
    CHECK ((status = 'COMPLETE') = (completed_at IS NOT NULL))
) STRICT;
-- Those that may have rows that nobody will ever see.
CREATE INDEX holdfast_conf_runs_parsing ON holdfast_conf_runs (id) WHERE status = 'PARSING';

CREATE TABLE holdfast_conf_files (
    run_id integer NOT NULL,
    file_id integer NOT NULL,
    path text NOT NULL,
    app text NOT NULL,
    layer text NOT NULL CHECK (layer IN ('default', 'local', '')),
    conf text NOT NULL,
    encoding text NOT NULL,
    size integer NOT NULL,
    sha256 text NOT NULL,
    stanzas integer NOT NULL,
    parse_errors integer NOT NULL,
    errors text NOT NULL,
    PRIMARY KEY (run_id, file_id),
    UNIQUE (run_id, path)
) STRICT, WITHOUT ROWID;
CREATE INDEX holdfast_conf_files_conf ON holdfast_conf_files (run_id, conf, app);

CREATE TABLE holdfast_conf_stanzas (
    id integer PRIMARY KEY,
    run_id integer NOT NULL,
    file_id integer NOT NULL,
    name text NOT NULL,
    source_path text NOT NULL,
    position integer NOT NULL,
    line integer NOT NULL,
    has_header integer NOT NULL CHECK (has_header IN (0, 1)),
    entries text NOT NULL,
    UNIQUE (run_id, file_id, position)
) STRICT;
CREATE INDEX holdfast_conf_stanzas_name ON holdfast_conf_stanzas (run_id, name);

CREATE VIRTUAL TABLE holdfast_conf_words USING fts5 (
    words, content = '', contentless_delete = 1, detail = none, tokenize = 'ascii'
);
"""

_POSTGRESQL = """
CREATE TABLE holdfast_conf_runs (
    id bigint PRIMARY KEY,
    status text NOT NULL CHECK (status IN ('PENDING', 'STORED', 'PARSING', 'COMPLETE')),
    filename text NOT NULL,
    size bigint NOT NULL,
    sha256 text NOT NULL,
    task_id text,
    created_at float8 NOT NULL,
    started_at float8,
    last_heartbeat float8,
    completed_at float8,
    duration_seconds float8,
    files_parsed bigint NOT NULL DEFAULT 0,
    stanzas_created bigint NOT NULL DEFAULT 0,
    parse_errors bigint NOT NULL DEFAULT 0,
    CHECK (status NOT IN ('PARSING', 'COMPLETE') OR (task_id IS NOT NULL AND started_at IS NOT NULL)),
    CHECK ((status = 'COMPLETE') = (completed_at IS NOT NULL))
);
-- Those that may have rows that nobody will ever see.
CREATE INDEX conf_runs_parsing ON holdfast_conf_runs (id) WHERE status = 'PARSING';

CREATE TABLE holdfast_conf_files (
    run_id bigint NOT NULL,
    file_id int NOT NULL,
    path text NOT NULL,
    app text NOT NULL,
    layer text NOT NULL CHECK (layer IN ('default', 'local', '')),
    conf text NOT NULL,
    encoding text NOT NULL,
    size bigint NOT NULL,
    sha256 text NOT NULL,
    stanzas int NOT NULL,
    parse_errors int NOT NULL,
    errors text NOT NULL,
    PRIMARY KEY (run_id, file_id),
    UNIQUE (run_id, path)
);
CREATE INDEX conf_files_conf ON holdfast_conf_files (run_id, conf, app);

-- Indexes hold at most 2,700 bytes of a name; a longer one is found by its beginning.
CREATE TABLE holdfast_conf_stanzas (
    run_id bigint NOT NULL,
    file_id int NOT NULL,
    name text NOT NULL,
    source_path text NOT NULL,
    position int NOT NULL,
    line int NOT NULL,
    has_header boolean NOT NULL,
    entries text NOT NULL,
    words tsvector NOT NULL,
    PRIMARY KEY (run_id, file_id, position)
);
CREATE INDEX conf_stanzas_name ON holdfast_conf_stanzas (run_id, left(name, 200));
CREATE INDEX conf_stanzas_words ON holdfast_conf_stanzas USING gin (words);
"""


def tables_for(dialect: str) -> TableSet:
    return TableSet(NAME, (_SQLITE if dialect == "sqlite" else _POSTGRESQL,))


# Of a run r and its execution e, where there still is one: it will not go on unless a person says so.
IS_OVER = "(e.id IS NULL OR e.status IN ('failed', 'cancelled'))"

# Of the same: what people are told.
STATE = f"""CASE
    WHEN r.status = 'COMPLETE' THEN 'COMPLETE'
    WHEN {IS_OVER} THEN 'FAILED'
    ELSE r.status END"""


def executions_in(dialect: str) -> str:
    return "executions" if dialect == "sqlite" else "holdfast.executions"


ADD_RUN = """
INSERT INTO holdfast_conf_runs (id, status, filename, size, sha256, created_at)
VALUES ($1, 'PENDING', $2, $3, $4, $5) ON CONFLICT (id) DO NOTHING"""

MARK_STORED = "UPDATE holdfast_conf_runs SET status = 'STORED' WHERE id = $1 AND status = 'PENDING'"

COMPLETE_RUN = """
UPDATE holdfast_conf_runs
SET status = 'COMPLETE', completed_at = $3, last_heartbeat = $3, duration_seconds = $4, files_parsed = $5,
    stanzas_created = $6, parse_errors = $7
WHERE id = $1 AND task_id = $2 AND status = 'PARSING'"""
