-- Playbooks whose steps do not simply follow each other, and executions that have children.

-- How far such an execution is: what has started and not ended, and what waits for more than one step.
ALTER TABLE holdfast.executions ADD COLUMN plan text;

-- The job that an execution was started for, and how many such parents it has above it. While it runs, that job
-- waits for it, and it is found by `child_of`.
ALTER TABLE holdfast.executions
    ADD COLUMN parent_job bigint,
    ADD COLUMN depth smallint,
    ADD COLUMN child_of bigint GENERATED ALWAYS AS (CASE WHEN status = 'running' THEN parent_job END) STORED;
CREATE INDEX executions_child_of ON holdfast.executions (child_of) WHERE child_of IS NOT NULL;

-- What was handed to the step; what an attempt was put aside for; and whether its output counts no longer, because
-- the step was done again or its branch not taken in a later round.
ALTER TABLE holdfast.jobs
    ADD COLUMN input text,
    ADD COLUMN parked text,
    ADD COLUMN superseded boolean NOT NULL DEFAULT false;
CREATE INDEX jobs_waiting_for_place ON holdfast.jobs (execution_id, step, round, element)
    WHERE held_by = 'for_each';
CREATE INDEX jobs_waiting_for_child ON holdfast.jobs (id) WHERE held_by = 'child';

-- The text that a definition was compiled from; none where it was made by a program.
ALTER TABLE holdfast.definitions ADD COLUMN source text;
