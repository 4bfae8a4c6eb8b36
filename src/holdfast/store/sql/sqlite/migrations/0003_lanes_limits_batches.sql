-- Limits, pauses and batches.

-- A group knows the step it is for, so that a step or a playbook can be paused in the claim.
CREATE TABLE claim_groups_with_steps (
    id integer PRIMARY KEY,
    handler text NOT NULL,
    lane text NOT NULL CHECK (lane IN ('manual', 'bulk')),
    rank integer NOT NULL CHECK (rank BETWEEN 0 AND 9),
    operation text NOT NULL,
    limit_name text NOT NULL,
    alone integer NOT NULL CHECK (alone IN (0, 1)),
    path text NOT NULL DEFAULT '',
    step text NOT NULL DEFAULT '',
    UNIQUE (handler, lane, rank, operation, limit_name, alone, path, step)
) STRICT;
-- What is left of a handler's name without the characters behind its last slash is its path and that slash.
INSERT INTO claim_groups_with_steps
SELECT id, handler, lane, rank, operation, limit_name, alone,
    rtrim(rtrim(handler, replace(handler, '/', '')), '/'),
    iif(instr(handler, '/'), substr(handler, length(rtrim(handler, replace(handler, '/', ''))) + 1), '')
FROM claim_groups;
DROP TABLE claim_groups;
ALTER TABLE claim_groups_with_steps RENAME TO claim_groups;

-- How much of what bears this name may be leased at once, in the whole fleet; `max_concurrency` is the name
-- of the limit over everything. What is in use is counted from the leased jobs in the transaction of the
-- lease, and kept nowhere.
CREATE TABLE limits (
    name text PRIMARY KEY,
    max_concurrency integer NOT NULL CHECK (max_concurrency >= 1),
    manual_reserve integer CHECK (manual_reserve BETWEEN 0 AND max_concurrency),
    set_by text NOT NULL,
    set_at real NOT NULL
) STRICT;

-- Where nothing new is leased.
CREATE TABLE pauses (
    kind text NOT NULL CHECK (kind IN ('step', 'playbook', 'lane', 'limit')),
    name text NOT NULL,
    paused_by text NOT NULL,
    reason text NOT NULL,
    paused_at real NOT NULL,
    PRIMARY KEY (kind, name)
) STRICT;

-- `gates` tells, for each step of the batch that waits for others, how many of them; it changes with the jobs
-- it counts, in their transactions. Only a `gated` batch has any. `attention` asks whoever sees it to open a
-- gate or to go on letting jobs through.
CREATE TABLE batches (
    id integer PRIMARY KEY AUTOINCREMENT,
    path text NOT NULL,
    definition_id integer NOT NULL,
    lane text NOT NULL CHECK (lane IN ('manual', 'bulk')),
    mode text NOT NULL CHECK (mode IN ('manual', 'bulk', 'auto')),
    idempotency_key text,
    items integer NOT NULL DEFAULT 0 CHECK (items >= 0),
    gated integer NOT NULL CHECK (gated IN (0, 1)),
    gates text NOT NULL,
    attention integer NOT NULL DEFAULT 0 CHECK (attention IN (0, 1)),
    created_at real NOT NULL,
    closed_at real,
    cancelled_at real,
    cancelled_by text,
    CHECK (cancelled_at IS NULL OR closed_at IS NOT NULL)
) STRICT;

CREATE UNIQUE INDEX batches_idempotency ON batches (path, idempotency_key)
    WHERE idempotency_key IS NOT NULL;
CREATE INDEX batches_attention ON batches (id) WHERE attention;
CREATE INDEX executions_batch ON executions (batch_id, id) WHERE batch_id IS NOT NULL;
CREATE INDEX executions_batch_running ON executions (batch_id)
    WHERE batch_id IS NOT NULL AND status = 'running';

-- A job under a limit is counted by an index that no other job is in.
ALTER TABLE jobs ADD COLUMN limited integer NOT NULL DEFAULT 0 CHECK (limited IN (0, 1));
UPDATE jobs SET limited = 1 WHERE claim_group IN (SELECT id FROM claim_groups WHERE limit_name <> '');
CREATE INDEX jobs_limited ON jobs (claim_group) WHERE status = 'leased' AND limited;

ALTER TABLE jobs ADD COLUMN last_attempt_at real CHECK (scheduled_for IS NULL OR available_at >= scheduled_for);
