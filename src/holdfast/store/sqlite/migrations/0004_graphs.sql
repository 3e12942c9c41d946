-- Chains, blockers, batches, and jobs that somebody outside settles.

-- A chain is a root and what it went on with. The root's chain_id is NULL, its id is the chain's; the others have it
-- in chain_id. So a job that is alone, as most are, costs nothing here.
-- continued: a next job of its chain was made. chain_ended_at: of a root that is continued. awaited: of a root, jobs were
-- made that wait for its chain. on_blocker_failure: NULL is hold. batch_id: of a member, and of what it went on with.
-- external: no worker runs it. timeout_at: of an external job, when it is failed.
ALTER TABLE {p}jobs ADD COLUMN continued INTEGER NOT NULL DEFAULT 0;
ALTER TABLE {p}jobs ADD COLUMN chain_ended_at INTEGER;
ALTER TABLE {p}jobs ADD COLUMN awaited INTEGER NOT NULL DEFAULT 0;
ALTER TABLE {p}jobs ADD COLUMN on_blocker_failure TEXT
    CHECK (on_blocker_failure IS NULL OR on_blocker_failure = 'fail' OR on_blocker_failure = 'cancel'
        OR on_blocker_failure = 'run');
ALTER TABLE {p}jobs ADD COLUMN batch_id INTEGER;
ALTER TABLE {p}jobs ADD COLUMN external INTEGER NOT NULL DEFAULT 0;
ALTER TABLE {p}jobs ADD COLUMN timeout_at INTEGER;

-- A continuation happens once, however often it is tried.
CREATE UNIQUE INDEX {p}jobs_chain ON {p}jobs (chain_id, chain_index) WHERE chain_id IS NOT NULL;
CREATE INDEX {p}jobs_blocked ON {p}jobs (timeout_at, queue) WHERE status = 'blocked';
CREATE INDEX {p}jobs_batch ON {p}jobs (batch_id, continued, status) WHERE batch_id IS NOT NULL;

-- The key of a root is held until its chain has ended.
DROP INDEX {p}jobs_key_task;
CREATE UNIQUE INDEX {p}jobs_key_task ON {p}jobs (task, key)
    WHERE key IS NOT NULL AND task IS NOT NULL
      AND (status IN ('new', 'blocked', 'scheduled', 'ready', 'running') OR (continued = 1 AND chain_ended_at IS NULL));
CREATE INDEX {p}jobs_key_chain ON {p}jobs (key, chain_ended_at) WHERE key IS NOT NULL AND chain_ended_at IS NOT NULL;

-- Which job waits for which chain. A chain that is gone leaves its rows here, for as long as the job is there.
CREATE TABLE {p}blockers (
    job_id   INTEGER NOT NULL REFERENCES {p}jobs (id) ON DELETE CASCADE,
    position INTEGER NOT NULL,                      -- in `after=`
    chain_id INTEGER NOT NULL,                      -- what it waits for
    outcome  TEXT,                                  -- how that ended, when it counts no more; NULL: it holds the job
    PRIMARY KEY (job_id, position)
) WITHOUT ROWID;
CREATE INDEX {p}blockers_chain   ON {p}blockers (chain_id, outcome);
CREATE INDEX {p}blockers_holding ON {p}blockers (job_id) WHERE outcome IS NULL;

CREATE TABLE {p}batches (
    id             INTEGER PRIMARY KEY AUTOINCREMENT,
    created_at     INTEGER NOT NULL,
    sealed_at      INTEGER,                         -- the block that made it has ended: from now on it can be done
    done_at        INTEGER,                         -- all members had ended
    on_success     TEXT,                            -- what to enqueue then, as JSON
    on_done        TEXT,
    success_job_id INTEGER,                         -- what was enqueued
    done_job_id    INTEGER,
    deleted        INTEGER NOT NULL DEFAULT 0       -- members that were deleted and had not succeeded
);
CREATE INDEX {p}batches_success ON {p}batches (success_job_id) WHERE success_job_id IS NOT NULL;
CREATE INDEX {p}batches_done ON {p}batches (done_job_id) WHERE done_job_id IS NOT NULL;

-- What has ended and may matter to others. Whoever ends a job works this off at once; what is left,
-- since there was too much of it or somebody ended the job by hand, the next worker finds.
CREATE TABLE {p}endings (
    id       INTEGER PRIMARY KEY,
    chain_id INTEGER,
    batch_id INTEGER
);

CREATE TRIGGER {p}jobs_ended AFTER UPDATE OF status ON {p}jobs
WHEN (NEW.awaited OR NEW.chain_id IS NOT NULL OR NEW.batch_id IS NOT NULL) AND NOT NEW.continued
  AND (NEW.status = 'succeeded' OR NEW.status = 'failed' OR NEW.status = 'cancelled')
  AND NOT (OLD.status = 'succeeded' OR OLD.status = 'failed' OR OLD.status = 'cancelled')
BEGIN
    UPDATE {p}jobs SET chain_ended_at = coalesce(NEW.finished_at, NEW.updated_at, NEW.created_at) WHERE id = NEW.chain_id;
    INSERT INTO {p}endings (chain_id, batch_id) VALUES (coalesce(NEW.chain_id, NEW.id), NEW.batch_id);
END;

-- An operator may bring the last job of a chain back, and with it the chain. If its key has been taken since, the
-- key stays where it is.
CREATE TRIGGER {p}jobs_reopened AFTER UPDATE OF status ON {p}jobs
WHEN NEW.chain_id IS NOT NULL
  AND (OLD.status = 'failed' OR OLD.status = 'cancelled')
  AND NOT (NEW.status = 'succeeded' OR NEW.status = 'failed' OR NEW.status = 'cancelled')
BEGIN
    UPDATE OR IGNORE {p}jobs SET chain_ended_at = NULL WHERE id = NEW.chain_id;
END;

-- A batch that lost a member may be done. A chain that was waited for, and was deleted by hand, did not end well.
CREATE TRIGGER {p}jobs_gone AFTER DELETE ON {p}jobs WHEN OLD.batch_id IS NOT NULL OR OLD.awaited
BEGIN
    UPDATE {p}batches SET deleted = deleted + (OLD.status <> 'succeeded') WHERE id = OLD.batch_id;
    INSERT INTO {p}endings (chain_id, batch_id) VALUES (CASE WHEN OLD.awaited THEN OLD.id END, OLD.batch_id);
END;

-- What holds a worker back besides its concurrency, for those who ask why a job is not taken: a JSON object.
ALTER TABLE {p}workers ADD COLUMN limits TEXT;
