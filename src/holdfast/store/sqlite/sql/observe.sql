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

-- name: first_ready
-- The least id that is ready, of each of these pairs of queue and task (null: messages). Each priority is a range of
-- the index by itself; the lowest come first, as those starve, and so many are looked at in all.
WITH RECURSIVE levels (place, queue, task, priority) AS (
    SELECT key, json_extract(value, '$[0]'), json_extract(value, '$[1]'), (
        SELECT min(priority) FROM {p}jobs
        WHERE status = 'ready' AND queue = json_extract(pair.value, '$[0]') AND task IS json_extract(pair.value, '$[1]'))
    FROM json_each(:pairs) AS pair
    UNION ALL
    SELECT place, queue, task, (
        SELECT min(priority) FROM {p}jobs
        WHERE status = 'ready' AND queue = levels.queue AND task IS levels.task AND priority > levels.priority)
    FROM levels WHERE priority IS NOT NULL
    LIMIT :most
)
SELECT queue, task, min((SELECT min(id) FROM {p}jobs
    WHERE status = 'ready' AND queue = levels.queue AND task IS levels.task AND priority = levels.priority))
FROM levels WHERE priority IS NOT NULL GROUP BY place

-- name: first_blocked
SELECT queue, task, (SELECT min(id) FROM {p}jobs WHERE status = 'blocked' AND queue = pair.queue AND task IS pair.task)
FROM (SELECT json_extract(value, '$[0]') AS queue, json_extract(value, '$[1]') AS task FROM json_each(:pairs)) AS pair

-- name: longest_running
-- of the index alone
SELECT id FROM {p}jobs WHERE status = 'running' ORDER BY claimed_at LIMIT :limit

-- name: minutes
-- what happened since a minute, by minutes of a step, as sums
SELECT minute / :step * :step, queue, task, what, sum(n) FROM {p}minutes
WHERE minute >= :since AND what NOT IN ('wait', 'run', 'attempts') GROUP BY 1, 2, 3, 4 ORDER BY 1, 2, 3, 4

-- name: rollup
-- all of it since a minute, by queue and task
SELECT queue, task, what, bucket, sum(n) FROM {p}minutes
WHERE minute >= :since AND (:task IS NULL OR task = :task) AND (:queue IS NULL OR queue = :queue)
GROUP BY 1, 2, 3, 4

-- name: top_failures
SELECT error_code, queue, task, fingerprint, first_seen, last_seen, last_job_id, n FROM {p}failures
WHERE last_seen >= :since AND (:task IS NULL OR task = :task) AND (:queue IS NULL OR queue = :queue)
ORDER BY n DESC, last_seen DESC LIMIT :limit

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
