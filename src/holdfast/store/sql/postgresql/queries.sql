-- Named queries of the PostgreSQL store. Each begins with a `name:` comment; columns come in the order
-- of the records they fill. Statements over many rows take arrays, one per column.

-- name: save_definition
-- The version numbers of a path are dense because the insert runs under the path's advisory lock.
INSERT INTO holdfast.definitions (path, version, hash, content, created_at, registered_at)
SELECT $1, 1 + coalesce((SELECT max(version) FROM holdfast.definitions WHERE path = $1), 0), $2, $3, $4, $4
ON CONFLICT (path, hash) DO NOTHING;

-- name: renew_definition
-- Where another version was registered since; a row that somebody has locked is not waited for.
UPDATE holdfast.definitions d SET registered_at = $3
WHERE d.id IN (SELECT id FROM holdfast.definitions WHERE path = $1 AND hash = $2 FOR UPDATE SKIP LOCKED)
    AND EXISTS (
        SELECT FROM holdfast.definitions o
        WHERE o.path = $1 AND o.id <> d.id AND o.registered_at >= d.registered_at
    );

-- name: definition_by_hash
SELECT id, path, version, content FROM holdfast.definitions WHERE path = $1 AND hash = $2;

-- name: definition
SELECT id, path, version, content FROM holdfast.definitions WHERE id = $1;

-- name: add_groups
INSERT INTO holdfast.claim_groups (handler, lane, rank, operation, limit_name, alone)
SELECT * FROM unnest($1::text[], $2::text[], $3::smallint[], $4::text[], $5::text[], $6::boolean[])
ON CONFLICT DO NOTHING;

-- name: groups
SELECT id, handler, lane, rank, operation, limit_name, alone FROM holdfast.claim_groups;

-- name: facts
-- What a submit must know of a connection it has never seen: the clock, the schema's version, and which
-- database this is; the moment its schema was made tells it from others of the same name.
SELECT extract(epoch FROM clock_timestamp())::float8, coalesce(max(version), 0),
    concat_ws(' ', current_database(), 'holdfast'::regnamespace::oid, extract(epoch FROM min(applied_at)))
FROM holdfast.schema_version;

-- name: insert
-- Ids are drawn before anything is inserted, so one statement can write all three tables.
WITH input AS MATERIALIZED (
    SELECT nextval('holdfast.executions_id_seq') AS id, x.*
    FROM unnest(
        $1::text[], $2::bigint[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::bigint[],
        $9::float8[], $10::float8[], $11::text[], $12::integer[], $13::integer[], $14::float8[], $15::text[]
    ) WITH ORDINALITY AS x (
        path, definition_id, lane, mode, workload, workload_hash, idempotency_key, batch_id,
        deadline_seconds, deadline_at, step, claim_group, max_attempts, available_at, events, position
    )
), added AS (
    INSERT INTO holdfast.executions (
        id, path, definition_id, lane, mode, workload, workload_hash, idempotency_key, batch_id,
        deadline_seconds, deadline_at, created_at
    ) OVERRIDING SYSTEM VALUE
    SELECT id, path, definition_id, lane, mode, workload, workload_hash, idempotency_key, batch_id,
        deadline_seconds, deadline_at, $16::float8
    FROM input
    ON CONFLICT (path, idempotency_key) WHERE idempotency_key IS NOT NULL DO NOTHING
    RETURNING id
), job AS (
    INSERT INTO holdfast.jobs (execution_id, step, round, max_attempts, claim_group, available_at, created_at)
    SELECT i.id, i.step, 1, i.max_attempts, i.claim_group, i.available_at, $16::float8
    FROM input i JOIN added USING (id) ORDER BY i.position
), event AS (
    INSERT INTO holdfast.events (execution_id, at, body)
    SELECT i.id, $16::float8, i.events FROM input i JOIN added USING (id) ORDER BY i.position
)
SELECT i.id, added.id IS NOT NULL FROM input i LEFT JOIN added USING (id) ORDER BY i.position;

-- name: executions_by_key
SELECT path, idempotency_key, id, workload_hash FROM holdfast.executions
WHERE (path, idempotency_key) IN (SELECT * FROM unnest($1::text[], $2::text[]));

-- name: claim
-- First count, without locks, how many of the oldest ready jobs each group holds; then lock that many
-- from the head of each group, skipping what another worker is taking. Locks nothing it does not lease.
WITH wanted AS (
    SELECT ready.claim_group, count(*) AS jobs
    FROM (
        SELECT g.id AS claim_group
        FROM holdfast.claim_groups g
        CROSS JOIN LATERAL (
            SELECT j.id, j.available_at FROM holdfast.jobs j
            WHERE j.claim_group = g.id AND j.status IN ('queued', 'retry') AND j.held_by IS NULL
                AND j.available_at <= $1
            ORDER BY j.available_at, j.id LIMIT $2
        ) head
        WHERE g.handler = ANY ($3::text[]) AND g.lane = ANY ($4::text[]) AND g.alone = $5
        ORDER BY g.lane DESC, g.rank, head.available_at, head.id LIMIT $2
    ) ready
    GROUP BY ready.claim_group
), locked AS (
    SELECT head.id FROM wanted w
    CROSS JOIN LATERAL (
        SELECT j.id FROM holdfast.jobs j
        WHERE j.claim_group = w.claim_group AND j.status IN ('queued', 'retry') AND j.held_by IS NULL
            AND j.available_at <= $1
        ORDER BY j.available_at, j.id LIMIT w.jobs FOR UPDATE SKIP LOCKED
    ) head
), leased AS (
    UPDATE holdfast.jobs j
    SET status = 'leased', attempts = j.attempts + 1, leases = j.leases + 1,
        fence = (j.leases + 1) || '-' || $6::text, lease_until = $7::float8, leased_alone = g.alone,
        last_heartbeat = $1, progress = NULL, worker_id = $8::text
    FROM holdfast.executions e, holdfast.claim_groups g
    WHERE j.id = ANY (ARRAY(SELECT id FROM locked)) AND e.id = j.execution_id AND g.id = j.claim_group
    RETURNING j.id, j.fence, j.execution_id, e.path, e.definition_id, j.step, g.handler, j.element, j.round,
        j.attempts, j.max_attempts, g.lane, j.lease_until, j.leased_alone, j.clear, e.workload,
        g.rank, j.available_at
), logged AS (
    INSERT INTO holdfast.events (execution_id, at, body)
    SELECT execution_id, $1, '[{"type":"action_started","step":"' || step || '","attempt":' || attempts
        || ',"is_retry":' || (attempts > 1)::text || ',"worker":' || $9::text || '}]'
    FROM leased ORDER BY id
)
SELECT id, fence, execution_id, path, definition_id, step, handler, element, round, attempts, max_attempts,
    lane, lease_until, leased_alone, clear, workload
FROM leased ORDER BY lane DESC, rank, available_at, id;

-- name: alone_ready
SELECT EXISTS (
    SELECT FROM holdfast.claim_groups g
    CROSS JOIN LATERAL (
        SELECT FROM holdfast.jobs j
        WHERE j.claim_group = g.id AND j.status IN ('queued', 'retry') AND j.held_by IS NULL
            AND j.available_at <= $1
        LIMIT 1
    ) head
    WHERE g.handler = ANY ($2::text[]) AND g.lane = ANY ($3::text[]) AND g.alone
);

-- name: next_due
SELECT min(head.available_at) FROM holdfast.claim_groups g
CROSS JOIN LATERAL (
    SELECT j.available_at FROM holdfast.jobs j
    WHERE j.claim_group = g.id AND j.status IN ('queued', 'retry') AND j.held_by IS NULL
    ORDER BY j.available_at, j.id LIMIT 1
) head
WHERE g.handler = ANY ($1::text[]) AND g.lane = ANY ($2::text[]);

-- name: heartbeat
-- A row locked by a report or an open transaction still stands; its lease is extended the next time.
WITH standing AS (
    SELECT j.id, j.fence, x.progress
    FROM unnest($1::bigint[], $2::text[], $3::float8[]) AS x (id, fence, progress)
    JOIN holdfast.jobs j ON j.id = x.id AND j.fence = x.fence
), free AS (
    SELECT j.id FROM holdfast.jobs j
    WHERE j.id = ANY (ARRAY(SELECT id FROM standing)) ORDER BY j.id FOR UPDATE SKIP LOCKED
), extended AS (
    UPDATE holdfast.jobs j
    SET lease_until = $4, last_heartbeat = $5, progress = coalesce(standing.progress, j.progress)
    FROM standing WHERE j.id = ANY (ARRAY(SELECT id FROM free)) AND standing.id = j.id
        AND j.fence = standing.fence
)
SELECT id, fence FROM standing;

-- name: lock_jobs
SELECT j.id, j.execution_id, j.step, j.element, j.round, j.status, j.attempts, j.max_attempts,
    j.available_at, j.fence, j.lease_until, j.unknown_errors, j.losses, j.crashes, j.dead_reason,
    j.settled_fence, j.settled_hash, j.clear, j.leased_alone, j.worker_id,
    e.id, e.path, e.definition_id, e.status, e.lane, e.round, e.manual_retries, e.last_manual_retry_at,
    e.last_completed_stage, e.error, e.retry_history, e.retry_count, e.deadline_seconds, e.deadline_at
FROM holdfast.jobs j JOIN holdfast.executions e ON e.id = j.execution_id
WHERE j.id = ANY ($1::bigint[])
ORDER BY e.id, j.id FOR UPDATE OF e, j;

-- name: peek_jobs
SELECT j.id, j.execution_id, j.step, j.element, j.round, j.status, j.attempts, j.max_attempts,
    j.available_at, j.fence, j.lease_until, j.unknown_errors, j.losses, j.crashes, j.dead_reason,
    j.settled_fence, j.settled_hash, j.clear, j.leased_alone, j.worker_id,
    e.id, e.path, e.definition_id, e.status, e.lane, e.round, e.manual_retries, e.last_manual_retry_at,
    e.last_completed_stage, e.error, e.retry_history, e.retry_count, e.deadline_seconds, e.deadline_at
FROM holdfast.jobs j JOIN holdfast.executions e ON e.id = j.execution_id
WHERE j.id = ANY ($1::bigint[]);

-- name: lock_executions
SELECT id, path, definition_id, status, lane, round, manual_retries, last_manual_retry_at,
    last_completed_stage, error, retry_history, retry_count, deadline_seconds, deadline_at
FROM holdfast.executions WHERE id = ANY ($1::bigint[]) ORDER BY id FOR UPDATE;

-- name: lock_jobs_of_executions
SELECT id, execution_id, step, element, round, status, attempts, max_attempts,
    available_at, fence, lease_until, unknown_errors, losses, crashes, dead_reason,
    settled_fence, settled_hash, clear, leased_alone, worker_id
FROM holdfast.jobs WHERE execution_id = ANY ($1::bigint[]) ORDER BY execution_id, id FOR UPDATE;

-- name: complete_stages
-- By id alone: the rows are locked and their fences checked. A status condition here would let the
-- planner walk the index of leased rows for each of them.
WITH x AS MATERIALIZED (
    SELECT * FROM unnest(
        $1::bigint[], $2::bigint[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[]
    ) WITH ORDINALITY AS x (job_id, execution_id, hash, output, status, stage, events, position)
), job AS (
    UPDATE holdfast.jobs j
    SET status = 'done', fence = NULL, lease_until = NULL, settled_fence = j.fence, settled_hash = x.hash,
        output = x.output, finished_at = $8::float8
    FROM x WHERE j.id = x.job_id
), execution AS (
    UPDATE holdfast.executions e
    SET status = x.status, last_completed_stage = x.stage, error = NULL,
        finished_at = CASE WHEN x.status = 'running' THEN NULL ELSE $8::float8 END
    FROM x WHERE e.id = x.execution_id
)
INSERT INTO holdfast.events (execution_id, at, body)
SELECT execution_id, $8::float8, events FROM x ORDER BY position;

-- name: update_jobs
UPDATE holdfast.jobs j
SET status = x.status, attempts = x.attempts, available_at = x.available_at, fence = NULL,
    lease_until = NULL, unknown_errors = x.unknown_errors, losses = x.losses, crashes = x.crashes,
    dead_reason = x.dead_reason, settled_fence = x.settled_fence, settled_hash = x.settled_hash,
    clear = x.clear, claim_group = coalesce(x.claim_group, j.claim_group),
    held_by = CASE WHEN x.status IN ('queued', 'retry') THEN j.held_by END,
    finished_at = CASE WHEN x.status IN ('dead', 'cancelled') THEN $13::float8 END
FROM unnest(
    $1::bigint[], $2::text[], $3::integer[], $4::float8[], $5::integer[], $6::integer[], $7::integer[],
    $8::text[], $9::text[], $10::text[], $11::text[], $12::integer[]
) AS x (
    id, status, attempts, available_at, unknown_errors, losses, crashes, dead_reason, settled_fence,
    settled_hash, clear, claim_group
)
WHERE j.id = x.id;

-- name: update_executions
UPDATE holdfast.executions e
SET status = x.status, round = x.round, manual_retries = x.manual_retries,
    last_manual_retry_at = x.last_manual_retry_at, last_completed_stage = x.last_completed_stage,
    error = x.error, retry_history = x.retry_history, retry_count = x.retry_count,
    deadline_at = x.deadline_at,
    finished_at = CASE WHEN x.status = 'running' THEN NULL ELSE $11::float8 END
FROM unnest(
    $1::bigint[], $2::text[], $3::integer[], $4::integer[], $5::float8[], $6::text[], $7::text[],
    $8::text[], $9::integer[], $10::float8[]
) AS x (
    id, status, round, manual_retries, last_manual_retry_at, last_completed_stage, error, retry_history,
    retry_count, deadline_at
)
WHERE e.id = x.id;

-- name: insert_jobs
INSERT INTO holdfast.jobs
    (execution_id, step, round, claim_group, max_attempts, available_at, clear, created_at)
SELECT x.*, $8::float8
FROM unnest($1::bigint[], $2::text[], $3::integer[], $4::integer[], $5::integer[], $6::float8[], $7::text[]) x;

-- name: insert_events
INSERT INTO holdfast.events (execution_id, at, body)
SELECT execution_id, $3, body
FROM unnest($1::bigint[], $2::text[]) WITH ORDINALITY AS x (execution_id, body, position) ORDER BY position;

-- name: expired
SELECT id, fence FROM holdfast.jobs WHERE status = 'leased' AND lease_until < $1
ORDER BY lease_until LIMIT $2;

-- name: overdue
SELECT id FROM holdfast.executions
WHERE status = 'running' AND deadline_at IS NOT NULL AND deadline_at < $1 ORDER BY deadline_at LIMIT $2;

-- name: outputs
SELECT execution_id, step, round, output FROM holdfast.jobs
WHERE execution_id = ANY ($1::bigint[]) AND status = 'done' ORDER BY round;

-- name: prune
WITH doomed AS (
    SELECT id FROM holdfast.executions WHERE finished_at < $1
    ORDER BY finished_at LIMIT $2 FOR UPDATE SKIP LOCKED
), execution AS (
    DELETE FROM holdfast.executions WHERE id IN (SELECT id FROM doomed)
), job AS (
    DELETE FROM holdfast.jobs WHERE execution_id IN (SELECT id FROM doomed)
), event AS (
    DELETE FROM holdfast.events WHERE execution_id IN (SELECT id FROM doomed)
)
SELECT count(*) FROM doomed;

-- name: executions
SELECT e.id, e.path, d.version, e.status, e.lane, e.mode, e.batch_id, e.idempotency_key, e.round,
    e.manual_retries, e.retry_count, e.last_completed_stage, e.error, e.retry_history, e.workload,
    e.created_at, e.finished_at, e.deadline_at
FROM holdfast.executions e JOIN holdfast.definitions d ON d.id = e.definition_id
WHERE {where} ORDER BY e.id DESC LIMIT {limit};

-- name: jobs
SELECT j.id, j.execution_id, e.path, j.step, j.element, j.round, j.status, j.attempts, j.max_attempts,
    j.available_at, j.scheduled_for, j.held_by, j.lease_until, j.last_heartbeat, j.progress, j.worker_id, g.lane,
    g.operation, e.mode, g.rank, j.dead_reason, j.created_at, j.finished_at, j.output
FROM holdfast.jobs j
JOIN holdfast.executions e ON e.id = j.execution_id
JOIN holdfast.claim_groups g ON g.id = j.claim_group
WHERE {where} ORDER BY j.id LIMIT {limit};

-- name: events
SELECT id, execution_id, at, body FROM holdfast.events
WHERE execution_id = $1 AND id >= $2 ORDER BY id LIMIT $3;

-- name: announce_worker
INSERT INTO holdfast.workers (
    worker_id, host, pid, version, concurrency, lanes, handlers, started_at, seen_at, seen_until
) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)
ON CONFLICT (worker_id) DO UPDATE
SET host = excluded.host, pid = excluded.pid, version = excluded.version,
    concurrency = excluded.concurrency, lanes = excluded.lanes, handlers = excluded.handlers,
    started_at = excluded.started_at, seen_at = excluded.seen_at, seen_until = excluded.seen_until;

-- name: forget_workers
DELETE FROM holdfast.workers WHERE seen_until < $1;

-- name: retire_worker
DELETE FROM holdfast.workers WHERE worker_id = $1;

-- name: workers
SELECT w.worker_id, w.host, w.pid, w.version, w.concurrency, w.lanes, w.handlers, w.started_at, w.seen_at,
    w.seen_until
FROM holdfast.workers w WHERE {where} ORDER BY w.started_at, w.worker_id LIMIT {limit};

-- name: latest_definitions
SELECT d.id, d.path, d.version, d.content FROM (
    SELECT *, row_number() OVER (PARTITION BY path ORDER BY registered_at DESC, version DESC) AS place
    FROM holdfast.definitions
) d WHERE d.place = 1 AND {where} ORDER BY d.path LIMIT {limit};

-- name: open_work
-- Each half by its own partial index, so that it costs what is open and not what was ever done.
SELECT o.status, o.handler, o.lane, count(*), min(o.available_at), o.alone FROM (
    SELECT j.status, g.handler, g.lane, j.available_at, g.alone
    FROM holdfast.jobs j JOIN holdfast.claim_groups g ON g.id = j.claim_group
    WHERE j.status IN ('queued', 'retry') AND j.held_by IS NULL
    UNION ALL
    SELECT j.status, g.handler, g.lane, j.available_at, g.alone
    FROM holdfast.jobs j JOIN holdfast.claim_groups g ON g.id = j.claim_group
    WHERE j.status = 'leased'
) o WHERE {where}
GROUP BY o.status, o.handler, o.lane, o.alone
ORDER BY o.handler, o.lane, o.status, o.alone LIMIT {limit};

-- name: execution_counts
SELECT e.status, count(*) FROM holdfast.executions e WHERE {where} GROUP BY e.status LIMIT {limit};

-- name: failures
-- What failed and was not retried since. A deadline ends an execution without a dead job.
SELECT f.* FROM (
    SELECT e.id AS execution_id, e.path, coalesce(j.step, e.error::json ->> 'stage') AS step,
        e.error::json ->> 'error_type' AS error_type, coalesce(j.dead_reason, 'deadline') AS dead_reason,
        e.error::json ->> 'category' AS category, e.error::json ->> 'message' AS message,
        e.finished_at AS failed_at, e.manual_retries
    FROM holdfast.executions e
    LEFT JOIN holdfast.jobs j ON j.execution_id = e.id AND j.round = e.round AND j.status = 'dead'
    WHERE e.status = 'failed'
) f WHERE {where} ORDER BY f.execution_id LIMIT {limit};

-- name: failure_groups
SELECT g.path, g.step, g.error_type, g.dead_reason, e.error::json ->> 'category', g.executions, g.first_at,
    g.last_at, g.example, e.error::json ->> 'message', e.error::json ->> 'user_message',
    e.error::json ->> 'guidance'
FROM (
    SELECT f.path, f.step, f.error_type, f.dead_reason, count(*) AS executions, min(f.failed_at) AS first_at,
        max(f.failed_at) AS last_at, max(f.execution_id) AS example
    FROM (
        SELECT e.id AS execution_id, e.path, coalesce(j.step, e.error::json ->> 'stage') AS step,
            e.error::json ->> 'error_type' AS error_type,
            coalesce(j.dead_reason, 'deadline') AS dead_reason, e.finished_at AS failed_at
        FROM holdfast.executions e
        LEFT JOIN holdfast.jobs j ON j.execution_id = e.id AND j.round = e.round AND j.status = 'dead'
        WHERE e.status = 'failed'
    ) f WHERE {where}
    GROUP BY f.path, f.step, f.error_type, f.dead_reason
) g JOIN holdfast.executions e ON e.id = g.example
ORDER BY g.executions DESC, g.example DESC LIMIT {limit};
