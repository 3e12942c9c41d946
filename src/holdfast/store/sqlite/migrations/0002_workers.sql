-- Who runs jobs, and what tells their attempts apart: a lost worker's, an interrupted one, one that does not count.

CREATE TABLE {p}workers (
    id           TEXT PRIMARY KEY,                  -- random with every start
    slot         INTEGER NOT NULL,                  -- the byte of the lock file that it holds for as long as it lives
    inode        INTEGER NOT NULL,                  -- of that lock file
    pid          INTEGER NOT NULL,
    host         TEXT    NOT NULL,
    queues       TEXT,                              -- a JSON array; NULL: all of them
    tasks        TEXT    NOT NULL,                  -- a JSON array: what it has the code for
    concurrency  INTEGER NOT NULL,
    lease        INTEGER NOT NULL,                  -- microseconds that its claims last
    started_at   INTEGER NOT NULL,
    heartbeat_at INTEGER NOT NULL,
    ended_at     INTEGER,
    ending       TEXT                               -- 'stopped' or 'lost'
) WITHOUT ROWID;

-- Attempts that were snoozed, interrupted or returned: they raised max_attempts, and a retry policy does not count them.
ALTER TABLE {p}jobs ADD COLUMN uncounted INTEGER NOT NULL DEFAULT 0;

-- With the worker, so that what a dead one held is found in the index alone.
DROP INDEX {p}jobs_running;
CREATE INDEX {p}jobs_running ON {p}jobs (coalesce(lease, 0), worker) WHERE status = 'running';

DROP TRIGGER {p}attempt_ends;
CREATE TRIGGER {p}attempt_ends AFTER UPDATE OF status ON {p}jobs
WHEN NEW.history AND OLD.status = 'running' AND NEW.status <> 'running'
BEGIN
    UPDATE {p}attempts SET
        finished_at = coalesce(NEW.updated_at, NEW.claimed_at),
        started_at = coalesce(NEW.started_at, started_at),
        outcome = CASE WHEN NEW.revision = OLD.revision THEN 'edited'
                       WHEN NEW.error_code = 'INTERNAL:WORKER_LOST'
                            AND (NEW.transition = 'recovered' OR NEW.transition = 'failed') THEN 'lost'
                       ELSE NEW.transition END,
        error_code = CASE WHEN (NEW.transition = 'failed' OR NEW.transition = 'retry_scheduled' OR NEW.transition = 'recovered') THEN NEW.error_code END,
        error_detail = CASE WHEN (NEW.transition = 'failed' OR NEW.transition = 'retry_scheduled' OR NEW.transition = 'recovered') THEN NEW.error_detail END,
        fingerprint = CASE WHEN (NEW.transition = 'failed' OR NEW.transition = 'retry_scheduled') THEN NEW.fingerprint END
    WHERE job_id = OLD.id AND attempt = OLD.attempt;
END;
