"""The tables of documents, on both stores, and the statements that several files use.

    documents            one upload; its number is that of its execution
    document_chunks      what was read of it, in order, each with its place
    document_findings    what its analysis found, each pointing to chunks

Vectors are in a table of their own (`vector_tables.py`), whose shape depends on what the database can do. A
document's status is what is stored here and what has become of its execution (`documents.py`): only the
pipeline's own steps write here, and only an execution can fail.
"""

from __future__ import annotations

from holdfast.store.tables import TableSet

NAME = "documents"

_SQLITE = """
CREATE TABLE holdfast_documents (
    id integer PRIMARY KEY,
    filename text NOT NULL,
    size integer NOT NULL,
    sha256 text NOT NULL,
    last_completed_stage text
        CHECK (last_completed_stage IN ('parsed', 'embedded', 'analyzed', 'complete')),
    task_id text,
    kind text CHECK (kind IN ('pdf', 'docx', 'xlsx', 'txt')),
    title text,
    facts text,
    chunks integer NOT NULL DEFAULT 0 CHECK (chunks >= 0),
    findings integer NOT NULL DEFAULT 0 CHECK (findings >= 0),
    embedding_model text,
    created_at real NOT NULL,
    started_at real,
    last_heartbeat real,
    parsed_at real,
    embedded_at real,
    analyzed_at real,
    completed_at real,
    CHECK (last_completed_stage IS NULL OR (task_id IS NOT NULL AND parsed_at IS NOT NULL)),
    CHECK (last_completed_stage IS NULL OR last_completed_stage = 'parsed' OR embedded_at IS NOT NULL),
    CHECK ((last_completed_stage IS 'complete') = (completed_at IS NOT NULL))
) STRICT;
-- Those that are worked on, or wait for somebody to act.
CREATE INDEX holdfast_documents_open ON holdfast_documents (id) WHERE completed_at IS NULL;
-- Those that may have chunks that nobody will ever see.
CREATE INDEX holdfast_documents_begun ON holdfast_documents (id)
    WHERE last_completed_stage IS NULL AND task_id IS NOT NULL;
CREATE INDEX holdfast_documents_content ON holdfast_documents (sha256) WHERE completed_at IS NOT NULL;

CREATE TABLE holdfast_document_chunks (
    id integer PRIMARY KEY,
    document_id integer NOT NULL,
    number integer NOT NULL CHECK (number >= 0),
    kind text NOT NULL,
    text text NOT NULL,
    page integer,
    sheet text,
    cells text,
    heading text,
    overlap integer NOT NULL DEFAULT 0 CHECK (overlap >= 0),
    created_at real NOT NULL,
    UNIQUE (document_id, number)
) STRICT;

-- The words of chunks; their text is read from the chunks themselves.
CREATE VIRTUAL TABLE holdfast_document_words USING fts5 (
    text, content = 'holdfast_document_chunks', content_rowid = 'id',
    tokenize = 'unicode61 remove_diacritics 2'
);
CREATE TRIGGER holdfast_document_words_added AFTER INSERT ON holdfast_document_chunks BEGIN
    INSERT INTO holdfast_document_words (rowid, text) VALUES (new.id, new.text);
END;
CREATE TRIGGER holdfast_document_words_removed AFTER DELETE ON holdfast_document_chunks BEGIN
    INSERT INTO holdfast_document_words (holdfast_document_words, rowid, text)
    VALUES ('delete', old.id, old.text);
END;

CREATE TABLE holdfast_document_findings (
    document_id integer NOT NULL,
    number integer NOT NULL CHECK (number >= 0),
    kind text NOT NULL,
    text text NOT NULL,
    value text,
    score real NOT NULL,
    count integer NOT NULL CHECK (count >= 1),
    chunks text NOT NULL,
    created_at real NOT NULL,
    PRIMARY KEY (document_id, number)
) STRICT, WITHOUT ROWID;
"""

# A text in small letters without marks, and of it only runs of letters and digits: the words that SQLite
# makes of it. What PostgreSQL takes for a number, an address or the name of a file is then no word of its
# own. Only Latin letters lose their marks. What a letter is must not depend on the locale of the database:
# it is asked of the first of these that there is, or else of the locale after all.
_WORDS_OF_POSTGRESQL = r"""
DO $make$
DECLARE
    place text;
    has_unicode bool := getdatabaseencoding() = 'UTF8';
    form text := 'lower(given)';
    digits text := '';
BEGIN
    SELECT 'COLLATE pg_catalog.' || quote_ident(collname) INTO place
    FROM pg_collation
    WHERE has_unicode AND collnamespace = 'pg_catalog'::regnamespace
      AND collname IN ('und-x-icu', 'pg_c_utf8', 'C.utf8')
      AND collencoding IN (-1, pg_char_to_encoding('UTF8'))
    ORDER BY array_position(ARRAY['und-x-icu', 'pg_c_utf8', 'C.utf8'], collname::text) LIMIT 1;
    IF has_unicode THEN
        form := $form$translate(normalize(regexp_replace(normalize(lower(given %1$s), NFD),
            '([a-z])[\u0300-\u036f]+', '\1', 'g'), NFC), U&'\03c2\017f', U&'\03c3s')$form$;
        digits := '\u00b2\u00b3\u00b9\u00bc-\u00be\u0660-\u0669\u06f0-\u06f9\u0966-\u096f';
    END IF;
    EXECUTE format($function$
        CREATE FUNCTION holdfast_document_words_of(given text) RETURNS text
        LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS $body$
            SELECT regexp_replace($function$ || form || $function$ %1$s, '[^[:alnum:]%2$s]+', ' ', 'g')
        $body$$function$, coalesce(place, ''), digits);
END
$make$;
"""

_POSTGRESQL = f"""{_WORDS_OF_POSTGRESQL}
CREATE TABLE holdfast_documents (
    id bigint PRIMARY KEY,
    filename text NOT NULL,
    size bigint NOT NULL,
    sha256 text NOT NULL,
    last_completed_stage text
        CHECK (last_completed_stage IN ('parsed', 'embedded', 'analyzed', 'complete')),
    task_id text,
    kind text CHECK (kind IN ('pdf', 'docx', 'xlsx', 'txt')),
    title text,
    facts text,
    chunks int NOT NULL DEFAULT 0 CHECK (chunks >= 0),
    findings int NOT NULL DEFAULT 0 CHECK (findings >= 0),
    embedding_model text,
    created_at float8 NOT NULL,
    started_at float8,
    last_heartbeat float8,
    parsed_at float8,
    embedded_at float8,
    analyzed_at float8,
    completed_at float8,
    CHECK (last_completed_stage IS NULL OR (task_id IS NOT NULL AND parsed_at IS NOT NULL)),
    CHECK (last_completed_stage IS NULL OR last_completed_stage = 'parsed' OR embedded_at IS NOT NULL),
    CHECK ((coalesce(last_completed_stage, '') = 'complete') = (completed_at IS NOT NULL))
);
-- Those that are worked on, or wait for somebody to act.
CREATE INDEX documents_open ON holdfast_documents (id) WHERE completed_at IS NULL;
-- Those that may have chunks that nobody will ever see.
CREATE INDEX documents_begun ON holdfast_documents (id)
    WHERE last_completed_stage IS NULL AND task_id IS NOT NULL;
CREATE INDEX documents_content ON holdfast_documents (sha256) WHERE completed_at IS NOT NULL;

CREATE TABLE holdfast_document_chunks (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    document_id bigint NOT NULL,
    number int NOT NULL CHECK (number >= 0),
    kind text NOT NULL,
    text text NOT NULL,
    page int,
    sheet text,
    cells text,
    heading text,
    overlap int NOT NULL DEFAULT 0 CHECK (overlap >= 0),
    created_at float8 NOT NULL,
    words tsvector GENERATED ALWAYS AS (to_tsvector('simple', holdfast_document_words_of(text))) STORED,
    UNIQUE (document_id, number)
);
CREATE INDEX document_chunks_words ON holdfast_document_chunks USING gin (words);

CREATE TABLE holdfast_document_findings (
    document_id bigint NOT NULL,
    number int NOT NULL CHECK (number >= 0),
    kind text NOT NULL,
    text text NOT NULL,
    value text,
    score float8 NOT NULL,
    count int NOT NULL CHECK (count >= 1),
    chunks text NOT NULL,
    created_at float8 NOT NULL,
    PRIMARY KEY (document_id, number)
);
"""


def tables_for(dialect: str) -> TableSet:
    return TableSet(NAME, (_SQLITE if dialect == "sqlite" else _POSTGRESQL,))


def engine_table(dialect: str, name: str) -> str:
    """A table of the engine itself."""
    return name if dialect == "sqlite" else f"holdfast.{name}"


# Of a document d and its execution e: it will not go on unless a person says so.
IS_OVER = "(e.id IS NULL OR e.status IN ('failed', 'cancelled'))"


def status_in(dialect: str) -> str:
    """Of a document d and its execution e, where there still is one: what people are told. The stage that it
    is at is that of its live job; between two stages there is one, too."""
    space = "instr(live, ' ')" if dialect == "sqlite" else "strpos(live, ' ')"
    return f"""CASE
    WHEN d.completed_at IS NOT NULL THEN 'complete'
    WHEN {IS_OVER} THEN 'failed'
    ELSE (
        SELECT CASE
            WHEN live IS NULL OR live = 'queued parsing' THEN 'pending'
            WHEN live LIKE 'retry %' THEN 'retrying'
            ELSE substr(live, {space} + 1)
            END
        FROM (SELECT (
            SELECT j.status || ' ' || j.step FROM {engine_table(dialect, "jobs")} j
            WHERE j.execution_id = d.id AND j.status IN ('queued', 'leased', 'retry')
            ORDER BY j.id DESC LIMIT 1
        ) AS live) AS of_job
    ) END"""


ADD_DOCUMENT = """
INSERT INTO holdfast_documents (id, filename, size, sha256, created_at)
VALUES ($1, $2, $3, $4, $5) ON CONFLICT (id) DO NOTHING"""

# Some of a document's; how many there were.
CLEAR_CHUNKS = """
DELETE FROM holdfast_document_chunks WHERE id IN (
    SELECT id FROM holdfast_document_chunks WHERE document_id = $1 LIMIT 2000
)"""

# Also where the history of its execution was removed.
FIND_COMPLETE = """
SELECT id FROM holdfast_documents WHERE sha256 = $1 AND completed_at IS NOT NULL ORDER BY id LIMIT 1"""
