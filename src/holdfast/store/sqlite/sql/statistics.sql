-- Sums over the event log. The tables contain the events up to the cursor; a reader adds the events after it.

-- name: fold_position
-- the last folded event, when it was folded, the last event, how many are not folded, and the place before which no
-- event will appear any more
SELECT CAST(cursor AS INTEGER), CAST(folded_at AS INTEGER), last, last - CAST(cursor AS INTEGER), last + 1
FROM {p}fold, (SELECT coalesce(max(id), 0) AS last FROM {p}events)

-- name: last_event_to_fold
-- the last event of the next step, and how many there are, if none of :limit consecutive ids is missing
SELECT coalesce(upto, :after), coalesce(upto - first + 1, 0)
FROM (SELECT first, min(first + :limit - 1, (SELECT max(id) FROM {p}events)) AS upto
      FROM (SELECT min(id) AS first FROM {p}events WHERE id > :after))

-- name: event_groups
-- All events, grouped, with the waiting and running times of finished attempts. The casts are for rows that were
-- changed by plain SQL: they must not make folding fail.
SELECT CAST(minute AS INTEGER), CAST(queue AS TEXT), CAST(task AS TEXT), CAST(event AS TEXT), CAST(old_status AS TEXT),
       CAST(new_status AS TEXT), CAST(attempt AS INTEGER), n, waited, ran
FROM (SELECT at / 60000000 AS minute, queue, coalesce(task, '') AS task, event, old_status, new_status,
             coalesce(attempt, 0) AS attempt, count(*) AS n, group_concat(CAST(waited AS INTEGER)) AS waited,
             group_concat(CAST(ran AS INTEGER)) AS ran
      FROM {p}events WHERE id > :after AND id <= :upto AND queue IS NOT NULL GROUP BY 1, 2, 3, 4, 5, 6, 7)

-- name: event_failures
SELECT CAST(at / 60000000 AS INTEGER), CAST(queue AS TEXT), CAST(coalesce(task, '') AS TEXT), CAST(error_code AS TEXT),
       CAST(fingerprint AS TEXT), CAST(coalesce(job_id, 0) AS INTEGER), CAST(at AS INTEGER)
FROM {p}events
WHERE id > :after AND id <= :upto AND error_code IS NOT NULL AND queue IS NOT NULL ORDER BY id

-- name: move_fold
-- optimistic lock: changes nothing if another process has moved the cursor
UPDATE {p}fold SET cursor = :upto, folded_at = :now WHERE cursor = :after

-- name: wait_for_fold
-- changes nothing, after another process that folds has committed
UPDATE {p}fold SET rolled = rolled

-- name: add_counts
INSERT INTO {p}counts (queue, task, status, n) VALUES (?, ?, ?, ?)
ON CONFLICT (queue, task, status) DO UPDATE SET n = n + excluded.n

-- name: delete_empty_counts
DELETE FROM {p}counts WHERE n = 0

-- name: add_minutes
INSERT INTO {p}minutes (minute, queue, task, measure, bucket, n) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (minute, queue, task, measure, bucket) DO UPDATE SET n = n + excluded.n

-- name: rolled
SELECT CAST(rolled AS INTEGER) FROM {p}fold

-- name: last_minute_to_roll
-- the minute from which on minutes are not in the rollups, and the last minute of the next :limit rows, if there is one
SELECT rolled, (SELECT max(minute) FROM (
    SELECT minute FROM {p}minutes WHERE minute >= fold.rolled AND minute < :before ORDER BY minute LIMIT :limit))
FROM {p}fold AS fold

-- name: move_rolled
-- optimistic lock: changes nothing if another process has moved it
UPDATE {p}fold SET rolled = :upto + 1 WHERE rolled = :after

-- name: roll_minutes
INSERT INTO {p}rollups (minutes, last, queue, task, measure, bucket, n)
SELECT :length, minute / :length * :length + :length - 1, queue, task, measure, bucket, sum(n)
FROM {p}minutes WHERE minute >= :after AND minute <= :upto GROUP BY 2, 3, 4, 5, 6
ON CONFLICT (minutes, last, queue, task, measure, bucket) DO UPDATE SET n = n + excluded.n

-- name: roll_hours
-- of all queues and tasks
INSERT INTO {p}rollups (minutes, last, queue, task, measure, bucket, n)
SELECT -60, minute / 60 * 60 + 59, '', '', measure, bucket, sum(n)
FROM {p}minutes WHERE minute >= :after AND minute <= :upto GROUP BY 2, 5, 6
ON CONFLICT (minutes, last, queue, task, measure, bucket) DO UPDATE SET n = n + excluded.n

-- name: add_rollups
INSERT INTO {p}rollups (minutes, last, queue, task, measure, bucket, n) VALUES (?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (minutes, last, queue, task, measure, bucket) DO UPDATE SET n = n + excluded.n

-- name: add_totals
INSERT INTO {p}totals (queue, task, measure, bucket, n, sum) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (queue, task, measure, bucket) DO UPDATE
    SET n = n + excluded.n, sum = min(sum + excluded.sum, 4611686018427387904)

-- name: add_failures
INSERT INTO {p}failures (error_code, queue, task, fingerprint, first_seen, last_seen, last_job_id, n)
VALUES (?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (error_code, queue, task, fingerprint) DO UPDATE
    SET n = n + excluded.n, first_seen = min(first_seen, excluded.first_seen),
        last_seen = max(last_seen, excluded.last_seen), last_job_id = excluded.last_job_id

-- name: add_failure_minutes
INSERT INTO {p}failure_minutes (minute, error_code, queue, task, fingerprint, n) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (minute, error_code, queue, task, fingerprint) DO UPDATE SET n = n + excluded.n

-- name: add_error_totals
INSERT INTO {p}error_totals (error_code, queue, task, n) VALUES (?, ?, ?, ?)
ON CONFLICT (error_code, queue, task) DO UPDATE SET n = n + excluded.n

-- name: event_zones
-- per zone of :ids ids: first and last creation time, whether a job succeeded, whether one was cancelled
SELECT CAST(job_id AS INTEGER) / :ids, min(CASE WHEN event = 'enqueued' THEN CAST(at AS INTEGER) END),
       max(CASE WHEN event = 'enqueued' THEN CAST(at AS INTEGER) END),
       max(coalesce(new_status = 'succeeded', 0)), max(coalesce(new_status = 'cancelled', 0))
FROM {p}events
WHERE id > :after AND id <= :upto AND job_id IS NOT NULL
  AND (event = 'enqueued' OR new_status = 'succeeded' OR new_status = 'cancelled')
GROUP BY 1

-- name: add_zones
INSERT INTO {p}zones (zone, first_at, last_at, succeeded, cancelled) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (zone) DO UPDATE
    SET first_at = min(coalesce(first_at, excluded.first_at), coalesce(excluded.first_at, first_at)),
        last_at = max(coalesce(last_at, excluded.last_at), coalesce(excluded.last_at, last_at)),
        succeeded = max(succeeded, excluded.succeeded), cancelled = max(cancelled, excluded.cancelled)

-- name: delete_empty_zones
-- zones before the first job: all of their jobs are deleted
DELETE FROM {p}zones WHERE zone < (SELECT min(id) / :ids FROM {p}jobs)

-- name: removed_jobs
-- deleted jobs with leftover events, all of them folded; except the job with the newest event of the log, because the
-- trigger events_keep_newest would insert another one
SELECT job_id FROM {p}events
WHERE event = 'removed' AND job_id IS NOT NULL AND id <= (SELECT cursor FROM {p}fold)
  AND id < (SELECT max(id) FROM {p}events) ORDER BY id LIMIT :limit

-- name: delete_events_of_removed
-- the folded events of these jobs
DELETE FROM {p}events WHERE id IN (
    SELECT event.id FROM json_each(:jobs) AS job CROSS JOIN {p}event_blocks AS block ON block.jobs = job.value / 8
    CROSS JOIN {p}events AS event
      ON event.id >= block.events * 8 AND event.id < block.events * 8 + 8 AND event.job_id = job.value
    WHERE +event.id <= (SELECT cursor FROM {p}fold))

-- --- reading ---

-- name: folded_counts
-- The casts here and below are for rows that plain SQL has changed.
SELECT CAST(queue AS TEXT), CAST(task AS TEXT), CAST(status AS TEXT), CAST(n AS INTEGER) FROM {p}counts
WHERE :queue IS NULL OR queue = :queue

-- name: folded_counts_of_tasks
SELECT CAST(queue AS TEXT), CAST(task AS TEXT), CAST(status AS TEXT), CAST(n AS INTEGER) FROM {p}counts
WHERE (:queue IS NULL OR queue = :queue) AND task IN (SELECT value FROM json_each(:tasks))

-- name: folded_total
SELECT coalesce(sum(CAST(n AS INTEGER)), 0) FROM {p}counts

-- name: unlogged_counts
-- jobs without history write no events: count them one by one, up to a limit
SELECT queue, coalesce(task, ''), status, count(*) FROM (
    SELECT queue, task, status FROM {p}jobs INDEXED BY {p}jobs_unlogged
    WHERE history = 0 ORDER BY queue, task LIMIT :most)
GROUP BY 1, 2, 3

-- name: unlogged_counts_of_queue
SELECT queue, coalesce(task, ''), status, count(*) FROM (
    SELECT queue, task, status FROM {p}jobs INDEXED BY {p}jobs_unlogged
    WHERE history = 0 AND queue = :queue ORDER BY task LIMIT :most)
GROUP BY 1, 2, 3

-- name: unlogged_pairs
-- pairs of queue and task with jobs without history, from a queue on: one index lookup each
WITH RECURSIVE queues (queue) AS (
    SELECT min(queue) FROM {p}jobs INDEXED BY {p}jobs_unlogged WHERE history = 0 AND queue >= :queue
    UNION ALL
    SELECT (SELECT min(queue) FROM {p}jobs INDEXED BY {p}jobs_unlogged WHERE history = 0 AND queue > queues.queue)
    FROM queues WHERE queue IS NOT NULL
), tasks (queue, task) AS (
    SELECT queue, (SELECT min(task) FROM {p}jobs INDEXED BY {p}jobs_unlogged
                   WHERE history = 0 AND queue = queues.queue AND task > '')
    FROM queues WHERE queue IS NOT NULL
    UNION ALL
    SELECT queue, (SELECT min(task) FROM {p}jobs INDEXED BY {p}jobs_unlogged
                   WHERE history = 0 AND queue = tasks.queue AND task > tasks.task)
    FROM tasks WHERE task IS NOT NULL
)
SELECT queue, '' FROM queues WHERE EXISTS (SELECT 1 FROM {p}jobs INDEXED BY {p}jobs_unlogged
                                           WHERE history = 0 AND queue = queues.queue AND task IS NULL)
UNION ALL SELECT queue, task FROM tasks WHERE task IS NOT NULL

-- name: folded_zones
SELECT zone, CAST(first_at AS INTEGER), CAST(last_at AS INTEGER), succeeded, cancelled FROM {p}zones

-- name: folded_minutes
-- timed: 1 for waiting and running times alone, 0 for all but these
SELECT CAST(minute AS INTEGER) / :step * :step, iif(:merged, '', CAST(queue AS TEXT)),
       iif(:merged, '', CAST(task AS TEXT)), CAST(measure AS TEXT),
       CAST(bucket AS INTEGER), sum(CAST(n AS INTEGER))
FROM {p}minutes
WHERE minute >= :since AND (:task IS NULL OR task = :task) AND (:queue IS NULL OR queue = :queue)
  AND (:timed IS NULL OR (measure IN ('wait', 'run')) = :timed)
GROUP BY 1, 2, 3, 4, 5

-- name: folded_rollups
-- The same, with days, quarters of days and hours instead of the minutes that they contain. The last of each has the
-- minutes before `rolled`.
SELECT step, CAST(queue AS TEXT), CAST(task AS TEXT), CAST(measure AS TEXT), CAST(bucket AS INTEGER), n
FROM (SELECT minute / :step * :step AS step, queue, task, measure, bucket, sum(CAST(n AS INTEGER)) AS n
FROM (SELECT minute, queue, task, measure, bucket, n FROM {p}minutes WHERE minute >= :since AND minute < :first_hour
      UNION ALL SELECT last, queue, task, measure, bucket, n FROM {p}rollups
      WHERE minutes = 60 AND last >= :first_hour AND last < :first_quarter
      UNION ALL SELECT last, queue, task, measure, bucket, n FROM {p}rollups
      WHERE minutes = 360 AND last >= :first_quarter AND last < :first_day
      UNION ALL SELECT last, queue, task, measure, bucket, n FROM {p}rollups WHERE minutes = 1440 AND last >= :first_day
      UNION ALL SELECT minute, queue, task, measure, bucket, n FROM {p}minutes WHERE minute >= :rolled) AS parts
WHERE (:task IS NULL OR task = :task) AND (:queue IS NULL OR queue = :queue)
  AND (:timed IS NULL OR (measure IN ('wait', 'run')) = :timed)
GROUP BY 1, 2, 3, 4, 5)

-- name: folded_hours
-- the same of all queues and tasks together, from hours of all of them
SELECT CAST(minute AS INTEGER) / :step * :step, CAST(queue AS TEXT), CAST(task AS TEXT), CAST(measure AS TEXT),
       CAST(bucket AS INTEGER), sum(CAST(n AS INTEGER))
FROM (SELECT minute, '' AS queue, '' AS task, measure, bucket, n FROM {p}minutes
      WHERE minute >= :since AND minute < :first_hour
      UNION ALL SELECT last, '', '', measure, bucket, n FROM {p}rollups WHERE minutes = -60 AND last >= :first_hour
      UNION ALL SELECT minute, '', '', measure, bucket, n FROM {p}minutes WHERE minute >= :rolled) AS parts
WHERE (:timed IS NULL OR (measure IN ('wait', 'run')) = :timed)
GROUP BY 1, 2, 3, 4, 5

-- name: folded_totals
SELECT CAST(queue AS TEXT), CAST(task AS TEXT), CAST(measure AS TEXT), CAST(bucket AS INTEGER), CAST(n AS INTEGER),
       CAST(sum AS INTEGER)
FROM {p}totals

-- name: folded_error_totals
SELECT CAST(error_code AS TEXT), CAST(queue AS TEXT), CAST(task AS TEXT), CAST(n AS INTEGER) FROM {p}error_totals

-- name: folded_failures
SELECT CAST(error_code AS TEXT), CAST(queue AS TEXT), CAST(task AS TEXT), CAST(fingerprint AS TEXT),
       CAST(first_seen AS INTEGER), CAST(last_seen AS INTEGER), CAST(last_job_id AS INTEGER), CAST(n AS INTEGER)
FROM {p}failures
WHERE (:task IS NULL OR task = :task) AND (:queue IS NULL OR queue = :queue)
ORDER BY n DESC, last_seen DESC LIMIT :limit

-- name: folded_failures_since
-- counts since a minute; first_seen may be earlier
SELECT CAST(failure.error_code AS TEXT), CAST(failure.queue AS TEXT), CAST(failure.task AS TEXT),
       CAST(failure.fingerprint AS TEXT), CAST(first_seen AS INTEGER), CAST(last_seen AS INTEGER),
       CAST(last_job_id AS INTEGER), CAST(recent.n AS INTEGER)
FROM (SELECT error_code, queue, task, fingerprint, sum(n) AS n FROM {p}failure_minutes
      WHERE minute >= :since AND (:task IS NULL OR task = :task) AND (:queue IS NULL OR queue = :queue)
      GROUP BY 1, 2, 3, 4) AS recent
CROSS JOIN {p}failures AS failure ON failure.error_code = recent.error_code AND failure.queue = recent.queue
    AND failure.task = recent.task AND failure.fingerprint = recent.fingerprint
ORDER BY recent.n DESC, last_seen DESC LIMIT :limit

-- name: failures_by_key
-- for rows of error_code, queue, task and fingerprint
SELECT CAST(error_code AS TEXT), CAST(queue AS TEXT), CAST(task AS TEXT), CAST(fingerprint AS TEXT),
       CAST(first_seen AS INTEGER), CAST(last_seen AS INTEGER), CAST(last_job_id AS INTEGER), CAST(n AS INTEGER)
FROM {p}failures
WHERE (error_code, queue, task, fingerprint) IN (
    SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]'), json_extract(value, '$[2]'), json_extract(value, '$[3]')
    FROM json_each(:keys))

-- name: failure_minutes_by_key
SELECT CAST(error_code AS TEXT), CAST(queue AS TEXT), CAST(task AS TEXT), CAST(fingerprint AS TEXT), CAST(sum(n) AS INTEGER)
FROM {p}failure_minutes
WHERE minute >= :since AND (error_code, queue, task, fingerprint) IN (
    SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]'), json_extract(value, '$[2]'), json_extract(value, '$[3]')
    FROM json_each(:keys))
GROUP BY 1, 2, 3, 4

-- name: failure_steps_by_key
SELECT CAST(minute AS INTEGER) / :step * :step, CAST(error_code AS TEXT), CAST(queue AS TEXT), CAST(task AS TEXT), CAST(fingerprint AS TEXT),
       CAST(sum(n) AS INTEGER)
FROM {p}failure_minutes
WHERE minute >= :since AND (error_code, queue, task, fingerprint) IN (
    SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]'), json_extract(value, '$[2]'), json_extract(value, '$[3]')
    FROM json_each(:keys))
GROUP BY 1, 2, 3, 4, 5

-- name: ever_enqueued
-- the highest id ever assigned: AUTOINCREMENT never reuses one
SELECT seq FROM sqlite_sequence WHERE name = ?

-- name: recounted
-- the actual number of jobs with history
SELECT CAST(queue AS TEXT), CAST(coalesce(task, '') AS TEXT), CAST(status AS TEXT), count(*) FROM {p}jobs WHERE history = 1 GROUP BY 1, 2, 3
