-- Statistics. Each statement reads an index or a small table; none scans the jobs.

-- name: longest_ready
-- The longest waiting ready job of each queue and task, among the first jobs of each priority. A job that was retried
-- or delayed may be ahead of others that have waited longer. Each priority is a range of the index; if there are very
-- many, only the highest and the lowest are searched. The task of messages is ''.
WITH RECURSIVE places (queue, task) AS MATERIALIZED (
    SELECT (value ->> 0) COLLATE "C", (value ->> 1) COLLATE "C" FROM {p}each_row(:places)
), ends (queue, task, low, high) AS (
    SELECT queue, task,
        (SELECT min(priority) FROM {p}jobs
         WHERE status = 'ready' AND queue = places.queue AND coalesce(task, '') = places.task),
        (SELECT max(priority) FROM {p}jobs
         WHERE status = 'ready' AND queue = places.queue AND coalesce(task, '') = places.task)
    FROM places
    UNION ALL
    SELECT queue, task,
        (SELECT min(priority) FROM {p}jobs
         WHERE status = 'ready' AND queue = ends.queue AND coalesce(task, '') = ends.task AND priority > ends.low),
        (SELECT max(priority) FROM {p}jobs
         WHERE status = 'ready' AND queue = ends.queue AND coalesce(task, '') = ends.task AND priority < ends.high)
    FROM ends WHERE low < high
), ends_read AS MATERIALIZED (
    SELECT queue, task, low, high FROM ends LIMIT (SELECT count(*) FROM places) + CAST(:most AS bigint)
), levels (queue, task, priority) AS (
    SELECT queue, task, low FROM ends_read WHERE low IS NOT NULL
    UNION SELECT queue, task, high FROM ends_read WHERE high IS NOT NULL
)
SELECT id, queue, nullif(task, ''), since FROM (
    SELECT DISTINCT ON (levels.queue, levels.task) job.id, levels.queue, levels.task, job.since
    FROM levels CROSS JOIN LATERAL (
        SELECT id, greatest(created_at, run_at) AS since FROM {p}jobs
        WHERE status = 'ready' AND queue = levels.queue AND coalesce(task, '') = levels.task
          AND priority = levels.priority
        ORDER BY id LIMIT :each) AS job
    ORDER BY levels.queue, levels.task, job.since, job.id
) AS found
ORDER BY since LIMIT nullif(CAST(:limit AS bigint), -1)

-- name: longest_blocked
-- the job that was enqueued first, of each queue and task
SELECT first.id, first.queue, first.task, first.created_at FROM {p}each_row(:places) AS place CROSS JOIN LATERAL (
    SELECT id, queue, task, created_at FROM {p}jobs
    WHERE status = 'blocked' AND queue = (place.value ->> 0) AND coalesce(task, '') = (place.value ->> 1)
    ORDER BY id LIMIT 1
) AS first
ORDER BY first.id LIMIT nullif(CAST(:limit AS bigint), -1)

-- name: longest_running
-- among a limited number of running jobs
SELECT id, queue, task, coalesce(claimed_at, created_at) AS since FROM (
    SELECT id, queue, task, claimed_at, created_at FROM {p}jobs
    WHERE status = 'running' LIMIT :most) AS bounded
ORDER BY since, id LIMIT nullif(CAST(:limit AS bigint), -1)

-- name: longest_due
-- jobs that are due and not yet promoted
SELECT id, queue, task, run_at FROM {p}jobs WHERE status = 'scheduled' AND run_at <= :now ORDER BY run_at
LIMIT nullif(CAST(:limit AS bigint), -1)

-- name: events_after
-- the log after a cursor, up to the place before which no event will appear any more
SELECT {columns} FROM {p}events WHERE id > :after AND id < {p}horizon() ORDER BY id LIMIT :limit

-- name: events_of_job_after
SELECT {columns} FROM {p}events
WHERE job_id = :job AND id > :after AND id < {p}horizon() ORDER BY id LIMIT :limit

-- name: last_events
-- the end of the log, or the events before one, newest first
SELECT {columns} FROM {p}events WHERE id < :before ORDER BY id DESC LIMIT :limit

-- name: last_events_of_job
SELECT {columns} FROM {p}events
WHERE job_id = :job AND id < :before ORDER BY id DESC LIMIT :limit
