-- Who works: each worker says so again and again, and `seen_until` is when one that has gone silent is
-- to be counted as lost. A hint for people; leases alone decide about work.

CREATE TABLE workers (
    worker_id text PRIMARY KEY,
    host text NOT NULL,
    pid integer NOT NULL,
    version text NOT NULL,
    concurrency integer NOT NULL,
    lanes text NOT NULL,
    handlers text NOT NULL,
    started_at real NOT NULL,
    seen_at real NOT NULL,
    seen_until real NOT NULL
) STRICT;

-- A program may go back to an older version: what counts for a submit is which one was registered last.
-- Of those from before it was noted, that is the newest.
ALTER TABLE definitions ADD COLUMN registered_at real NOT NULL DEFAULT 0;

-- What waits for somebody to act.
CREATE INDEX executions_failed ON executions (id) WHERE status = 'failed';
