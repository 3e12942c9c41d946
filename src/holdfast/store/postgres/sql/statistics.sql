-- Sums over the event log. The tables contain the events up to the cursor; a reader adds the events after it.

-- name: fold_position
-- the last folded event, when it was folded, the last event, how many are not folded (up to a bound), and the place
-- before which no event will appear any more
SELECT cursor, folded_at, (SELECT coalesce(max(id), 0) FROM {p}events),
       (SELECT count(*) FROM (SELECT 1 FROM {p}events WHERE id > fold.cursor LIMIT 1000001) AS tail), {p}horizon()
FROM {p}fold AS fold

-- name: last_event_to_fold
-- the last of the next :limit events, and how many they are
SELECT coalesce(max(id), :after), count(*) FROM (
    SELECT id FROM {p}events WHERE id > :after AND id < {p}horizon() ORDER BY id LIMIT :limit) AS next

-- name: event_groups
-- All events, grouped, with the waiting and running times of finished attempts. The casts are for rows that were
-- changed by plain SQL: they must not make folding fail.
SELECT minute, queue, task, event, old_status,
       new_status, attempt, n, waited, ran
FROM (SELECT at / 60000000 AS minute, queue, coalesce(task, '') AS task, event, old_status, new_status,
             coalesce(attempt, 0) AS attempt, count(*) AS n, string_agg(waited::text, ',') AS waited,
             string_agg(ran::text, ',') AS ran
      FROM {p}events WHERE id > :after AND id <= :upto AND queue IS NOT NULL GROUP BY 1, 2, 3, 4, 5, 6, 7) AS groups

-- name: event_failures
SELECT at / 60000000, queue, coalesce(task, ''), error_code,
       fingerprint, coalesce(job_id, 0), at
FROM {p}events
WHERE id > :after AND id <= :upto AND error_code IS NOT NULL AND queue IS NOT NULL ORDER BY id

-- name: move_fold
-- optimistic lock: changes nothing if another process has moved the cursor, or is about to
UPDATE {p}fold SET cursor = :upto, folded_at = :now
WHERE id = (SELECT id FROM {p}fold WHERE cursor = :after FOR UPDATE SKIP LOCKED)

-- name: wait_for_fold
-- changes nothing, after another process that folds has committed
UPDATE {p}fold SET rolled = rolled

-- name: add_counts
INSERT INTO {p}counts AS known (queue, task, status, n) VALUES (?, ?, ?, ?)
ON CONFLICT (queue, task, status) DO UPDATE SET n = known.n + excluded.n

-- name: delete_empty_counts
DELETE FROM {p}counts WHERE n = 0

-- name: add_minutes
INSERT INTO {p}minutes AS known (minute, queue, task, measure, bucket, n) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (minute, queue, task, measure, bucket) DO UPDATE SET n = known.n + excluded.n

-- name: rolled
SELECT rolled FROM {p}fold

-- name: last_minute_to_roll
-- the minute from which on minutes are not in the rollups, and the last minute of the next :limit rows, if there is one
SELECT rolled, (SELECT max(minute) FROM (
    SELECT minute FROM {p}minutes WHERE minute >= fold.rolled AND minute < :before ORDER BY minute LIMIT :limit) AS next)
FROM {p}fold AS fold

-- name: move_rolled
-- optimistic lock: changes nothing if another process has moved it
UPDATE {p}fold SET rolled = :upto + 1 WHERE rolled = :after

-- name: roll_minutes
INSERT INTO {p}rollups AS known (minutes, last, queue, task, measure, bucket, n)
SELECT CAST(:length AS bigint), minute / CAST(:length AS bigint) * CAST(:length AS bigint) + CAST(:length AS bigint) - 1, queue, task, measure, bucket, CAST(sum(n) AS bigint)
FROM {p}minutes WHERE minute >= :after AND minute <= :upto GROUP BY 2, 3, 4, 5, 6
ON CONFLICT (minutes, last, queue, task, measure, bucket) DO UPDATE SET n = known.n + excluded.n

-- name: roll_hours
-- of all queues and tasks
INSERT INTO {p}rollups AS known (minutes, last, queue, task, measure, bucket, n)
SELECT -60, minute / 60 * 60 + 59, '', '', measure, bucket, CAST(sum(n) AS bigint)
FROM {p}minutes WHERE minute >= :after AND minute <= :upto GROUP BY 2, 5, 6
ON CONFLICT (minutes, last, queue, task, measure, bucket) DO UPDATE SET n = known.n + excluded.n

-- name: add_rollups
INSERT INTO {p}rollups AS known (minutes, last, queue, task, measure, bucket, n) VALUES (?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (minutes, last, queue, task, measure, bucket) DO UPDATE SET n = known.n + excluded.n

-- name: add_totals
INSERT INTO {p}totals AS known (queue, task, measure, bucket, n, sum) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (queue, task, measure, bucket) DO UPDATE
    SET n = known.n + excluded.n, sum = least(known.sum + excluded.sum, 4611686018427387904)

-- name: add_failures
INSERT INTO {p}failures AS known (error_code, queue, task, fingerprint, first_seen, last_seen, last_job_id, n)
VALUES (?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (error_code, queue, task, fingerprint) DO UPDATE
    SET n = known.n + excluded.n, first_seen = least(known.first_seen, excluded.first_seen),
        last_seen = greatest(known.last_seen, excluded.last_seen), last_job_id = excluded.last_job_id

-- name: add_failure_minutes
INSERT INTO {p}failure_minutes AS known (minute, error_code, queue, task, fingerprint, n) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (minute, error_code, queue, task, fingerprint) DO UPDATE SET n = known.n + excluded.n

-- name: add_error_totals
INSERT INTO {p}error_totals AS known (error_code, queue, task, n) VALUES (?, ?, ?, ?)
ON CONFLICT (error_code, queue, task) DO UPDATE SET n = known.n + excluded.n

-- name: event_zones
-- per zone of :ids ids: first and last creation time, whether a job succeeded, whether one was cancelled
SELECT job_id / CAST(:ids AS bigint), min(CASE WHEN event = 'enqueued' THEN at END),
       max(CASE WHEN event = 'enqueued' THEN at END),
       max(CASE WHEN new_status = 'succeeded' THEN 1 ELSE 0 END), max(CASE WHEN new_status = 'cancelled' THEN 1 ELSE 0 END)
FROM {p}events
WHERE id > :after AND id <= :upto AND job_id IS NOT NULL
  AND (event = 'enqueued' OR new_status = 'succeeded' OR new_status = 'cancelled')
GROUP BY 1

-- name: add_zones
INSERT INTO {p}zones AS known (zone, first_at, last_at, succeeded, cancelled) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (zone) DO UPDATE
    SET first_at = least(known.first_at, excluded.first_at),
        last_at = greatest(known.last_at, excluded.last_at),
        succeeded = greatest(known.succeeded, excluded.succeeded), cancelled = greatest(known.cancelled, excluded.cancelled)

-- name: delete_empty_zones
-- zones before the first job: all of their jobs are deleted
DELETE FROM {p}zones WHERE zone < (SELECT min(id) / CAST(:ids AS bigint) FROM {p}jobs)

-- name: removed_jobs
-- deleted jobs with leftover events, all of them folded
SELECT job_id FROM {p}events
WHERE event = 'removed' AND job_id IS NOT NULL AND id <= (SELECT cursor FROM {p}fold) ORDER BY id LIMIT :limit

-- name: delete_events_of_removed
DELETE FROM {p}events
WHERE job_id IN (SELECT value FROM {p}each_id(:jobs)) AND id <= (SELECT cursor FROM {p}fold)

-- --- reading ---

-- name: folded_counts
-- The casts here and below are for rows that plain SQL has changed.
SELECT queue, task, status, n FROM {p}counts
WHERE CAST(:queue AS text) IS NULL OR queue = :queue

-- name: folded_counts_of_tasks
SELECT queue, task, status, n FROM {p}counts
WHERE (CAST(:queue AS text) IS NULL OR queue = :queue) AND task IN (SELECT value FROM {p}each_text(:tasks))

-- name: folded_total
SELECT CAST(coalesce(sum(n), 0) AS bigint) FROM {p}counts

-- name: unlogged_counts
-- jobs without history write no events: count them one by one, up to a limit
SELECT queue, coalesce(task, ''), status, count(*) FROM (
    SELECT queue, task, status FROM {p}jobs
    WHERE history = 0 ORDER BY queue, coalesce(task, '') LIMIT :most) AS bounded
GROUP BY 1, 2, 3

-- name: unlogged_counts_of_queue
SELECT queue, coalesce(task, ''), status, count(*) FROM (
    SELECT queue, task, status FROM {p}jobs
    WHERE history = 0 AND queue = :queue ORDER BY coalesce(task, '') LIMIT :most) AS bounded
GROUP BY 1, 2, 3

-- name: unlogged_pairs
-- pairs of queue and task with jobs without history, from a queue on: one index lookup each
WITH RECURSIVE queues (queue) AS (
    SELECT min(queue) FROM {p}jobs WHERE history = 0 AND queue >= :queue
    UNION ALL
    SELECT (SELECT min(queue) FROM {p}jobs WHERE history = 0 AND queue > queues.queue)
    FROM queues WHERE queue IS NOT NULL
), tasks (queue, task) AS (
    SELECT queue, (SELECT min(coalesce(task, '')) FROM {p}jobs
                   WHERE history = 0 AND queue = queues.queue AND coalesce(task, '') > '')
    FROM queues WHERE queue IS NOT NULL
    UNION ALL
    SELECT queue, (SELECT min(coalesce(task, '')) FROM {p}jobs
                   WHERE history = 0 AND queue = tasks.queue AND coalesce(task, '') > tasks.task)
    FROM tasks WHERE task IS NOT NULL
)
SELECT queue, '' FROM queues WHERE queue IS NOT NULL AND EXISTS (SELECT 1 FROM {p}jobs
                                           WHERE history = 0 AND queue = queues.queue AND coalesce(task, '') = '')
UNION ALL SELECT queue, task FROM tasks WHERE task IS NOT NULL

-- name: folded_zones
SELECT zone, first_at, last_at, succeeded, cancelled FROM {p}zones

-- name: folded_minutes
-- timed: 1 for waiting and running times alone, 0 for all but these
SELECT minute / CAST(:step AS bigint) * CAST(:step AS bigint), CASE WHEN CAST(:merged AS integer) = 1 THEN '' ELSE queue END,
       CASE WHEN CAST(:merged AS integer) = 1 THEN '' ELSE task END, measure,
       bucket, CAST(sum(n) AS bigint)
FROM {p}minutes
WHERE minute >= :since AND (CAST(:task AS text) IS NULL OR task = :task) AND (CAST(:queue AS text) IS NULL OR queue = :queue)
  AND (CAST(:timed AS integer) IS NULL OR (measure IN ('wait', 'run')) = (CAST(:timed AS integer) = 1))
GROUP BY 1, 2, 3, 4, 5

-- name: folded_rollups
-- The same, with days, quarters of days and hours instead of the minutes that they contain. The last of each has the
-- minutes before `rolled`.
SELECT minute / CAST(:step AS bigint) * CAST(:step AS bigint), queue, task, measure, bucket, CAST(sum(n) AS bigint)
FROM (SELECT minute, queue, task, measure, bucket, n FROM {p}minutes WHERE minute >= :since AND minute < :first_hour
      UNION ALL SELECT last, queue, task, measure, bucket, n FROM {p}rollups
      WHERE minutes = 60 AND last >= :first_hour AND last < :first_quarter
      UNION ALL SELECT last, queue, task, measure, bucket, n FROM {p}rollups
      WHERE minutes = 360 AND last >= :first_quarter AND last < :first_day
      UNION ALL SELECT last, queue, task, measure, bucket, n FROM {p}rollups WHERE minutes = 1440 AND last >= :first_day
      UNION ALL SELECT minute, queue, task, measure, bucket, n FROM {p}minutes WHERE minute >= :rolled) AS parts
WHERE (CAST(:task AS text) IS NULL OR task = :task) AND (CAST(:queue AS text) IS NULL OR queue = :queue)
  AND (CAST(:timed AS integer) IS NULL OR (measure IN ('wait', 'run')) = (CAST(:timed AS integer) = 1))
GROUP BY 1, 2, 3, 4, 5

-- name: folded_hours
-- the same of all queues and tasks together, from hours of all of them
SELECT minute / CAST(:step AS bigint) * CAST(:step AS bigint), queue, task, measure, bucket, CAST(sum(n) AS bigint)
FROM (SELECT minute, '' AS queue, '' AS task, measure, bucket, n FROM {p}minutes
      WHERE minute >= :since AND minute < :first_hour
      UNION ALL SELECT last, '', '', measure, bucket, n FROM {p}rollups WHERE minutes = -60 AND last >= :first_hour
      UNION ALL SELECT minute, '', '', measure, bucket, n FROM {p}minutes WHERE minute >= :rolled) AS parts
WHERE (CAST(:timed AS integer) IS NULL OR (measure IN ('wait', 'run')) = (CAST(:timed AS integer) = 1))
GROUP BY 1, 2, 3, 4, 5

-- name: folded_totals
SELECT queue, task, measure, bucket, n,
       sum
FROM {p}totals

-- name: folded_error_totals
SELECT error_code, queue, task, n FROM {p}error_totals

-- name: folded_failures
SELECT error_code, queue, task, fingerprint, first_seen, last_seen, last_job_id, n FROM {p}failures
WHERE (CAST(:task AS text) IS NULL OR task = :task) AND (CAST(:queue AS text) IS NULL OR queue = :queue)
ORDER BY n DESC, last_seen DESC LIMIT :limit

-- name: folded_failures_since
-- counts since a minute; first_seen may be earlier
SELECT failure.error_code, failure.queue, failure.task, failure.fingerprint, first_seen, last_seen, last_job_id, recent.n
FROM (SELECT error_code, queue, task, fingerprint, CAST(sum(n) AS bigint) AS n FROM {p}failure_minutes
      WHERE minute >= :since AND (CAST(:task AS text) IS NULL OR task = :task) AND (CAST(:queue AS text) IS NULL OR queue = :queue)
      GROUP BY 1, 2, 3, 4) AS recent
JOIN {p}failures AS failure ON failure.error_code = recent.error_code AND failure.queue = recent.queue
    AND failure.task = recent.task AND failure.fingerprint = recent.fingerprint
ORDER BY recent.n DESC, last_seen DESC LIMIT :limit

-- name: failures_by_key
-- for rows of error_code, queue, task and fingerprint
SELECT error_code, queue, task, fingerprint, first_seen, last_seen, last_job_id, n FROM {p}failures
WHERE (error_code, queue, task, fingerprint) IN (
    SELECT (value ->> 0), (value ->> 1), (value ->> 2), (value ->> 3)
    FROM {p}each_row(:keys))

-- name: failure_minutes_by_key
SELECT error_code, queue, task, fingerprint, CAST(sum(n) AS bigint) FROM {p}failure_minutes
WHERE minute >= :since AND (error_code, queue, task, fingerprint) IN (
    SELECT (value ->> 0), (value ->> 1), (value ->> 2), (value ->> 3)
    FROM {p}each_row(:keys))
GROUP BY 1, 2, 3, 4

-- name: failure_steps_by_key
SELECT minute / CAST(:step AS bigint) * CAST(:step AS bigint), error_code, queue, task, fingerprint,
       CAST(sum(n) AS bigint)
FROM {p}failure_minutes
WHERE minute >= :since AND (error_code, queue, task, fingerprint) IN (
    SELECT (value ->> 0), (value ->> 1), (value ->> 2), (value ->> 3) FROM {p}each_row(:keys))
GROUP BY 1, 2, 3, 4, 5

-- name: ever_enqueued
-- the highest id ever assigned
SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM {p}jobs_id_seq WHERE CAST(? AS text) IS NOT NULL

-- name: recounted
-- the actual number of jobs with history
SELECT queue, coalesce(task, ''), status, count(*) FROM {p}jobs WHERE history = 1 GROUP BY 1, 2, 3
