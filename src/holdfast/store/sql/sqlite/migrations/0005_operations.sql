-- works with: 4
-- Operating: who may do what, who did what, and what was counted. Only tables are added, so whoever knows the
-- schema before this one works on; their names begin with the project's, as users may have tables of their own here.

-- Who may use the API. `id` is the part of a token that is no secret; of the rest only a hash is kept.
CREATE TABLE holdfast_tokens (
    id text PRIMARY KEY,
    name text NOT NULL,
    role text NOT NULL CHECK (role IN ('viewer', 'worker', 'operator', 'admin')),
    secret_hash text NOT NULL,
    created_at real NOT NULL,
    created_by text NOT NULL,
    expires_at real,
    revoked_at real,
    revoked_by text,
    last_used_at real,
    CHECK ((revoked_at IS NULL) = (revoked_by IS NULL))
) STRICT;
CREATE UNIQUE INDEX holdfast_tokens_name ON holdfast_tokens (name) WHERE revoked_at IS NULL;

-- What people did, written in the transaction that did it. It is never changed.
CREATE TABLE holdfast_audit (
    id integer PRIMARY KEY AUTOINCREMENT,
    at real NOT NULL,
    actor text NOT NULL,
    action text NOT NULL,
    target text NOT NULL,
    details text NOT NULL
) STRICT;
CREATE INDEX holdfast_audit_target ON holdfast_audit (target, id);

-- What each process has counted so far, for those who watch: only its own process writes a row, so nobody waits
-- for anybody. What processes counted that have ended is added up under an empty source.
CREATE TABLE holdfast_tallies (
    source text NOT NULL,
    name text NOT NULL,
    labels text NOT NULL,
    value real NOT NULL,
    seen_at real NOT NULL,
    PRIMARY KEY (source, name, labels)
) STRICT, WITHOUT ROWID;

-- The oldest schema whose Holdfast may use the database of a version: what a Holdfast reads that does not know this one.
CREATE TABLE holdfast_compatibility (
    version integer PRIMARY KEY,
    oldest integer NOT NULL
) STRICT;
