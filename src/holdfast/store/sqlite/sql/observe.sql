-- How it is doing. Each reads an index, or a table that stays small; none walks over the jobs.

-- name: add_to_minutes
-- rows of minute, queue, task, what, bucket and how many
INSERT INTO {p}minutes (minute, queue, task, what, bucket, n)
SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]'), json_extract(value, '$[2]'), json_extract(value, '$[3]'),
       json_extract(value, '$[4]'), json_extract(value, '$[5]')
FROM json_each(?) WHERE true
ON CONFLICT (minute, queue, task, what, bucket) DO UPDATE SET n = n + excluded.n

-- name: live_counts
-- jobs that have not ended, by state, queue and task, with the least id of each
SELECT 'ready', queue, coalesce(task, ''), count(*), min(id) FROM {p}jobs WHERE status = 'ready' GROUP BY queue, task
UNION ALL
SELECT 'scheduled', queue, coalesce(task, ''), count(*), min(id) FROM {p}jobs WHERE status = 'scheduled' GROUP BY queue, task
UNION ALL
SELECT 'blocked', queue, coalesce(task, ''), count(*), min(id) FROM {p}jobs WHERE status = 'blocked' GROUP BY queue, task
UNION ALL
SELECT 'running', queue, coalesce(task, ''), count(*), min(id) FROM {p}jobs WHERE status = 'running' GROUP BY queue, task

-- name: ended_counts
SELECT status, queue, task, n FROM {p}totals WHERE n > 0

-- name: longest_running
-- Of the index alone: since when, its worker, and the job.
SELECT id, claimed_at, worker FROM {p}jobs WHERE status = 'running' ORDER BY claimed_at LIMIT :limit

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
WHERE last_seen >= :since ORDER BY n DESC, last_seen DESC LIMIT :limit

-- name: running_by_worker
SELECT worker, count(*) FROM {p}jobs WHERE status = 'running' AND worker IS NOT NULL GROUP BY worker

-- name: created_at
SELECT created_at FROM {p}jobs WHERE id = ?

-- name: events_after
-- the log, from a place in it
SELECT id, job_id, at, event, attempt, actor, detail FROM {p}events WHERE id > :after ORDER BY id LIMIT :limit

-- name: events_of_job_after
SELECT id, job_id, at, event, attempt, actor, detail FROM {p}events
WHERE job_id = :job AND id > :after ORDER BY id LIMIT :limit

-- name: last_events
-- the end of the log, backwards
SELECT id, job_id, at, event, attempt, actor, detail FROM {p}events ORDER BY id DESC LIMIT :limit

-- name: last_events_of_job
SELECT id, job_id, at, event, attempt, actor, detail FROM {p}events WHERE job_id = :job ORDER BY id DESC LIMIT :limit

-- name: last_event
SELECT coalesce(max(id), 0) FROM {p}events
