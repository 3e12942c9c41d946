-- The tables of Holdfast. {p} is the prefix of all names, {now} the wall clock in the unit of all times:
-- integer microseconds since 1970 UTC. The one exception is `lease`, which is a time of the boot clock.
--
-- `jobs` is the current state, `events` the append-only log of its transitions. The event that ends an attempt has all
-- there is to say of that attempt; the view `attempts` shows these events, one row for each attempt. Statistics are
-- sums over the log up to a cursor: see "Statistics" below.
--
-- In checks and triggers an OR is written where IN would read better: SQLite builds a table for each list.

-- === Jobs ===

-- A row is a job of a task, or a message. A plain INSERT of `task` and `args` is a valid enqueue.
-- AUTOINCREMENT: (id, attempt) is the fencing token, so the id of a deleted job must never come back.
CREATE TABLE {p}jobs (
    -- What to do
    id            INTEGER PRIMARY KEY AUTOINCREMENT,
    queue         TEXT    NOT NULL DEFAULT 'default'
        CONSTRAINT queue_is_text CHECK (typeof(queue) = 'text'),
    task          TEXT                               -- NULL: a message
        CONSTRAINT task_is_a_name CHECK (task IS NULL OR (typeof(task) = 'text' AND task <> '')),
    args          TEXT    NOT NULL DEFAULT '{}',     -- JSON
    args_blob     TEXT                               -- SHA-256 of a large payload that is kept elsewhere
        CONSTRAINT args_blob_is_sha256
            CHECK (args_blob IS NULL OR (length(args_blob) = 64 AND args_blob NOT GLOB '*[^0-9a-f]*')),
    key           TEXT
        CONSTRAINT key_is_text CHECK (key IS NULL OR typeof(key) = 'text'),
    tags          TEXT,                              -- JSON array of text
    trace         TEXT,                              -- trace context of the caller
    history       INTEGER NOT NULL DEFAULT 1         -- 0: no attempts, no events, deleted when it succeeds
        CONSTRAINT history_is_0_or_1 CHECK (history = 0 OR history = 1),

    -- When, and how often
    priority      INTEGER NOT NULL DEFAULT 0
        CONSTRAINT priority_is_an_integer CHECK (typeof(priority) = 'integer'),
    run_at        INTEGER NOT NULL DEFAULT {now}
        CONSTRAINT run_at_is_in_microseconds         -- seconds and milliseconds are refused, and so are nanoseconds
            CHECK (typeof(run_at) = 'integer' AND run_at >= created_at / 100 AND run_at < 253500000000000000),
    timeout       INTEGER                            -- of one attempt, microseconds
        CONSTRAINT timeout_is_not_negative CHECK (timeout IS NULL OR (typeof(timeout) = 'integer' AND timeout >= 0)),
    max_attempts  INTEGER NOT NULL DEFAULT 5
        CONSTRAINT max_attempts_is_positive CHECK (typeof(max_attempts) = 'integer' AND max_attempts > 0),

    -- Where it stands
    status        TEXT    NOT NULL DEFAULT 'new'     -- 'new' never outlives its INSERT
        CONSTRAINT status_is_known
            CHECK (status = 'ready' OR status = 'running' OR status = 'succeeded' OR status = 'scheduled'
                OR status = 'new' OR status = 'blocked' OR status = 'failed' OR status = 'cancelled'),
    attempt       INTEGER NOT NULL DEFAULT 0         -- raised by each claim
        CONSTRAINT attempt_is_within_max_attempts
            CHECK (typeof(attempt) = 'integer' AND attempt >= 0 AND attempt <= max_attempts)
        CONSTRAINT ready_has_attempts_left           -- so that a claim need not look
            CHECK (status <> 'ready' OR attempt < max_attempts),
    uncounted     INTEGER NOT NULL DEFAULT 0         -- attempts that were snoozed, interrupted or returned
        CONSTRAINT uncounted_is_an_integer CHECK (typeof(uncounted) = 'integer' AND uncounted >= 0),
    worker        TEXT                               -- that runs it, or ran it last
        CONSTRAINT worker_is_text CHECK (worker IS NULL OR typeof(worker) = 'text'),
    lease         INTEGER                            -- end of the claim, microseconds of the boot clock
        CONSTRAINT lease_is_an_integer CHECK (lease IS NULL OR typeof(lease) = 'integer'),
    created_at    INTEGER NOT NULL DEFAULT {now}
        CONSTRAINT created_at_is_an_integer
            CHECK (typeof(created_at) = 'integer' AND created_at BETWEEN 0 AND 4611686018427387904),
    claimed_at    INTEGER
        CONSTRAINT claimed_at_is_an_integer CHECK (claimed_at IS NULL OR typeof(claimed_at) = 'integer'),
    started_at    INTEGER
        CONSTRAINT started_at_is_an_integer CHECK (started_at IS NULL OR typeof(started_at) = 'integer'),
    heartbeat_at  INTEGER
        CONSTRAINT heartbeat_at_is_an_integer CHECK (heartbeat_at IS NULL OR typeof(heartbeat_at) = 'integer'),
    finished_at   INTEGER
        CONSTRAINT finished_at_is_an_integer CHECK (finished_at IS NULL OR typeof(finished_at) = 'integer'),
    progress      REAL
        CONSTRAINT progress_is_a_number CHECK (progress IS NULL OR typeof(progress) = 'real'),
    progress_text TEXT,

    -- How it ended, or failed last
    result        TEXT,                              -- JSON
    result_blob   TEXT                               -- SHA-256 of a large result that is kept elsewhere
        CONSTRAINT result_blob_is_sha256
            CHECK (result_blob IS NULL OR (length(result_blob) = 64 AND result_blob NOT GLOB '*[^0-9a-f]*')),
    error_code    TEXT
        CONSTRAINT error_code_is_text CHECK (error_code IS NULL OR typeof(error_code) = 'text'),
    error_detail  TEXT,
    fingerprint   TEXT                               -- of the failure; leads to its traceback
        CONSTRAINT fingerprint_is_text CHECK (fingerprint IS NULL OR typeof(fingerprint) = 'text'),

    -- Its place among others. A chain is a root and its continuations. The root's chain_id is NULL, its id is the
    -- chain's, so a job that stands alone costs nothing here.
    chain_id           INTEGER
        CONSTRAINT chain_id_is_an_integer CHECK (chain_id IS NULL OR typeof(chain_id) = 'integer'),
    chain_index        INTEGER NOT NULL DEFAULT 0,
    continued          INTEGER NOT NULL DEFAULT 0    -- 1: its chain went on with another job
        CONSTRAINT continued_is_0_or_1 CHECK (continued = 0 OR continued = 1),
    chain_ended_at     INTEGER,                      -- of a root that was continued
    awaited            INTEGER NOT NULL DEFAULT 0    -- 1: of a root, jobs were enqueued that wait for its chain
        CONSTRAINT awaited_is_0_or_1 CHECK (awaited = 0 OR awaited = 1),
    on_blocker_failure TEXT                          -- NULL: hold
        CONSTRAINT on_blocker_failure_is_known
            CHECK (on_blocker_failure IS NULL OR on_blocker_failure = 'fail' OR on_blocker_failure = 'cancel'
                OR on_blocker_failure = 'run'),
    batch_id           INTEGER                       -- of a member, and of its continuations
        CONSTRAINT batch_id_is_an_integer CHECK (batch_id IS NULL OR typeof(batch_id) = 'integer'),
    external           INTEGER NOT NULL DEFAULT 0    -- 1: no worker runs it, it is completed from outside
        CONSTRAINT external_is_0_or_1 CHECK (external = 0 OR external = 1),
    timeout_at         INTEGER                       -- of an external job: when it fails
        CONSTRAINT timeout_at_is_an_integer CHECK (timeout_at IS NULL OR typeof(timeout_at) = 'integer'),

    -- The last transition. The trigger jobs_changed copies these into the log. Each transition of Holdfast's raises
    -- `revision`; a change of status that does not was made by plain SQL.
    transition    TEXT    NOT NULL DEFAULT 'enqueued',
    actor         TEXT,
    reason        TEXT,
    updated_at    INTEGER,
    revision      INTEGER NOT NULL DEFAULT 0
);

-- Only what is claimable, due, leased or ended is indexed, each in its own index. Every index ends with the id, which
-- keeps first-in-first-out within a priority, whatever the clock does.
CREATE INDEX {p}jobs_ready     ON {p}jobs (queue, task, priority DESC) WHERE status = 'ready';
CREATE INDEX {p}jobs_scheduled ON {p}jobs (run_at) WHERE status = 'scheduled';
CREATE INDEX {p}jobs_running   ON {p}jobs (coalesce(lease, 0)) WHERE status = 'running';
CREATE INDEX {p}jobs_blocked   ON {p}jobs (queue, task) WHERE status = 'blocked';
CREATE INDEX {p}jobs_failed    ON {p}jobs (queue, task) WHERE status = 'failed';
CREATE INDEX {p}jobs_finished  ON {p}jobs (status, finished_at)
    WHERE finished_at IS NOT NULL OR status = 'succeeded' OR status = 'failed' OR status = 'cancelled';
CREATE INDEX {p}jobs_timeout   ON {p}jobs (timeout_at) WHERE status = 'blocked' AND timeout_at IS NOT NULL;

-- For listing. Status is in none of them, so a claim and a settlement do not touch them.
CREATE INDEX {p}jobs_place     ON {p}jobs (queue, task);
CREATE INDEX {p}jobs_error     ON {p}jobs (error_code) WHERE error_code IS NOT NULL;
CREATE INDEX {p}jobs_unlogged  ON {p}jobs (queue, task) WHERE history = 0;

-- A key belongs to one live job of a task, or one live message of a queue. The key of a root is held until its chain
-- has ended.
CREATE UNIQUE INDEX {p}jobs_key_task ON {p}jobs (task, key)
    WHERE key IS NOT NULL AND task IS NOT NULL
      AND (status IN ('new', 'blocked', 'scheduled', 'ready', 'running') OR (continued = 1 AND chain_ended_at IS NULL));
CREATE UNIQUE INDEX {p}jobs_key_queue ON {p}jobs (queue, key)
    WHERE key IS NOT NULL AND task IS NULL AND status IN ('new', 'blocked', 'scheduled', 'ready', 'running');
CREATE INDEX {p}jobs_key       ON {p}jobs (key, finished_at) WHERE key IS NOT NULL;
CREATE INDEX {p}jobs_key_chain ON {p}jobs (key, chain_ended_at) WHERE key IS NOT NULL AND chain_ended_at IS NOT NULL;

-- A continuation is inserted once, however often it is tried.
CREATE UNIQUE INDEX {p}jobs_chain ON {p}jobs (chain_id, chain_index) WHERE chain_id IS NOT NULL;
CREATE INDEX {p}jobs_batch       ON {p}jobs (batch_id, continued, status) WHERE batch_id IS NOT NULL;
CREATE INDEX {p}jobs_args_blob   ON {p}jobs (args_blob) WHERE args_blob IS NOT NULL;
CREATE INDEX {p}jobs_result_blob ON {p}jobs (result_blob) WHERE result_blob IS NOT NULL;

CREATE TABLE {p}tags (
    job_id INTEGER NOT NULL
        CONSTRAINT tags_of_a_job REFERENCES {p}jobs (id) ON DELETE CASCADE,
    tag    TEXT    NOT NULL,
    CONSTRAINT one_row_per_tag PRIMARY KEY (job_id, tag)
) WITHOUT ROWID;
CREATE INDEX {p}tags_tag ON {p}tags (tag, job_id);

-- === History ===

-- The log. Ids are given out under the write lock, so they grow in the order of commits: an id is a cursor.
CREATE TABLE {p}events (
    id           INTEGER PRIMARY KEY,
    job_id       INTEGER,                            -- NULL: about a queue, a schedule or the database
    at           INTEGER NOT NULL,
    event        TEXT    NOT NULL,
    queue        TEXT,
    task         TEXT,
    old_status   TEXT,                               -- NULL: the job was enqueued
    new_status   TEXT,                               -- NULL: the job was deleted
    attempt      INTEGER,
    actor        TEXT,
    reason       TEXT,                               -- given by the actor
    run_at       INTEGER,                            -- when a scheduled job is due
    -- Of an event that ended an attempt
    worker       TEXT,                               -- that ran the attempt; NULL: the actor
    claimed_at   INTEGER,                            -- NULL: this event ended no attempt
    started_at   INTEGER,
    waited       INTEGER,                            -- microseconds from due to start; NULL: ended by someone else
    ran          INTEGER,                            -- microseconds from start to end; NULL: ended by someone else
    error_code   TEXT,
    error_detail TEXT,
    fingerprint  TEXT,
    detail       TEXT                                -- JSON object, of events that are about no job
);
CREATE INDEX {p}events_job     ON {p}events (job_id);
CREATE INDEX {p}events_removed ON {p}events (id) WHERE event = 'removed' AND job_id IS NOT NULL;

-- The newest id must not be given out twice: a follower, and the statistics, would miss an event.
CREATE TRIGGER {p}events_keep_newest AFTER DELETE ON {p}events
WHEN OLD.id > (SELECT coalesce(max(id), 0) FROM {p}events)
BEGIN
    INSERT INTO {p}events (id, at, event) VALUES (OLD.id, OLD.at, 'removed');
END;

-- One row per attempt that has ended, and one per attempt that runs.
CREATE VIEW {p}attempts AS
SELECT event.job_id, event.attempt, coalesce(event.worker, event.actor) AS worker, event.claimed_at, event.started_at,
       event.at AS finished_at,
       CASE WHEN event.error_code = 'INTERNAL:WORKER_LOST' THEN 'lost' ELSE event.event END AS outcome,
       event.error_code, event.error_detail, event.fingerprint
FROM {p}events AS event CROSS JOIN {p}jobs AS job ON job.id = event.job_id WHERE event.claimed_at IS NOT NULL
UNION ALL
SELECT id, attempt, worker, claimed_at, started_at, NULL, 'running', NULL, NULL, NULL
FROM {p}jobs WHERE status = 'running' AND history = 1;

CREATE TABLE {p}tracebacks (
    fingerprint TEXT    NOT NULL CONSTRAINT one_traceback_per_fingerprint PRIMARY KEY,
    error_code  TEXT    NOT NULL,
    traceback   TEXT    NOT NULL,
    first_seen  INTEGER NOT NULL,
    last_seen   INTEGER NOT NULL
) WITHOUT ROWID;

-- === Statistics ===

-- Sums over the log up to `cursor`. No transition writes them: whoever folds adds up the events behind the cursor on
-- a connection that only reads, and stores the sums together with the new cursor. Whoever reads adds the events that
-- are not folded yet. A message has the task ''.
CREATE TABLE {p}fold (
    id        INTEGER NOT NULL CONSTRAINT fold_has_one_row PRIMARY KEY CHECK (id = 1),
    cursor    INTEGER NOT NULL,                      -- the last event that is contained
    folded_at INTEGER NOT NULL
);
INSERT INTO {p}fold (id, cursor, folded_at) VALUES (1, 0, 0);

-- How many jobs there are.
CREATE TABLE {p}counts (
    queue  TEXT    NOT NULL,
    task   TEXT    NOT NULL,
    status TEXT    NOT NULL,
    n      INTEGER NOT NULL,
    CONSTRAINT one_row_per_count PRIMARY KEY (queue, task, status)
) WITHOUT ROWID;

-- What happened in each minute: enqueued jobs, attempts by outcome, and histograms of waiting, running and of the
-- attempt number at completion. `untried_…` are jobs that ended while they were not running.
CREATE TABLE {p}minutes (
    minute  INTEGER NOT NULL,                        -- since 1970
    queue   TEXT    NOT NULL,
    task    TEXT    NOT NULL,
    measure TEXT    NOT NULL,
    bucket  INTEGER NOT NULL,                        -- of a histogram; the attempt number; else 0
    n       INTEGER NOT NULL,
    CONSTRAINT one_row_per_minute_and_bucket PRIMARY KEY (minute, queue, task, measure, bucket)
) WITHOUT ROWID;

-- The same since the beginning, for meters that only count up. Minutes are pruned, totals are not.
CREATE TABLE {p}totals (
    queue   TEXT    NOT NULL,
    task    TEXT    NOT NULL,
    measure TEXT    NOT NULL,
    bucket  INTEGER NOT NULL,
    n       INTEGER NOT NULL,
    sum     INTEGER NOT NULL,                        -- microseconds, of a histogram
    CONSTRAINT one_row_per_total PRIMARY KEY (queue, task, measure, bucket)
) WITHOUT ROWID;

-- Attempts that failed, by code and place of the failure. The fingerprint '' leads to no traceback.
CREATE TABLE {p}failures (
    error_code  TEXT    NOT NULL,
    queue       TEXT    NOT NULL,
    task        TEXT    NOT NULL,
    fingerprint TEXT    NOT NULL,
    first_seen  INTEGER NOT NULL,
    last_seen   INTEGER NOT NULL,
    last_job_id INTEGER NOT NULL,                    -- may be deleted
    n           INTEGER NOT NULL,
    CONSTRAINT one_row_per_failure PRIMARY KEY (error_code, queue, task, fingerprint)
) WITHOUT ROWID;

CREATE TABLE {p}failure_minutes (
    minute      INTEGER NOT NULL,
    error_code  TEXT    NOT NULL,
    queue       TEXT    NOT NULL,
    task        TEXT    NOT NULL,
    fingerprint TEXT    NOT NULL,
    n           INTEGER NOT NULL,
    CONSTRAINT one_row_per_minute_and_failure PRIMARY KEY (minute, error_code, queue, task, fingerprint)
) WITHOUT ROWID;

CREATE TABLE {p}error_totals (
    error_code TEXT    NOT NULL,
    queue      TEXT    NOT NULL,
    task       TEXT    NOT NULL,
    n          INTEGER NOT NULL,
    CONSTRAINT one_row_per_error_code PRIMARY KEY (error_code, queue, task)
) WITHOUT ROWID;

-- Where to look for jobs: what the jobs of each 8192 ids have in common. Ids grow in the order of commits, but clocks may
-- jump and jobs end in any order. An index would be exact, but every job would pay for it. Jobs without history are not
-- considered here.
CREATE TABLE {p}zones (
    zone      INTEGER NOT NULL CONSTRAINT one_row_per_zone PRIMARY KEY,  -- id / 8192
    first_at  INTEGER,                               -- the earliest created_at, also of jobs that were deleted
    last_at   INTEGER,                               -- the latest
    succeeded INTEGER NOT NULL,                      -- 1: a job of it has ever succeeded
    cancelled INTEGER NOT NULL
);

-- === Workflows ===

-- Which job waits for which chain. A chain that was deleted leaves its rows here for as long as the job exists.
CREATE TABLE {p}blockers (
    job_id   INTEGER NOT NULL
        CONSTRAINT blockers_of_a_job REFERENCES {p}jobs (id) ON DELETE CASCADE,
    position INTEGER NOT NULL,                       -- in `after=`
    chain_id INTEGER NOT NULL,                       -- what it waits for
    outcome  TEXT,                                   -- how that ended; NULL: it still holds the job
    CONSTRAINT one_row_per_position PRIMARY KEY (job_id, position)
) WITHOUT ROWID;
CREATE INDEX {p}blockers_chain   ON {p}blockers (chain_id, outcome);
CREATE INDEX {p}blockers_holding ON {p}blockers (job_id) WHERE outcome IS NULL;

CREATE TABLE {p}batches (
    id             INTEGER PRIMARY KEY AUTOINCREMENT,
    created_at     INTEGER NOT NULL,
    sealed_at      INTEGER,                          -- the block that made it has ended: it can be done from now on
    done_at        INTEGER,                          -- all members had ended
    on_success     TEXT,                             -- what to enqueue then, JSON
    on_done        TEXT,
    success_job_id INTEGER,                          -- what was enqueued
    done_job_id    INTEGER,
    deleted        INTEGER NOT NULL DEFAULT 0        -- members that were deleted and had not succeeded
);
CREATE INDEX {p}batches_success ON {p}batches (success_job_id) WHERE success_job_id IS NOT NULL;
CREATE INDEX {p}batches_done    ON {p}batches (done_job_id) WHERE done_job_id IS NOT NULL;

-- Chains and batches that may have ended and whose dependents were not told yet. Whoever ends a job works this off in
-- the same transaction; the rest, and what was ended by plain SQL, the next worker works off.
CREATE TABLE {p}endings (
    id       INTEGER PRIMARY KEY,
    chain_id INTEGER,
    batch_id INTEGER
);

-- === Triggers on jobs: five that transitions pay for, each of them for each one ===

CREATE TRIGGER {p}jobs_enqueued AFTER INSERT ON {p}jobs WHEN NEW.history
BEGIN
    INSERT INTO {p}events (job_id, at, event, queue, task, new_status, attempt, actor)
    VALUES (NEW.id, NEW.created_at, 'enqueued', NEW.queue, NEW.task,
            CASE WHEN NEW.status <> 'new' THEN NEW.status
                 WHEN NEW.run_at > NEW.created_at THEN 'scheduled' ELSE 'ready' END,
            0, coalesce(NEW.actor, 'sql'));
END;

-- An INSERT by plain SQL names no status: it is ready, or scheduled if its run_at lies ahead.
CREATE TRIGGER {p}jobs_filled_in AFTER INSERT ON {p}jobs WHEN NEW.status = 'new' OR NEW.tags IS NOT NULL
BEGIN
    UPDATE {p}jobs SET status = CASE WHEN NEW.run_at > NEW.created_at THEN 'scheduled' ELSE 'ready' END
    WHERE id = NEW.id AND NEW.status = 'new';
    INSERT INTO {p}tags (job_id, tag) SELECT DISTINCT NEW.id, value FROM json_each(NEW.tags);
END;

-- Every transition of Holdfast's is an event. If it ends an attempt, the event is the record of that attempt.
CREATE TRIGGER {p}jobs_changed AFTER UPDATE OF revision ON {p}jobs
WHEN NEW.revision <> OLD.revision AND NEW.history
BEGIN
    INSERT INTO {p}events (job_id, at, event, queue, task, old_status, new_status, attempt, actor, reason, run_at,
                           worker, claimed_at, started_at, waited, ran, error_code, error_detail, fingerprint)
    VALUES (
        NEW.id, NEW.updated_at, NEW.transition, NEW.queue, NEW.task, OLD.status, NEW.status, NEW.attempt, NEW.actor,
        NEW.reason,
        CASE WHEN NEW.status = 'scheduled' THEN NEW.run_at END,
        CASE WHEN OLD.status = 'running' AND NEW.actor IS NOT OLD.worker THEN OLD.worker END,
        CASE WHEN OLD.status = 'running' AND NEW.status <> 'running' THEN coalesce(OLD.claimed_at, NEW.updated_at) END,
        CASE WHEN OLD.status = 'running' THEN NEW.started_at END,
        CASE WHEN OLD.status = 'running' AND NEW.actor = OLD.worker
             THEN max(0, coalesce(NEW.started_at, NEW.updated_at) - max(OLD.run_at, OLD.created_at)) END,
        CASE WHEN OLD.status = 'running' AND NEW.actor = OLD.worker
             THEN max(0, NEW.updated_at - coalesce(NEW.started_at, NEW.updated_at)) END,
        CASE WHEN NEW.error_code IS NULL THEN NULL
             WHEN NEW.transition = 'failed' OR NEW.transition = 'retry_scheduled' OR NEW.transition = 'recovered'
             THEN NEW.error_code END,
        CASE WHEN NEW.error_code IS NULL THEN NULL
             WHEN NEW.transition = 'failed' OR NEW.transition = 'retry_scheduled' OR NEW.transition = 'recovered'
             THEN NEW.error_detail END,
        CASE WHEN NEW.fingerprint IS NULL THEN NULL
             WHEN NEW.transition = 'failed' OR NEW.transition = 'retry_scheduled' THEN NEW.fingerprint END
    );
END;

-- Rare cases, so that jobs_changed stays cheap.
-- The end of a job that others wait for, or that is a member of a batch, is noted; and when the last job of a chain comes
-- back, its root has not ended any more, unless its key was taken since.
-- A change by plain SQL is an event 'edited'. A job that was moved to another queue or task leaves one place and enters
-- another. One that gets another id or time is noted in its zone.
CREATE TRIGGER {p}jobs_noted AFTER UPDATE OF status, queue, task, id, created_at, history ON {p}jobs
WHEN ((NEW.chain_id IS NOT NULL OR NEW.awaited OR NEW.batch_id IS NOT NULL) AND NOT NEW.continued)
  OR (NEW.revision = OLD.revision AND OLD.status <> 'new')
BEGIN
    UPDATE OR IGNORE {p}jobs SET chain_ended_at =
        CASE WHEN NEW.status = 'succeeded' OR NEW.status = 'failed' OR NEW.status = 'cancelled'
             THEN coalesce(NEW.finished_at, NEW.updated_at, NEW.created_at) END
    WHERE id = NEW.chain_id AND NOT NEW.continued
      AND (NEW.status = 'succeeded' OR NEW.status = 'failed' OR NEW.status = 'cancelled')
          <> (OLD.status = 'succeeded' OR OLD.status = 'failed' OR OLD.status = 'cancelled');
    INSERT INTO {p}endings (chain_id, batch_id)
    SELECT coalesce(NEW.chain_id, NEW.id), NEW.batch_id
    WHERE (NEW.chain_id IS NOT NULL OR NEW.awaited OR NEW.batch_id IS NOT NULL) AND NOT NEW.continued
      AND (NEW.status = 'succeeded' OR NEW.status = 'failed' OR NEW.status = 'cancelled')
      AND NOT (OLD.status = 'succeeded' OR OLD.status = 'failed' OR OLD.status = 'cancelled');
    INSERT INTO {p}events (job_id, at, event, queue, task, old_status, attempt, actor)
    SELECT NEW.id, {now}, 'edited', OLD.queue, OLD.task, OLD.status, NEW.attempt, 'sql'
    WHERE NEW.revision = OLD.revision AND OLD.status <> 'new' AND NEW.history
      AND (NEW.queue <> OLD.queue OR NEW.task IS NOT OLD.task);
    INSERT INTO {p}events (job_id, at, event, queue, task, old_status, new_status, attempt, actor, run_at, worker,
                           claimed_at, started_at)
    SELECT NEW.id, {now}, 'edited', NEW.queue, NEW.task,
        CASE WHEN NEW.queue = OLD.queue AND NEW.task IS OLD.task THEN OLD.status END,
        NEW.status, OLD.attempt, 'sql',
        CASE WHEN NEW.status = 'scheduled' THEN NEW.run_at END,
        CASE WHEN OLD.status = 'running' THEN OLD.worker END,
        CASE WHEN OLD.status = 'running' AND NEW.status <> 'running' THEN coalesce(OLD.claimed_at, {now}) END,
        CASE WHEN OLD.status = 'running' THEN NEW.started_at END
    WHERE NEW.revision = OLD.revision AND OLD.status <> 'new' AND NEW.history
      AND (NEW.status <> OLD.status OR NEW.queue <> OLD.queue OR NEW.task IS NOT OLD.task);
    INSERT INTO {p}zones (zone, first_at, last_at, succeeded, cancelled)
    SELECT NEW.id / 8192, NEW.created_at, NEW.created_at, NEW.status = 'succeeded', NEW.status = 'cancelled'
    WHERE NEW.history AND (NEW.created_at <> OLD.created_at OR NEW.id <> OLD.id OR NEW.history <> OLD.history)
    ON CONFLICT (zone) DO UPDATE
        SET first_at = min(coalesce(first_at, excluded.first_at), excluded.first_at),
            last_at = max(coalesce(last_at, excluded.last_at), excluded.last_at),
            succeeded = max(succeeded, excluded.succeeded), cancelled = max(cancelled, excluded.cancelled);
END;

-- What belongs to a deleted job goes with it, whoever deletes it: those of its events that are folded. The event 'removed' stands for the others until they are, and lets them be found.
-- A batch that lost a member may be done. A chain that is awaited, and was deleted, did not end well.
CREATE TRIGGER {p}jobs_deleted AFTER DELETE ON {p}jobs
WHEN OLD.history OR OLD.awaited OR OLD.batch_id IS NOT NULL OR OLD.args_blob IS NOT NULL OR OLD.result_blob IS NOT NULL
BEGIN
    INSERT INTO {p}events (job_id, at, event, queue, task, old_status, actor)
    SELECT OLD.id, {now}, 'removed', OLD.queue, OLD.task, OLD.status, 'sql' WHERE OLD.history;
    DELETE FROM {p}events WHERE job_id = OLD.id AND id <= (SELECT cursor FROM {p}fold);
    UPDATE {p}batches SET deleted = deleted + (OLD.status <> 'succeeded') WHERE id = OLD.batch_id;
    INSERT INTO {p}endings (chain_id, batch_id) SELECT CASE WHEN OLD.awaited THEN OLD.id END, OLD.batch_id
    WHERE OLD.awaited OR OLD.batch_id IS NOT NULL;
    INSERT INTO {p}unused_blobs (name)
    SELECT OLD.args_blob WHERE OLD.args_blob IS NOT NULL UNION SELECT OLD.result_blob WHERE OLD.result_blob IS NOT NULL
    ON CONFLICT (name) DO UPDATE SET noted_at = NULL, gone_at = NULL;
END;

-- Large payloads and results that no job refers to any more. A row is inserted first, so that the change which let the
-- blob go is on the disk; then whoever collects deletes the blob while nobody else can write, if no job refers to it.
-- The row stays for a while: a caller that has put the same blob just before, and writes the job only now, sees by it
-- that the blob may be deleted.
CREATE TABLE {p}unused_blobs (
    name     TEXT    NOT NULL CONSTRAINT one_row_per_blob PRIMARY KEY,
    noted_at INTEGER,
    gone_at  INTEGER                                 -- when it was deleted; NULL: not yet
) WITHOUT ROWID;
CREATE INDEX {p}unused_blobs_there ON {p}unused_blobs (gone_at, noted_at);

-- === Queues, workers, schedules, housekeeping ===

CREATE TABLE {p}queues (
    name      TEXT NOT NULL CONSTRAINT one_row_per_queue PRIMARY KEY,
    paused_at INTEGER
) WITHOUT ROWID;

CREATE TABLE {p}workers (
    id           TEXT    NOT NULL CONSTRAINT one_row_per_worker PRIMARY KEY,  -- random with every start
    slot         INTEGER NOT NULL                    -- the byte of the lock file that it holds while it lives
        CONSTRAINT slot_is_an_integer CHECK (typeof(slot) = 'integer'),
    inode        INTEGER NOT NULL                    -- of that lock file
        CONSTRAINT inode_is_an_integer CHECK (typeof(inode) = 'integer'),
    pid          INTEGER NOT NULL
        CONSTRAINT pid_is_an_integer CHECK (typeof(pid) = 'integer'),
    host         TEXT    NOT NULL,
    queues       TEXT,                               -- JSON array; NULL: all of them
    tasks        TEXT    NOT NULL,                   -- JSON array: what it has the code for
    limits       TEXT,                               -- JSON object: what holds it back besides its concurrency
    concurrency  INTEGER NOT NULL
        CONSTRAINT concurrency_is_an_integer CHECK (typeof(concurrency) = 'integer'),
    lease        INTEGER NOT NULL                    -- microseconds that its claims last
        CONSTRAINT workers_lease_is_an_integer CHECK (typeof(lease) = 'integer'),
    started_at   INTEGER NOT NULL
        CONSTRAINT workers_started_at_is_an_integer CHECK (typeof(started_at) = 'integer'),
    heartbeat_at INTEGER NOT NULL
        CONSTRAINT workers_heartbeat_at_is_an_integer CHECK (typeof(heartbeat_at) = 'integer'),
    ended_at     INTEGER,
    ending       TEXT
        CONSTRAINT ending_is_known CHECK (ending IS NULL OR ending = 'stopped' OR ending = 'lost')
) WITHOUT ROWID;

CREATE TABLE {p}schedules (
    name           TEXT    NOT NULL CONSTRAINT one_row_per_schedule PRIMARY KEY,
    cron           TEXT    NOT NULL,                 -- five fields, or a word such as @daily
    tz             TEXT    NOT NULL DEFAULT 'UTC',
    task           TEXT    NOT NULL,
    args           TEXT    NOT NULL DEFAULT '{}',
    queue          TEXT    NOT NULL DEFAULT 'default',
    priority       INTEGER NOT NULL DEFAULT 0
        CONSTRAINT schedules_priority_is_an_integer CHECK (typeof(priority) = 'integer'),
    max_attempts   INTEGER NOT NULL DEFAULT 5
        CONSTRAINT schedules_max_attempts_is_positive CHECK (typeof(max_attempts) = 'integer' AND max_attempts > 0),
    timeout        INTEGER,
    key            TEXT,
    tags           TEXT,                             -- JSON array
    missed         TEXT    NOT NULL DEFAULT 'coalesce'
        CONSTRAINT missed_is_known CHECK (missed IN ('coalesce', 'skip', 'catch_up')),
    catch_up_limit INTEGER NOT NULL DEFAULT 100
        CONSTRAINT catch_up_limit_is_1_to_1000
            CHECK (typeof(catch_up_limit) = 'integer' AND catch_up_limit BETWEEN 1 AND 1000),
    source         TEXT    NOT NULL DEFAULT 'runtime'
        CONSTRAINT source_is_known CHECK (source IN ('code', 'runtime')),
    paused_at      INTEGER,
    -- Every occurrence up to here was handled: it became a job, or was left out as `missed` says.
    handled_at     INTEGER NOT NULL DEFAULT {now}
        CONSTRAINT handled_at_is_an_integer CHECK (typeof(handled_at) = 'integer'),
    next_at        INTEGER                           -- NULL: not computed yet
        CONSTRAINT next_at_is_an_integer CHECK (next_at IS NULL OR typeof(next_at) = 'integer'),
    last_at        INTEGER,                          -- the newest occurrence that became a job, and that job
    last_job_id    INTEGER,
    created_at     INTEGER NOT NULL DEFAULT {now},
    updated_at     INTEGER NOT NULL DEFAULT {now},
    revision       INTEGER NOT NULL DEFAULT 0        -- optimistic lock
);
CREATE INDEX {p}schedules_next ON {p}schedules (task, next_at, handled_at, source) WHERE paused_at IS NULL;

-- What has fired never fires again, whatever the clock does. The id keeps the order of insertion.
CREATE TABLE {p}fires (
    id       INTEGER PRIMARY KEY,
    schedule TEXT    NOT NULL
        CONSTRAINT fires_of_a_schedule REFERENCES {p}schedules (name) ON DELETE CASCADE,
    fire_at  INTEGER NOT NULL,
    job_id   INTEGER,                                -- may be deleted
    CONSTRAINT one_fire_per_occurrence UNIQUE (schedule, fire_at)
);
CREATE INDEX {p}fires_order ON {p}fires (schedule);

-- Who prunes, one process at a time, and what that run has deleted so far. If it dies, the next one finds this here
-- and writes the event of the interrupted run.
CREATE TABLE {p}upkeep (
    name        TEXT NOT NULL CONSTRAINT one_row_per_upkeep PRIMARY KEY,  -- 'prune'
    token       TEXT,                                -- of the run; NULL: none is running
    actor       TEXT,
    kind        TEXT,                                -- 'worker', or 'operator', who takes it from a worker
    pid         INTEGER,
    slot        INTEGER,                             -- the byte of the lock file that it holds while it lives
    inode       INTEGER,                             -- of that lock file
    begun_at    INTEGER,
    counts      TEXT,                                -- JSON object
    note        TEXT,                                -- JSON object: why, and by which rule
    last_at     INTEGER,                             -- when the last run ended that deleted something
    last_counts TEXT
) WITHOUT ROWID;

-- Small facts: the boot id, the retention policy, the kind of blob store.
CREATE TABLE {p}meta (
    name  TEXT NOT NULL CONSTRAINT one_row_per_name PRIMARY KEY,
    value TEXT NOT NULL
) WITHOUT ROWID;
