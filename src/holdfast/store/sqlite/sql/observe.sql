-- How it is doing. Each reads an index, or a table that stays small; none walks over the jobs.

-- name: add_to_minutes
INSERT INTO {p}minutes (minute, queue, task, what, bucket, n) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (minute, queue, task, what, bucket) DO UPDATE SET n = n + excluded.n

-- name: counts
-- how many there are of each status, queue and task: what is ready is what is left. One statement, so one moment.
WITH placed (status, queue, task, n) AS MATERIALIZED (
    SELECT status, queue, task, n FROM {p}totals WHERE :queue IS NULL OR queue = :queue
    UNION ALL
    SELECT 'running', queue, coalesce(task, ''), count(*) FROM {p}jobs
    WHERE status = 'running' AND (:queue IS NULL OR queue = :queue) GROUP BY queue, task
)
SELECT 'ready', queue, task, sum(CASE WHEN status = '' THEN n ELSE -n END) AS rest FROM placed
GROUP BY queue, task HAVING rest > 0
UNION ALL
SELECT status, queue, task, n FROM placed WHERE status <> '' AND n > 0

-- name: longest_ready
-- Of each queue and task, which of its ready jobs has waited longest, and since when: among the first in line of each
-- priority. One that was retried or delayed may come before others that have waited for longer. Each priority is a
-- range of the index by itself; where there are very many, the highest and the lowest are looked at.
WITH RECURSIVE places (queue, task) AS MATERIALIZED (
    SELECT queue, nullif(task, '') FROM {p}totals WHERE status = '' AND n > 0 AND (:queue IS NULL OR queue = :queue)
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

-- name: longest_due
-- What is due, and nobody has made it ready yet.
SELECT id, queue, task, run_at FROM {p}jobs WHERE status = 'scheduled' AND run_at <= :now ORDER BY run_at LIMIT :limit

-- name: longest_blocked
-- of each queue and task, the one that was enqueued first
SELECT first.id, first.queue, first.task, first.created_at FROM {p}totals AS place
CROSS JOIN {p}jobs AS first ON first.id = (
    SELECT min(id) FROM {p}jobs WHERE status = 'blocked' AND queue = place.queue AND task IS nullif(place.task, ''))
WHERE place.status = 'blocked' AND place.n > 0 ORDER BY first.id LIMIT :limit

-- name: longest_running
-- of the index alone
SELECT id FROM {p}jobs WHERE status = 'running' ORDER BY claimed_at LIMIT :limit

-- name: minutes
-- what happened since a minute, by minutes of a step, as sums
SELECT minute / :step * :step, queue, task, CASE WHEN what = 'acked' THEN 'succeeded' ELSE what END, sum(n) FROM {p}minutes
WHERE minute >= :since AND what NOT IN ('wait', 'run', 'attempts') AND (what < 'error:' OR what >= 'error;')
GROUP BY 1, 2, 3, 4 ORDER BY 1, 2, 3, 4

-- name: rollup
-- all of it since a minute, by queue and task
SELECT queue, task, what, bucket, sum(n) FROM {p}minutes
WHERE minute >= :since AND (:task IS NULL OR task = :task) AND (:queue IS NULL OR queue = :queue)
  AND (what < 'error:' OR what >= 'error;')
GROUP BY 1, 2, 3, 4

-- name: top_failures
-- from the beginning on
SELECT error_code, queue, task, fingerprint, first_seen, last_seen, last_job_id, n FROM {p}failures
WHERE (:task IS NULL OR task = :task) AND (:queue IS NULL OR queue = :queue)
ORDER BY n DESC, last_seen DESC LIMIT :limit

-- name: top_failures_since
-- as many as there were since a minute; first seen whenever that was
SELECT error_code, queue, task, fingerprint, first_seen, last_seen, last_job_id, sum(n) AS often FROM (
    SELECT error_code, queue, task, fingerprint, first_seen, last_seen, last_job_id, lately.n
    FROM (SELECT queue AS at, task AS whose, what, sum(n) AS n FROM {p}minutes
          WHERE minute >= :since AND what >= 'error:' AND what < 'error;'
            AND (:task IS NULL OR task = :task) AND (:queue IS NULL OR queue = :queue) GROUP BY 1, 2, 3) AS lately
    CROSS JOIN {p}failures ON queue = at AND task = whose AND fingerprint = substr(what, instr(what, ' ') + 1)
        AND error_code = substr(what, 7, instr(what, ' ') - 7)
)
GROUP BY 1, 2, 3, 4 ORDER BY often DESC, last_seen DESC LIMIT :limit

-- name: running_by_worker
SELECT worker, count(*) FROM {p}jobs WHERE status = 'running' AND worker IS NOT NULL GROUP BY worker

-- name: events_after
-- the log, from a place in it
SELECT id, job_id, at, event, attempt, actor, detail FROM {p}events WHERE id > :after ORDER BY id LIMIT :limit

-- name: events_of_job_after
SELECT id, job_id, at, event, attempt, actor, detail FROM {p}events
WHERE job_id = :job AND id > :after ORDER BY id LIMIT :limit

-- name: last_events
-- the end of the log, or what comes before a place in it, backwards
SELECT id, job_id, at, event, attempt, actor, detail FROM {p}events WHERE id < :before ORDER BY id DESC LIMIT :limit

-- name: last_events_of_job
SELECT id, job_id, at, event, attempt, actor, detail FROM {p}events
WHERE job_id = :job AND id < :before ORDER BY id DESC LIMIT :limit

-- name: last_event
SELECT coalesce(max(id), 0) FROM {p}events
