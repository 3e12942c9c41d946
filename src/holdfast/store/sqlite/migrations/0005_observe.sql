-- What the person on call asks: how many, how fast, and why they fail. Kept with every change, so that reading it costs
-- nothing, and kept when the jobs are gone.

-- How many jobs there are, by status; '' is of any. Those that are ready or running change most often, and have no row:
-- what runs is counted in its index, and what is left of the whole is ready. A message has the task ''.
CREATE TABLE {p}totals (
    status TEXT    NOT NULL,
    queue  TEXT    NOT NULL,
    task   TEXT    NOT NULL,
    n      INTEGER NOT NULL,
    PRIMARY KEY (status, queue, task)
) WITHOUT ROWID;
INSERT INTO {p}totals SELECT '', queue, coalesce(task, ''), count(*) FROM {p}jobs GROUP BY 1, 2, 3
UNION ALL SELECT status, queue, coalesce(task, ''), count(*) FROM {p}jobs
WHERE status <> 'ready' AND status <> 'running' GROUP BY 1, 2, 3;

-- What is not text would break whoever sorts the names.
CREATE TRIGGER {p}totals_put AFTER INSERT ON {p}jobs
BEGIN
    SELECT RAISE(ABORT, 'queue and task are text, and a task is not empty')
    WHERE typeof(NEW.queue) <> 'text' OR typeof(NEW.task) = 'blob' OR NEW.task = '';
    INSERT INTO {p}totals (status, queue, task, n) VALUES ('', NEW.queue, coalesce(NEW.task, ''), 1)
    ON CONFLICT (status, queue, task) DO UPDATE SET n = n + 1;
    INSERT INTO {p}totals (status, queue, task, n) SELECT NEW.status, NEW.queue, coalesce(NEW.task, ''), 1
    WHERE NEW.status <> 'ready' AND NEW.status <> 'new' AND NEW.status <> 'running'
    ON CONFLICT (status, queue, task) DO UPDATE SET n = n + 1;
END;

CREATE TRIGGER {p}totals_moved AFTER UPDATE OF status ON {p}jobs
WHEN NEW.status <> OLD.status AND (NEW.status <> 'running' OR OLD.status <> 'ready')
BEGIN
    INSERT INTO {p}totals (status, queue, task, n) SELECT NEW.status, NEW.queue, coalesce(NEW.task, ''), 1
    WHERE NEW.status <> 'ready' AND NEW.status <> 'running'
    ON CONFLICT (status, queue, task) DO UPDATE SET n = n + 1;
    UPDATE {p}totals SET n = n - 1
    WHERE OLD.status <> 'running' AND OLD.status <> 'ready'
      AND status = OLD.status AND queue = OLD.queue AND task = coalesce(OLD.task, '');
END;

CREATE TRIGGER {p}totals_gone AFTER DELETE ON {p}jobs
BEGIN
    UPDATE {p}totals SET n = n - 1
    WHERE (status = '' OR status = OLD.status) AND queue = OLD.queue AND task = coalesce(OLD.task, '');
END;

-- By hand: nothing of Holdfast's moves a job to another queue or task.
CREATE TRIGGER {p}totals_renamed AFTER UPDATE OF queue, task ON {p}jobs
WHEN NEW.queue <> OLD.queue OR NEW.task IS NOT OLD.task
BEGIN
    SELECT RAISE(ABORT, 'queue and task are text, and a task is not empty')
    WHERE typeof(NEW.queue) <> 'text' OR typeof(NEW.task) = 'blob' OR NEW.task = '';
    UPDATE {p}totals SET n = n - 1
    WHERE (status = '' OR (status = OLD.status AND NEW.status = OLD.status))
      AND queue = OLD.queue AND task = coalesce(OLD.task, '');
    INSERT INTO {p}totals (status, queue, task, n) VALUES ('', NEW.queue, coalesce(NEW.task, ''), 1)
    ON CONFLICT (status, queue, task) DO UPDATE SET n = n + 1;
    INSERT INTO {p}totals (status, queue, task, n) SELECT NEW.status, NEW.queue, coalesce(NEW.task, ''), 1
    WHERE NEW.status = OLD.status AND NEW.status <> 'ready' AND NEW.status <> 'running'
    ON CONFLICT (status, queue, task) DO UPDATE SET n = n + 1;
END;

-- Attempts that failed, by code and place of the failure; a fingerprint leads to its traceback, '' to none.
CREATE TABLE {p}failures (
    error_code  TEXT    NOT NULL,
    queue       TEXT    NOT NULL,
    task        TEXT    NOT NULL,                   -- '': messages
    fingerprint TEXT    NOT NULL,
    first_seen  INTEGER NOT NULL,
    last_seen   INTEGER NOT NULL,
    last_job_id INTEGER NOT NULL,                   -- it may be gone
    n           INTEGER NOT NULL,
    PRIMARY KEY (error_code, queue, task, fingerprint)
) WITHOUT ROWID;
INSERT INTO {p}failures
SELECT tried.error_code, job.queue, coalesce(job.task, ''), coalesce(tried.fingerprint, ''),
       min(coalesce(tried.finished_at, tried.claimed_at)), max(coalesce(tried.finished_at, tried.claimed_at)),
       max(job.id), count(*)
FROM {p}attempts AS tried CROSS JOIN {p}jobs AS job ON job.id = tried.job_id
WHERE tried.error_code IS NOT NULL GROUP BY 1, 2, 3, 4;

-- What happened in each minute: how many attempts ended in which way, how long they had waited, how long they ran, with
-- the how-manieth attempt a job ended, and why attempts failed: error:CODE, a space and the fingerprint. A job that ended
-- and was not running is failed:untried and so on. `bucket` is of a histogram (see rollup.py), the attempt, or 0.
CREATE TABLE {p}minutes (
    minute INTEGER NOT NULL,                        -- since 1970
    queue  TEXT    NOT NULL,
    task   TEXT    NOT NULL,                        -- '': messages
    what   TEXT    NOT NULL,
    bucket INTEGER NOT NULL,
    n      INTEGER NOT NULL,
    PRIMARY KEY (minute, queue, task, what, bucket)
) WITHOUT ROWID;

-- The least number of microseconds of each bucket of a histogram: 4 to each power of two, as `rollup.py` has it.
CREATE TABLE {p}buckets (
    least  INTEGER PRIMARY KEY,
    bucket INTEGER NOT NULL
);
INSERT INTO {p}buckets (least, bucket)
WITH RECURSIVE bits (bit) AS (SELECT 2 UNION ALL SELECT bit + 1 FROM bits WHERE bit < 46),
    parts (part) AS (VALUES (0), (1), (2), (3))
SELECT (4 + part) << (bit - 2), (bit - 1) * 4 + part FROM bits, parts
UNION ALL SELECT part, part FROM parts;

-- With the queue and the task, so that what is blocked or runs is counted in the index alone; and since when it runs.
DROP INDEX {p}jobs_running;
CREATE INDEX {p}jobs_running ON {p}jobs (coalesce(lease, 0), worker, claimed_at, queue, task) WHERE status = 'running';
DROP INDEX {p}jobs_blocked;
CREATE INDEX {p}jobs_blocked ON {p}jobs (queue, task) WHERE status = 'blocked';
CREATE INDEX {p}jobs_timeout ON {p}jobs (timeout_at) WHERE status = 'blocked' AND timeout_at IS NOT NULL;

-- The same from the beginning on, for meters that only count up: minutes are pruned, these are not. An error code has a
-- row of its own, error:CODE.
CREATE TABLE {p}tallies (
    queue TEXT    NOT NULL,
    task  TEXT    NOT NULL,                         -- '': messages
    what  TEXT    NOT NULL,
    upto  INTEGER NOT NULL,                         -- of `wait` and `run`: one of the bounds; else 0, but for `acked`
    n     INTEGER NOT NULL,
    total INTEGER NOT NULL,                         -- microseconds, of all rows of a histogram together
    ran   INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (queue, task, what, upto)
) WITHOUT ROWID;

-- Microseconds, as `tally.py` has them. The last one is above all.
CREATE TABLE {p}bounds (
    upto  INTEGER PRIMARY KEY,
    place INTEGER NOT NULL
);
INSERT INTO {p}bounds (place, upto) VALUES (0, 5000), (1, 10000), (2, 25000), (3, 50000), (4, 100000), (5, 250000),
    (6, 500000), (7, 1000000), (8, 2500000), (9, 5000000), (10, 10000000), (11, 30000000), (12, 60000000),
    (13, 300000000), (14, 3600000000), (15, 4611686018427387904);

-- A message is acknowledged by itself, so that all that is counted of it is one row in either table, `acked`. Its bucket
-- is the attempt, the bucket that it waited and the one that it ran for, a thousand apart; its bound is the places of the
-- two, a hundred apart; `total` is what it waited, and `ran` what it ran.
CREATE TRIGGER {p}jobs_acked AFTER UPDATE OF finished_at ON {p}jobs  -- which a claim does not set
WHEN NEW.task IS NULL AND NEW.status = 'succeeded' AND OLD.status = 'running' AND NEW.transition = 'succeeded'
  AND NEW.revision <> OLD.revision
BEGIN
    INSERT INTO {p}minutes (minute, queue, task, what, bucket, n)
    VALUES (NEW.updated_at / 60000000, NEW.queue, '', 'acked', (NEW.attempt * 1000
            + (SELECT bucket FROM {p}buckets WHERE least <= max(0, coalesce(NEW.claimed_at - NEW.run_at, 0))
               ORDER BY least DESC LIMIT 1)) * 1000
            + (SELECT bucket FROM {p}buckets WHERE least <= max(0, coalesce(NEW.updated_at - NEW.claimed_at, 0))
               ORDER BY least DESC LIMIT 1), 1)
    ON CONFLICT (minute, queue, task, what, bucket) DO UPDATE SET n = n + 1;
    INSERT INTO {p}tallies (queue, task, what, upto, n, total, ran)
    VALUES (NEW.queue, '', 'acked',
            (SELECT place FROM {p}bounds
             WHERE upto >= min(max(0, coalesce(NEW.claimed_at - NEW.run_at, 0)), 4611686018427387904)
             ORDER BY upto LIMIT 1) * 100
            + (SELECT place FROM {p}bounds
               WHERE upto >= min(max(0, coalesce(NEW.updated_at - NEW.claimed_at, 0)), 4611686018427387904)
               ORDER BY upto LIMIT 1), 1,
            min(max(0, coalesce(NEW.claimed_at - NEW.run_at, 0)), 4611686018427387904),
            min(max(0, coalesce(NEW.updated_at - NEW.claimed_at, 0)), 4611686018427387904))
    ON CONFLICT (queue, task, what, upto) DO UPDATE
        SET n = n + 1, total = total + excluded.total, ran = ran + excluded.ran;
END;

-- A worker counts its own attempts together, many at once, but for why they failed. What ends a job otherwise is
-- counted here: the consumers of messages, operators, whoever finds a worker dead. One trigger, since each costs
-- something at every change of a status, also where it does nothing.
CREATE TRIGGER {p}jobs_counted AFTER UPDATE OF status ON {p}jobs
WHEN NEW.status <> 'running' AND NEW.revision <> OLD.revision AND NEW.status <> OLD.status
  AND NOT (NEW.task IS NULL AND OLD.status = 'running' AND NEW.transition = 'succeeded')
  AND (NEW.task IS NULL OR NEW.actor IS NOT NEW.worker OR NEW.error_code IS NOT NULL)
  AND (NEW.status = 'succeeded' OR NEW.status = 'failed' OR NEW.status = 'cancelled'
    OR NEW.transition = 'recovered' OR NEW.transition = 'released' OR NEW.transition = 'retry_scheduled')
BEGIN
    INSERT INTO {p}failures (error_code, queue, task, fingerprint, first_seen, last_seen, last_job_id, n)
    SELECT NEW.error_code, NEW.queue, coalesce(NEW.task, ''), coalesce(NEW.fingerprint, ''), NEW.updated_at,
           NEW.updated_at, NEW.id, 1
    WHERE NEW.error_code IS NOT NULL
      AND (NEW.transition = 'failed' OR NEW.transition = 'retry_scheduled' OR NEW.transition = 'recovered')
    ON CONFLICT (error_code, queue, task, fingerprint) DO UPDATE
        SET n = n + 1, last_seen = max(last_seen, excluded.last_seen), last_job_id = excluded.last_job_id;
    INSERT INTO {p}minutes (minute, queue, task, what, bucket, n)
    SELECT NEW.updated_at / 60000000, NEW.queue, coalesce(NEW.task, ''), counted.what, counted.bucket, 1
    FROM (
        SELECT NEW.transition || CASE WHEN OLD.status = 'running' THEN '' ELSE ':untried' END AS what, 0 AS bucket
        WHERE NEW.transition <> 'retry_scheduled' AND (NEW.task IS NULL OR NEW.actor IS NOT NEW.worker)
        UNION ALL
        SELECT 'attempts', NEW.attempt
        WHERE NEW.attempt > 0 AND (NEW.status = 'succeeded' OR NEW.status = 'failed' OR NEW.status = 'cancelled')
          AND (NEW.task IS NULL OR NEW.actor IS NOT NEW.worker)
        UNION ALL
        SELECT 'error:' || NEW.error_code || ' ' || coalesce(NEW.fingerprint, ''), 0
        WHERE NEW.error_code IS NOT NULL
          AND (NEW.transition = 'failed' OR NEW.transition = 'retry_scheduled' OR NEW.transition = 'recovered')
    ) AS counted
    WHERE true
    ON CONFLICT (minute, queue, task, what, bucket) DO UPDATE SET n = n + 1;
    INSERT INTO {p}tallies (queue, task, what, upto, n, total)
    SELECT NEW.queue, coalesce(NEW.task, ''), counted.what, 0, 1, 0
    FROM (
        SELECT NEW.transition AS what
        WHERE NEW.transition <> 'retry_scheduled' AND (NEW.task IS NULL OR NEW.actor IS NOT NEW.worker)
          AND OLD.status = 'running'
        UNION ALL
        SELECT 'error:' || NEW.error_code
        WHERE NEW.error_code IS NOT NULL
          AND (NEW.transition = 'failed' OR NEW.transition = 'retry_scheduled' OR NEW.transition = 'recovered')
    ) AS counted
    WHERE true
    ON CONFLICT (queue, task, what, upto) DO UPDATE SET n = n + 1;
END;

-- A message that keeps no history is gone when it is acknowledged: in the minute in which it was taken. An operator who
-- deletes one that is out counts as well.
CREATE TRIGGER {p}jobs_forgotten AFTER DELETE ON {p}jobs
WHEN OLD.task IS NULL AND OLD.status = 'running' AND NOT OLD.history
BEGIN
    INSERT INTO {p}minutes (minute, queue, task, what, bucket, n) VALUES (OLD.updated_at / 60000000, OLD.queue, '', 'succeeded', 0, 1)
    ON CONFLICT (minute, queue, task, what, bucket) DO UPDATE SET n = n + 1;
    INSERT INTO {p}tallies (queue, task, what, upto, n, total) VALUES (OLD.queue, '', 'succeeded', 0, 1, 0)
    ON CONFLICT (queue, task, what, upto) DO UPDATE SET n = n + 1;
END;

-- Why an operator did what was done last: the revision that it made, a colon, and the reason as a JSON string.
ALTER TABLE {p}jobs ADD COLUMN note TEXT;
DROP TRIGGER {p}jobs_changed;
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
        CASE WHEN NEW.revision <> OLD.revision AND (NEW.status = 'running' OR NEW.transition = 'succeeded') THEN NULL
             ELSE '{"from":"' || OLD.status || '","to":"' || NEW.status || '"'
                  || CASE WHEN NEW.status = 'scheduled' THEN ',"run_at":' || NEW.run_at ELSE '' END
                  || CASE WHEN (NEW.transition = 'failed' OR NEW.transition = 'retry_scheduled' OR NEW.transition = 'recovered')
                          THEN coalesce(',"error_code":"' || replace(replace(NEW.error_code, '\', ''), '"', '') || '"', '')
                          ELSE '' END
                  || CASE WHEN NEW.note IS NOT NULL AND CAST(NEW.note AS INTEGER) = NEW.revision
                          THEN ',"reason":' || substr(NEW.note, instr(NEW.note, ':') + 1) ELSE '' END
                  || '}' END
    );
END;
