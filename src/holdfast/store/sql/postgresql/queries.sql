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

-- name: save_source
UPDATE holdfast.definitions SET source = $2 WHERE id = $1 AND source IS DISTINCT FROM $2;

-- name: add_groups
INSERT INTO holdfast.claim_groups (handler, lane, rank, operation, limit_name, alone, path, step)
SELECT * FROM unnest($1::text[], $2::text[], $3::smallint[], $4::text[], $5::text[], $6::boolean[], $7::text[], $8::text[])
ON CONFLICT DO NOTHING;

-- name: groups
SELECT id, handler, lane, rank, operation, limit_name, alone, path, step FROM holdfast.claim_groups;

-- name: facts
-- What a submit must know of a connection it has never seen: the clock, the schema's version, and which
-- database this is; the moment its schema was made tells it from others of the same name.
SELECT extract(epoch FROM clock_timestamp())::float8, coalesce(max(version), 0),
    concat_ws(' ', current_database(), 'holdfast'::regnamespace::oid, extract(epoch FROM min(applied_at)))
FROM holdfast.schema_version;

-- name: oldest_that_works
-- The oldest schema whose Holdfast may use a database of this one.
SELECT oldest FROM holdfast.compatibility WHERE version = $1;

-- Inserting. Ids are drawn before anything is inserted, so one statement can write all three tables. `kind` is
-- the place of an item's kind in the first ten and the last four arrays, and an array that is empty fills its column with NULL. No
-- join and no sort: every table is written in the order of the items.

-- part: new_input
input AS MATERIALIZED (
    SELECT nextval('holdfast.executions_id_seq') AS id, coalesce(x.kind, 1) AS kind, x.workload, x.workload_hash,
        x.idempotency_key, x.deadline_seconds, coalesce(x.delay_seconds, 0) AS delay_seconds
    FROM unnest($11::integer[], $12::text[], $13::text[], $14::text[], $15::float8[], $16::float8[])
        AS x (kind, workload, workload_hash, idempotency_key, deadline_seconds, delay_seconds)
)

-- part: new_executions
INSERT INTO holdfast.executions (
    id, path, definition_id, lane, mode, batch_id, workload, workload_hash, idempotency_key, deadline_seconds,
    deadline_at, created_at, plan, parent_job, depth
) OVERRIDING SYSTEM VALUE
SELECT id, ($1::text[])[kind], ($2::bigint[])[kind], ($3::text[])[kind], ($4::text[])[kind],
    ($5::bigint[])[kind], workload, workload_hash, idempotency_key, deadline_seconds,
    $17::float8 + deadline_seconds, $17::float8, ($18::text[])[kind], ($20::bigint[])[kind],
    ($21::smallint[])[kind]
FROM input

-- part: new_jobs
INSERT INTO holdfast.jobs (
    execution_id, step, round, claim_group, max_attempts, limited, available_at, created_at, input
)
SELECT id, ($6::text[])[kind], 1, ($7::integer[])[kind], ($8::integer[])[kind], ($10::boolean[])[kind],
    $17::float8 + delay_seconds, $17::float8, ($19::text[])[kind]
FROM input

-- part: new_events
INSERT INTO holdfast.events (execution_id, at, body)
SELECT id, $17::float8, ($9::text[])[kind] FROM input

-- name: insert
WITH <<new_input>>, added AS (<<new_executions>>), job AS (<<new_jobs>>), event AS (<<new_events>>)
SELECT array_agg(id) FROM input;

-- name: insert_keyed
-- As `insert`, for items some of which may be there already.
WITH <<new_input>>, added AS (
    <<new_executions>>
    ON CONFLICT (path, idempotency_key) WHERE idempotency_key IS NOT NULL DO NOTHING
    RETURNING id
), job AS (
    <<new_jobs>> WHERE id IN (SELECT id FROM added) ORDER BY input.id
), event AS (
    <<new_events>> WHERE id IN (SELECT id FROM added)
)
SELECT (SELECT array_agg(id) FROM input), (SELECT array_agg(id) FROM added);

-- name: executions_by_key
SELECT path, idempotency_key, id, workload_hash FROM holdfast.executions
WHERE (path, idempotency_key) IN (SELECT * FROM unnest($1::text[], $2::text[]));

-- The claim. A parameter behind a SELECT is one whose value the planner does not look at: the plan is the same
-- for all values, and is made once. Otherwise PostgreSQL would plan anew for each claim wherever many jobs are
-- not ready yet, which takes longer than the claim. IS TRUE keeps handlers a hash to look into: as a join
-- it could be planned for few of them and then meet thousands.

-- part: unpaused
-- Most of the time nothing is paused, and that is asked once for all groups `g`.
(NOT EXISTS (SELECT FROM holdfast.pauses) OR NOT EXISTS (
    SELECT FROM holdfast.pauses p
    WHERE (p.kind = 'limit' AND p.name = 'max_concurrency') OR p.name = CASE p.kind
        WHEN 'step' THEN g.path || '/' || g.step WHEN 'playbook' THEN g.path WHEN 'lane' THEN g.lane
        WHEN 'limit' THEN g.limit_name END
))

-- part: family
-- Where a claim is for one execution and those that it has started, `in_family` stands here.
/* family */

-- name: in_family
AND j.execution_id = ANY (ARRAY(
    WITH RECURSIVE family (id) AS (
        SELECT :family::bigint
        UNION ALL
        SELECT c.id FROM family JOIN holdfast.jobs p ON p.execution_id = family.id
        JOIN holdfast.executions c ON c.child_of = p.id
    )
    SELECT id FROM family
))

-- part: limits_over
-- The limits that are set over any group that this worker may take from.
SELECT l.name, l.max_concurrency, l.manual_reserve FROM holdfast.limits l
WHERE l.name = 'max_concurrency' OR l.name IN (
    SELECT g.limit_name FROM holdfast.claim_groups g
    WHERE g.limit_name <> '' AND (g.handler IN (SELECT unnest(:handlers::text[]))) IS TRUE
        AND g.lane = ANY (:lanes::text[]) AND g.alone = (SELECT :alone::boolean)
)

-- part: ready
-- The oldest ready jobs of each share, up to its bound. A share is what is in one lane under one limit that is
-- set, or under none of those (''); its groups are walked by their own index ranges.
SELECT share.limit_name, share.lane, ready.*
FROM unnest(
    (SELECT :share_limits::text[]), (SELECT :share_lanes::text[]), (SELECT :share_bounds::integer[])
) AS share (limit_name, lane, bound)
CROSS JOIN LATERAL (
    SELECT g.id AS claim_group, g.lane = 'bulk' AND head.available_at > (SELECT :aged_until::float8) AS waits,
        g.rank, head.available_at, head.id
    FROM holdfast.claim_groups g
    CROSS JOIN LATERAL (
        SELECT j.id, j.available_at FROM holdfast.jobs j
        WHERE j.claim_group = g.id AND j.status IN ('queued', 'retry') AND j.held_by IS NULL
            AND j.available_at <= (SELECT :now::float8) <<family>>
        ORDER BY j.available_at, j.id LIMIT share.bound
    ) head
    WHERE (g.handler IN (SELECT unnest(:handlers::text[]))) IS TRUE AND g.lane = share.lane
        AND g.alone = (SELECT :alone::boolean) AND share.limit_name = CASE
            WHEN g.limit_name = ANY ((SELECT :share_limits::text[])::text[]) THEN g.limit_name ELSE '' END
        AND <<unpaused>>
    ORDER BY waits, g.rank, head.available_at, head.id LIMIT share.bound
) ready

-- part: lease_wanted
-- Lock the wanted number from the head of each group, skipping what another worker is taking, and lease it.
-- Locks nothing it does not lease. Where it is `refused`, the answer is one row without an id.
locked AS (
    SELECT head.id FROM wanted w
    CROSS JOIN LATERAL (
        SELECT j.id FROM holdfast.jobs j
        WHERE j.claim_group = w.claim_group AND j.status IN ('queued', 'retry') AND j.held_by IS NULL
            AND j.available_at <= (SELECT :now::float8) <<family>>
        ORDER BY j.available_at, j.id LIMIT w.jobs FOR UPDATE SKIP LOCKED
    ) head
), leased AS (
    UPDATE holdfast.jobs j
    SET status = 'leased', attempts = j.attempts + 1, leases = j.leases + 1,
        fence = (j.leases + 1) || '-' || :token::text, lease_until = :lease_until::float8,
        leased_alone = g.alone, last_heartbeat = :now::float8, last_attempt_at = :now, progress = NULL,
        worker_id = :worker::text
    FROM holdfast.claim_groups g
    WHERE j.id = ANY (ARRAY(SELECT id FROM locked)) AND g.id = j.claim_group
    RETURNING j.id, j.fence, j.execution_id, j.step, g.handler, j.element, j.round, j.attempts,
        j.max_attempts, g.lane, j.lease_until, j.leased_alone, j.clear, j.scheduled_for, j.claim_group,
        g.rank, j.available_at, j.last_attempt_at, j.input, j.parked
)
SELECT leased.id, fence, execution_id, path, definition_id, step, handler, element, round, attempts,
    max_attempts, lane, lease_until, leased_alone, clear, workload, scheduled_for, last_attempt_at,
    EXISTS (SELECT FROM wanted w WHERE w.claim_group = leased.claim_group AND w.limited), input, parked,
    depth, available_at
FROM refused
LEFT JOIN leased ON true
LEFT JOIN LATERAL (
    SELECT e.path, e.definition_id, e.workload, e.depth FROM holdfast.executions e
    WHERE e.id = leased.execution_id LIMIT 1
) execution ON true
WHERE refused.is_so OR leased.id IS NOT NULL
ORDER BY lane = 'bulk' AND available_at > :aged_until::float8, rank, available_at, leased.id

-- name: claim
-- Where nothing is under a limit: all in one statement, without a lock on anything but what it leases. It
-- counts first how many of the oldest ready jobs each group holds. Refused where a limit is set.
WITH refused AS MATERIALIZED (
    SELECT EXISTS (<<limits_over>>) AS is_so
), wanted AS (
    SELECT oldest.claim_group, count(*) AS jobs, false AS limited
    FROM (
        SELECT ready.claim_group FROM (<<ready>>) ready WHERE NOT (SELECT is_so FROM refused)
        ORDER BY ready.waits, ready.rank, ready.available_at, ready.id LIMIT (SELECT :limit::integer)
    ) oldest
    GROUP BY oldest.claim_group
), <<lease_wanted>>;

-- name: lock_limits
-- Whoever leases under a limit has its row locked until the leases are committed, so that the count of the
-- next one, a statement of its own and therefore of a later moment, finds them.
<<limits_over>> ORDER BY l.name FOR UPDATE;

-- name: limits_over_alone
<<limits_over>>;

-- name: leased_under_limits
SELECT g.limit_name, g.lane, sum(leased.jobs)::integer FROM holdfast.claim_groups g
CROSS JOIN LATERAL (
    SELECT count(*) AS jobs FROM holdfast.jobs j
    WHERE j.claim_group = g.id AND j.status = 'leased' AND j.limited
) leased
WHERE g.limit_name = ANY (:limits::text[]) GROUP BY g.limit_name, g.lane
UNION ALL
SELECT 'max_concurrency', g.lane, count(*)::integer
FROM holdfast.jobs j JOIN holdfast.claim_groups g ON g.id = j.claim_group
WHERE j.status = 'leased' AND 'max_concurrency' = ANY (:limits::text[]) GROUP BY g.lane;

-- name: ready_under_limits
-- A group whose limit was set since the limits were locked has to wait for the next claim.
SELECT ready.claim_group, ready.limit_name, ready.lane FROM (<<ready>>) ready
JOIN holdfast.claim_groups named ON named.id = ready.claim_group
WHERE ready.limit_name <> '' OR NOT EXISTS (SELECT FROM holdfast.limits l WHERE l.name = named.limit_name)
ORDER BY ready.waits, ready.rank, ready.available_at, ready.id;

-- name: lease_under_limits
WITH refused AS (
    SELECT false AS is_so
), wanted AS (
    SELECT * FROM unnest(
        (SELECT :groups::integer[]), (SELECT :jobs::integer[]), (SELECT :are_limited::boolean[])
    ) AS w (claim_group, jobs, limited)
), <<lease_wanted>>;

-- name: alone_ready
-- By limit and lane: whether there is room is another question, asked only where there is such a job. Its order
-- makes it walk the claim index; in any order it would try its luck with the whole table.
SELECT DISTINCT g.limit_name, g.lane FROM holdfast.claim_groups g
CROSS JOIN LATERAL (
    SELECT FROM holdfast.jobs j
    WHERE j.claim_group = g.id AND j.status IN ('queued', 'retry') AND j.held_by IS NULL
        AND j.available_at <= (SELECT :now::float8) <<family>>
    ORDER BY j.available_at, j.id LIMIT 1
) head
WHERE (g.handler IN (SELECT unnest(:handlers::text[]))) IS TRUE AND g.lane = ANY (:lanes::text[]) AND g.alone
    AND <<unpaused>>;

-- name: next_due
-- What is due under a limit and was not leased waits for room, which no time tells.
SELECT min(head.available_at)
FROM (
    SELECT g.id, CASE WHEN EXISTS (SELECT FROM holdfast.limits l WHERE l.name = 'max_concurrency')
            OR g.limit_name IN (SELECT l.name FROM holdfast.limits l)
        THEN (SELECT :now::float8) ELSE '-infinity'::float8 END AS since
    FROM holdfast.claim_groups g
    WHERE (g.handler IN (SELECT unnest(:handlers::text[]))) IS TRUE AND g.lane = ANY (:lanes::text[])
        AND <<unpaused>>
) g
CROSS JOIN LATERAL (
    SELECT j.available_at FROM holdfast.jobs j
    WHERE j.claim_group = g.id AND j.status IN ('queued', 'retry') AND j.held_by IS NULL
        AND j.available_at > g.since <<family>>
    ORDER BY j.available_at, j.id LIMIT 1
) head;

-- name: take_over
-- The attempt goes on under another fence. Where it has that fence already, the same call is repeated. Locked in
-- the order of all who lock several; whoever waits here for another taker finds the fence changed.
WITH asked AS (
    SELECT * FROM unnest($1::bigint[], $2::text[], $3::text[]) AS x (id, fence, new_fence)
), locked AS (
    SELECT j.id FROM holdfast.jobs j
    WHERE EXISTS (SELECT FROM asked x WHERE x.id = j.id AND j.fence IN (x.fence, x.new_fence))
        AND j.id = ANY ($1::bigint[])
    ORDER BY j.execution_id, j.id FOR UPDATE
), taken AS (
    UPDATE holdfast.jobs j
    SET leases = j.leases + (j.fence = x.fence)::integer, fence = x.new_fence, worker_id = $4::text,
        last_heartbeat = $5::float8, lease_until = $5::float8 + $6::float8, progress = NULL
    FROM asked x, holdfast.claim_groups g
    WHERE j.id = ANY (ARRAY(SELECT id FROM locked)) AND x.id = j.id AND j.fence IN (x.fence, x.new_fence)
        AND g.id = j.claim_group
    RETURNING j.id, j.fence, j.execution_id, j.step, g.handler, j.element, j.round, j.attempts, j.max_attempts,
        g.lane, j.lease_until, j.leased_alone, j.clear, j.scheduled_for, j.last_attempt_at, g.limit_name, j.input,
        j.parked, j.available_at
)
SELECT taken.id, fence, execution_id, e.path, e.definition_id, step, handler, element, taken.round, attempts,
    max_attempts, taken.lane, lease_until, leased_alone, clear, e.workload, scheduled_for, last_attempt_at,
    EXISTS (SELECT FROM holdfast.limits l WHERE l.name IN (limit_name, 'max_concurrency')), input, parked, e.depth,
    available_at
FROM taken JOIN holdfast.executions e ON e.id = taken.execution_id
ORDER BY array_position($1::bigint[], taken.id);

-- name: heartbeat
-- A row locked by a report or an open transaction still stands; its lease is extended the next time. Without a
-- new end, the lease goes on for as long as it was given the last time.
WITH standing AS (
    SELECT j.id, j.fence, x.progress
    FROM unnest($1::bigint[], $2::text[], $3::float8[]) AS x (id, fence, progress)
    JOIN holdfast.jobs j ON j.id = x.id AND j.fence = x.fence
), free AS (
    SELECT j.id FROM holdfast.jobs j
    WHERE j.id = ANY (ARRAY(SELECT id FROM standing)) ORDER BY j.id FOR UPDATE SKIP LOCKED
), extended AS (
    UPDATE holdfast.jobs j
    SET lease_until = coalesce($4::float8, $5::float8 + (j.lease_until - j.last_heartbeat)),
        last_heartbeat = $5::float8, progress = coalesce(standing.progress, j.progress)
    FROM standing WHERE j.id = ANY (ARRAY(SELECT id FROM free)) AND standing.id = j.id
        AND j.fence = standing.fence
)
SELECT id, fence FROM standing;

-- part: jobs_and_executions
SELECT j.id, j.execution_id, j.step, j.element, j.round, j.status, j.attempts, j.max_attempts,
    j.available_at, j.fence, j.lease_until, j.unknown_errors, j.losses, j.crashes, j.dead_reason,
    j.settled_fence, j.settled_hash, j.clear, j.leased_alone, j.worker_id, j.held_by, j.scheduled_for,
    j.last_attempt_at, j.input, j.parked, j.superseded,
    e.id, e.path, e.definition_id, e.status, e.lane, e.round, e.manual_retries, e.last_manual_retry_at,
    e.last_completed_stage, e.error, e.retry_history, e.retry_count, e.deadline_seconds, e.deadline_at,
    e.batch_id, e.plan, e.depth, e.parent_job
FROM holdfast.jobs j JOIN holdfast.executions e ON e.id = j.execution_id
WHERE j.id = ANY ($1::bigint[]);

-- name: lock_jobs
<<jobs_and_executions>>
ORDER BY e.id, j.id FOR UPDATE OF e, j;

-- name: peek_jobs
<<jobs_and_executions>>;

-- name: lock_executions
SELECT id, path, definition_id, status, lane, round, manual_retries, last_manual_retry_at,
    last_completed_stage, error, retry_history, retry_count, deadline_seconds, deadline_at, batch_id,
    plan, depth, parent_job
FROM holdfast.executions WHERE id = ANY ($1::bigint[]) ORDER BY id FOR UPDATE;

-- name: lock_jobs_of_executions
SELECT id, execution_id, step, element, round, status, attempts, max_attempts,
    available_at, fence, lease_until, unknown_errors, losses, crashes, dead_reason,
    settled_fence, settled_hash, clear, leased_alone, worker_id, held_by, scheduled_for,
    last_attempt_at, input, parked, superseded
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

-- name: complete_held
-- All of them or none: where a fence is not found, the last line is no number, and the statement fails. What attempts
-- have in common is looked up by the number of their kind.
WITH x AS MATERIALIZED (
    SELECT * FROM unnest(
        $1::bigint[], $2::bigint[], string_to_array($3, chr(31)), string_to_array($4, chr(31)),
        string_to_array($5, chr(31)), $6::integer[]
    ) WITH ORDINALITY AS x (job_id, execution_id, fence, hash, output, kind, position)
), execution AS (
    UPDATE holdfast.executions e
    SET status = ($7::text[])[x.kind], last_completed_stage = ($8::text[])[x.kind], error = NULL,
        finished_at = CASE WHEN ($7::text[])[x.kind] = 'running' THEN NULL ELSE $15::float8 END
    FROM x WHERE e.id = x.execution_id
    RETURNING x.job_id, x.fence, x.hash, x.output
), job AS (
    UPDATE holdfast.jobs j
    SET status = 'done', fence = NULL, lease_until = NULL, settled_fence = j.fence, settled_hash = x.hash,
        output = x.output, finished_at = $15::float8
    FROM execution x WHERE j.id = x.job_id AND j.fence = x.fence
    RETURNING 1
), following AS (
    INSERT INTO holdfast.jobs (
        execution_id, step, round, claim_group, max_attempts, limited, available_at, created_at
    )
    SELECT x.execution_id, ($10::text[])[x.kind], ($11::integer[])[x.kind], ($12::integer[])[x.kind],
        ($13::integer[])[x.kind], ($14::boolean[])[x.kind], $15::float8, $15::float8
    FROM x WHERE ($10::text[])[x.kind] IS NOT NULL ORDER BY x.position
), event AS (
    INSERT INTO holdfast.events (execution_id, at, body)
    SELECT x.execution_id, $15::float8, ($9::text[])[x.kind] FROM x ORDER BY x.position
)
SELECT CASE WHEN count(*) = cardinality($1::bigint[]) THEN count(*)
    ELSE ('only ' || count(*) || ' of these leases are still held')::integer END
FROM job;

-- name: update_jobs
UPDATE holdfast.jobs j
SET status = x.status, attempts = x.attempts, available_at = x.available_at, fence = NULL,
    lease_until = NULL, unknown_errors = x.unknown_errors, losses = x.losses, crashes = x.crashes,
    dead_reason = x.dead_reason, settled_fence = x.settled_fence, settled_hash = x.settled_hash,
    clear = x.clear, held_by = x.held_by, scheduled_for = x.scheduled_for, parked = x.parked,
    claim_group = coalesce(x.claim_group, j.claim_group),
    finished_at = CASE WHEN x.status IN ('dead', 'cancelled') THEN $16::float8 END
FROM unnest(
    $1::bigint[], $2::text[], $3::integer[], $4::float8[], $5::integer[], $6::integer[], $7::integer[],
    $8::text[], $9::text[], $10::text[], $11::text[], $12::text[], $13::float8[], $14::text[], $15::integer[]
) AS x (
    id, status, attempts, available_at, unknown_errors, losses, crashes, dead_reason, settled_fence,
    settled_hash, clear, held_by, scheduled_for, parked, claim_group
)
WHERE j.id = x.id;

-- name: update_executions
UPDATE holdfast.executions e
SET status = x.status, round = x.round, manual_retries = x.manual_retries,
    last_manual_retry_at = x.last_manual_retry_at, last_completed_stage = x.last_completed_stage,
    error = x.error, retry_history = x.retry_history, retry_count = x.retry_count,
    deadline_at = x.deadline_at, plan = x.plan,
    finished_at = CASE WHEN x.status = 'running' THEN NULL ELSE $12::float8 END
FROM unnest(
    $1::bigint[], $2::text[], $3::integer[], $4::integer[], $5::float8[], $6::text[], $7::text[],
    $8::text[], $9::integer[], $10::float8[], $11::text[]
) AS x (
    id, status, round, manual_retries, last_manual_retry_at, last_completed_stage, error, retry_history,
    retry_count, deadline_at, plan
)
WHERE e.id = x.id;

-- name: insert_jobs
INSERT INTO holdfast.jobs (
    execution_id, step, round, claim_group, max_attempts, available_at, clear, held_by, scheduled_for, element,
    input, limited, created_at
)
SELECT x.*, $13::float8
FROM unnest(
    $1::bigint[], $2::text[], $3::integer[], $4::integer[], $5::integer[], $6::float8[], $7::text[],
    $8::text[], $9::float8[], $10::integer[], $11::text[], $12::boolean[]
) x;

-- name: finish_jobs
UPDATE holdfast.jobs j
SET status = 'done', fence = NULL, lease_until = NULL, settled_fence = j.fence, settled_hash = x.hash,
    output = x.output, finished_at = $4::float8
FROM unnest($1::bigint[], $2::text[], $3::text[]) AS x (job_id, hash, output) WHERE j.id = x.job_id;

-- name: let_elements_through
UPDATE holdfast.jobs j SET held_by = NULL, available_at = $5::float8
FROM unnest($1::bigint[], $2::text[], $3::integer[], $4::integer[]) AS x (execution_id, step, round, jobs)
CROSS JOIN LATERAL (
    SELECT h.id FROM holdfast.jobs h
    WHERE h.execution_id = x.execution_id AND h.step = x.step AND h.round = x.round AND h.held_by = 'for_each'
    ORDER BY h.element LIMIT x.jobs
) first
WHERE j.id = first.id;

-- name: supersede
UPDATE holdfast.jobs j SET superseded = true
FROM unnest($1::bigint[], $2::text[]) AS x (execution_id, step)
WHERE j.execution_id = x.execution_id AND j.step = x.step;

-- name: insert_events
INSERT INTO holdfast.events (execution_id, at, body)
SELECT execution_id, $3, body
FROM unnest($1::bigint[], $2::text[]) WITH ORDINALITY AS x (execution_id, body, position) ORDER BY position;

-- name: expired
SELECT id, fence FROM holdfast.jobs WHERE status = 'leased' AND lease_until < $1
ORDER BY lease_until LIMIT $2;

-- name: leases_of
SELECT j.id, j.fence, j.leased_alone FROM holdfast.jobs j WHERE j.status = 'leased' AND {where}
ORDER BY j.lease_until, j.id LIMIT {limit};

-- name: handlers
SELECT DISTINCT g.handler FROM holdfast.claim_groups g WHERE {where} ORDER BY g.handler LIMIT {limit};

-- name: overdue
SELECT id FROM holdfast.executions WHERE due_at < $1 ORDER BY due_at LIMIT $2;

-- name: outputs
SELECT execution_id, step, round, output FROM holdfast.jobs
WHERE execution_id = ANY ($1::bigint[]) AND status = 'done' ORDER BY round;

-- name: step_outputs
-- What counts of the outputs of these steps, the oldest first.
SELECT execution_id, step, round, output, element FROM holdfast.jobs
WHERE execution_id = ANY ($1::bigint[]) AND step = ANY ($2::text[]) AND status = 'done' AND NOT superseded
ORDER BY round, id;

-- name: definition_of
SELECT definition_id FROM holdfast.executions WHERE id = $1;

-- name: definition_version
SELECT id, path, version, content FROM holdfast.definitions WHERE path = $1 AND version = $2;

-- name: handed_inputs
-- The oldest first.
SELECT j.execution_id, j.step, j.element, j.input
FROM unnest($1::bigint[], $2::text[], $3::integer[]) AS x (execution_id, step, element)
JOIN holdfast.jobs j ON j.execution_id = x.execution_id AND j.step = x.step AND j.element = x.element
ORDER BY j.round;

-- name: waiting_for_child
-- Jobs that wait for a child execution, with the child, where there is one.
SELECT j.id, j.parked, j.attempts, c.id, c.status
FROM holdfast.jobs j
LEFT JOIN holdfast.executions c ON c.path = j.parked::json #>> '{child,path}'
    AND c.idempotency_key = j.parked::json #>> '{child,key}'
WHERE j.held_by = 'child' AND j.id > $1 AND ($2::bigint IS NULL OR j.id = $2) ORDER BY j.id LIMIT $3;

-- name: orphans
-- Children that run although the job they were started for has ended.
SELECT c.id FROM holdfast.executions c LEFT JOIN holdfast.jobs j ON j.id = c.child_of
WHERE c.child_of IS NOT NULL AND (j.id IS NULL OR j.status IN ('done', 'dead', 'cancelled'))
ORDER BY c.id LIMIT $1;

-- name: children
SELECT c.id FROM holdfast.jobs j JOIN holdfast.executions c ON c.child_of = j.id
WHERE j.execution_id = $1 ORDER BY c.id LIMIT $2;

-- name: prune
-- Among the next $4 executions behind $3. A batch is kept whole until all of it has ended, a child until the job has
-- that reads what came of it. Says how far it looked, and whether any of those began early enough to have ended by
-- then.
WITH looked AS MATERIALIZED (
    SELECT id, created_at FROM holdfast.executions WHERE id > $3 ORDER BY id LIMIT $4
), doomed AS (
    SELECT e.id FROM looked JOIN holdfast.executions e ON e.id = looked.id
    WHERE e.finished_at < $1 AND (e.parent_job IS NULL OR NOT EXISTS (
        SELECT FROM holdfast.jobs p WHERE p.id = e.parent_job AND p.status IN ('queued', 'leased', 'retry')
    )) AND (e.batch_id IS NULL OR NOT EXISTS (
        SELECT FROM holdfast.executions r WHERE r.running_in = e.batch_id
    ) AND EXISTS (SELECT FROM holdfast.batches b WHERE b.id = e.batch_id AND b.closed_at IS NOT NULL))
    ORDER BY e.id LIMIT $2 FOR UPDATE OF e SKIP LOCKED
), execution AS (
    DELETE FROM holdfast.executions WHERE id IN (SELECT id FROM doomed)
), job AS (
    DELETE FROM holdfast.jobs WHERE execution_id IN (SELECT id FROM doomed)
), event AS (
    DELETE FROM holdfast.events WHERE execution_id IN (SELECT id FROM doomed)
)
SELECT (SELECT count(*) FROM doomed), max(id), coalesce(min(created_at) <= $1, false) FROM looked;

-- name: prune_batches
DELETE FROM holdfast.batches b
WHERE b.closed_at < $1 AND NOT b.attention
    AND NOT EXISTS (SELECT FROM holdfast.executions e WHERE e.batch_id = b.id);

-- part: execution_rows
SELECT e.id, e.path, d.version, e.status, e.lane, e.mode, e.batch_id, e.idempotency_key, e.round,
    e.manual_retries, e.retry_count, e.last_completed_stage, e.error, e.retry_history, e.workload,
    e.created_at, e.finished_at, e.deadline_at,
    (SELECT p.execution_id FROM holdfast.jobs p WHERE p.id = e.parent_job)
FROM holdfast.executions e JOIN holdfast.definitions d ON d.id = e.definition_id;

-- name: executions
<<execution_rows>> WHERE {where} ORDER BY e.id DESC LIMIT {limit};

-- name: jobs
SELECT j.id, j.execution_id, e.path, j.step, j.element, j.round, j.status, j.attempts, j.max_attempts,
    j.available_at, j.scheduled_for, j.held_by, j.lease_until, j.last_heartbeat, j.progress, j.worker_id, g.lane,
    g.operation, e.mode, g.rank, j.dead_reason, j.created_at, j.finished_at, j.output, g.limit_name,
    j.last_attempt_at, g.handler, e.definition_id
FROM holdfast.jobs j
JOIN holdfast.executions e ON e.id = j.execution_id
JOIN holdfast.claim_groups g ON g.id = j.claim_group
WHERE {where} ORDER BY j.id LIMIT {limit};

-- name: events
-- The beginning of an attempt is written with its end; until then its job tells it, in a row without an id.
(
    SELECT id, execution_id, at, body FROM holdfast.events
    WHERE execution_id = $1 AND id >= $2 ORDER BY id LIMIT $3
)
UNION ALL
(
    SELECT NULL, j.execution_id, <<beginning>>
    FROM holdfast.jobs j WHERE j.execution_id = $1 AND j.status = 'leased' ORDER BY j.last_attempt_at, j.id
);

-- part: beginning
coalesce(j.last_attempt_at, j.created_at), json_build_array(json_build_object(
        'type', 'action_started', 'step', j.step, 'attempt', j.attempts, 'is_retry', j.attempts > 1,
        'worker', j.worker_id, 'place', j.element
    ))::text

-- name: begun
SELECT j.execution_id, (SELECT e.path FROM holdfast.executions e WHERE e.id = j.execution_id), <<beginning>>
FROM holdfast.jobs j WHERE j.status = 'leased' AND {where}
ORDER BY coalesce(j.last_attempt_at, j.created_at) DESC, j.id DESC LIMIT {limit};

-- name: leave_out_numbers
SELECT setval(s, coalesce(pg_sequence_last_value(s), 0) + $1::bigint) FROM unnest(ARRAY[
    'holdfast.executions_id_seq', 'holdfast.jobs_id_seq', 'holdfast.events_id_seq', 'holdfast.batches_id_seq'
]::regclass[]) AS s;

-- name: highest_event_row
SELECT coalesce(pg_sequence_last_value('holdfast.events_id_seq'), 0);

-- name: last_event_row
SELECT coalesce(max(id), 0) FROM holdfast.events;

-- part: event_row
-- The subquery is asked once for each row that is read, however the planner sees the tables.
SELECT v.id, v.execution_id, e.path, v.at, v.body FROM holdfast.events v
CROSS JOIN LATERAL (SELECT path FROM holdfast.executions WHERE id = v.execution_id OFFSET 0) e

-- name: event_rows
<<event_row>> WHERE {where} ORDER BY v.id LIMIT {limit};

-- name: event_rows_at
<<event_row>> WHERE v.id = ANY ($1::bigint[]) ORDER BY v.id;

-- name: event_gaps
SELECT previous + 1, id - 1, (SELECT at FROM holdfast.events WHERE id = seen.id) FROM (
    SELECT id, lag(id, 1, $1::bigint) OVER (ORDER BY id) AS previous
    FROM holdfast.events WHERE id > $1 AND id <= $2
) seen WHERE id > previous + 1 ORDER BY id DESC LIMIT $3;

-- name: open_transactions
SELECT pg_snapshot_xmin(taken)::text::bigint, pg_snapshot_xmax(taken)::text::bigint
FROM pg_current_snapshot() AS taken;

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

-- name: catalog
SELECT d.id, d.path, d.version, d.hash, d.source IS NOT NULL, coalesce(json_array_length(d.content::json -> 'steps'), 0),
    d.created_at, d.registered_at, d.place = 1, d.versions
FROM (
    SELECT *, row_number() OVER (PARTITION BY path ORDER BY registered_at DESC, version DESC) AS place,
        count(*) OVER (PARTITION BY path) AS versions
    FROM holdfast.definitions
) d WHERE {where} ORDER BY d.path, d.version DESC LIMIT {limit};

-- name: definition_source
SELECT d.source FROM holdfast.definitions d WHERE {where} LIMIT {limit};

-- name: open_work
-- Each half by its own partial index, so that it costs what is open and not what was ever done; counted by group before
-- anything is looked up for it. $1 is now, $2 the most rows.
SELECT o.status, g.handler, g.lane, o.jobs, o.oldest, g.alone, g.path, g.step, g.limit_name, o.ready
FROM (
    SELECT status, claim_group, count(*) AS jobs, min(available_at) AS oldest, count(*) FILTER (WHERE available_at <= $1) AS ready
    FROM holdfast.jobs WHERE status IN ('queued', 'retry') AND held_by IS NULL GROUP BY claim_group, status
    UNION ALL
    SELECT status, claim_group, count(*), min(available_at), 0
    FROM holdfast.jobs WHERE status = 'leased' GROUP BY claim_group, status
) o JOIN holdfast.claim_groups g ON g.id = o.claim_group
ORDER BY g.handler, g.lane, o.status, g.alone, g.path, g.step, g.limit_name, g.id LIMIT $2;

-- name: execution_counts
-- Without those that were started for others, which stand for them.
SELECT e.status, count(*) FROM holdfast.executions e WHERE e.parent_job IS NULL AND {where} GROUP BY e.status LIMIT {limit};

-- part: dead_job
-- The job that an execution failed of: of several elements the first.
SELECT d.id FROM holdfast.jobs d
WHERE d.execution_id = e.id AND d.step = e.error::json ->> 'stage' AND d.round = e.round AND d.status = 'dead'
ORDER BY d.element LIMIT 1

-- name: failures
-- What failed and was not retried since, but for what was started for others: its parent goes on, or is here. A
-- deadline ends an execution without a dead job.
SELECT f.execution_id, f.path, f.step, f.error_type, f.dead_reason, f.category, f.message, f.failed_at,
    f.manual_retries
FROM (
    SELECT e.id AS execution_id, e.path, coalesce(j.step, e.error::json ->> 'stage') AS step,
        e.error::json ->> 'error_type' AS error_type, coalesce(j.dead_reason, 'deadline') AS dead_reason,
        e.error::json ->> 'category' AS category, e.error::json ->> 'message' AS message,
        e.finished_at AS failed_at, e.manual_retries, e.batch_id
    FROM holdfast.executions e
    LEFT JOIN holdfast.jobs j ON j.id = (<<dead_job>>)
    WHERE e.failed AND e.parent_job IS NULL
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
            coalesce(j.dead_reason, 'deadline') AS dead_reason, e.finished_at AS failed_at,
            e.batch_id
        FROM holdfast.executions e
        LEFT JOIN holdfast.jobs j ON j.id = (<<dead_job>>)
        WHERE e.failed AND e.parent_job IS NULL
    ) f WHERE {where}
    GROUP BY f.path, f.step, f.error_type, f.dead_reason
) g JOIN holdfast.executions e ON e.id = g.example
ORDER BY g.executions DESC, g.example DESC LIMIT {limit};

-- name: create_batch
INSERT INTO holdfast.batches (
    path, definition_id, lane, mode, idempotency_key, gated, gates, created_at
) VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
ON CONFLICT (path, idempotency_key) WHERE idempotency_key IS NOT NULL DO NOTHING
RETURNING id;

-- name: batch_by_key
SELECT id FROM holdfast.batches WHERE path = $1 AND idempotency_key = $2;

-- part: batch_states
SELECT id, path, definition_id, lane, mode, items, gates, attention, closed_at, cancelled_at, cancelled_by
FROM holdfast.batches;

-- name: lock_batch
<<batch_states>> WHERE id = $1 FOR UPDATE;

-- name: lock_gated_batches
<<batch_states>> WHERE id = ANY ($1::bigint[]) AND gated ORDER BY id FOR UPDATE;

-- name: update_batch
UPDATE holdfast.batches
SET items = $2, gates = $3, attention = $4, closed_at = $5, cancelled_at = $6, cancelled_by = $7
WHERE id = $1;

-- name: live_jobs
SELECT j.step, j.held_by, count(*)
FROM holdfast.executions e JOIN holdfast.jobs j ON j.execution_id = e.id
WHERE e.running_in = $1 AND j.status IN ('queued', 'retry', 'leased')
GROUP BY j.step, j.held_by;

-- name: batches_to_attend
SELECT id FROM holdfast.batches WHERE attention AND id > $1 ORDER BY id LIMIT $2;

-- name: held_jobs
-- The row comparison walks the index from where the last chunk ended, and OFFSET keeps the jobs a look-up for each
-- execution in turn: without them a chunk could be planned to read all of the batch.
SELECT e.id, j.id FROM holdfast.executions e
CROSS JOIN LATERAL (
    SELECT h.id FROM holdfast.jobs h
    WHERE h.execution_id = e.id AND h.step = $2 AND h.held_by = $3 OFFSET 0
) j
WHERE (e.running_in, e.id) > ($1, $4) AND e.running_in <= $1
ORDER BY e.running_in, e.id LIMIT $5;

-- name: completed_at
-- The last one, not the latest: the clock may have gone back.
SELECT (
    SELECT finished_at FROM holdfast.jobs WHERE execution_id = $1 AND step = $2 AND status = 'done'
    ORDER BY id DESC LIMIT 1
);

-- name: batches
SELECT b.id, b.path, d.version, b.definition_id, b.lane, b.mode, b.idempotency_key, b.items, b.gates,
    b.created_at, b.closed_at, b.cancelled_at, b.cancelled_by,
    EXISTS (SELECT 1 FROM holdfast.executions e WHERE e.running_in = b.id)
FROM holdfast.batches b JOIN holdfast.definitions d ON d.id = b.definition_id
WHERE {where} ORDER BY b.id DESC LIMIT {limit};

-- name: batch_counts
-- A job that is not done, in the current round: an execution that runs or failed has one.
SELECT e.status, j.step, j.status, j.held_by, count(*)
FROM holdfast.executions e
LEFT JOIN holdfast.jobs j ON j.execution_id = e.id AND j.round = e.round AND j.status <> 'done'
WHERE {where} GROUP BY e.status, j.step, j.status, j.held_by LIMIT {limit};

-- name: batch_executions
SELECT e.status, count(*) FROM holdfast.executions e WHERE {where} GROUP BY e.status LIMIT {limit};

-- name: batch_steps
-- Of playbooks that are more than a chain: how far each item is with each step that it has come to. A step may have
-- several jobs, and what is most alive of them tells.
SELECT s.execution_status, s.step, s.told, count(*)
FROM (
    SELECT e.status AS execution_status, j.step, max(CASE j.status
            WHEN 'leased' THEN 5 WHEN 'queued' THEN 4 WHEN 'retry' THEN 4 WHEN 'dead' THEN 3 WHEN 'done' THEN 2
            ELSE 1 END) AS told
    FROM holdfast.executions e JOIN holdfast.jobs j ON j.execution_id = e.id
    WHERE (j.round = e.round OR j.status = 'done') AND NOT j.superseded AND {where}
    GROUP BY e.id, e.status, j.step
) s
GROUP BY s.execution_status, s.step, s.told LIMIT {limit};

-- name: batch_paces
SELECT j.step, count(*), min(j.finished_at), max(j.finished_at)
FROM holdfast.executions e JOIN holdfast.jobs j ON j.execution_id = e.id
WHERE {where} GROUP BY j.step LIMIT {limit};

-- name: batch_work
-- What waits and is held by no gate: whom it needs, and from when until when it becomes ready.
SELECT j.step, g.handler, g.lane, g.limit_name, count(*), min(j.available_at), max(j.available_at),
    max(j.scheduled_for)
FROM (SELECT id, running_in AS batch_id FROM holdfast.executions) e
JOIN holdfast.jobs j ON j.execution_id = e.id
JOIN holdfast.claim_groups g ON g.id = j.claim_group
WHERE j.status IN ('queued', 'retry') AND j.held_by IS NULL AND {where}
GROUP BY j.step, g.handler, g.lane, g.limit_name ORDER BY j.step, g.handler, g.lane LIMIT {limit};

-- name: held_work
-- Only items of batches are ever held.
SELECT e.lane, count(*)
FROM holdfast.executions e JOIN holdfast.jobs j ON j.execution_id = e.id
WHERE e.running_in IS NOT NULL AND j.status IN ('queued', 'retry') AND j.held_by IS NOT NULL AND {where}
GROUP BY e.lane LIMIT {limit};

-- name: set_limit
INSERT INTO holdfast.limits (name, max_concurrency, manual_reserve, set_by, set_at)
VALUES ($1, $2, $3, $4, $5)
ON CONFLICT (name) DO UPDATE
SET max_concurrency = excluded.max_concurrency, manual_reserve = excluded.manual_reserve,
    set_by = excluded.set_by, set_at = excluded.set_at
RETURNING name;

-- name: remove_limit
DELETE FROM holdfast.limits WHERE name = $1 RETURNING name;

-- name: limit_rows
-- Those that are set, and those that only steps name; with what is leased under each, manual and bulk.
SELECT n.name, l.max_concurrency, l.manual_reserve, l.set_by, l.set_at,
    CASE n.name WHEN 'max_concurrency' THEN (
        SELECT count(*) FROM holdfast.jobs j JOIN holdfast.claim_groups g ON g.id = j.claim_group
        WHERE j.status = 'leased' AND g.lane = 'manual'
    ) ELSE (
        SELECT count(*) FROM holdfast.jobs j JOIN holdfast.claim_groups g ON g.id = j.claim_group
        WHERE j.status = 'leased' AND j.limited AND g.limit_name = n.name AND g.lane = 'manual'
    ) END,
    CASE n.name WHEN 'max_concurrency' THEN (
        SELECT count(*) FROM holdfast.jobs j JOIN holdfast.claim_groups g ON g.id = j.claim_group
        WHERE j.status = 'leased' AND g.lane = 'bulk'
    ) ELSE (
        SELECT count(*) FROM holdfast.jobs j JOIN holdfast.claim_groups g ON g.id = j.claim_group
        WHERE j.status = 'leased' AND j.limited AND g.limit_name = n.name AND g.lane = 'bulk'
    ) END
FROM (
    SELECT name FROM holdfast.limits
    UNION
    SELECT limit_name FROM holdfast.claim_groups WHERE limit_name <> ''
) n LEFT JOIN holdfast.limits l ON l.name = n.name
WHERE {where} ORDER BY n.name LIMIT {limit};

-- name: pause
INSERT INTO holdfast.pauses (kind, name, paused_by, reason, paused_at) VALUES ($1, $2, $3, $4, $5)
ON CONFLICT (kind, name) DO NOTHING
RETURNING kind, name, paused_by, reason, paused_at;

-- name: resume
DELETE FROM holdfast.pauses WHERE kind = $1 AND name = $2
RETURNING kind, name, paused_by, reason, paused_at;

-- name: pause_rows
SELECT p.kind, p.name, p.paused_by, p.reason, p.paused_at FROM holdfast.pauses p
WHERE {where} ORDER BY p.paused_at, p.kind, p.name LIMIT {limit};

-- name: batch_items
<<execution_rows>> WHERE {where} ORDER BY e.id LIMIT {limit};

-- name: insert_audit
INSERT INTO holdfast.audit (at, actor, action, target, details)
SELECT $5, actor, action, target, details
FROM unnest($1::text[], $2::text[], $3::text[], $4::text[]) WITH ORDINALITY
    AS x (actor, action, target, details, position)
ORDER BY position;

-- name: audit_rows
SELECT a.id, a.at, a.actor, a.action, a.target, a.details FROM holdfast.audit a
WHERE {where} ORDER BY a.id DESC LIMIT {limit};

-- name: add_token
-- A name that a token has is free again when that one is revoked.
INSERT INTO holdfast.tokens (id, name, role, secret_hash, created_at, created_by, expires_at)
VALUES ($1, $2, $3, $4, $5, $6, $7)
ON CONFLICT DO NOTHING
RETURNING id;

-- name: token_rows
SELECT t.id, t.name, t.role, t.created_at, t.created_by, t.expires_at, t.revoked_at, t.revoked_by, t.last_used_at,
    t.secret_hash
FROM holdfast.tokens t WHERE {where} ORDER BY t.created_at DESC, t.id DESC LIMIT {limit};

-- name: revoke_token
UPDATE holdfast.tokens SET revoked_by = $2, revoked_at = $3
WHERE id = $1 AND revoked_at IS NULL
RETURNING id;

-- name: token_used
UPDATE holdfast.tokens SET last_used_at = $2
WHERE id = $1 AND (last_used_at IS NULL OR last_used_at < $2)
RETURNING id;

-- name: begin_tallies
INSERT INTO holdfast.tallies (source, name, labels, value, seen_at) VALUES ($1, '', '', 0, $2)
ON CONFLICT (source, name, labels) DO UPDATE SET seen_at = excluded.seen_at RETURNING source;

-- name: renew_tallies
UPDATE holdfast.tallies SET seen_at = $2 WHERE source = $1 AND name = '' RETURNING source;

-- name: write_tallies
INSERT INTO holdfast.tallies (source, name, labels, value, seen_at)
SELECT $1, x.name, x.labels, x.value, $5 FROM unnest($2::text[], $3::text[], $4::float8[]) AS x (name, labels, value)
ON CONFLICT (source, name, labels) DO UPDATE SET value = excluded.value, seen_at = excluded.seen_at;

-- name: silent_tallies
-- What another one is folding, or its own process is writing, is passed over.
SELECT source FROM holdfast.tallies WHERE name = '' AND (seen_at < $1 OR source = $2) FOR UPDATE SKIP LOCKED;

-- name: fold_tallies
-- A statement of its own, after the lock: it sees what was written up to then. In one order, so that two who fold do
-- not wait for each other in a ring.
WITH dropped AS (
    DELETE FROM holdfast.tallies WHERE source = ANY ($1::text[]) RETURNING name, labels, value, seen_at
)
INSERT INTO holdfast.tallies AS kept (source, name, labels, value, seen_at)
SELECT '', name, folded, sum(value), max(seen_at)
FROM (
    SELECT d.name, d.value, d.seen_at, CASE
        WHEN other.labels IS NULL THEN d.labels
        WHEN EXISTS (SELECT FROM holdfast.tallies k WHERE k.source = '' AND k.name = d.name AND k.labels = d.labels)
            THEN d.labels
        WHEN (SELECT count(*) FROM holdfast.tallies k WHERE k.source = '' AND k.name = d.name) < $4::integer
            THEN d.labels
        ELSE other.labels END AS folded
    FROM dropped d LEFT JOIN unnest($2::text[], $3::text[]) AS other (name, labels) ON other.name = d.name
    WHERE d.name <> ''
) x
GROUP BY name, folded ORDER BY name, folded
ON CONFLICT (source, name, labels) DO UPDATE
SET value = kept.value + excluded.value, seen_at = excluded.seen_at;

-- name: tallies
SELECT t.name, t.labels, sum(t.value) FROM holdfast.tallies t WHERE t.name <> '' AND {where}
GROUP BY t.name, t.labels ORDER BY t.name, t.labels LIMIT {limit};

-- name: running_executions
-- Whoever runs has an open job, or is in a batch: so it costs what is open. Each part has an index of its own.
SELECT (
    SELECT count(DISTINCT execution_id) FROM (
        SELECT execution_id FROM holdfast.jobs WHERE status IN ('queued', 'retry') AND held_by IS NULL
        UNION ALL
        SELECT execution_id FROM holdfast.jobs WHERE status = 'leased'
        UNION ALL
        SELECT execution_id FROM holdfast.jobs WHERE held_by = 'for_each'
        UNION ALL
        SELECT execution_id FROM holdfast.jobs WHERE held_by = 'child'
        UNION ALL
        SELECT id FROM holdfast.executions WHERE running_in IS NOT NULL
    ) running
) - (SELECT count(*) FROM holdfast.executions WHERE child_of IS NOT NULL);

-- name: failed_executions
SELECT count(*) FROM holdfast.executions WHERE failed AND parent_job IS NULL;
