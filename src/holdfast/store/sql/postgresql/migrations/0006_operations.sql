-- works with: 5
-- Operating: who may do what, who did what, and what was counted. Only tables are added, so whoever knows the
-- schema before this one works on.

-- Who may use the API. `id` is the part of a token that is no secret; of the rest only a hash is kept.
CREATE TABLE holdfast.tokens (
    id text PRIMARY KEY,
    name text NOT NULL,
    role text NOT NULL CHECK (role IN ('viewer', 'worker', 'operator', 'admin')),
    secret_hash text NOT NULL,
    created_at double precision NOT NULL,
    created_by text NOT NULL,
    expires_at double precision,
    revoked_at double precision,
    revoked_by text,
    last_used_at double precision,
    CHECK ((revoked_at IS NULL) = (revoked_by IS NULL))
);
CREATE UNIQUE INDEX tokens_name ON holdfast.tokens (name) WHERE revoked_at IS NULL;

-- What people did, written in the transaction that did it. It is never changed.
CREATE TABLE holdfast.audit (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at double precision NOT NULL,
    actor text NOT NULL,
    action text NOT NULL,
    target text NOT NULL,
    details text NOT NULL
);
CREATE INDEX audit_target ON holdfast.audit (target, id);

-- What each process has counted so far, for those who watch: only its own process writes a row, so nobody waits
-- for anybody. What processes counted that have ended is added up under an empty source.
CREATE TABLE holdfast.tallies (
    source text NOT NULL,
    name text NOT NULL,
    labels text NOT NULL,
    value double precision NOT NULL,
    seen_at double precision NOT NULL,
    PRIMARY KEY (source, name, labels)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

-- The oldest schema whose Holdfast may use the database of a version: what a Holdfast reads that does not know this one.
CREATE TABLE holdfast.compatibility (
    version integer PRIMARY KEY,
    oldest integer NOT NULL
);
-- Also for those who may only submit.
GRANT SELECT ON holdfast.compatibility TO PUBLIC;
