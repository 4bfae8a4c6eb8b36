-- What every execution goes through changes no column that an index looks at, so that PostgreSQL keeps the new
-- version beside the old one and writes no index entry (a HOT update). What only some need is indexed by columns
-- that are empty for all others; half of each page is left for the versions of a whole batch of updates.

ALTER TABLE holdfast.executions SET (fillfactor = 50);
ALTER TABLE holdfast.executions
    ADD COLUMN due_at double precision GENERATED ALWAYS AS (CASE WHEN status = 'running' THEN deadline_at END) STORED,
    ADD COLUMN running_in bigint GENERATED ALWAYS AS (CASE WHEN status = 'running' THEN batch_id END) STORED,
    ADD COLUMN failed boolean GENERATED ALWAYS AS (nullif(status = 'failed', false)) STORED;

DROP INDEX holdfast.executions_deadline;
CREATE INDEX executions_due ON holdfast.executions (due_at) WHERE due_at IS NOT NULL;
DROP INDEX holdfast.executions_failed;
CREATE INDEX executions_failed ON holdfast.executions (id) WHERE failed;
DROP INDEX holdfast.executions_batch_running;
CREATE INDEX executions_running_in ON holdfast.executions (running_in, id) WHERE running_in IS NOT NULL;

-- Old executions are found by walking from the lowest id: what ended long ago began even earlier.
DROP INDEX holdfast.executions_finished;
