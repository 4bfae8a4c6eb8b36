-- Playbooks whose steps do not simply follow each other, and executions that have children.

-- How far such an execution is: what has started and not ended, and what waits for more than one step.
ALTER TABLE executions ADD COLUMN plan text;

-- The job that an execution was started for, and how many such parents it has above it.
ALTER TABLE executions ADD COLUMN parent_job integer;
ALTER TABLE executions ADD COLUMN depth integer;
CREATE INDEX executions_children ON executions (parent_job) WHERE parent_job IS NOT NULL AND status = 'running';

-- What was handed to the step; what an attempt was put aside for; and whether its output counts no longer, because
-- the step was done again or its branch not taken in a later round.
ALTER TABLE jobs ADD COLUMN input text;
ALTER TABLE jobs ADD COLUMN parked text;
ALTER TABLE jobs ADD COLUMN superseded integer NOT NULL DEFAULT 0 CHECK (superseded IN (0, 1));
CREATE INDEX jobs_waiting_for_place ON jobs (execution_id, step, round, element) WHERE held_by = 'for_each';
CREATE INDEX jobs_waiting_for_child ON jobs (id) WHERE held_by = 'child';

-- The text that a definition was compiled from; none where it was made by a program.
ALTER TABLE definitions ADD COLUMN source text;
