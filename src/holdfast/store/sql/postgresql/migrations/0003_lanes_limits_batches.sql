-- Limits, pauses and batches.

-- A group knows the step it is for, so that a step or a playbook can be paused in the claim.
ALTER TABLE holdfast.claim_groups ADD COLUMN path text NOT NULL DEFAULT '';
ALTER TABLE holdfast.claim_groups ADD COLUMN step text NOT NULL DEFAULT '';
UPDATE holdfast.claim_groups
SET path = regexp_replace(handler, '/[^/]*$', ''), step = regexp_replace(handler, '^.*/', '')
WHERE handler LIKE '%/%';
ALTER TABLE holdfast.claim_groups DROP CONSTRAINT claim_groups_handler_lane_rank_operation_limit_name_alone_key;
ALTER TABLE holdfast.claim_groups ADD UNIQUE (handler, lane, rank, operation, limit_name, alone, path, step);

-- How much of what bears this name may be leased at once, in the whole fleet; `max_concurrency` is the name
-- of the limit over everything. What is in use is counted from the leased jobs under the lock of this row,
-- and kept nowhere.
CREATE TABLE holdfast.limits (
    name text PRIMARY KEY,
    max_concurrency integer NOT NULL CHECK (max_concurrency >= 1),
    manual_reserve integer CHECK (manual_reserve BETWEEN 0 AND max_concurrency),
    set_by text NOT NULL,
    set_at double precision NOT NULL
);

-- Where nothing new is leased.
CREATE TABLE holdfast.pauses (
    kind text NOT NULL CHECK (kind IN ('step', 'playbook', 'lane', 'limit')),
    name text NOT NULL,
    paused_by text NOT NULL,
    reason text NOT NULL,
    paused_at double precision NOT NULL,
    PRIMARY KEY (kind, name)
);

-- `gates` tells, for each step of the batch that waits for others, how many of them; it changes with the jobs
-- it counts, in their transactions, under the lock of this row. Only a `gated` batch has any, and only its
-- jobs take that lock. `attention` asks whoever sees it to open a gate or to go on letting jobs through.
CREATE TABLE holdfast.batches (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    path text NOT NULL,
    definition_id bigint NOT NULL,
    lane text NOT NULL CHECK (lane IN ('manual', 'bulk')),
    mode text NOT NULL CHECK (mode IN ('manual', 'bulk', 'auto')),
    idempotency_key text,
    items integer NOT NULL DEFAULT 0 CHECK (items >= 0),
    gated boolean NOT NULL,
    gates text NOT NULL,
    attention boolean NOT NULL DEFAULT false,
    created_at double precision NOT NULL,
    closed_at double precision,
    cancelled_at double precision,
    cancelled_by text,
    CHECK (cancelled_at IS NULL OR closed_at IS NOT NULL)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

CREATE UNIQUE INDEX batches_idempotency ON holdfast.batches (path, idempotency_key)
    WHERE idempotency_key IS NOT NULL;
CREATE INDEX batches_attention ON holdfast.batches (id) WHERE attention;
CREATE INDEX executions_batch ON holdfast.executions (batch_id, id) WHERE batch_id IS NOT NULL;
CREATE INDEX executions_batch_running ON holdfast.executions (batch_id, id)
    WHERE batch_id IS NOT NULL AND status = 'running';

-- A job under a limit is counted by an index that no other job is in.
ALTER TABLE holdfast.jobs ADD COLUMN limited boolean NOT NULL DEFAULT false;
UPDATE holdfast.jobs j SET limited = true
FROM holdfast.claim_groups g WHERE g.id = j.claim_group AND g.limit_name <> '';
CREATE INDEX jobs_limited ON holdfast.jobs (claim_group) WHERE status = 'leased' AND limited;

ALTER TABLE holdfast.jobs ADD COLUMN last_attempt_at double precision;
ALTER TABLE holdfast.jobs ADD CHECK (scheduled_for IS NULL OR available_at >= scheduled_for);
