-- The engine's tables. Times are seconds since 1970 in the machine's clock, documents are JSON text.
-- All writes go through one writer at a time; a leased job changes only
-- against its fence. The CHECKs repeat what core/transitions.py allows.

CREATE TABLE definitions (
    id integer PRIMARY KEY,
    path text NOT NULL,
    version integer NOT NULL CHECK (version >= 1),
    hash text NOT NULL,
    content text NOT NULL,
    created_at real NOT NULL,
    UNIQUE (path, version),
    UNIQUE (path, hash)
) STRICT;

-- What a worker must offer to take a job, and where the job stands in the order of leasing.
CREATE TABLE claim_groups (
    id integer PRIMARY KEY,
    handler text NOT NULL,
    lane text NOT NULL CHECK (lane IN ('manual', 'bulk')),
    rank integer NOT NULL CHECK (rank BETWEEN 0 AND 9),
    operation text NOT NULL,
    limit_name text NOT NULL,
    alone integer NOT NULL CHECK (alone IN (0, 1)),
    UNIQUE (handler, lane, rank, operation, limit_name, alone)
) STRICT;

CREATE TABLE executions (
    id integer PRIMARY KEY AUTOINCREMENT,
    path text NOT NULL,
    definition_id integer NOT NULL,
    status text NOT NULL DEFAULT 'running' CHECK (status IN ('running', 'completed', 'failed', 'cancelled')),
    lane text NOT NULL CHECK (lane IN ('manual', 'bulk')),
    mode text NOT NULL CHECK (mode IN ('manual', 'bulk', 'auto')),
    batch_id integer,
    round integer NOT NULL DEFAULT 1 CHECK (round >= 1),
    manual_retries integer NOT NULL DEFAULT 0 CHECK (manual_retries >= 0),
    last_manual_retry_at real,
    last_completed_stage text,
    error text,
    retry_history text,
    retry_count integer NOT NULL DEFAULT 0 CHECK (retry_count >= 0),
    deadline_seconds real,
    deadline_at real,
    workload text NOT NULL,
    workload_hash text,
    idempotency_key text,
    created_at real NOT NULL,
    finished_at real,
    CHECK ((status = 'running') = (finished_at IS NULL)),
    CHECK (status <> 'failed' OR error IS NOT NULL)
) STRICT;

CREATE UNIQUE INDEX executions_idempotency ON executions (path, idempotency_key)
    WHERE idempotency_key IS NOT NULL;
CREATE INDEX executions_deadline ON executions (deadline_at)
    WHERE status = 'running' AND deadline_at IS NOT NULL;
CREATE INDEX executions_finished ON executions (finished_at) WHERE finished_at IS NOT NULL;

CREATE TABLE jobs (
    id integer PRIMARY KEY AUTOINCREMENT,
    execution_id integer NOT NULL,
    step text NOT NULL,
    element integer NOT NULL DEFAULT -1 CHECK (element >= -1),
    round integer NOT NULL CHECK (round >= 1),
    status text NOT NULL DEFAULT 'queued'
        CHECK (status IN ('queued', 'leased', 'retry', 'done', 'dead', 'cancelled')),
    attempts integer NOT NULL DEFAULT 0,
    max_attempts integer NOT NULL CHECK (max_attempts >= 1),
    leases integer NOT NULL DEFAULT 0,
    claim_group integer NOT NULL,
    available_at real NOT NULL,
    scheduled_for real,
    held_by text,
    fence text,
    lease_until real,
    leased_alone integer NOT NULL DEFAULT 0 CHECK (leased_alone IN (0, 1)),
    last_heartbeat real,
    progress real CHECK (progress BETWEEN 0 AND 1),
    worker_id text,
    unknown_errors integer NOT NULL DEFAULT 0,
    losses integer NOT NULL DEFAULT 0,
    crashes integer NOT NULL DEFAULT 0,
    dead_reason text CHECK (dead_reason IN
        ('exhausted', 'permanent', 'stopped', 'not_retryable', 'unknown_limit', 'poisoned')),
    settled_fence text,
    settled_hash text,
    clear text,
    output text,
    created_at real NOT NULL,
    finished_at real,
    UNIQUE (execution_id, step, element, round),
    CHECK (attempts BETWEEN 0 AND max_attempts),
    CHECK (leases >= attempts),
    CHECK (crashes <= losses),
    CHECK (status <> 'queued' OR attempts = 0),
    CHECK (status <> 'leased' OR attempts >= 1),
    CHECK (status <> 'retry' OR attempts BETWEEN 1 AND max_attempts - 1),
    CHECK ((status = 'leased') = (fence IS NOT NULL)),
    CHECK ((status = 'leased') = (lease_until IS NOT NULL)),
    CHECK ((status = 'dead') = (dead_reason IS NOT NULL)),
    CHECK (dead_reason <> 'exhausted' OR attempts = max_attempts),
    CHECK ((status IN ('done', 'dead', 'cancelled')) = (finished_at IS NOT NULL)),
    CHECK ((status = 'done') = (output IS NOT NULL)),
    CHECK (held_by IS NULL OR status IN ('queued', 'retry'))
) STRICT;

-- The claim walks one range of this per group: future-dated rows of other groups are never in its way.
CREATE INDEX jobs_claim ON jobs (claim_group, available_at, id)
    WHERE status IN ('queued', 'retry') AND held_by IS NULL;
CREATE INDEX jobs_leases ON jobs (lease_until) WHERE status = 'leased';
CREATE INDEX jobs_dead ON jobs (id) WHERE status = 'dead';

-- One row holds the events that one transaction wrote for one execution, in their order.
CREATE TABLE events (
    id integer PRIMARY KEY AUTOINCREMENT,
    execution_id integer NOT NULL,
    at real NOT NULL,
    body text NOT NULL
) STRICT;
CREATE INDEX events_execution ON events (execution_id, id);
