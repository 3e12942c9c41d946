-- The three layers: jobs (current state), attempts (one row per try), events (the append-only log).
-- Times are integer microseconds UTC, but for `lease`, which is microseconds of the boot clock.

CREATE TABLE {p}meta (
    name  TEXT PRIMARY KEY,
    value TEXT NOT NULL
) WITHOUT ROWID;

-- In checks and triggers an OR is written where IN would read better: SQLite builds a table for each list.
-- AUTOINCREMENT: (id, attempt) is a fencing token, so the id of a deleted job must never come back.
CREATE TABLE {p}jobs (
    id            INTEGER PRIMARY KEY AUTOINCREMENT,
    queue         TEXT    NOT NULL DEFAULT 'default',
    task          TEXT,                             -- NULL: a message
    args          TEXT    NOT NULL DEFAULT '{}',
    status        TEXT    NOT NULL DEFAULT 'new'    -- 'new' never outlives its INSERT
        CHECK (status = 'ready' OR status = 'running' OR status = 'succeeded' OR status = 'scheduled' OR status = 'new'
            OR status = 'blocked' OR status = 'failed' OR status = 'cancelled'),
    priority      INTEGER NOT NULL DEFAULT 0 CHECK (typeof(priority) = 'integer'),
    run_at        INTEGER NOT NULL DEFAULT (CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER) * 1000),
    created_at    INTEGER NOT NULL DEFAULT (CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER) * 1000),
    updated_at    INTEGER CHECK (typeof(run_at) = 'integer' AND typeof(created_at) = 'integer'),
    claimed_at    INTEGER,
    started_at    INTEGER,
    finished_at   INTEGER,
    heartbeat_at  INTEGER,
    attempt       INTEGER NOT NULL DEFAULT 0,
    max_attempts  INTEGER NOT NULL DEFAULT 5 CHECK (attempt <= max_attempts AND max_attempts > 0),
    timeout       INTEGER,
    worker        TEXT,
    lease         INTEGER,
    error_code    TEXT,
    error_detail  TEXT,
    fingerprint   TEXT,
    result        TEXT,
    key           TEXT,
    tags          TEXT,                             -- a JSON array
    chain_id      INTEGER,
    chain_index   INTEGER NOT NULL DEFAULT 0,
    progress      REAL,
    progress_text TEXT,
    trace         TEXT,
    history       INTEGER NOT NULL DEFAULT 1,       -- 0: no attempts, no events, deleted when it succeeds
    -- The last transition, who made it, and how many there were: the triggers below write the log from these.
    transition    TEXT    NOT NULL DEFAULT 'enqueued',
    actor         TEXT,
    revision      INTEGER NOT NULL DEFAULT 0
);

-- Only what is claimable, due, leased or ended is indexed, each in its own index. The rowid, which every index
-- ends with, keeps first-in-first-out within a priority by the order of enqueueing, whatever the clock does.
CREATE INDEX {p}jobs_ready     ON {p}jobs (queue, task, priority DESC) WHERE status = 'ready';
CREATE INDEX {p}jobs_scheduled ON {p}jobs (run_at, queue, task) WHERE status = 'scheduled';
CREATE INDEX {p}jobs_running   ON {p}jobs (coalesce(lease, 0)) WHERE status = 'running';
CREATE INDEX {p}jobs_failed    ON {p}jobs (queue, task) WHERE status = 'failed';
CREATE INDEX {p}jobs_finished  ON {p}jobs (status, finished_at) WHERE finished_at IS NOT NULL;

-- A key belongs to one live job per task, one live message per queue.
CREATE UNIQUE INDEX {p}jobs_key_task  ON {p}jobs (task, key)
    WHERE key IS NOT NULL AND task IS NOT NULL AND status IN ('new', 'blocked', 'scheduled', 'ready', 'running');
CREATE UNIQUE INDEX {p}jobs_key_queue ON {p}jobs (queue, key)
    WHERE key IS NOT NULL AND task IS NULL AND status IN ('new', 'blocked', 'scheduled', 'ready', 'running');
CREATE INDEX {p}jobs_key ON {p}jobs (key, finished_at) WHERE key IS NOT NULL;

CREATE TABLE {p}attempts (
    job_id       INTEGER NOT NULL REFERENCES {p}jobs (id) ON DELETE CASCADE,
    attempt      INTEGER NOT NULL,
    worker       TEXT,
    claimed_at   INTEGER NOT NULL,
    started_at   INTEGER,
    finished_at  INTEGER,
    outcome      TEXT,                              -- NULL while it runs
    error_code   TEXT,
    error_detail TEXT,
    fingerprint  TEXT,
    PRIMARY KEY (job_id, attempt)
) WITHOUT ROWID;

CREATE TABLE {p}events (
    id      INTEGER PRIMARY KEY,                    -- a cursor: only ever grows
    job_id  INTEGER REFERENCES {p}jobs (id) ON DELETE CASCADE,  -- NULL: about a queue, or about a job that is gone
    at      INTEGER NOT NULL,
    event   TEXT    NOT NULL,
    attempt INTEGER,
    actor   TEXT,
    detail  TEXT                                    -- a short JSON object, or NULL
);
CREATE INDEX {p}events_job ON {p}events (job_id);

CREATE TABLE {p}tracebacks (
    fingerprint TEXT PRIMARY KEY,
    error_code  TEXT    NOT NULL,
    traceback   TEXT    NOT NULL,
    first_seen  INTEGER NOT NULL,
    last_seen   INTEGER NOT NULL,
    count       INTEGER NOT NULL DEFAULT 1
) WITHOUT ROWID;

CREATE TABLE {p}tags (
    job_id INTEGER NOT NULL REFERENCES {p}jobs (id) ON DELETE CASCADE,
    tag    TEXT    NOT NULL,
    PRIMARY KEY (job_id, tag)
) WITHOUT ROWID;
CREATE INDEX {p}tags_tag ON {p}tags (tag, job_id);

CREATE TABLE {p}queues (
    name      TEXT PRIMARY KEY,
    paused_at INTEGER
) WITHOUT ROWID;

-- An INSERT by plain SQL names no status: it is ready, or scheduled if its run_at lies ahead.
CREATE TRIGGER {p}jobs_new AFTER INSERT ON {p}jobs WHEN NEW.status = 'new'
BEGIN
    UPDATE {p}jobs SET status = CASE WHEN NEW.run_at > NEW.created_at THEN 'scheduled' ELSE 'ready' END
    WHERE id = NEW.id;
END;

CREATE TRIGGER {p}jobs_enqueued AFTER INSERT ON {p}jobs WHEN NEW.history
BEGIN
    INSERT INTO {p}events (job_id, at, event, attempt, actor)
    VALUES (NEW.id, NEW.created_at, 'enqueued', 0, coalesce(NEW.actor, 'sql'));
END;

CREATE TRIGGER {p}jobs_tagged AFTER INSERT ON {p}jobs WHEN NEW.tags IS NOT NULL
BEGIN
    INSERT INTO {p}tags (job_id, tag) SELECT DISTINCT NEW.id, value FROM json_each(NEW.tags);
END;

-- One event per transition. Holdfast's own statements raise `revision`; an UPDATE by hand that changes the status
-- does not, and is logged as 'edited'.
CREATE TRIGGER {p}jobs_changed AFTER UPDATE OF status, revision ON {p}jobs
WHEN NEW.history AND OLD.status <> 'new' AND (NEW.revision <> OLD.revision OR NEW.status <> OLD.status)
BEGIN
    INSERT INTO {p}events (job_id, at, event, attempt, actor, detail)
    VALUES (
        NEW.id,
        CASE WHEN NEW.revision <> OLD.revision THEN NEW.updated_at
             ELSE CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER) * 1000 END,
        CASE WHEN NEW.revision <> OLD.revision THEN NEW.transition ELSE 'edited' END,
        NEW.attempt,
        CASE WHEN NEW.revision <> OLD.revision THEN NEW.actor ELSE 'sql' END,
        -- By hand, since SQLite before 3.41 refuses its JSON functions in triggers where the schema is not trusted.
        CASE WHEN NEW.revision <> OLD.revision AND (NEW.status = 'running' OR NEW.status = 'succeeded') THEN NULL
             ELSE '{"from":"' || OLD.status || '","to":"' || NEW.status || '"'
                  || CASE WHEN NEW.status = 'scheduled' THEN ',"run_at":' || NEW.run_at ELSE '' END
                  || CASE WHEN (NEW.transition = 'failed' OR NEW.transition = 'retry_scheduled' OR NEW.transition = 'recovered')
                          THEN coalesce(',"error_code":"' || replace(replace(NEW.error_code, '\', ''), '"', '') || '"', '')
                          ELSE '' END
                  || '}' END
    );
END;

CREATE TRIGGER {p}attempt_begins AFTER UPDATE OF status ON {p}jobs
WHEN NEW.history AND NEW.status = 'running' AND OLD.status <> 'running'
BEGIN
    INSERT INTO {p}attempts (job_id, attempt, worker, claimed_at, started_at)
    VALUES (NEW.id, NEW.attempt, NEW.worker, coalesce(NEW.claimed_at, NEW.created_at), NEW.started_at)
    ON CONFLICT (job_id, attempt) DO UPDATE  -- only where the status was changed by hand
        SET worker = excluded.worker, finished_at = NULL, outcome = NULL, error_code = NULL, error_detail = NULL;
END;

CREATE TRIGGER {p}attempt_ends AFTER UPDATE OF status ON {p}jobs
WHEN NEW.history AND OLD.status = 'running' AND NEW.status <> 'running'
BEGIN
    UPDATE {p}attempts SET
        finished_at = coalesce(NEW.updated_at, NEW.claimed_at),
        started_at = coalesce(NEW.started_at, started_at),
        outcome = CASE WHEN NEW.revision <> OLD.revision THEN NEW.transition ELSE 'edited' END,
        error_code = CASE WHEN (NEW.transition = 'failed' OR NEW.transition = 'retry_scheduled' OR NEW.transition = 'recovered') THEN NEW.error_code END,
        error_detail = CASE WHEN (NEW.transition = 'failed' OR NEW.transition = 'retry_scheduled' OR NEW.transition = 'recovered') THEN NEW.error_detail END,
        fingerprint = CASE WHEN (NEW.transition = 'failed' OR NEW.transition = 'retry_scheduled') THEN NEW.fingerprint END
    WHERE job_id = OLD.id AND attempt = OLD.attempt;
END;

-- The newest event's id must not be given out twice when its job is deleted, or a follower would miss events.
CREATE TRIGGER {p}events_cursor AFTER DELETE ON {p}events
WHEN OLD.id > (SELECT coalesce(max(id), 0) FROM {p}events)
BEGIN
    INSERT INTO {p}events (id, at, event) VALUES (OLD.id, OLD.at, 'removed');
END;
