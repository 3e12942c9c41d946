-- What the person on call asks: how many, how fast, and why they fail. Kept with every change, so that reading it costs
-- nothing, and kept when the jobs are gone.

-- Jobs that have ended and are there still. Those that have not are counted in their partial indexes. A message has the
-- task ''.
CREATE TABLE {p}totals (
    status TEXT    NOT NULL,
    queue  TEXT    NOT NULL,
    task   TEXT    NOT NULL,
    n      INTEGER NOT NULL,
    PRIMARY KEY (status, queue, task)
) WITHOUT ROWID;
INSERT INTO {p}totals SELECT status, queue, coalesce(task, ''), count(*) FROM {p}jobs
WHERE status IN ('succeeded', 'failed', 'cancelled') GROUP BY 1, 2, 3;

CREATE TRIGGER {p}totals_ended AFTER UPDATE OF status ON {p}jobs
WHEN (NEW.status = 'succeeded' OR NEW.status = 'failed' OR NEW.status = 'cancelled') AND NEW.status <> OLD.status
BEGIN
    INSERT INTO {p}totals (status, queue, task, n) VALUES (NEW.status, NEW.queue, coalesce(NEW.task, ''), 1)
    ON CONFLICT (status, queue, task) DO UPDATE SET n = n + 1;
END;

CREATE TRIGGER {p}totals_reopened AFTER UPDATE OF status ON {p}jobs
WHEN (OLD.status = 'succeeded' OR OLD.status = 'failed' OR OLD.status = 'cancelled') AND NEW.status <> OLD.status
BEGIN
    UPDATE {p}totals SET n = n - 1 WHERE status = OLD.status AND queue = OLD.queue AND task = coalesce(OLD.task, '');
END;

CREATE TRIGGER {p}totals_gone AFTER DELETE ON {p}jobs
WHEN OLD.status = 'succeeded' OR OLD.status = 'failed' OR OLD.status = 'cancelled'
BEGIN
    UPDATE {p}totals SET n = n - 1 WHERE status = OLD.status AND queue = OLD.queue AND task = coalesce(OLD.task, '');
END;

-- An INSERT by hand of something that has ended.
CREATE TRIGGER {p}totals_put AFTER INSERT ON {p}jobs
WHEN NEW.status = 'succeeded' OR NEW.status = 'failed' OR NEW.status = 'cancelled'
BEGIN
    INSERT INTO {p}totals (status, queue, task, n) VALUES (NEW.status, NEW.queue, coalesce(NEW.task, ''), 1)
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

CREATE TRIGGER {p}failures_seen AFTER UPDATE OF status ON {p}jobs
WHEN NEW.revision <> OLD.revision AND NEW.error_code IS NOT NULL
  AND (NEW.transition = 'failed' OR NEW.transition = 'retry_scheduled' OR NEW.transition = 'recovered')
BEGIN
    INSERT INTO {p}failures (error_code, queue, task, fingerprint, first_seen, last_seen, last_job_id, n)
    VALUES (NEW.error_code, NEW.queue, coalesce(NEW.task, ''), coalesce(NEW.fingerprint, ''), NEW.updated_at,
            NEW.updated_at, NEW.id, 1)
    ON CONFLICT (error_code, queue, task, fingerprint) DO UPDATE
        SET n = n + 1, last_seen = max(last_seen, excluded.last_seen), last_job_id = excluded.last_job_id;
END;

-- What happened in each minute: how many attempts ended in which way, how long they had waited, how long they ran, and
-- with the how-manieth attempt a job ended. `bucket` is of a histogram (see model.py), the attempt, or 0.
CREATE TABLE {p}minutes (
    minute INTEGER NOT NULL,                        -- since 1970
    queue  TEXT    NOT NULL,
    task   TEXT    NOT NULL,                        -- '': messages
    what   TEXT    NOT NULL,
    bucket INTEGER NOT NULL,
    n      INTEGER NOT NULL,
    PRIMARY KEY (minute, queue, task, what, bucket)
) WITHOUT ROWID;

-- The least number of microseconds of each bucket of a histogram: 4 to each power of two, as `bucket_of` has it.
CREATE TABLE {p}buckets (
    least  INTEGER PRIMARY KEY,
    bucket INTEGER NOT NULL
);
INSERT INTO {p}buckets (least, bucket)
WITH RECURSIVE bits (bit) AS (SELECT 2 UNION ALL SELECT bit + 1 FROM bits WHERE bit < 46),
    parts (part) AS (VALUES (0), (1), (2), (3))
SELECT (4 + part) << (bit - 2), (bit - 1) * 4 + part FROM bits, parts
UNION ALL SELECT part, part FROM parts;

-- A worker counts its own attempts together, many at once. What ends a job otherwise is counted here: the consumers
-- of messages, operators, whoever finds a worker dead.
CREATE TRIGGER {p}minutes_of_others AFTER UPDATE OF status ON {p}jobs
WHEN NEW.revision <> OLD.revision AND NEW.status <> OLD.status AND (NEW.task IS NULL OR NEW.actor IS NOT NEW.worker)
  AND (NEW.status = 'succeeded' OR NEW.status = 'failed' OR NEW.status = 'cancelled'
    OR NEW.transition = 'recovered' OR NEW.transition = 'released')
BEGIN
    INSERT INTO {p}minutes (minute, queue, task, what, bucket, n)
    VALUES (NEW.updated_at / 60000000, NEW.queue, coalesce(NEW.task, ''), NEW.transition, 0, 1)
    ON CONFLICT (minute, queue, task, what, bucket) DO UPDATE SET n = n + 1;
END;

CREATE TRIGGER {p}minutes_of_messages AFTER UPDATE OF status ON {p}jobs
WHEN NEW.task IS NULL AND NEW.status = 'succeeded' AND OLD.status = 'running' AND NEW.revision <> OLD.revision
BEGIN
    INSERT INTO {p}minutes (minute, queue, task, what, bucket, n)
    VALUES (NEW.updated_at / 60000000, NEW.queue, '', 'wait',
            (SELECT bucket FROM {p}buckets WHERE least <= max(0, NEW.claimed_at - NEW.run_at) ORDER BY least DESC LIMIT 1), 1)
    ON CONFLICT (minute, queue, task, what, bucket) DO UPDATE SET n = n + 1;
    INSERT INTO {p}minutes (minute, queue, task, what, bucket, n)
    VALUES (NEW.updated_at / 60000000, NEW.queue, '', 'run',
            (SELECT bucket FROM {p}buckets WHERE least <= max(0, NEW.updated_at - NEW.claimed_at) ORDER BY least DESC LIMIT 1),
            1)
    ON CONFLICT (minute, queue, task, what, bucket) DO UPDATE SET n = n + 1;
    INSERT INTO {p}minutes (minute, queue, task, what, bucket, n)
    VALUES (NEW.updated_at / 60000000, NEW.queue, '', 'attempts', NEW.attempt, 1)
    ON CONFLICT (minute, queue, task, what, bucket) DO UPDATE SET n = n + 1;
END;

-- With the queue and the task, so that what is blocked or runs is counted in the index alone; and since when it runs.
DROP INDEX {p}jobs_running;
CREATE INDEX {p}jobs_running ON {p}jobs (coalesce(lease, 0), worker, claimed_at, queue, task) WHERE status = 'running';
DROP INDEX {p}jobs_blocked;
CREATE INDEX {p}jobs_blocked ON {p}jobs (timeout_at, queue, task) WHERE status = 'blocked';

-- The same from the beginning on, for meters that only count up: minutes are pruned, these are not. One row for each
-- way to end and each pair of bounds that it waited and ran for; an error code has a row of its own, error:CODE.
CREATE TABLE {p}tallies (
    queue       TEXT    NOT NULL,
    task        TEXT    NOT NULL,                   -- '': messages
    what        TEXT    NOT NULL,
    waited_upto INTEGER NOT NULL,                   -- of the bounds; 0: not measured
    ran_upto    INTEGER NOT NULL,
    n           INTEGER NOT NULL,
    waited      INTEGER NOT NULL,                   -- microseconds, in all
    ran         INTEGER NOT NULL,
    PRIMARY KEY (queue, task, what, waited_upto, ran_upto)
) WITHOUT ROWID;

-- Microseconds, as `tally.py` has them. The last one is above all.
CREATE TABLE {p}bounds (
    upto INTEGER PRIMARY KEY
);
INSERT INTO {p}bounds (upto) VALUES (5000), (10000), (25000), (50000), (100000), (250000), (500000), (1000000), (2500000),
    (5000000), (10000000), (30000000), (60000000), (300000000), (3600000000), (4611686018427387904);

CREATE TRIGGER {p}tallies_of_others AFTER UPDATE OF status ON {p}jobs
WHEN OLD.status = 'running' AND NEW.status <> 'running' AND NEW.revision <> OLD.revision
  AND (NEW.task IS NULL OR NEW.actor IS NOT NEW.worker)
  AND (NEW.status = 'succeeded' OR NEW.status = 'failed' OR NEW.status = 'cancelled'
    OR NEW.transition = 'recovered' OR NEW.transition = 'released')
BEGIN
    INSERT INTO {p}tallies (queue, task, what, waited_upto, ran_upto, n, waited, ran)
    SELECT NEW.queue, coalesce(NEW.task, ''), NEW.transition,
           (SELECT min(upto) FROM {p}bounds WHERE upto >= times.waited),
           (SELECT min(upto) FROM {p}bounds WHERE upto >= times.ran), 1, times.waited, times.ran
    FROM (SELECT min(max(0, NEW.claimed_at - NEW.run_at), 4611686018427387904) AS waited,
                 min(max(0, NEW.updated_at - NEW.claimed_at), 4611686018427387904) AS ran) AS times
    WHERE NEW.task IS NULL AND NEW.status = 'succeeded' AND NEW.claimed_at IS NOT NULL
    ON CONFLICT (queue, task, what, waited_upto, ran_upto) DO UPDATE
        SET n = n + 1, waited = waited + excluded.waited, ran = ran + excluded.ran;
    INSERT INTO {p}tallies (queue, task, what, waited_upto, ran_upto, n, waited, ran)
    SELECT NEW.queue, coalesce(NEW.task, ''), NEW.transition, 0, 0, 1, 0, 0
    WHERE NOT (NEW.task IS NULL AND NEW.status = 'succeeded' AND NEW.claimed_at IS NOT NULL)
    ON CONFLICT (queue, task, what, waited_upto, ran_upto) DO UPDATE SET n = n + 1;
END;

CREATE TRIGGER {p}tallies_of_failures AFTER UPDATE OF status ON {p}jobs
WHEN NEW.revision <> OLD.revision AND NEW.error_code IS NOT NULL
  AND (NEW.transition = 'failed' OR NEW.transition = 'retry_scheduled' OR NEW.transition = 'recovered')
BEGIN
    INSERT INTO {p}tallies (queue, task, what, waited_upto, ran_upto, n, waited, ran)
    VALUES (NEW.queue, coalesce(NEW.task, ''), 'error:' || NEW.error_code, 0, 0, 1, 0, 0)
    ON CONFLICT (queue, task, what, waited_upto, ran_upto) DO UPDATE SET n = n + 1;
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
