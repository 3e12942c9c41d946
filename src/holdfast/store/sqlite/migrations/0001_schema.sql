-- The tables of Holdfast. {p} is the prefix of all names. {now} is the wall clock.
-- Times are integer microseconds since 1970 UTC, except `lease`, which is on the boot clock.
--
-- `jobs` is the current state, `events` the append-only log of its transitions. The event that ends an attempt is the
-- record of that attempt; the view `attempts` shows one row per attempt. Statistics are sums over the log up to a
-- cursor: see "Statistics" below.
--
-- Checks and triggers use OR instead of IN, because SQLite builds a table for each list of values.

-- === Jobs ===

-- A row is a job of a task, or a message. `INSERT INTO {p}jobs (task, args) VALUES (…)` is a valid enqueue.
-- AUTOINCREMENT: (id, attempt) is the fencing token, so the id of a deleted job is never reused.
CREATE TABLE {p}jobs (
    -- What to run
    id            INTEGER PRIMARY KEY AUTOINCREMENT,
    queue         TEXT    NOT NULL DEFAULT 'default'
        CONSTRAINT queue_is_text CHECK (typeof(queue) = 'text'),
    task          TEXT                               -- NULL: a message
        CONSTRAINT task_is_a_name CHECK (task IS NULL OR (typeof(task) = 'text' AND task <> '')),
    args          TEXT    NOT NULL DEFAULT '{}',     -- JSON
    args_blob     TEXT                               -- SHA-256 of a large payload, stored outside of the database
        CONSTRAINT args_blob_is_sha256
            CHECK (args_blob IS NULL OR (length(args_blob) = 64 AND args_blob NOT GLOB '*[^0-9a-f]*')),
    key           TEXT
        CONSTRAINT key_is_text CHECK (key IS NULL OR typeof(key) = 'text'),
    tags          TEXT,                              -- JSON array of strings
    trace         TEXT,                              -- trace context of the enqueuer
    version       INTEGER NOT NULL DEFAULT 0         -- of the task's code; workers with an older one do not take it
        CONSTRAINT version_is_not_negative CHECK (typeof(version) = 'integer' AND version >= 0),
    history       INTEGER NOT NULL DEFAULT 1         -- 0: no events, no attempts; deleted when it succeeds
        CONSTRAINT history_is_0_or_1 CHECK (history = 0 OR history = 1),

    -- When and how often to run
    priority      INTEGER NOT NULL DEFAULT 0
        CONSTRAINT priority_is_an_integer CHECK (typeof(priority) = 'integer'),
    run_at        INTEGER NOT NULL DEFAULT {now}
        CONSTRAINT run_at_is_in_microseconds         -- rejects seconds, milliseconds and nanoseconds
            CHECK (typeof(run_at) = 'integer' AND run_at >= created_at / 100 AND run_at < 253500000000000000),
    expires_at    INTEGER                            -- when a waiting job is cancelled, and an external one fails
        CONSTRAINT expires_at_is_in_microseconds
            CHECK (expires_at IS NULL OR (typeof(expires_at) = 'integer' AND expires_at >= created_at / 100
                                          AND expires_at < 253500000000000000)),
    timeout       INTEGER                            -- of one attempt, in microseconds
        CONSTRAINT timeout_is_not_negative CHECK (timeout IS NULL OR (typeof(timeout) = 'integer' AND timeout >= 0)),
    max_attempts  INTEGER NOT NULL DEFAULT 5
        CONSTRAINT max_attempts_is_positive CHECK (typeof(max_attempts) = 'integer' AND max_attempts > 0),

    -- Current state
    status        TEXT    NOT NULL DEFAULT 'new'     -- 'new' exists only during an INSERT by plain SQL
        CONSTRAINT status_is_known
            CHECK (status = 'ready' OR status = 'running' OR status = 'succeeded' OR status = 'scheduled'
                OR status = 'new' OR status = 'blocked' OR status = 'failed' OR status = 'cancelled'),
    attempt       INTEGER NOT NULL DEFAULT 0         -- incremented by each claim
        CONSTRAINT attempt_is_within_max_attempts
            CHECK (typeof(attempt) = 'integer' AND attempt >= 0 AND attempt <= max_attempts)
        CONSTRAINT ready_has_attempts_left           -- so that a claim need not check
            CHECK (status <> 'ready' OR attempt < max_attempts),
    uncounted     INTEGER NOT NULL DEFAULT 0         -- attempts that do not count: snoozed, interrupted, before a retry by hand
        CONSTRAINT uncounted_is_an_integer CHECK (typeof(uncounted) = 'integer' AND uncounted >= 0),
    unfit_since   INTEGER                            -- since when workers return it: it does not fit their code
        CONSTRAINT unfit_since_is_an_integer CHECK (unfit_since IS NULL OR typeof(unfit_since) = 'integer'),
    worker        TEXT                               -- the worker that runs it, or ran it last
        CONSTRAINT worker_is_text CHECK (worker IS NULL OR typeof(worker) = 'text'),
    lease         INTEGER                            -- when the claim expires, in microseconds of the boot clock
        CONSTRAINT lease_is_an_integer CHECK (lease IS NULL OR typeof(lease) = 'integer'),
    created_at    INTEGER NOT NULL DEFAULT {now}
        CONSTRAINT created_at_is_an_integer
            CHECK (typeof(created_at) = 'integer' AND created_at BETWEEN 0 AND 253500000000000000),
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
    state         TEXT,                              -- JSON object, saved by an attempt for the next one

    -- Result, or last error
    result        TEXT,                              -- JSON
    result_blob   TEXT                               -- SHA-256 of a large result, stored outside of the database
        CONSTRAINT result_blob_is_sha256
            CHECK (result_blob IS NULL OR (length(result_blob) = 64 AND result_blob NOT GLOB '*[^0-9a-f]*')),
    error_code    TEXT
        CONSTRAINT error_code_is_text CHECK (error_code IS NULL OR typeof(error_code) = 'text'),
    error_detail  TEXT,
    fingerprint   TEXT                               -- key of {p}tracebacks
        CONSTRAINT fingerprint_is_text CHECK (fingerprint IS NULL OR typeof(fingerprint) = 'text'),

    -- Workflow. A chain is a root job and its continuations. The chain_id is the id of the root. In the root itself
    -- it is NULL, so a job without a workflow costs nothing here.
    chain_id           INTEGER
        CONSTRAINT chain_id_is_an_integer CHECK (chain_id IS NULL OR typeof(chain_id) = 'integer'),
    chain_index        INTEGER NOT NULL DEFAULT 0,
    continued          INTEGER NOT NULL DEFAULT 0    -- 1: the chain has continued with another job
        CONSTRAINT continued_is_0_or_1 CHECK (continued = 0 OR continued = 1),
    chain_ended_at     INTEGER,                      -- in the root of a chain with continuations
    awaited            INTEGER NOT NULL DEFAULT 0    -- 1, in a root: other jobs wait for this chain
        CONSTRAINT awaited_is_0_or_1 CHECK (awaited = 0 OR awaited = 1),
    on_blocker_failure TEXT                          -- NULL: hold
        CONSTRAINT on_blocker_failure_is_known
            CHECK (on_blocker_failure IS NULL OR on_blocker_failure = 'fail' OR on_blocker_failure = 'cancel'
                OR on_blocker_failure = 'run'),
    batch_id           INTEGER                       -- also in the continuations of a member
        CONSTRAINT batch_id_is_an_integer CHECK (batch_id IS NULL OR typeof(batch_id) = 'integer'),
    external           INTEGER NOT NULL DEFAULT 0    -- 1: no worker runs it; a caller completes it
        CONSTRAINT external_is_0_or_1 CHECK (external = 0 OR external = 1),

    -- The last transition, which the trigger jobs_changed copies into the log. Holdfast increments `revision` with
    -- each transition; if it stays the same, plain SQL has changed the row.
    transition    TEXT    NOT NULL DEFAULT 'enqueued',
    actor         TEXT,                              -- NULL: the worker
    reason        TEXT,
    updated_at    INTEGER,
    revision      INTEGER NOT NULL DEFAULT 0
);

-- Partial indexes, one per purpose. Every index ends with the id, so that jobs of equal priority are
-- first-in-first-out even if the clock jumps.
CREATE INDEX {p}jobs_ready     ON {p}jobs (queue, task, priority DESC) WHERE status = 'ready';
CREATE INDEX {p}jobs_versioned ON {p}jobs (queue, task, version) WHERE version > 0 AND status = 'ready';
CREATE INDEX {p}jobs_scheduled ON {p}jobs (run_at) WHERE status = 'scheduled';
CREATE INDEX {p}jobs_running   ON {p}jobs (coalesce(lease, 0)) WHERE status = 'running';
CREATE INDEX {p}jobs_blocked   ON {p}jobs (queue, task) WHERE status = 'blocked';
CREATE INDEX {p}jobs_external  ON {p}jobs (external) WHERE external = 1 AND status = 'blocked';
CREATE INDEX {p}jobs_failed    ON {p}jobs (queue, task) WHERE status = 'failed';
CREATE INDEX {p}jobs_finished  ON {p}jobs (status, finished_at)
    WHERE finished_at IS NOT NULL OR status = 'succeeded' OR status = 'failed' OR status = 'cancelled';
CREATE INDEX {p}jobs_expires   ON {p}jobs (expires_at)
    WHERE expires_at IS NOT NULL AND (status = 'blocked' OR status = 'scheduled' OR status = 'ready');

-- For listing. None contains the status, so claims and settlements do not update them.
-- A job is either in jobs_logged or in jobs_unlogged.
CREATE INDEX {p}jobs_logged    ON {p}jobs (queue, task) WHERE history = 1;
CREATE INDEX {p}jobs_error     ON {p}jobs (error_code) WHERE error_code IS NOT NULL;
CREATE INDEX {p}jobs_fingerprint ON {p}jobs (fingerprint) WHERE fingerprint IS NOT NULL;
CREATE INDEX {p}jobs_unlogged  ON {p}jobs (queue, task) WHERE history = 0;

-- A key is unique among the unfinished jobs of a task, and among the unfinished messages of a queue. The root of a
-- chain holds its key until the chain has ended.
CREATE UNIQUE INDEX {p}jobs_key_task ON {p}jobs (task, key)
    WHERE key IS NOT NULL AND task IS NOT NULL
      AND (status IN ('new', 'blocked', 'scheduled', 'ready', 'running') OR (continued = 1 AND chain_ended_at IS NULL));
CREATE UNIQUE INDEX {p}jobs_key_queue ON {p}jobs (queue, key)
    WHERE key IS NOT NULL AND task IS NULL AND status IN ('new', 'blocked', 'scheduled', 'ready', 'running');
CREATE INDEX {p}jobs_key       ON {p}jobs (key, finished_at) WHERE key IS NOT NULL;
CREATE INDEX {p}jobs_key_chain ON {p}jobs (key, chain_ended_at) WHERE key IS NOT NULL AND chain_ended_at IS NOT NULL;

-- Unique: inserting a continuation is idempotent.
CREATE UNIQUE INDEX {p}jobs_chain ON {p}jobs (chain_id, chain_index) WHERE chain_id IS NOT NULL;
CREATE INDEX {p}jobs_batch       ON {p}jobs (batch_id, continued, status) WHERE batch_id IS NOT NULL;
CREATE INDEX {p}jobs_args_blob   ON {p}jobs (args_blob) WHERE args_blob IS NOT NULL;
CREATE INDEX {p}jobs_result_blob ON {p}jobs (result_blob) WHERE result_blob IS NOT NULL;

CREATE TABLE {p}tags (
    job_id INTEGER NOT NULL
        CONSTRAINT tags_of_a_job REFERENCES {p}jobs (id) ON DELETE CASCADE,
    tag    TEXT    NOT NULL,
    CONSTRAINT one_row_per_tag PRIMARY KEY (job_id, tag),
    CONSTRAINT tags_have_their_types
        CHECK (typeof(tag) = 'text')
) WITHOUT ROWID;
CREATE INDEX {p}tags_tag ON {p}tags (tag, job_id);

-- === History ===

-- The event log. Ids are assigned under the write lock, so they grow in commit order and can be used as a cursor.
CREATE TABLE {p}events (
    id           INTEGER PRIMARY KEY,
    job_id       INTEGER,                            -- NULL: an event of a queue, a schedule or the database
    at           INTEGER NOT NULL,
    event        TEXT    NOT NULL,
    queue        TEXT,
    task         TEXT,
    old_status   TEXT,                               -- NULL: the job was enqueued
    new_status   TEXT,                               -- NULL: the job was deleted
    attempt      INTEGER,
    actor        TEXT,
    reason       TEXT,                               -- as given by the actor
    run_at       INTEGER,                            -- when the scheduled job is due
    -- If the event ended an attempt
    worker       TEXT,                               -- the worker of the attempt; NULL: the actor
    claimed_at   INTEGER,                            -- NULL: the event did not end an attempt
    started_at   INTEGER,
    waited       INTEGER,                            -- microseconds from due to start; NULL: not ended by its worker
    ran          INTEGER,                            -- microseconds from start to end; NULL: not ended by its worker
    error_code   TEXT,
    error_detail TEXT,
    fingerprint  TEXT,
    detail       TEXT                                -- JSON object, in events without a job
);
CREATE INDEX {p}events_audit   ON {p}events (job_id) WHERE job_id IS NULL;
CREATE INDEX {p}events_removed ON {p}events (id) WHERE event = 'removed' AND job_id IS NOT NULL;

-- Keeps SQLite from reusing the newest id: followers of the log and the statistics would miss an event.
CREATE TRIGGER {p}events_keep_newest AFTER DELETE ON {p}events
WHEN OLD.id > (SELECT coalesce(max(id), 0) FROM {p}events)
BEGIN
    INSERT INTO {p}events (id, at, event) VALUES (OLD.id, OLD.at, 'removed');
END;

-- A coarse index of the folded events by job: which blocks of 8 consecutive events have some of which block of 8
-- consecutive jobs. Filled when the cursor of the fold moves, thousands of events at a time. As an index of events it
-- would cost every transition a page. A row per event would take the fold about twice as long.
CREATE TABLE {p}event_blocks (
    jobs   INTEGER NOT NULL,                         -- job_id / 8
    events INTEGER NOT NULL,                         -- id / 8
    CONSTRAINT one_row_per_pair_of_blocks PRIMARY KEY (jobs, events),
    CONSTRAINT event_blocks_have_their_types CHECK (typeof(jobs) = 'integer' AND typeof(events) = 'integer')
) WITHOUT ROWID;

CREATE TRIGGER {p}events_deleted AFTER DELETE ON {p}events WHEN OLD.job_id IS NOT NULL
BEGIN
    DELETE FROM {p}event_blocks
    WHERE jobs = OLD.job_id / 8 AND events = OLD.id / 8
      AND NOT EXISTS (SELECT 1 FROM {p}events WHERE id >= OLD.id / 8 * 8 AND id < OLD.id / 8 * 8 + 8
                      AND job_id / 8 = OLD.job_id / 8);
END;

-- The events of each job: those that are folded, and the others, which are found by their ids. To read the events of
-- a job: `id IN (SELECT event_id FROM … WHERE job_id = …)`. Here and below, the + keeps SQLite from reading from a block
-- on to the cursor: of two bounds for an id it uses only one.
CREATE VIEW {p}events_by_job AS
SELECT job.id AS job_id, +event.id AS event_id
FROM {p}jobs AS job CROSS JOIN {p}event_blocks AS block ON block.jobs = job.id / 8
CROSS JOIN {p}events AS event
  ON event.id >= block.events * 8 AND event.id < block.events * 8 + 8 AND event.job_id = job.id
WHERE +event.id <= (SELECT cursor FROM {p}fold)
UNION ALL
SELECT job_id, id FROM {p}events WHERE id > (SELECT cursor FROM {p}fold) AND job_id IS NOT NULL;

-- One row per attempt: finished and folded, finished since, running.
CREATE VIEW {p}attempts AS
SELECT event.job_id, event.attempt, coalesce(event.worker, event.actor) AS worker, event.claimed_at, event.started_at,
       event.at AS finished_at,
       CASE WHEN event.error_code = 'INTERNAL:WORKER_LOST' THEN 'lost' ELSE event.event END AS outcome,
       event.error_code, event.error_detail, event.fingerprint
FROM {p}jobs AS job CROSS JOIN {p}event_blocks AS block ON block.jobs = job.id / 8
CROSS JOIN {p}events AS event
  ON event.id >= block.events * 8 AND event.id < block.events * 8 + 8 AND event.job_id = job.id
WHERE +event.id <= (SELECT cursor FROM {p}fold) AND event.claimed_at IS NOT NULL
UNION ALL
SELECT event.job_id, event.attempt, coalesce(event.worker, event.actor), event.claimed_at, event.started_at, event.at,
       CASE WHEN event.error_code = 'INTERNAL:WORKER_LOST' THEN 'lost' ELSE event.event END,
       event.error_code, event.error_detail, event.fingerprint
FROM {p}events AS event CROSS JOIN {p}jobs AS job ON job.id = event.job_id
WHERE event.id > (SELECT cursor FROM {p}fold) AND event.claimed_at IS NOT NULL
UNION ALL
SELECT id, attempt, worker, claimed_at, started_at, NULL, 'running', NULL, NULL, NULL
FROM {p}jobs WHERE status = 'running' AND history = 1;

CREATE TABLE {p}tracebacks (
    fingerprint TEXT    NOT NULL CONSTRAINT one_traceback_per_fingerprint PRIMARY KEY,
    error_code  TEXT    NOT NULL,
    traceback   TEXT    NOT NULL,
    first_seen  INTEGER NOT NULL,
    last_seen   INTEGER NOT NULL,
    CONSTRAINT tracebacks_have_their_types
        CHECK (typeof(fingerprint) = 'text' AND typeof(error_code) = 'text' AND typeof(traceback) = 'text'
               AND typeof(first_seen) = 'integer' AND typeof(last_seen) = 'integer')
) WITHOUT ROWID;

-- === Statistics ===

-- Sums over the log up to `cursor`. No transition writes them. A process that folds adds up the events after the
-- cursor on a reading connection, and stores the sums and the new cursor in one transaction. A process that reads
-- statistics adds the events after the cursor. The task of messages is ''.
CREATE TABLE {p}fold (
    id        INTEGER NOT NULL CONSTRAINT fold_has_one_row PRIMARY KEY CHECK (id = 1),
    cursor    INTEGER NOT NULL,                      -- id of the last folded event
    folded_at INTEGER NOT NULL,
    rolled    INTEGER NOT NULL,                      -- all minutes before this one are in the rollups
    CONSTRAINT fold_has_its_types
        CHECK (typeof(cursor) = 'integer' AND typeof(folded_at) = 'integer' AND cursor >= 0
               AND typeof(rolled) = 'integer' AND rolled >= 0)
);
INSERT INTO {p}fold (id, cursor, folded_at, rolled) VALUES (1, 0, 0, 0);

CREATE TRIGGER {p}events_folded AFTER UPDATE OF cursor ON {p}fold WHEN NEW.cursor > OLD.cursor
BEGIN
    INSERT INTO {p}event_blocks (jobs, events)
    SELECT DISTINCT job_id / 8, id / 8 FROM {p}events
    WHERE id > OLD.cursor AND id <= NEW.cursor AND typeof(job_id) = 'integer'
    ON CONFLICT DO NOTHING;
END;

-- Number of jobs.
CREATE TABLE {p}counts (
    queue  TEXT    NOT NULL,
    task   TEXT    NOT NULL,
    status TEXT    NOT NULL,
    n      INTEGER NOT NULL,
    CONSTRAINT one_row_per_count PRIMARY KEY (queue, task, status),
    CONSTRAINT counts_have_their_types
        CHECK (typeof(queue) = 'text' AND typeof(task) = 'text' AND typeof(status) = 'text'
               AND typeof(n) = 'integer')
) WITHOUT ROWID;

-- Measures per minute: enqueued jobs, attempts by outcome, and histograms of waiting time, running time and attempt
-- number at completion. `untried_…`: jobs that finished while they were not running.
CREATE TABLE {p}minutes (
    minute  INTEGER NOT NULL,                        -- minutes since 1970 UTC
    queue   TEXT    NOT NULL,
    task    TEXT    NOT NULL,
    measure TEXT    NOT NULL,
    bucket  INTEGER NOT NULL,                        -- of a histogram, or the attempt number; otherwise 0
    n       INTEGER NOT NULL,
    CONSTRAINT one_row_per_minute_and_bucket PRIMARY KEY (minute, queue, task, measure, bucket),
    CONSTRAINT minutes_have_their_types
        CHECK (typeof(queue) = 'text' AND typeof(task) = 'text' AND typeof(measure) = 'text'
               AND typeof(minute) = 'integer' AND typeof(bucket) = 'integer' AND typeof(n) = 'integer')
) WITHOUT ROWID;

-- The same per hour, quarter of a day and day, so that long periods are few rows. Those that are not over are
-- incomplete.
CREATE TABLE {p}rollups (
    minutes INTEGER NOT NULL,                        -- 60, 360, 1440; -60: hours of all queues and tasks, which are '' then
    last    INTEGER NOT NULL,                        -- the last minute
    queue   TEXT    NOT NULL,
    task    TEXT    NOT NULL,
    measure TEXT    NOT NULL,
    bucket  INTEGER NOT NULL,
    n       INTEGER NOT NULL,
    CONSTRAINT one_row_per_rollup PRIMARY KEY (minutes, last, queue, task, measure, bucket),
    CONSTRAINT rollups_have_their_types
        CHECK (typeof(queue) = 'text' AND typeof(task) = 'text' AND typeof(measure) = 'text'
               AND typeof(minutes) = 'integer' AND typeof(last) = 'integer' AND typeof(bucket) = 'integer'
               AND typeof(n) = 'integer')
) WITHOUT ROWID;

-- The counts since the database was created, for monotonic counters. Minutes are pruned, totals are not.
CREATE TABLE {p}totals (
    queue   TEXT    NOT NULL,
    task    TEXT    NOT NULL,
    measure TEXT    NOT NULL,
    bucket  INTEGER NOT NULL,
    n       INTEGER NOT NULL,
    sum     INTEGER NOT NULL,                        -- of a histogram, in microseconds
    CONSTRAINT one_row_per_total PRIMARY KEY (queue, task, measure, bucket),
    CONSTRAINT totals_have_their_types
        CHECK (typeof(queue) = 'text' AND typeof(task) = 'text' AND typeof(measure) = 'text'
               AND typeof(bucket) = 'integer' AND typeof(n) = 'integer' AND typeof(sum) = 'integer')
) WITHOUT ROWID;

-- Failed attempts by error code, queue, task and fingerprint. The fingerprint '' has no traceback.
CREATE TABLE {p}failures (
    error_code  TEXT    NOT NULL,
    queue       TEXT    NOT NULL,
    task        TEXT    NOT NULL,
    fingerprint TEXT    NOT NULL,
    first_seen  INTEGER NOT NULL,
    last_seen   INTEGER NOT NULL,
    last_job_id INTEGER NOT NULL,                    -- the job may be deleted
    n           INTEGER NOT NULL,
    CONSTRAINT one_row_per_failure PRIMARY KEY (error_code, queue, task, fingerprint),
    CONSTRAINT failures_have_their_types
        CHECK (typeof(error_code) = 'text' AND typeof(queue) = 'text' AND typeof(task) = 'text'
               AND typeof(fingerprint) = 'text' AND typeof(first_seen) = 'integer'
               AND typeof(last_seen) = 'integer' AND typeof(last_job_id) = 'integer' AND typeof(n) = 'integer')
) WITHOUT ROWID;

CREATE TABLE {p}failure_minutes (
    minute      INTEGER NOT NULL,
    error_code  TEXT    NOT NULL,
    queue       TEXT    NOT NULL,
    task        TEXT    NOT NULL,
    fingerprint TEXT    NOT NULL,
    n           INTEGER NOT NULL,
    CONSTRAINT one_row_per_minute_and_failure PRIMARY KEY (minute, error_code, queue, task, fingerprint),
    CONSTRAINT failure_minutes_have_their_types
        CHECK (typeof(error_code) = 'text' AND typeof(queue) = 'text' AND typeof(task) = 'text'
               AND typeof(fingerprint) = 'text' AND typeof(minute) = 'integer' AND typeof(n) = 'integer')
) WITHOUT ROWID;

CREATE TABLE {p}error_totals (
    error_code TEXT    NOT NULL,
    queue      TEXT    NOT NULL,
    task       TEXT    NOT NULL,
    n          INTEGER NOT NULL,
    CONSTRAINT one_row_per_error_code PRIMARY KEY (error_code, queue, task),
    CONSTRAINT error_totals_have_their_types
        CHECK (typeof(error_code) = 'text' AND typeof(queue) = 'text' AND typeof(task) = 'text'
               AND typeof(n) = 'integer')
) WITHOUT ROWID;

-- A coarse index for listing: what the jobs of each 8192 consecutive ids have in common. A real index would be exact,
-- but every job would pay for it. Jobs without history are not included.
CREATE TABLE {p}zones (
    zone      INTEGER NOT NULL CONSTRAINT one_row_per_zone PRIMARY KEY,  -- id / 8192
    first_at  INTEGER,                               -- the earliest created_at, deleted jobs included
    last_at   INTEGER,                               -- the latest
    succeeded INTEGER NOT NULL,                      -- 1: one of the jobs has succeeded
    cancelled INTEGER NOT NULL,
    CONSTRAINT zones_have_their_types
        CHECK (typeof(zone) = 'integer' AND typeof(succeeded) = 'integer' AND typeof(cancelled) = 'integer'
               AND (first_at IS NULL OR typeof(first_at) = 'integer')
               AND (last_at IS NULL OR typeof(last_at) = 'integer'))
);

-- === Workflows ===

-- Which job waits for which chain. The rows of a deleted chain stay while the waiting job exists.
CREATE TABLE {p}blockers (
    job_id   INTEGER NOT NULL
        CONSTRAINT blockers_of_a_job REFERENCES {p}jobs (id) ON DELETE CASCADE,
    position INTEGER NOT NULL,                       -- index in `after=`
    chain_id INTEGER NOT NULL,                       -- the chain it waits for
    outcome  TEXT,                                   -- how the chain ended; NULL: the job still waits for it
    CONSTRAINT one_row_per_position PRIMARY KEY (job_id, position),
    CONSTRAINT blockers_have_their_types
        CHECK (typeof(position) = 'integer' AND typeof(chain_id) = 'integer'
               AND (outcome IS NULL OR typeof(outcome) = 'text'))
) WITHOUT ROWID;
CREATE INDEX {p}blockers_chain   ON {p}blockers (chain_id, outcome);
CREATE INDEX {p}blockers_holding ON {p}blockers (job_id) WHERE outcome IS NULL;

CREATE TABLE {p}batches (
    id             INTEGER PRIMARY KEY AUTOINCREMENT,
    created_at     INTEGER NOT NULL,
    sealed_at      INTEGER,                          -- no more members can be added
    done_at        INTEGER,                          -- all members have finished
    on_success     TEXT,                             -- job to enqueue if all succeeded, JSON
    on_done        TEXT,                             -- job to enqueue when done, JSON
    success_job_id INTEGER,                          -- id of the enqueued job
    done_job_id    INTEGER,
    deleted        INTEGER NOT NULL DEFAULT 0,       -- number of members deleted before they succeeded
    creator        TEXT,                             -- the process whose block made it
    slot           INTEGER,                          -- byte of the lock file, locked while that process is in a block
    inode          INTEGER,                          -- of the lock file
    abandoned_at   INTEGER,                          -- when it was sealed although its block had not ended
    CONSTRAINT batches_have_their_types
        CHECK (typeof(created_at) = 'integer' AND typeof(deleted) = 'integer'
               AND (on_success IS NULL OR typeof(on_success) = 'text')
               AND (on_done IS NULL OR typeof(on_done) = 'text')
               AND (sealed_at IS NULL OR typeof(sealed_at) = 'integer')
               AND (done_at IS NULL OR typeof(done_at) = 'integer')
               AND (success_job_id IS NULL OR typeof(success_job_id) = 'integer')
               AND (done_job_id IS NULL OR typeof(done_job_id) = 'integer')
               AND (creator IS NULL OR typeof(creator) = 'text')
               AND (slot IS NULL OR typeof(slot) = 'integer') AND (inode IS NULL OR typeof(inode) = 'integer')
               AND (abandoned_at IS NULL OR typeof(abandoned_at) = 'integer'))
);
CREATE INDEX {p}batches_undone    ON {p}batches (sealed_at) WHERE done_at IS NULL;
CREATE INDEX {p}batches_abandoned ON {p}batches (abandoned_at) WHERE abandoned_at IS NOT NULL;
CREATE INDEX {p}batches_success ON {p}batches (success_job_id) WHERE success_job_id IS NOT NULL;
CREATE INDEX {p}batches_done    ON {p}batches (done_job_id) WHERE done_job_id IS NOT NULL;

-- Chains and batches that may have ended and whose dependents are not updated yet. The transaction that ends a job
-- also processes its row here. The next worker processes the remaining rows, such as those of plain SQL.
CREATE TABLE {p}endings (
    id       INTEGER PRIMARY KEY,
    chain_id INTEGER,
    batch_id INTEGER,
    CONSTRAINT endings_have_their_types
        CHECK ((chain_id IS NULL OR typeof(chain_id) = 'integer')
               AND (batch_id IS NULL OR typeof(batch_id) = 'integer'))
);

-- === Triggers on jobs: every transition pays for each of them ===

CREATE TRIGGER {p}jobs_enqueued AFTER INSERT ON {p}jobs WHEN NEW.history
BEGIN
    INSERT INTO {p}events (job_id, at, event, queue, task, new_status, attempt, actor, reason)
    VALUES (NEW.id, NEW.created_at, 'enqueued', NEW.queue, NEW.task,
            CASE WHEN NEW.status <> 'new' THEN NEW.status
                 WHEN NEW.run_at > NEW.created_at THEN 'scheduled' ELSE 'ready' END,
            0, coalesce(NEW.actor, 'sql'), NEW.reason);
END;

-- Sets the status after an INSERT by plain SQL: ready, or scheduled if run_at is in the future. Fills `tags`.
CREATE TRIGGER {p}jobs_filled_in AFTER INSERT ON {p}jobs WHEN NEW.status = 'new' OR NEW.tags IS NOT NULL
BEGIN
    UPDATE {p}jobs SET status = CASE WHEN NEW.run_at > NEW.created_at THEN 'scheduled' ELSE 'ready' END
    WHERE id = NEW.id AND NEW.status = 'new';
    INSERT INTO {p}tags (job_id, tag) SELECT DISTINCT NEW.id, value FROM json_each(NEW.tags);
END;

-- Writes an event for each transition. If it ends an attempt, the event is the record of that attempt.
CREATE TRIGGER {p}jobs_changed AFTER UPDATE OF revision ON {p}jobs
WHEN NEW.revision <> OLD.revision AND NEW.history
BEGIN
    INSERT INTO {p}events (job_id, at, event, queue, task, old_status, new_status, attempt, actor, reason, run_at,
                           worker, claimed_at, started_at, waited, ran, error_code, error_detail, fingerprint)
    VALUES (
        NEW.id, NEW.updated_at, NEW.transition, NEW.queue, NEW.task, OLD.status, NEW.status, NEW.attempt,
        coalesce(NEW.actor, NEW.worker),
        NEW.reason,
        CASE WHEN NEW.status = 'scheduled' THEN NEW.run_at END,
        CASE WHEN OLD.status = 'running' AND coalesce(NEW.actor, NEW.worker) IS NOT OLD.worker THEN OLD.worker END,
        CASE WHEN OLD.status = 'running' AND NEW.status <> 'running' THEN coalesce(OLD.claimed_at, NEW.updated_at) END,
        CASE WHEN OLD.status = 'running' THEN NEW.started_at END,
        CASE WHEN OLD.status = 'running' AND coalesce(NEW.actor, NEW.worker) = OLD.worker
             THEN max(0, coalesce(NEW.started_at, NEW.updated_at) - max(OLD.run_at, OLD.created_at)) END,
        CASE WHEN OLD.status = 'running' AND coalesce(NEW.actor, NEW.worker) = OLD.worker
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

-- Rare cases, apart from jobs_changed to keep that one cheap:
-- 1. When the last job of a chain finishes, sets chain_ended_at of the root. When it is retried, clears it, unless
--    another job holds the key now.
-- 2. When a job of a chain or batch finishes, adds a row to `endings`.
-- 3. Writes an event 'edited' for a change by plain SQL; two events if the job moved to another queue or task.
-- 4. Updates the zone if the id, created_at or history changed.
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

-- When a job is deleted, deletes its folded events. The event 'removed' marks the others, which are deleted once they
-- are folded. Adds a row to `endings`, because its batch may be done now, and because jobs that wait for its chain
-- must learn that it did not succeed. Marks its blobs as unused.
CREATE TRIGGER {p}jobs_deleted AFTER DELETE ON {p}jobs
WHEN OLD.history OR OLD.awaited OR OLD.batch_id IS NOT NULL OR OLD.args_blob IS NOT NULL OR OLD.result_blob IS NOT NULL
BEGIN
    INSERT INTO {p}events (job_id, at, event, queue, task, old_status, actor)
    SELECT OLD.id, {now}, 'removed', OLD.queue, OLD.task, OLD.status, 'sql' WHERE OLD.history;
    DELETE FROM {p}events WHERE id IN (
        SELECT event.id FROM {p}event_blocks AS block CROSS JOIN {p}events AS event
          ON event.id >= block.events * 8 AND event.id < block.events * 8 + 8 AND event.job_id = OLD.id
        WHERE block.jobs = OLD.id / 8 AND +event.id <= (SELECT cursor FROM {p}fold));
    UPDATE {p}batches SET deleted = deleted + (OLD.status <> 'succeeded') WHERE id = OLD.batch_id;
    INSERT INTO {p}endings (chain_id, batch_id) SELECT CASE WHEN OLD.awaited THEN OLD.id END, OLD.batch_id
    WHERE OLD.awaited OR OLD.batch_id IS NOT NULL;
    INSERT INTO {p}unused_blobs (name)
    SELECT OLD.args_blob WHERE OLD.args_blob IS NOT NULL UNION SELECT OLD.result_blob WHERE OLD.result_blob IS NOT NULL
    ON CONFLICT (name) DO UPDATE SET noted_at = NULL, gone_at = NULL;
END;

-- Blobs that no job refers to. Once the row is on disk, a process deletes the blob under the write lock, if still no
-- job refers to it. The row stays for a while after that: a caller that stored the same blob just before, and inserts
-- its job only now, sees that the blob may be deleted.
CREATE TABLE {p}unused_blobs (
    name     TEXT    NOT NULL CONSTRAINT one_row_per_blob PRIMARY KEY,
    noted_at INTEGER,
    gone_at  INTEGER,                                -- when the blob was deleted; NULL: not yet
    CONSTRAINT unused_blobs_have_their_types
        CHECK ((noted_at IS NULL OR typeof(noted_at) = 'integer') AND (gone_at IS NULL OR typeof(gone_at) = 'integer'))
) WITHOUT ROWID;
CREATE INDEX {p}unused_blobs_there ON {p}unused_blobs (gone_at, noted_at);

-- === Queues, workers, schedules, housekeeping ===

CREATE TABLE {p}queues (
    name      TEXT NOT NULL CONSTRAINT one_row_per_queue PRIMARY KEY,
    paused_at INTEGER,                               -- NULL: not paused
    paused_by TEXT,                                  -- the operator who paused it last, and the reason
    reason    TEXT,
    CONSTRAINT queues_have_their_types
        CHECK (typeof(name) = 'text' AND (paused_at IS NULL OR typeof(paused_at) = 'integer')
               AND (paused_by IS NULL OR typeof(paused_by) = 'text') AND (reason IS NULL OR typeof(reason) = 'text'))
) WITHOUT ROWID;

CREATE TABLE {p}workers (
    id           TEXT    NOT NULL CONSTRAINT one_row_per_worker PRIMARY KEY,  -- random, new at each start
    slot         INTEGER NOT NULL                    -- byte of the lock file, locked while its process lives
        CONSTRAINT slot_is_an_integer CHECK (typeof(slot) = 'integer'),
    inode        INTEGER NOT NULL                    -- of the lock file
        CONSTRAINT inode_is_an_integer CHECK (typeof(inode) = 'integer'),
    pid          INTEGER NOT NULL
        CONSTRAINT pid_is_an_integer CHECK (typeof(pid) = 'integer'),
    host         TEXT    NOT NULL,
    queues       TEXT,                               -- JSON array; NULL: all queues
    tasks        TEXT    NOT NULL,                   -- JSON array: the tasks that it can run
    limits       TEXT,                               -- JSON object: limits in addition to concurrency
    concurrency  INTEGER NOT NULL
        CONSTRAINT concurrency_is_an_integer CHECK (typeof(concurrency) = 'integer'),
    lease        INTEGER NOT NULL                    -- duration of its claims, in microseconds
        CONSTRAINT workers_lease_is_an_integer CHECK (typeof(lease) = 'integer'),
    started_at   INTEGER NOT NULL
        CONSTRAINT workers_started_at_is_an_integer CHECK (typeof(started_at) = 'integer'),
    heartbeat_at INTEGER NOT NULL
        CONSTRAINT workers_heartbeat_at_is_an_integer CHECK (typeof(heartbeat_at) = 'integer'),
    ended_at     INTEGER,
    ending       TEXT
        CONSTRAINT ending_is_known CHECK (ending IS NULL OR ending = 'stopped' OR ending = 'lost'),
    version      TEXT,                               -- of Holdfast
    memory       INTEGER,                            -- resident bytes at the last heartbeat; NULL: unknown
    stop_at      INTEGER,                            -- when an operator asked it to stop; NULL: nobody did
    CONSTRAINT workers_have_their_types
        CHECK (typeof(id) = 'text' AND typeof(host) = 'text' AND typeof(tasks) = 'text'
               AND (queues IS NULL OR typeof(queues) = 'text') AND (limits IS NULL OR typeof(limits) = 'text')
               AND (version IS NULL OR typeof(version) = 'text') AND (memory IS NULL OR typeof(memory) = 'integer')
               AND (stop_at IS NULL OR typeof(stop_at) = 'integer')
               AND (ended_at IS NULL OR typeof(ended_at) = 'integer'))
) WITHOUT ROWID;

CREATE TABLE {p}schedules (
    name           TEXT    NOT NULL CONSTRAINT one_row_per_schedule PRIMARY KEY,
    cron           TEXT    NOT NULL,                 -- five fields, a nickname such as @daily, or @every 30s
    tz             TEXT    NOT NULL DEFAULT 'UTC',
    task           TEXT    NOT NULL,
    args           TEXT    NOT NULL DEFAULT '{}',
    queue          TEXT    NOT NULL DEFAULT 'default',
    priority       INTEGER NOT NULL DEFAULT 0
        CONSTRAINT schedules_priority_is_an_integer CHECK (typeof(priority) = 'integer'),
    max_attempts   INTEGER NOT NULL DEFAULT 5
        CONSTRAINT schedules_max_attempts_is_positive CHECK (typeof(max_attempts) = 'integer' AND max_attempts > 0),
    timeout        INTEGER,
    expires        INTEGER,                          -- microseconds after the enqueue
    key            TEXT,
    tags           TEXT,                             -- JSON array
    version        INTEGER NOT NULL DEFAULT 0,       -- of the task's code
    missed         TEXT    NOT NULL DEFAULT 'coalesce'
        CONSTRAINT missed_is_known CHECK (missed IN ('coalesce', 'skip', 'catch_up')),
    catch_up_limit INTEGER NOT NULL DEFAULT 100
        CONSTRAINT catch_up_limit_is_1_to_1000
            CHECK (typeof(catch_up_limit) = 'integer' AND catch_up_limit BETWEEN 1 AND 1000),
    jitter         INTEGER NOT NULL DEFAULT 0        -- microseconds by which a job is due later, at most
        CONSTRAINT jitter_is_not_negative CHECK (typeof(jitter) = 'integer' AND jitter >= 0),
    source         TEXT    NOT NULL DEFAULT 'runtime'
        CONSTRAINT source_is_known CHECK (source IN ('code', 'runtime')),
    paused_at      INTEGER,
    -- Every occurrence up to this time was enqueued, or skipped according to `missed`.
    handled_at     INTEGER NOT NULL DEFAULT {now}
        CONSTRAINT handled_at_is_in_microseconds
            CHECK (typeof(handled_at) = 'integer' AND handled_at >= created_at / 100
                AND handled_at < 253500000000000000),
    next_at        INTEGER                           -- NULL: not computed yet
        CONSTRAINT next_at_is_in_microseconds
            CHECK (next_at IS NULL
                OR (typeof(next_at) = 'integer' AND next_at >= created_at / 100 AND next_at < 253500000000000000)),
    last_at        INTEGER,                          -- the last occurrence that was enqueued, and its job
    last_job_id    INTEGER,
    created_at     INTEGER NOT NULL DEFAULT {now},
    updated_at     INTEGER NOT NULL DEFAULT {now},
    revision       INTEGER NOT NULL DEFAULT 0,       -- optimistic lock
    CONSTRAINT schedules_have_their_types
        CHECK (typeof(name) = 'text' AND typeof(cron) = 'text' AND typeof(tz) = 'text' AND typeof(task) = 'text'
               AND typeof(args) = 'text' AND typeof(queue) = 'text' AND typeof(created_at) = 'integer'
               AND typeof(updated_at) = 'integer' AND typeof(revision) = 'integer'
               AND (key IS NULL OR typeof(key) = 'text') AND (tags IS NULL OR typeof(tags) = 'text')
               AND (timeout IS NULL OR typeof(timeout) = 'integer')
               AND (paused_at IS NULL OR typeof(paused_at) = 'integer')
               AND (last_at IS NULL OR typeof(last_at) = 'integer')
               AND (last_job_id IS NULL OR typeof(last_job_id) = 'integer'))
);
CREATE INDEX {p}schedules_next ON {p}schedules (task, next_at, handled_at, source) WHERE paused_at IS NULL;

-- Occurrences that were enqueued: none is enqueued twice, even if the clock jumps. The id is the order of insertion.
CREATE TABLE {p}fires (
    id       INTEGER PRIMARY KEY,
    schedule TEXT    NOT NULL
        CONSTRAINT fires_of_a_schedule REFERENCES {p}schedules (name) ON DELETE CASCADE,
    fire_at  INTEGER NOT NULL,
    job_id   INTEGER,                                -- the job may be deleted
    CONSTRAINT one_fire_per_occurrence UNIQUE (schedule, fire_at),
    CONSTRAINT fires_have_their_types
        CHECK (typeof(schedule) = 'text' AND typeof(fire_at) = 'integer'
               AND (job_id IS NULL OR typeof(job_id) = 'integer'))
);
CREATE INDEX {p}fires_order ON {p}fires (schedule);

-- The current prune run, of one process at a time, and what it has deleted so far. If the process dies, the next run
-- writes the event of the interrupted one.
CREATE TABLE {p}upkeep (
    name        TEXT NOT NULL CONSTRAINT one_row_per_upkeep PRIMARY KEY,  -- 'prune'
    token       TEXT,                                -- of the run; NULL: no run is active
    actor       TEXT,
    kind        TEXT,                                -- 'worker' or 'operator'; an operator takes over from a worker
    pid         INTEGER,
    slot        INTEGER,                             -- byte of the lock file, locked while its process lives
    inode       INTEGER,                             -- of the lock file
    begun_at    INTEGER,
    counts      TEXT,                                -- JSON object
    note        TEXT,                                -- JSON object: reason and retention rule
    last_at     INTEGER,                             -- end of the last run that deleted rows
    last_counts TEXT,
    CONSTRAINT upkeep_has_its_types
        CHECK (typeof(name) = 'text' AND (token IS NULL OR typeof(token) = 'text')
               AND (actor IS NULL OR typeof(actor) = 'text') AND (kind IS NULL OR typeof(kind) = 'text')
               AND (counts IS NULL OR typeof(counts) = 'text') AND (note IS NULL OR typeof(note) = 'text')
               AND (last_counts IS NULL OR typeof(last_counts) = 'text')
               AND (pid IS NULL OR typeof(pid) = 'integer') AND (slot IS NULL OR typeof(slot) = 'integer')
               AND (inode IS NULL OR typeof(inode) = 'integer')
               AND (begun_at IS NULL OR typeof(begun_at) = 'integer')
               AND (last_at IS NULL OR typeof(last_at) = 'integer'))
) WITHOUT ROWID;

-- Bulk operations: an action on all jobs that match, in the order of ids, in many short transactions. Each of them
-- also moves `position`, so that any process can continue after another one ended.
CREATE TABLE {p}operations (
    id          INTEGER PRIMARY KEY AUTOINCREMENT,
    action      TEXT    NOT NULL
        CONSTRAINT action_is_known CHECK (action IN ('retry', 'cancel', 'run_now', 'delete')),
    criteria    TEXT    NOT NULL,                    -- JSON object
    actor       TEXT    NOT NULL,
    reason      TEXT    NOT NULL DEFAULT '',
    delay       INTEGER NOT NULL DEFAULT 0,          -- of retried jobs, in microseconds
    attempts    INTEGER,                             -- of retried jobs; NULL: as many as at first
    state       TEXT    NOT NULL DEFAULT 'running'
        CONSTRAINT operation_state_is_known CHECK (state IN ('running', 'finished', 'stopped', 'failed')),
    matched     INTEGER NOT NULL DEFAULT 0,          -- how many jobs matched when it was added
    matched_all INTEGER NOT NULL DEFAULT 1           -- 0: there were more
        CONSTRAINT matched_all_is_0_or_1 CHECK (matched_all IN (0, 1)),
    changed     INTEGER NOT NULL DEFAULT 0,          -- jobs so far
    position    INTEGER NOT NULL DEFAULT 0,          -- every job up to this id was looked at
    until       INTEGER NOT NULL,                    -- the newest job when it was added; later ones are left alone
    runner      TEXT,                                -- the process that works on it
    error       TEXT,
    created_at  INTEGER NOT NULL DEFAULT {now},
    updated_at  INTEGER NOT NULL DEFAULT {now},
    finished_at INTEGER,
    CONSTRAINT operations_have_their_types
        CHECK (typeof(criteria) = 'text' AND typeof(actor) = 'text' AND typeof(reason) = 'text'
               AND typeof(delay) = 'integer' AND (attempts IS NULL OR typeof(attempts) = 'integer')
               AND typeof(matched) = 'integer' AND typeof(changed) = 'integer' AND typeof(position) = 'integer'
               AND typeof(until) = 'integer' AND (runner IS NULL OR typeof(runner) = 'text')
               AND typeof(created_at) = 'integer' AND typeof(updated_at) = 'integer'
               AND (finished_at IS NULL OR typeof(finished_at) = 'integer'))
);
CREATE INDEX {p}operations_running ON {p}operations (id) WHERE state = 'running';

-- Settings: boot id, retention policy, kind of blob store.
CREATE TABLE {p}meta (
    name  TEXT NOT NULL CONSTRAINT one_row_per_name PRIMARY KEY,
    value TEXT NOT NULL,
    CONSTRAINT meta_has_its_types
        CHECK (typeof(name) = 'text' AND typeof(value) = 'text')
) WITHOUT ROWID;
