-- Statistics. Each statement reads an index or a small table; none scans the jobs.

-- name: longest_ready
-- The longest waiting ready job of each queue and task, among the first jobs of each priority. A job that was retried
-- or delayed may be ahead of others that have waited longer. Each priority is a range of the index; if there are very
-- many, only the highest and the lowest are searched.
WITH RECURSIVE places (queue, task) AS MATERIALIZED (
    SELECT json_extract(value, '$[0]'), nullif(json_extract(value, '$[1]'), '') FROM json_each(:places)
), ends (queue, task, low, high) AS (
    SELECT queue, task,
        (SELECT min(priority) FROM {p}jobs WHERE status = 'ready' AND queue = places.queue AND task IS places.task),
        (SELECT max(priority) FROM {p}jobs WHERE status = 'ready' AND queue = places.queue AND task IS places.task)
    FROM places
    UNION ALL
    SELECT queue, task,
        (SELECT min(priority) FROM {p}jobs
         WHERE status = 'ready' AND queue = ends.queue AND task IS ends.task AND priority > ends.low),
        (SELECT max(priority) FROM {p}jobs
         WHERE status = 'ready' AND queue = ends.queue AND task IS ends.task AND priority < ends.high)
    FROM ends WHERE low < high
    LIMIT (SELECT count(*) FROM places) + :most
), levels (queue, task, priority) AS (
    SELECT queue, task, low FROM ends WHERE low IS NOT NULL
    UNION SELECT queue, task, high FROM ends WHERE high IS NOT NULL
)
SELECT id, queue, task, min(since) FROM (
    SELECT job.id, job.queue, job.task, max(created_at, run_at) AS since
    FROM levels CROSS JOIN {p}jobs AS job ON job.id IN (
        SELECT id FROM {p}jobs
        WHERE status = 'ready' AND queue = levels.queue AND task IS levels.task AND priority = levels.priority
        ORDER BY id LIMIT :each)
)
GROUP BY queue, task ORDER BY 4 LIMIT :limit

-- name: longest_blocked
-- the job that was enqueued first, of each queue and task
SELECT first.id, first.queue, first.task, first.created_at FROM json_each(:places) AS place
CROSS JOIN {p}jobs AS first ON first.id = (
    SELECT min(id) FROM {p}jobs WHERE status = 'blocked' AND queue = json_extract(place.value, '$[0]')
      AND task IS nullif(json_extract(place.value, '$[1]'), ''))
ORDER BY first.id LIMIT :limit

-- name: longest_running
-- among a limited number of running jobs
SELECT id, queue, task, coalesce(claimed_at, created_at) AS since FROM (
    SELECT id, queue, task, claimed_at, created_at FROM {p}jobs INDEXED BY {p}jobs_running
    WHERE status = 'running' LIMIT :most)
ORDER BY since, id LIMIT :limit

-- name: longest_due
-- jobs that are due and not yet promoted
SELECT id, queue, task, run_at FROM {p}jobs WHERE status = 'scheduled' AND run_at <= :now ORDER BY run_at LIMIT :limit

-- name: events_after
-- the log after a cursor
SELECT {columns} FROM {p}events WHERE id > :after ORDER BY id LIMIT :limit

-- name: events_of_job_after
SELECT {columns} FROM {p}events
WHERE id IN (SELECT event_id FROM {p}events_by_job WHERE job_id = :job AND event_id > :after) ORDER BY id LIMIT :limit

-- name: last_events
-- the end of the log, or the events before one, newest first
SELECT {columns} FROM {p}events WHERE id < :before ORDER BY id DESC LIMIT :limit

-- name: last_events_of_job
SELECT {columns} FROM {p}events
WHERE id IN (SELECT event_id FROM {p}events_by_job WHERE job_id = :job AND event_id < :before) ORDER BY id DESC LIMIT :limit
