-- How it is doing. Each reads an index, or a table that stays small; none walks over the jobs.

-- name: longest_ready
-- Of each queue and task, which of its ready jobs has waited longest, and since when: among the first in line of each
-- priority. One that was retried or delayed may come before others that have waited for longer. Each priority is a
-- range of the index by itself; where there are very many, the highest and the lowest are looked at.
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
-- of each of these places, the job that was enqueued first
SELECT first.id, first.queue, first.task, first.created_at FROM json_each(:places) AS place
CROSS JOIN {p}jobs AS first ON first.id = (
    SELECT min(id) FROM {p}jobs WHERE status = 'blocked' AND queue = json_extract(place.value, '$[0]')
      AND task IS nullif(json_extract(place.value, '$[1]'), ''))
ORDER BY first.id LIMIT :limit

-- name: longest_running
-- of a bounded part of what runs
SELECT id, queue, task, coalesce(claimed_at, created_at) AS since FROM (
    SELECT id, queue, task, claimed_at, created_at FROM {p}jobs INDEXED BY {p}jobs_running
    WHERE status = 'running' LIMIT :most)
ORDER BY since, id LIMIT :limit

-- name: running
-- who runs what, a bounded part
SELECT worker, queue, task, count(*) FROM (
    SELECT worker, queue, task FROM {p}jobs INDEXED BY {p}jobs_running WHERE status = 'running' LIMIT :most)
WHERE worker IS NOT NULL GROUP BY 1, 2, 3

-- name: longest_due
-- What is due, and nobody has made it ready yet.
SELECT id, queue, task, run_at FROM {p}jobs WHERE status = 'scheduled' AND run_at <= :now ORDER BY run_at LIMIT :limit

-- name: events_after
-- the log, from a place in it
SELECT {columns} FROM {p}events WHERE id > :after ORDER BY id LIMIT :limit

-- name: events_of_job_after
SELECT {columns} FROM {p}events
WHERE job_id = :job AND id > :after ORDER BY id LIMIT :limit

-- name: last_events
-- the end of the log, or what comes before a place in it, backwards
SELECT {columns} FROM {p}events WHERE id < :before ORDER BY id DESC LIMIT :limit

-- name: last_events_of_job
SELECT {columns} FROM {p}events
WHERE job_id = :job AND id < :before ORDER BY id DESC LIMIT :limit


