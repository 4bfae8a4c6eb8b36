"""The table of vectors, on both stores. What keeps them on PostgreSQL depends on what the database can do.

    SQLite                          bytes: numbers of 16 bits, the lowest byte first
    PostgreSQL with pgvector        halfvec: the same, and the database itself finds what is near
    PostgreSQL without              bytes, as on SQLite

pgvector is used where it is there when the table is made, or can be put there, which is for superusers and
the owners of databases. The kind that a table was made with stays, and is asked from the catalog. `seq` only
grows: whoever has read the vectors before sees by it what has come since.
"""

from __future__ import annotations

from holdfast.store.tables import TableSet

NAME = "document_vectors"

_SQLITE = """
CREATE TABLE holdfast_document_embeddings (
    seq integer PRIMARY KEY AUTOINCREMENT,
    chunk_id integer NOT NULL UNIQUE,
    document_id integer NOT NULL,
    model text NOT NULL,
    dimensions integer NOT NULL,
    vector blob NOT NULL,
    created_at real NOT NULL
) STRICT;
CREATE INDEX holdfast_document_embeddings_document ON holdfast_document_embeddings (document_id);
CREATE INDEX holdfast_document_embeddings_model ON holdfast_document_embeddings (model, dimensions, seq);
"""

# The types of an extension are in whatever schema it was put, which need not be searched for names. What
# cannot be done here is no error: the block goes back to where it began, and bytes take the place.
_POSTGRESQL = """
DO $make$
DECLARE
    kind text := 'bytea';
    found text;
BEGIN
    BEGIN
        CREATE EXTENSION IF NOT EXISTS vector WITH SCHEMA public;
    EXCEPTION WHEN OTHERS THEN
        NULL;
    END;
    SELECT n.nspname INTO found
    FROM pg_extension x
    JOIN pg_depend d ON d.refclassid = 'pg_extension'::regclass AND d.refobjid = x.oid
                    AND d.classid = 'pg_type'::regclass AND d.deptype = 'e'
    JOIN pg_type t ON t.oid = d.objid AND t.typname = 'halfvec'
    JOIN pg_namespace n ON n.oid = t.typnamespace
    WHERE x.extname = 'vector' AND has_schema_privilege(n.oid, 'USAGE');
    IF found IS NOT NULL THEN
        kind := format('%I.halfvec', found);
    END IF;
    EXECUTE format($table$
        CREATE TABLE holdfast_document_embeddings (
            seq bigint GENERATED ALWAYS AS IDENTITY,
            chunk_id bigint PRIMARY KEY,
            document_id bigint NOT NULL,
            model text NOT NULL,
            dimensions int NOT NULL,
            vector %s NOT NULL,
            created_at float8 NOT NULL
        )$table$, kind);
END
$make$;
CREATE INDEX document_embeddings_document ON holdfast_document_embeddings (document_id);
CREATE INDEX document_embeddings_model ON holdfast_document_embeddings (model, dimensions, seq);

-- When an index of pgvector was last tried to be made (`vector_index.py`).
CREATE TABLE holdfast_document_indexes (
    name text PRIMARY KEY,
    tried_at float8 NOT NULL
);
"""

KIND_OF_VECTORS = """
SELECT t.typname::text, quote_ident(n.nspname),
       (SELECT extversion FROM pg_extension WHERE extname = 'vector')
FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid JOIN pg_namespace n ON n.oid = t.typnamespace
WHERE a.attrelid = to_regclass('holdfast_document_embeddings') AND a.attname = 'vector'"""


def vector_tables_for(dialect: str) -> TableSet:
    return TableSet(NAME, (_SQLITE if dialect == "sqlite" else _POSTGRESQL,))
