-- Named queries of the SQLite store. Each begins with a `name:` comment; columns come in the order of
-- the records they fill. Statements over many rows are run with executemany, lists of ids as JSON.

-- name: save_definition
INSERT INTO definitions (path, version, hash, content, created_at, registered_at)
SELECT ?1, 1 + coalesce((SELECT max(version) FROM definitions WHERE path = ?1), 0), ?2, ?3, ?4, ?4
WHERE true
ON CONFLICT (path, hash) DO UPDATE SET registered_at = excluded.registered_at;

-- name: definition_by_hash
SELECT id, path, version, content FROM definitions WHERE path = ?1 AND hash = ?2;

-- name: definition
SELECT id, path, version, content FROM definitions WHERE id = ?1;

-- name: add_group
INSERT INTO claim_groups (handler, lane, rank, operation, limit_name, alone)
VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING;

-- name: groups
SELECT id, handler, lane, rank, operation, limit_name, alone FROM claim_groups;

-- name: last_execution_id
-- The writer holds the lock, so the ids that follow are its own to give out.
SELECT coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'executions'), 0);

-- name: insert_execution
INSERT INTO executions (
    id, path, definition_id, lane, mode, workload, workload_hash, idempotency_key, batch_id,
    deadline_seconds, deadline_at, created_at
) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: execution_by_key
SELECT id, workload_hash FROM executions WHERE path = ? AND idempotency_key = ?;

-- name: eligible_groups
SELECT id, lane, rank FROM claim_groups
WHERE handler IN (SELECT value FROM json_each(:handlers)) AND lane IN (SELECT value FROM json_each(:lanes))
    AND alone = :alone
ORDER BY lane DESC, rank;

-- name: ready_in_group
SELECT available_at, id FROM jobs
WHERE claim_group = ?1 AND status IN ('queued', 'retry') AND held_by IS NULL AND available_at <= ?2
ORDER BY available_at, id LIMIT ?3;

-- name: lease
UPDATE jobs
SET status = 'leased', attempts = attempts + 1, leases = leases + 1, fence = (leases + 1) || '-' || :token,
    lease_until = :lease_until, leased_alone = :alone, last_heartbeat = :now, progress = NULL,
    worker_id = :worker
WHERE id IN (SELECT value FROM json_each(:ids));

-- name: log_leases
INSERT INTO events (execution_id, at, body)
SELECT execution_id, :now, '[{"type":"action_started","step":"' || step || '","attempt":' || attempts
    || ',"is_retry":' || iif(attempts > 1, 'true', 'false') || ',"worker":' || :worker_json || '}]'
FROM jobs WHERE id IN (SELECT value FROM json_each(:ids)) ORDER BY id;

-- name: claimed
SELECT j.id, j.fence, j.execution_id, e.path, e.definition_id, j.step, g.handler, j.element, j.round,
    j.attempts, j.max_attempts, g.lane, j.lease_until, j.leased_alone, j.clear, e.workload
FROM jobs j
JOIN executions e ON e.id = j.execution_id
JOIN claim_groups g ON g.id = j.claim_group
WHERE j.id IN (SELECT value FROM json_each(?1))
ORDER BY g.lane DESC, g.rank, j.available_at, j.id;

-- name: next_due
SELECT min((
    SELECT j.available_at FROM jobs j
    WHERE j.claim_group = g.id AND j.status IN ('queued', 'retry') AND j.held_by IS NULL
    ORDER BY j.available_at, j.id LIMIT 1
)) FROM claim_groups g
WHERE g.handler IN (SELECT value FROM json_each(?1)) AND g.lane IN (SELECT value FROM json_each(?2));

-- name: heartbeat
UPDATE jobs SET lease_until = ?4, last_heartbeat = ?5, progress = coalesce(?3, progress)
WHERE id = ?1 AND fence = ?2 RETURNING id;

-- name: peek_jobs
SELECT j.id, j.execution_id, j.step, j.element, j.round, j.status, j.attempts, j.max_attempts,
    j.available_at, j.fence, j.lease_until, j.unknown_errors, j.losses, j.crashes, j.dead_reason,
    j.settled_fence, j.settled_hash, j.clear, j.leased_alone, j.worker_id,
    e.id, e.path, e.definition_id, e.status, e.lane, e.round, e.manual_retries, e.last_manual_retry_at,
    e.last_completed_stage, e.error, e.retry_history, e.retry_count, e.deadline_seconds, e.deadline_at
FROM jobs j JOIN executions e ON e.id = j.execution_id
WHERE j.id IN (SELECT value FROM json_each(?1))
ORDER BY e.id, j.id;

-- name: execution_states
SELECT id, path, definition_id, status, lane, round, manual_retries, last_manual_retry_at,
    last_completed_stage, error, retry_history, retry_count, deadline_seconds, deadline_at
FROM executions WHERE id IN (SELECT value FROM json_each(?1)) ORDER BY id;

-- name: jobs_of_executions
SELECT id, execution_id, step, element, round, status, attempts, max_attempts,
    available_at, fence, lease_until, unknown_errors, losses, crashes, dead_reason,
    settled_fence, settled_hash, clear, leased_alone, worker_id
FROM jobs WHERE execution_id IN (SELECT value FROM json_each(?1)) ORDER BY execution_id, id;

-- name: complete_job
UPDATE jobs
SET status = 'done', fence = NULL, lease_until = NULL, settled_fence = fence, settled_hash = ?2, output = ?3,
    finished_at = ?4
WHERE id = ?1;

-- name: update_job
UPDATE jobs
SET status = ?2, attempts = ?3, available_at = ?4, fence = NULL, lease_until = NULL, unknown_errors = ?5,
    losses = ?6, crashes = ?7, dead_reason = ?8, settled_fence = ?9, settled_hash = ?10, clear = ?11,
    claim_group = coalesce(?12, claim_group), held_by = iif(?2 IN ('queued', 'retry'), held_by, NULL),
    finished_at = iif(?2 IN ('dead', 'cancelled'), ?13, NULL)
WHERE id = ?1;

-- name: advance_execution
UPDATE executions
SET status = ?2, last_completed_stage = ?3, error = NULL, finished_at = iif(?2 = 'running', NULL, ?4)
WHERE id = ?1;

-- name: update_execution
UPDATE executions
SET status = ?2, round = ?3, manual_retries = ?4, last_manual_retry_at = ?5, last_completed_stage = ?6,
    error = ?7, retry_history = ?8, retry_count = ?9, deadline_at = ?10,
    finished_at = iif(?2 = 'running', NULL, ?11)
WHERE id = ?1;

-- name: insert_job
INSERT INTO jobs (execution_id, step, round, claim_group, max_attempts, available_at, clear, created_at)
VALUES (?, ?, ?, ?, ?, ?, ?, ?);

-- name: insert_event
INSERT INTO events (execution_id, at, body) VALUES (?1, ?3, ?2);

-- name: expired
SELECT id, fence FROM jobs WHERE status = 'leased' AND lease_until < ?1
ORDER BY lease_until LIMIT ?2;

-- name: overdue
SELECT id FROM executions
WHERE status = 'running' AND deadline_at IS NOT NULL AND deadline_at < ?1 ORDER BY deadline_at LIMIT ?2;

-- name: outputs
SELECT execution_id, step, round, output FROM jobs
WHERE execution_id IN (SELECT value FROM json_each(?1)) AND status = 'done' ORDER BY round;

-- name: finished_before
SELECT id FROM executions WHERE finished_at < ?1 ORDER BY finished_at LIMIT ?2;

-- name: prune_executions
DELETE FROM executions WHERE id IN (SELECT value FROM json_each(?1));

-- name: prune_jobs
DELETE FROM jobs WHERE execution_id IN (SELECT value FROM json_each(?1));

-- name: prune_events
DELETE FROM events WHERE execution_id IN (SELECT value FROM json_each(?1));

-- name: executions
SELECT e.id, e.path, d.version, e.status, e.lane, e.mode, e.batch_id, e.idempotency_key, e.round,
    e.manual_retries, e.retry_count, e.last_completed_stage, e.error, e.retry_history, e.workload,
    e.created_at, e.finished_at, e.deadline_at
FROM executions e JOIN definitions d ON d.id = e.definition_id
WHERE {where} ORDER BY e.id DESC LIMIT {limit};

-- name: jobs
SELECT j.id, j.execution_id, e.path, j.step, j.element, j.round, j.status, j.attempts, j.max_attempts,
    j.available_at, j.scheduled_for, j.held_by, j.lease_until, j.last_heartbeat, j.progress, j.worker_id, g.lane,
    g.operation, e.mode, g.rank, j.dead_reason, j.created_at, j.finished_at, j.output
FROM jobs j
JOIN executions e ON e.id = j.execution_id
JOIN claim_groups g ON g.id = j.claim_group
WHERE {where} ORDER BY j.id LIMIT {limit};

-- name: events
SELECT id, execution_id, at, body FROM events
WHERE execution_id = ?1 AND id >= ?2 ORDER BY id LIMIT ?3;

-- name: announce_worker
INSERT INTO workers (
    worker_id, host, pid, version, concurrency, lanes, handlers, started_at, seen_at, seen_until
) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)
ON CONFLICT (worker_id) DO UPDATE
SET host = excluded.host, pid = excluded.pid, version = excluded.version,
    concurrency = excluded.concurrency, lanes = excluded.lanes, handlers = excluded.handlers,
    started_at = excluded.started_at, seen_at = excluded.seen_at, seen_until = excluded.seen_until;

-- name: forget_workers
DELETE FROM workers WHERE seen_until < ?1;

-- name: retire_worker
DELETE FROM workers WHERE worker_id = ?1;

-- name: workers
SELECT w.worker_id, w.host, w.pid, w.version, w.concurrency, w.lanes, w.handlers, w.started_at, w.seen_at,
    w.seen_until
FROM workers w WHERE {where} ORDER BY w.started_at, w.worker_id LIMIT {limit};

-- name: latest_definitions
SELECT d.id, d.path, d.version, d.content FROM (
    SELECT *, row_number() OVER (PARTITION BY path ORDER BY registered_at DESC, version DESC) AS place
    FROM definitions
) d WHERE d.place = 1 AND {where} ORDER BY d.path LIMIT {limit};

-- name: open_work
-- Each half by its own partial index, so that it costs what is open and not what was ever done.
SELECT o.status, o.handler, o.lane, count(*), min(o.available_at), o.alone FROM (
    SELECT j.status, g.handler, g.lane, j.available_at, g.alone
    FROM jobs j JOIN claim_groups g ON g.id = j.claim_group
    WHERE j.status IN ('queued', 'retry') AND j.held_by IS NULL
    UNION ALL
    SELECT j.status, g.handler, g.lane, j.available_at, g.alone
    FROM jobs j JOIN claim_groups g ON g.id = j.claim_group
    WHERE j.status = 'leased'
) o WHERE {where}
GROUP BY o.status, o.handler, o.lane, o.alone
ORDER BY o.handler, o.lane, o.status, o.alone LIMIT {limit};

-- name: execution_counts
SELECT e.status, count(*) FROM executions e WHERE {where} GROUP BY e.status LIMIT {limit};

-- name: failures
-- What failed and was not retried since. A deadline ends an execution without a dead job.
SELECT f.* FROM (
    SELECT e.id AS execution_id, e.path, coalesce(j.step, e.error ->> 'stage') AS step,
        e.error ->> 'error_type' AS error_type, coalesce(j.dead_reason, 'deadline') AS dead_reason,
        e.error ->> 'category' AS category, e.error ->> 'message' AS message,
        e.finished_at AS failed_at, e.manual_retries
    FROM executions e
    LEFT JOIN jobs j ON j.execution_id = e.id AND j.round = e.round AND j.status = 'dead'
    WHERE e.status = 'failed'
) f WHERE {where} ORDER BY f.execution_id LIMIT {limit};

-- name: failure_groups
SELECT g.path, g.step, g.error_type, g.dead_reason, e.error ->> 'category', g.executions, g.first_at,
    g.last_at, g.example, e.error ->> 'message', e.error ->> 'user_message',
    e.error ->> 'guidance'
FROM (
    SELECT f.path, f.step, f.error_type, f.dead_reason, count(*) AS executions, min(f.failed_at) AS first_at,
        max(f.failed_at) AS last_at, max(f.execution_id) AS example
    FROM (
        SELECT e.id AS execution_id, e.path, coalesce(j.step, e.error ->> 'stage') AS step,
            e.error ->> 'error_type' AS error_type,
            coalesce(j.dead_reason, 'deadline') AS dead_reason, e.finished_at AS failed_at
        FROM executions e
        LEFT JOIN jobs j ON j.execution_id = e.id AND j.round = e.round AND j.status = 'dead'
        WHERE e.status = 'failed'
    ) f WHERE {where}
    GROUP BY f.path, f.step, f.error_type, f.dead_reason
) g JOIN executions e ON e.id = g.example
ORDER BY g.executions DESC, g.example DESC LIMIT {limit};
