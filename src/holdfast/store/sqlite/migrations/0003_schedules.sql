-- Cron schedules, and the occurrences of each that became jobs. Times are integer microseconds UTC.

CREATE TABLE {p}schedules (
    name           TEXT    PRIMARY KEY NOT NULL,
    cron           TEXT    NOT NULL,                -- five fields, or a word such as @daily
    tz             TEXT    NOT NULL DEFAULT 'UTC',
    task           TEXT    NOT NULL,
    args           TEXT    NOT NULL DEFAULT '{}',
    queue          TEXT    NOT NULL DEFAULT 'default',
    priority       INTEGER NOT NULL DEFAULT 0 CHECK (typeof(priority) = 'integer'),
    max_attempts   INTEGER NOT NULL DEFAULT 5 CHECK (typeof(max_attempts) = 'integer' AND max_attempts > 0),
    timeout        INTEGER,
    key            TEXT,
    tags           TEXT,                            -- a JSON array
    missed         TEXT    NOT NULL DEFAULT 'coalesce' CHECK (missed IN ('coalesce', 'skip', 'catch_up')),
    catch_up_limit INTEGER NOT NULL DEFAULT 100
        CHECK (typeof(catch_up_limit) = 'integer' AND catch_up_limit BETWEEN 1 AND 1000),
    source         TEXT    NOT NULL DEFAULT 'runtime' CHECK (source IN ('code', 'runtime')),
    paused_at      INTEGER,
    -- Every occurrence up to here has been dealt with: it became a job, or was left out as `missed` says.
    handled_at     INTEGER NOT NULL DEFAULT (CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER) * 1000)
        CHECK (typeof(handled_at) = 'integer'),
    next_at        INTEGER CHECK (next_at IS NULL OR typeof(next_at) = 'integer'),  -- NULL: not worked out yet
    last_at        INTEGER,                         -- the newest occurrence that became a job, and that job
    last_job_id    INTEGER,
    created_at     INTEGER NOT NULL DEFAULT (CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER) * 1000),
    updated_at     INTEGER NOT NULL DEFAULT (CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER) * 1000),
    revision       INTEGER NOT NULL DEFAULT 0       -- how often it was changed: who works from an older one is too late
);
CREATE INDEX {p}schedules_next ON {p}schedules (task, next_at, handled_at, source) WHERE paused_at IS NULL;

-- What has fired never fires again, whatever the clock does. The id keeps the order of insertion, which tells the
-- oldest apart when the clock does not.
CREATE TABLE {p}fires (
    id       INTEGER PRIMARY KEY,
    schedule TEXT    NOT NULL REFERENCES {p}schedules (name) ON DELETE CASCADE,
    fire_at  INTEGER NOT NULL,
    job_id   INTEGER,                               -- it may be gone
    UNIQUE (schedule, fire_at)
);
CREATE INDEX {p}fires_order ON {p}fires (schedule);
