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

-- name: save_source
UPDATE definitions SET source = ?2 WHERE id = ?1 AND source IS NOT ?2;

-- name: add_group
INSERT INTO claim_groups (handler, lane, rank, operation, limit_name, alone, path, step)
VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING;

-- name: groups
SELECT id, handler, lane, rank, operation, limit_name, alone, path, step FROM claim_groups;

-- name: last_execution_id
-- The writer holds the lock, so the ids that follow are its own to give out.
SELECT coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'executions'), 0);

-- name: insert_executions
-- Those of a run: ?2 has workload, hash and key of each, and their ids follow one another from ?1.
INSERT INTO executions (
    id, workload, workload_hash, idempotency_key, path, definition_id, lane, mode, batch_id, deadline_seconds,
    deadline_at, created_at, plan, parent_job, depth
)
SELECT ?1 + key, value ->> 0, value ->> 1, value ->> 2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13
FROM json_each(?2);

-- name: insert_first_jobs
INSERT INTO jobs (
    execution_id, step, round, claim_group, max_attempts, available_at, limited, created_at, input
)
SELECT id, ?3, 1, ?4, ?5, ?6, ?7, ?8, ?9 FROM executions WHERE id BETWEEN ?1 AND ?2 ORDER BY id;

-- name: insert_first_events
INSERT INTO events (execution_id, at, body)
SELECT id, ?3, ?4 FROM executions WHERE id BETWEEN ?1 AND ?2 ORDER BY id;

-- name: executions_by_key
SELECT e.path, e.idempotency_key, e.id, e.workload_hash
FROM json_each(?1) k CROSS JOIN executions e ON e.path = k.value ->> 0 AND e.idempotency_key = k.value ->> 1;

-- part: unpaused
-- Most of the time nothing is paused, and that is asked once for all groups `g`.
(NOT EXISTS (SELECT 1 FROM pauses) OR NOT EXISTS (
    SELECT 1 FROM pauses p
    WHERE (p.kind = 'limit' AND p.name = 'max_concurrency') OR p.name = CASE p.kind
        WHEN 'step' THEN g.path || '/' || g.step WHEN 'playbook' THEN g.path WHEN 'lane' THEN g.lane
        WHEN 'limit' THEN g.limit_name END
))

-- part: filled
-- The groups with a job that waits, found by leaps over the claim index: groups without one cost nothing.
filled (id) AS (
    SELECT min(claim_group) FROM jobs WHERE status IN ('queued', 'retry') AND held_by IS NULL
    UNION ALL
    SELECT (
        SELECT min(j.claim_group) FROM jobs j
        WHERE j.claim_group > filled.id AND j.status IN ('queued', 'retry') AND j.held_by IS NULL
    ) FROM filled WHERE filled.id IS NOT NULL
)

-- part: family
-- Where a claim is for one execution and those that it has started, `in_family` stands here.
/* family */

-- name: in_family
AND execution_id IN (
    WITH RECURSIVE family (id) AS (
        SELECT {family}
        UNION ALL
        SELECT c.id FROM family JOIN jobs p ON p.execution_id = family.id
        JOIN executions c ON c.parent_job = p.id AND c.status = 'running'
    )
    SELECT id FROM family
)

-- name: ready_groups
WITH RECURSIVE <<filled>>
SELECT g.id, g.lane, g.rank, g.limit_name, oldest.available_at, oldest.id
FROM filled
CROSS JOIN claim_groups g ON g.id = filled.id
CROSS JOIN jobs oldest ON oldest.id = (
    SELECT j.id FROM jobs j
    WHERE j.claim_group = g.id AND j.status IN ('queued', 'retry') AND j.held_by IS NULL
        AND j.available_at <= :now <<family>>
    ORDER BY j.available_at, j.id LIMIT 1
)
WHERE g.handler IN (SELECT value FROM json_each(:handlers))
    AND g.lane IN (SELECT value FROM json_each(:lanes)) AND g.alone = :alone AND <<unpaused>>;

-- name: limits_over
SELECT name, max_concurrency, manual_reserve FROM limits
WHERE name = 'max_concurrency' OR name IN (SELECT value FROM json_each(?1));

-- name: leased_under_limits
SELECT g.limit_name, g.lane, sum((
    SELECT count(*) FROM jobs j WHERE j.claim_group = g.id AND j.status = 'leased' AND j.limited
))
FROM claim_groups g WHERE g.limit_name IN (SELECT value FROM json_each(:limits))
GROUP BY g.limit_name, g.lane
UNION ALL
SELECT 'max_concurrency', g.lane, count(*)
FROM jobs j CROSS JOIN claim_groups g ON g.id = j.claim_group
WHERE j.status = 'leased' AND 'max_concurrency' IN (SELECT value FROM json_each(:limits))
GROUP BY g.lane;

-- name: ready_in_group
SELECT available_at, id FROM jobs
WHERE claim_group = ?1 AND status IN ('queued', 'retry') AND held_by IS NULL AND available_at <= ?2 <<family>>
ORDER BY available_at, id LIMIT ?3;

-- name: lease
UPDATE jobs
SET status = 'leased', attempts = attempts + 1, leases = leases + 1, fence = (leases + 1) || '-' || :token,
    lease_until = :lease_until, leased_alone = :alone, last_heartbeat = :now, last_attempt_at = :now,
    progress = NULL,
    worker_id = :worker
WHERE id IN (SELECT value FROM json_each(:ids));

-- name: take_over
-- The attempt goes on under another fence. Where it has that fence already, the same call is repeated.
UPDATE jobs
SET leases = leases + (fence = ?2), fence = ?3, worker_id = ?4, last_heartbeat = ?5, lease_until = ?5 + ?6,
    progress = NULL
WHERE id = ?1 AND fence IN (?2, ?3) RETURNING id;

-- name: limit_names
SELECT name FROM limits;

-- name: claimed
SELECT j.id, j.fence, j.execution_id, e.path, e.definition_id, j.step, g.handler, j.element, j.round,
    j.attempts, j.max_attempts, g.lane, j.lease_until, j.leased_alone, j.clear, e.workload, j.scheduled_for,
    j.last_attempt_at,
    :limits <> '[]' AND EXISTS (
        SELECT 1 FROM json_each(:limits) l WHERE l.value IN (g.limit_name, 'max_concurrency')
    ), j.input, j.parked, e.depth, j.available_at
FROM json_each(:ids) chosen
CROSS JOIN jobs j ON j.id = chosen.value
JOIN executions e ON e.id = j.execution_id
JOIN claim_groups g ON g.id = j.claim_group
ORDER BY chosen.key;

-- name: next_due
-- What is due under a limit and was not leased waits for room, which no time tells.
WITH RECURSIVE <<filled>>
SELECT min((
    SELECT j.available_at FROM jobs j
    WHERE j.claim_group = g.id AND j.status IN ('queued', 'retry') AND j.held_by IS NULL
        AND j.available_at > iif(
            EXISTS (SELECT 1 FROM limits l WHERE l.name IN (g.limit_name, 'max_concurrency')), :now, -9e999
        ) <<family>>
    ORDER BY j.available_at, j.id LIMIT 1
))
FROM filled CROSS JOIN claim_groups g ON g.id = filled.id
WHERE g.handler IN (SELECT value FROM json_each(:handlers))
    AND g.lane IN (SELECT value FROM json_each(:lanes)) AND <<unpaused>>;

-- name: heartbeat
-- Without a new end, the lease goes on for as long as it was given the last time.
UPDATE jobs SET lease_until = coalesce(?4, ?5 + (lease_until - last_heartbeat)), last_heartbeat = ?5,
    progress = coalesce(?3, progress)
WHERE id = ?1 AND fence = ?2 RETURNING id;

-- name: peek_jobs
SELECT j.id, j.execution_id, j.step, j.element, j.round, j.status, j.attempts, j.max_attempts,
    j.available_at, j.fence, j.lease_until, j.unknown_errors, j.losses, j.crashes, j.dead_reason,
    j.settled_fence, j.settled_hash, j.clear, j.leased_alone, j.worker_id, j.held_by, j.scheduled_for,
    j.last_attempt_at, j.input, j.parked, j.superseded,
    e.id, e.path, e.definition_id, e.status, e.lane, e.round, e.manual_retries, e.last_manual_retry_at,
    e.last_completed_stage, e.error, e.retry_history, e.retry_count, e.deadline_seconds, e.deadline_at,
    e.batch_id, e.plan, e.depth, e.parent_job
FROM jobs j JOIN executions e ON e.id = j.execution_id
WHERE j.id IN (SELECT value FROM json_each(?1))
ORDER BY e.id, j.id;

-- name: execution_states
SELECT id, path, definition_id, status, lane, round, manual_retries, last_manual_retry_at,
    last_completed_stage, error, retry_history, retry_count, deadline_seconds, deadline_at, batch_id,
    plan, depth, parent_job
FROM executions WHERE id IN (SELECT value FROM json_each(?1)) ORDER BY id;

-- name: jobs_of_executions
SELECT id, execution_id, step, element, round, status, attempts, max_attempts,
    available_at, fence, lease_until, unknown_errors, losses, crashes, dead_reason,
    settled_fence, settled_hash, clear, leased_alone, worker_id, held_by, scheduled_for,
    last_attempt_at, input, parked, superseded
FROM jobs WHERE execution_id IN (SELECT value FROM json_each(?1)) ORDER BY execution_id, id;

-- name: complete_job
UPDATE jobs
SET status = 'done', fence = NULL, lease_until = NULL, settled_fence = fence, settled_hash = ?2, output = ?3,
    finished_at = ?4
WHERE id = ?1;

-- name: complete_held_job
UPDATE jobs
SET status = 'done', fence = NULL, lease_until = NULL, settled_fence = fence, settled_hash = ?3, output = ?4,
    finished_at = ?5
WHERE id = ?1 AND fence = ?2;

-- name: update_job
UPDATE jobs
SET status = ?2, attempts = ?3, available_at = ?4, fence = NULL, lease_until = NULL, unknown_errors = ?5,
    losses = ?6, crashes = ?7, dead_reason = ?8, settled_fence = ?9, settled_hash = ?10, clear = ?11,
    held_by = ?12, scheduled_for = ?13, parked = ?14, claim_group = coalesce(?15, claim_group),
    finished_at = iif(?2 IN ('dead', 'cancelled'), ?16, NULL)
WHERE id = ?1;

-- name: advance_execution
UPDATE executions
SET status = ?2, last_completed_stage = ?3, error = NULL, finished_at = iif(?2 = 'running', NULL, ?4)
WHERE id = ?1;

-- name: update_execution
UPDATE executions
SET status = ?2, round = ?3, manual_retries = ?4, last_manual_retry_at = ?5, last_completed_stage = ?6,
    error = ?7, retry_history = ?8, retry_count = ?9, deadline_at = ?10, plan = ?11,
    finished_at = iif(?2 = 'running', NULL, ?12)
WHERE id = ?1;

-- name: insert_job
INSERT INTO jobs (
    execution_id, step, round, claim_group, max_attempts, available_at, clear, held_by, scheduled_for, element,
    input, limited, created_at
) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: let_elements_through
UPDATE jobs SET held_by = NULL, available_at = ?5
WHERE id IN (
    SELECT h.id FROM jobs h
    WHERE h.execution_id = ?1 AND h.step = ?2 AND h.round = ?3 AND h.held_by = 'for_each'
    ORDER BY h.element LIMIT ?4
);

-- name: supersede
UPDATE jobs SET superseded = 1 WHERE execution_id = ?1 AND step = ?2;

-- name: insert_event
INSERT INTO events (execution_id, at, body) VALUES (?1, ?3, ?2);

-- name: expired
SELECT id, fence FROM jobs WHERE status = 'leased' AND lease_until < ?1
ORDER BY lease_until LIMIT ?2;

-- name: leases_of
SELECT j.id, j.fence, j.leased_alone FROM jobs j WHERE j.status = 'leased' AND {where}
ORDER BY j.lease_until, j.id LIMIT {limit};

-- name: handlers
SELECT DISTINCT g.handler FROM claim_groups g WHERE {where} ORDER BY g.handler LIMIT {limit};

-- name: overdue
SELECT id FROM executions
WHERE status = 'running' AND deadline_at IS NOT NULL AND deadline_at < ?1 ORDER BY deadline_at LIMIT ?2;

-- name: outputs
SELECT execution_id, step, round, output FROM jobs
WHERE execution_id IN (SELECT value FROM json_each(?1)) AND status = 'done' ORDER BY round;

-- name: step_outputs
-- What counts of the outputs of these steps, the oldest first. Joined in this order: with statistics SQLite would
-- read all jobs of the execution.
SELECT j.execution_id, j.step, j.round, j.output, j.element
FROM json_each(?1) e CROSS JOIN json_each(?2) s
CROSS JOIN jobs j ON j.execution_id = e.value AND j.step = s.value
WHERE j.status = 'done' AND NOT j.superseded
ORDER BY j.round, j.id;

-- name: definition_of
SELECT definition_id FROM executions WHERE id = ?1;

-- name: definition_version
SELECT id, path, version, content FROM definitions WHERE path = ?1 AND version = ?2;

-- name: handed_inputs
-- The oldest first.
SELECT j.execution_id, j.step, j.element, j.input
FROM json_each(?1) e JOIN json_each(?2) s ON s.key = e.key JOIN json_each(?3) p ON p.key = e.key
CROSS JOIN jobs j ON j.execution_id = e.value AND j.step = s.value AND j.element = p.value
ORDER BY j.round;

-- name: waiting_for_child
-- Jobs that wait for a child execution, with the child, where there is one.
SELECT j.id, j.parked, j.attempts, c.id, c.status
FROM jobs j
LEFT JOIN executions c ON c.path = j.parked ->> '$.child.path' AND c.idempotency_key = j.parked ->> '$.child.key'
WHERE j.held_by = 'child' AND j.id > ?1 AND (?2 IS NULL OR j.id = ?2) ORDER BY j.id LIMIT ?3;

-- name: orphans
-- Children that run although the job they were started for has ended.
SELECT c.id FROM executions c LEFT JOIN jobs j ON j.id = c.parent_job
WHERE c.parent_job IS NOT NULL AND c.status = 'running'
    AND (j.id IS NULL OR j.status IN ('done', 'dead', 'cancelled'))
ORDER BY c.id LIMIT ?1;

-- name: children
SELECT c.id FROM jobs j JOIN executions c ON c.parent_job = j.id AND c.status = 'running'
WHERE j.execution_id = ?1 ORDER BY c.id LIMIT ?2;

-- name: finished_before
-- A batch is kept whole until all of it has ended, a child until the job has that reads what came of it.
SELECT id FROM executions e
WHERE finished_at < ?1 AND (parent_job IS NULL OR NOT EXISTS (
    SELECT 1 FROM jobs p WHERE p.id = e.parent_job AND p.status IN ('queued', 'leased', 'retry')
)) AND (batch_id IS NULL OR NOT EXISTS (
    SELECT 1 FROM executions r WHERE r.batch_id = e.batch_id AND r.status = 'running'
) AND EXISTS (SELECT 1 FROM batches b WHERE b.id = e.batch_id AND b.closed_at IS NOT NULL))
ORDER BY finished_at LIMIT ?2;

-- name: prune_batches
DELETE FROM batches
WHERE closed_at < ?1 AND NOT attention AND NOT EXISTS (SELECT 1 FROM executions e WHERE e.batch_id = batches.id);

-- name: prune_executions
DELETE FROM executions WHERE id IN (SELECT value FROM json_each(?1));

-- name: prune_jobs
DELETE FROM jobs WHERE execution_id IN (SELECT value FROM json_each(?1));

-- name: prune_events
DELETE FROM events WHERE execution_id IN (SELECT value FROM json_each(?1));

-- part: execution_rows
SELECT e.id, e.path, d.version, e.status, e.lane, e.mode, e.batch_id, e.idempotency_key, e.round,
    e.manual_retries, e.retry_count, e.last_completed_stage, e.error, e.retry_history, e.workload,
    e.created_at, e.finished_at, e.deadline_at,
    (SELECT p.execution_id FROM jobs p WHERE p.id = e.parent_job)
FROM executions e JOIN definitions d ON d.id = e.definition_id;

-- name: executions
<<execution_rows>> WHERE {where} ORDER BY e.id DESC LIMIT {limit};

-- name: jobs
SELECT j.id, j.execution_id, e.path, j.step, j.element, j.round, j.status, j.attempts, j.max_attempts,
    j.available_at, j.scheduled_for, j.held_by, j.lease_until, j.last_heartbeat, j.progress, j.worker_id, g.lane,
    g.operation, e.mode, g.rank, j.dead_reason, j.created_at, j.finished_at, j.output, g.limit_name,
    j.last_attempt_at, g.handler, e.definition_id
FROM jobs j
JOIN executions e ON e.id = j.execution_id
JOIN claim_groups g ON g.id = j.claim_group
WHERE {where} ORDER BY j.id LIMIT {limit};

-- name: events
-- The beginning of an attempt is written with its end; until then its job tells it, in a row without an id.
SELECT * FROM (
    SELECT id, execution_id, at, body FROM events
    WHERE execution_id = ?1 AND id >= ?2 ORDER BY id LIMIT ?3
)
UNION ALL
SELECT * FROM (
    SELECT NULL, j.execution_id, <<beginning>>
    FROM jobs j WHERE j.execution_id = ?1 AND j.status = 'leased' ORDER BY j.last_attempt_at, j.id
);

-- part: beginning
coalesce(j.last_attempt_at, j.created_at), json_array(json_object(
        'type', 'action_started', 'step', j.step, 'attempt', j.attempts,
        'is_retry', json(iif(j.attempts > 1, 'true', 'false')), 'worker', j.worker_id, 'place', j.element
    ))

-- name: begun
SELECT j.execution_id, (SELECT e.path FROM executions e WHERE e.id = j.execution_id), <<beginning>>
FROM jobs j WHERE j.status = 'leased' AND {where}
ORDER BY coalesce(j.last_attempt_at, j.created_at) DESC, j.id DESC LIMIT {limit};

-- name: leave_out_numbers
-- A table that never had a row has none here either.
INSERT INTO sqlite_sequence (name, seq)
SELECT column1, 0 FROM (VALUES ('executions'), ('jobs'), ('events'), ('batches'))
WHERE column1 NOT IN (SELECT name FROM sqlite_sequence);
UPDATE sqlite_sequence SET seq = seq + ?1 WHERE name IN ('executions', 'jobs', 'events', 'batches');

-- name: highest_event_row
SELECT coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'events'), 0);

-- name: last_event_row
SELECT coalesce(max(id), 0) FROM events;

-- part: event_row
-- A CROSS JOIN is done in the order it is written in.
SELECT v.id, v.execution_id, e.path, v.at, v.body FROM events v CROSS JOIN executions e ON e.id = v.execution_id

-- name: event_rows
<<event_row>> WHERE {where} ORDER BY v.id LIMIT {limit};

-- name: event_rows_at
<<event_row>> WHERE v.id IN (SELECT value FROM json_each(?1)) ORDER BY v.id;

-- name: event_gaps
SELECT previous + 1, id - 1, (SELECT at FROM events WHERE id = seen.id) FROM (
    SELECT id, lag(id, 1, ?1) OVER (ORDER BY id) AS previous FROM events WHERE id > ?1 AND id <= ?2
) seen WHERE id > previous + 1 ORDER BY id DESC LIMIT ?3;

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

-- name: catalog
SELECT d.id, d.path, d.version, d.hash, d.source IS NOT NULL, coalesce(json_array_length(d.content, '$.steps'), 0),
    d.created_at, d.registered_at, d.place = 1, d.versions
FROM (
    SELECT *, row_number() OVER (PARTITION BY path ORDER BY registered_at DESC, version DESC) AS place,
        count(*) OVER (PARTITION BY path) AS versions
    FROM definitions
) d WHERE {where} ORDER BY d.path, d.version DESC LIMIT {limit};

-- name: definition_source
SELECT d.source FROM definitions d WHERE {where} LIMIT {limit};

-- name: open_work
-- Each half by its own partial index, so that it costs what is open and not what was ever done; counted by group before
-- anything is looked up for it. ?1 is now, ?2 the most rows.
SELECT o.status, g.handler, g.lane, o.jobs, o.oldest, g.alone, g.path, g.step, g.limit_name, o.ready
FROM (
    SELECT status, claim_group, count(*) AS jobs, min(available_at) AS oldest, sum(available_at <= ?1) AS ready
    FROM jobs WHERE status IN ('queued', 'retry') AND held_by IS NULL GROUP BY claim_group, status
    UNION ALL
    SELECT status, claim_group, count(*), min(available_at), 0
    FROM jobs WHERE status = 'leased' GROUP BY claim_group, status
) o JOIN claim_groups g ON g.id = o.claim_group
ORDER BY g.handler, g.lane, o.status, g.alone, g.path, g.step, g.limit_name, g.id LIMIT ?2;

-- name: execution_counts
-- Without those that were started for others, which stand for them.
SELECT e.status, count(*) FROM executions e WHERE e.parent_job IS NULL AND {where} GROUP BY e.status LIMIT {limit};

-- part: dead_job
-- The job that an execution failed of: of several elements the first.
SELECT d.id FROM jobs d
WHERE d.execution_id = e.id AND d.step = e.error ->> 'stage' AND d.round = e.round AND d.status = 'dead'
ORDER BY d.element LIMIT 1

-- name: failures
-- What failed and was not retried since, but for what was started for others: its parent goes on, or is here. A
-- deadline ends an execution without a dead job.
SELECT f.execution_id, f.path, f.step, f.error_type, f.dead_reason, f.category, f.message, f.failed_at,
    f.manual_retries
FROM (
    SELECT e.id AS execution_id, e.path, coalesce(j.step, e.error ->> 'stage') AS step,
        e.error ->> 'error_type' AS error_type, coalesce(j.dead_reason, 'deadline') AS dead_reason,
        e.error ->> 'category' AS category, e.error ->> 'message' AS message,
        e.finished_at AS failed_at, e.manual_retries, e.batch_id
    FROM executions e
    LEFT JOIN jobs j ON j.id = (<<dead_job>>)
    WHERE e.status = 'failed' AND e.parent_job IS NULL
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
            coalesce(j.dead_reason, 'deadline') AS dead_reason, e.finished_at AS failed_at,
            e.batch_id
        FROM executions e
        LEFT JOIN jobs j ON j.id = (<<dead_job>>)
        WHERE e.status = 'failed' AND e.parent_job IS NULL
    ) f WHERE {where}
    GROUP BY f.path, f.step, f.error_type, f.dead_reason
) g JOIN executions e ON e.id = g.example
ORDER BY g.executions DESC, g.example DESC LIMIT {limit};

-- name: create_batch
INSERT INTO batches (
    path, definition_id, lane, mode, idempotency_key, gated, gates, created_at
) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)
ON CONFLICT (path, idempotency_key) WHERE idempotency_key IS NOT NULL DO NOTHING
RETURNING id;

-- name: batch_by_key
SELECT id FROM batches WHERE path = ?1 AND idempotency_key = ?2;

-- part: batch_states
SELECT id, path, definition_id, lane, mode, items, gates, attention, closed_at, cancelled_at, cancelled_by
FROM batches;

-- name: lock_batch
<<batch_states>> WHERE id = ?1;

-- name: lock_gated_batches
<<batch_states>> WHERE id IN (SELECT value FROM json_each(?1)) AND gated ORDER BY id;

-- name: update_batch
UPDATE batches
SET items = ?2, gates = ?3, attention = ?4, closed_at = ?5, cancelled_at = ?6, cancelled_by = ?7
WHERE id = ?1;

-- name: live_jobs
SELECT j.step, j.held_by, count(*)
FROM executions e JOIN jobs j ON j.execution_id = e.id
WHERE e.batch_id = ?1 AND e.status = 'running' AND j.status IN ('queued', 'retry', 'leased')
GROUP BY j.step, j.held_by;

-- name: batches_to_attend
SELECT id FROM batches WHERE attention AND id > ?1 ORDER BY id LIMIT ?2;

-- name: held_jobs
SELECT e.id, j.id FROM executions e JOIN jobs j ON j.execution_id = e.id
WHERE e.batch_id = ?1 AND e.status = 'running' AND e.id > ?4 AND j.step = ?2 AND j.held_by = ?3
ORDER BY e.id LIMIT ?5;

-- name: completed_at
-- The last one, not the latest: the clock may have gone back.
SELECT (
    SELECT finished_at FROM jobs WHERE execution_id = ?1 AND step = ?2 AND status = 'done'
    ORDER BY id DESC LIMIT 1
);

-- name: batches
SELECT b.id, b.path, d.version, b.definition_id, b.lane, b.mode, b.idempotency_key, b.items, b.gates,
    b.created_at, b.closed_at, b.cancelled_at, b.cancelled_by,
    EXISTS (SELECT 1 FROM executions e WHERE e.batch_id = b.id AND e.status = 'running')
FROM batches b JOIN definitions d ON d.id = b.definition_id
WHERE {where} ORDER BY b.id DESC LIMIT {limit};

-- name: batch_counts
-- A job that is not done, in the current round: an execution that runs or failed has one.
SELECT e.status, j.step, j.status, j.held_by, count(*)
FROM executions e
LEFT JOIN jobs j ON j.execution_id = e.id AND j.round = e.round AND j.status <> 'done'
WHERE {where} GROUP BY e.status, j.step, j.status, j.held_by LIMIT {limit};

-- name: batch_executions
SELECT e.status, count(*) FROM executions e WHERE {where} GROUP BY e.status LIMIT {limit};

-- name: batch_steps
-- Of playbooks that are more than a chain: how far each item is with each step that it has come to. A step may have
-- several jobs, and what is most alive of them tells.
SELECT s.execution_status, s.step, s.told, count(*)
FROM (
    SELECT e.status AS execution_status, j.step, max(CASE j.status
            WHEN 'leased' THEN 5 WHEN 'queued' THEN 4 WHEN 'retry' THEN 4 WHEN 'dead' THEN 3 WHEN 'done' THEN 2
            ELSE 1 END) AS told
    FROM executions e JOIN jobs j ON j.execution_id = e.id
    WHERE (j.round = e.round OR j.status = 'done') AND NOT j.superseded AND {where}
    GROUP BY e.id, e.status, j.step
) s
GROUP BY s.execution_status, s.step, s.told LIMIT {limit};

-- name: batch_paces
SELECT j.step, count(*), min(j.finished_at), max(j.finished_at)
FROM executions e JOIN jobs j ON j.execution_id = e.id
WHERE {where} GROUP BY j.step LIMIT {limit};

-- name: batch_work
-- What waits and is held by no gate: whom it needs, and from when until when it becomes ready.
SELECT j.step, g.handler, g.lane, g.limit_name, count(*), min(j.available_at), max(j.available_at),
    max(j.scheduled_for)
FROM executions e
JOIN jobs j ON j.execution_id = e.id
JOIN claim_groups g ON g.id = j.claim_group
WHERE e.status = 'running' AND j.status IN ('queued', 'retry') AND j.held_by IS NULL AND {where}
GROUP BY j.step, g.handler, g.lane, g.limit_name ORDER BY j.step, g.handler, g.lane LIMIT {limit};

-- name: held_work
-- Only items of batches are ever held.
SELECT e.lane, count(*)
FROM executions e JOIN jobs j ON j.execution_id = e.id
WHERE e.batch_id IS NOT NULL AND e.status = 'running' AND j.status IN ('queued', 'retry')
    AND j.held_by IS NOT NULL AND {where}
GROUP BY e.lane LIMIT {limit};

-- name: set_limit
INSERT INTO limits (name, max_concurrency, manual_reserve, set_by, set_at)
VALUES (?1, ?2, ?3, ?4, ?5)
ON CONFLICT (name) DO UPDATE
SET max_concurrency = excluded.max_concurrency, manual_reserve = excluded.manual_reserve,
    set_by = excluded.set_by, set_at = excluded.set_at
RETURNING name;

-- name: remove_limit
DELETE FROM limits WHERE name = ?1 RETURNING name;

-- name: limit_rows
-- Those that are set, and those that only steps name; with what is leased under each, manual and bulk.
SELECT n.name, l.max_concurrency, l.manual_reserve, l.set_by, l.set_at,
    CASE n.name WHEN 'max_concurrency' THEN (
        SELECT count(*) FROM jobs j JOIN claim_groups g ON g.id = j.claim_group
        WHERE j.status = 'leased' AND g.lane = 'manual'
    ) ELSE (
        SELECT count(*) FROM jobs j JOIN claim_groups g ON g.id = j.claim_group
        WHERE j.status = 'leased' AND j.limited AND g.limit_name = n.name AND g.lane = 'manual'
    ) END,
    CASE n.name WHEN 'max_concurrency' THEN (
        SELECT count(*) FROM jobs j JOIN claim_groups g ON g.id = j.claim_group
        WHERE j.status = 'leased' AND g.lane = 'bulk'
    ) ELSE (
        SELECT count(*) FROM jobs j JOIN claim_groups g ON g.id = j.claim_group
        WHERE j.status = 'leased' AND j.limited AND g.limit_name = n.name AND g.lane = 'bulk'
    ) END
FROM (
    SELECT name FROM limits
    UNION
    SELECT limit_name FROM claim_groups WHERE limit_name <> ''
) n LEFT JOIN limits l ON l.name = n.name
WHERE {where} ORDER BY n.name LIMIT {limit};

-- name: pause
INSERT INTO pauses (kind, name, paused_by, reason, paused_at) VALUES (?1, ?2, ?3, ?4, ?5)
ON CONFLICT (kind, name) DO NOTHING
RETURNING kind, name, paused_by, reason, paused_at;

-- name: resume
DELETE FROM pauses WHERE kind = ?1 AND name = ?2
RETURNING kind, name, paused_by, reason, paused_at;

-- name: pause_rows
SELECT p.kind, p.name, p.paused_by, p.reason, p.paused_at FROM pauses p
WHERE {where} ORDER BY p.paused_at, p.kind, p.name LIMIT {limit};

-- name: batch_items
<<execution_rows>> WHERE {where} ORDER BY e.id LIMIT {limit};

-- name: insert_audit
INSERT INTO holdfast_audit (at, actor, action, target, details) VALUES (?5, ?1, ?2, ?3, ?4);

-- name: audit_rows
SELECT a.id, a.at, a.actor, a.action, a.target, a.details FROM holdfast_audit a
WHERE {where} ORDER BY a.id DESC LIMIT {limit};

-- name: add_token
-- A name that a token has is free again when that one is revoked.
INSERT INTO holdfast_tokens (id, name, role, secret_hash, created_at, created_by, expires_at)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)
ON CONFLICT DO NOTHING
RETURNING id;

-- name: token_rows
SELECT t.id, t.name, t.role, t.created_at, t.created_by, t.expires_at, t.revoked_at, t.revoked_by, t.last_used_at,
    t.secret_hash
FROM holdfast_tokens t WHERE {where} ORDER BY t.created_at DESC, t.id DESC LIMIT {limit};

-- name: revoke_token
UPDATE holdfast_tokens SET revoked_by = ?2, revoked_at = ?3
WHERE id = ?1 AND revoked_at IS NULL
RETURNING id;

-- name: token_used
UPDATE holdfast_tokens SET last_used_at = ?2
WHERE id = ?1 AND (last_used_at IS NULL OR last_used_at < ?2)
RETURNING id;

-- name: begin_tallies
INSERT INTO holdfast_tallies (source, name, labels, value, seen_at) VALUES (?1, '', '', 0, ?2)
ON CONFLICT (source, name, labels) DO UPDATE SET seen_at = excluded.seen_at;

-- name: renew_tallies
UPDATE holdfast_tallies SET seen_at = ?2 WHERE source = ?1 AND name = '' RETURNING source;

-- name: write_tallies
INSERT INTO holdfast_tallies (source, name, labels, value, seen_at) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (source, name, labels) DO UPDATE SET value = excluded.value, seen_at = excluded.seen_at;

-- name: silent_tallies
SELECT source FROM holdfast_tallies WHERE name = '' AND (seen_at < ?1 OR source = ?2);

-- name: fold_tallies
INSERT INTO holdfast_tallies (source, name, labels, value, seen_at)
SELECT '', x.name, x.folded, sum(x.value), max(x.seen_at)
FROM (
    SELECT t.name, t.value, t.seen_at, CASE
        WHEN other.value IS NULL THEN t.labels
        WHEN EXISTS (SELECT 1 FROM holdfast_tallies k WHERE k.source = '' AND k.name = t.name AND k.labels = t.labels)
            THEN t.labels
        WHEN (SELECT count(*) FROM holdfast_tallies k WHERE k.source = '' AND k.name = t.name) < ?3 THEN t.labels
        ELSE other.value END AS folded
    FROM holdfast_tallies t LEFT JOIN json_each(?2) other ON other.key = t.name
    WHERE t.source IN (SELECT value FROM json_each(?1)) AND t.name <> ''
) x
WHERE true GROUP BY x.name, x.folded
ON CONFLICT (source, name, labels) DO UPDATE
SET value = holdfast_tallies.value + excluded.value, seen_at = excluded.seen_at;

-- name: drop_tallies
DELETE FROM holdfast_tallies WHERE source IN (SELECT value FROM json_each(?1));

-- name: tallies
SELECT t.name, t.labels, sum(t.value) FROM holdfast_tallies t WHERE t.name <> '' AND {where}
GROUP BY t.name, t.labels ORDER BY t.name, t.labels LIMIT {limit};

-- name: running_executions
-- Whoever runs has an open job, or is in a batch: so it costs what is open. Each part has an index of its own, where
-- SQLite would walk all jobs in the order of their executions.
SELECT (
    SELECT count(DISTINCT execution_id) FROM (
        SELECT execution_id FROM jobs INDEXED BY jobs_claim WHERE status IN ('queued', 'retry') AND held_by IS NULL
        UNION ALL
        SELECT execution_id FROM jobs INDEXED BY jobs_leases WHERE status = 'leased'
        UNION ALL
        SELECT execution_id FROM jobs INDEXED BY jobs_waiting_for_place WHERE held_by = 'for_each'
        UNION ALL
        SELECT execution_id FROM jobs INDEXED BY jobs_waiting_for_child WHERE held_by = 'child'
        UNION ALL
        SELECT id FROM executions INDEXED BY executions_batch_running
        WHERE batch_id IS NOT NULL AND status = 'running'
    )
) - (SELECT count(*) FROM executions WHERE parent_job IS NOT NULL AND status = 'running');

-- name: failed_executions
SELECT count(*) FROM executions WHERE status = 'failed' AND parent_job IS NULL;
