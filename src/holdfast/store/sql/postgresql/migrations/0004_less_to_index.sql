-- What every execution goes through changes no column that an index looks at, so that PostgreSQL keeps the new
-- version beside the old one and writes no index entry (a HOT update). What only some need is indexed by columns
-- that are empty for all others; half of each page is left for the versions of a whole batch of updates.

ALTER TABLE holdfast.executions
    ADD COLUMN due_at double precision GENERATED ALWAYS AS (CASE WHEN status = 'running' THEN deadline_at END) STORED,
    ADD COLUMN running_in bigint GENERATED ALWAYS AS (CASE WHEN status = 'running' THEN batch_id END) STORED,
    ADD COLUMN failed boolean GENERATED ALWAYS AS (nullif(status = 'failed', false)) STORED;
ALTER TABLE holdfast.executions SET (fillfactor = 50);

DROP INDEX holdfast.executions_deadline;
CREATE INDEX executions_due ON holdfast.executions (due_at) WHERE due_at IS NOT NULL;
DROP INDEX holdfast.executions_failed;
CREATE INDEX executions_failed ON holdfast.executions (id) WHERE failed;
DROP INDEX holdfast.executions_batch_running;
CREATE INDEX executions_running_in ON holdfast.executions (running_in, id) WHERE running_in IS NOT NULL;

-- Executions end roughly in the order in which they began: a summary of each block range is enough to find the old
-- ones, and from PostgreSQL 16 on it does not keep an update from being HOT.
DROP INDEX holdfast.executions_finished;
CREATE INDEX executions_finished ON holdfast.executions USING brin (finished_at)
    WITH (pages_per_range = 32, autosummarize = on);
