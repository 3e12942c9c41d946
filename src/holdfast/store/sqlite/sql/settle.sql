-- Settling: out of `running`. Every statement is fenced: it changes nothing unless this attempt still holds the job.
-- If a queue is given, the job must be a message of that queue.

-- name: succeed
-- running -> succeeded
UPDATE {p}jobs SET status = 'succeeded', finished_at = ?1, lease = NULL, result = ?2,
    started_at = coalesce(?6, started_at), progress = coalesce(?7, progress), progress_text = coalesce(?8, progress_text),
    error_code = NULL, error_detail = NULL, fingerprint = NULL,
    transition = 'succeeded', actor = NULL, reason = NULL, updated_at = ?1, revision = revision + 1
WHERE id = ?3 AND status = 'running' AND attempt = ?4 AND (?5 IS NULL OR (queue = ?5 AND task IS NULL))
  AND (history OR awaited OR chain_id IS NOT NULL OR batch_id IS NOT NULL)

-- name: succeed_many
-- running -> succeeded, for rows of id, attempt, result, started_at, finished_at. The caller repeats the VALUES row.
-- The + keeps SQLite from using the index of running jobs, which would scan all of them.
UPDATE {p}jobs SET status = 'succeeded', started_at = done.column4, finished_at = done.column5, lease = NULL,
    result = done.column3, error_code = NULL, error_detail = NULL, fingerprint = NULL,
    transition = 'succeeded', actor = NULL, reason = NULL, updated_at = done.column5, revision = revision + 1
FROM (VALUES (?, ?, ?, ?, ?)) AS done
WHERE {p}jobs.id = done.column1 AND +status = 'running' AND {p}jobs.attempt = done.column2
  AND (history OR awaited OR chain_id IS NOT NULL OR batch_id IS NOT NULL)

-- name: continue_many
-- running -> succeeded, with a continuation: rows as for succeed_many, without results, and with progress
UPDATE {p}jobs SET status = 'succeeded', continued = 1, started_at = done.started_at, finished_at = done.finished_at,
    lease = NULL, result = NULL, error_code = NULL, error_detail = NULL, fingerprint = NULL,
    progress = coalesce(done.progress, {p}jobs.progress),
    progress_text = coalesce(done.progress_text, {p}jobs.progress_text),
    transition = 'succeeded', actor = NULL, reason = NULL, updated_at = done.finished_at, revision = revision + 1
FROM (
    SELECT json_extract(value, '$[0]') AS id, json_extract(value, '$[1]') AS attempt,
           json_extract(value, '$[3]') AS started_at, json_extract(value, '$[4]') AS finished_at,
           json_extract(value, '$[5]') AS progress, json_extract(value, '$[6]') AS progress_text
    FROM json_each(?1)
) AS done
WHERE {p}jobs.id = done.id AND +status = 'running' AND {p}jobs.attempt = done.attempt
RETURNING id, coalesce(chain_id, id), chain_index + 1, batch_id, worker, CAST(trace AS BLOB)

-- name: unsettled
-- which of these rows of id and attempt were not settled by succeed_many
SELECT json_extract(value, '$[0]') FROM json_each(?1) AS done
WHERE NOT EXISTS (SELECT 1 FROM {p}jobs WHERE id = json_extract(done.value, '$[0]')
                  AND attempt = json_extract(done.value, '$[1]') AND status = 'succeeded' AND transition = 'succeeded')

-- name: succeed_without_history
-- running -> deleted, for a job that keeps no history and that no job waits for
DELETE FROM {p}jobs
WHERE id = ?1 AND status = 'running' AND attempt = ?2 AND (?3 IS NULL OR (queue = ?3 AND task IS NULL))
  AND NOT (history OR awaited OR chain_id IS NOT NULL OR batch_id IS NOT NULL)

-- name: retry
-- running -> scheduled (or ready, if there is no delay), while attempts are left
UPDATE {p}jobs SET status = CASE WHEN :run_at > :clock THEN 'scheduled' ELSE 'ready' END, run_at = :run_at,
    worker = NULL, lease = NULL,
    error_code = :error_code, error_detail = :error_detail, fingerprint = :fingerprint,
    started_at = coalesce(:started_at, started_at), unfit_since = NULL,
    progress = coalesce(:progress, progress), progress_text = coalesce(:progress_text, progress_text),
    transition = 'retry_scheduled', actor = worker, reason = NULL, updated_at = :now, revision = revision + 1
WHERE id = :id AND status = 'running' AND attempt = :attempt
  AND (:queue IS NULL OR (queue = :queue AND task IS NULL)) AND attempt < max_attempts

-- name: fail
-- running -> failed
UPDATE {p}jobs SET status = 'failed', finished_at = :now, lease = NULL,
    error_code = :error_code, error_detail = :error_detail, fingerprint = :fingerprint,
    started_at = coalesce(:started_at, started_at),
    progress = coalesce(:progress, progress), progress_text = coalesce(:progress_text, progress_text),
    transition = 'failed', actor = worker, reason = NULL, updated_at = :now, revision = revision + 1
WHERE id = :id AND status = 'running' AND attempt = :attempt
  AND (:queue IS NULL OR (queue = :queue AND task IS NULL))

-- name: remember_traceback
INSERT INTO {p}tracebacks (fingerprint, error_code, traceback, first_seen, last_seen)
VALUES (:fingerprint, :error_code, coalesce(:traceback, ''), :now, :now)
ON CONFLICT (fingerprint) DO UPDATE SET last_seen = :now

-- name: snooze
-- running -> scheduled (or ready, if there is no delay); the attempt does not count
UPDATE {p}jobs SET status = CASE WHEN :run_at > :clock THEN 'scheduled' ELSE 'ready' END, run_at = :run_at,
    worker = NULL, lease = NULL, max_attempts = max_attempts + 1, uncounted = uncounted + 1,
    started_at = coalesce(:started_at, started_at), unfit_since = NULL,
    progress = coalesce(:progress, progress), progress_text = coalesce(:progress_text, progress_text),
    transition = 'snoozed', actor = worker, reason = NULL, updated_at = :now, revision = revision + 1
WHERE id = :id AND status = 'running' AND attempt = :attempt
  AND (:queue IS NULL OR (queue = :queue AND task IS NULL))

-- name: interrupt
-- running -> ready, when the worker stops; the attempt does not count
UPDATE {p}jobs SET status = 'ready', run_at = max(run_at, :now), worker = NULL, lease = NULL,
    max_attempts = max_attempts + 1, uncounted = uncounted + 1, started_at = coalesce(:started_at, started_at), unfit_since = NULL,
    progress = coalesce(:progress, progress), progress_text = coalesce(:progress_text, progress_text),
    transition = 'interrupted', actor = worker, reason = NULL, updated_at = :now, revision = revision + 1
WHERE id = :id AND status = 'running' AND attempt = :attempt

-- name: give_back
-- running -> ready, for a job that was claimed and not started; the attempt does not count
UPDATE {p}jobs SET status = 'ready', worker = NULL, lease = NULL,
    max_attempts = max_attempts + 1, uncounted = uncounted + 1,
    transition = 'returned', actor = worker, reason = NULL, updated_at = :now, revision = revision + 1
WHERE id = :id AND status = 'running' AND attempt = :attempt

-- name: return_unfit
-- running -> ready (or scheduled, if there is a delay), when the payload does not fit the worker's code, for as long as
-- it is kept for newer code; the attempt does not count
UPDATE {p}jobs SET status = CASE WHEN :run_at > :clock THEN 'scheduled' ELSE 'ready' END,
    run_at = CASE WHEN :run_at > :clock THEN :run_at ELSE run_at END, worker = NULL, lease = NULL,
    max_attempts = max_attempts + 1, uncounted = uncounted + 1, unfit_since = coalesce(unfit_since, :clock),
    transition = 'returned', actor = worker, reason = :error_detail, updated_at = :now, revision = revision + 1
WHERE id = :id AND status = 'running' AND attempt = :attempt
  AND coalesce(unfit_since, :clock) > :clock - :keep

-- name: release
-- running -> ready (or scheduled, if there is a delay), while attempts are left
UPDATE {p}jobs SET status = CASE WHEN :run_at > :clock THEN 'scheduled' ELSE 'ready' END, run_at = :run_at,
    worker = NULL, lease = NULL,
    started_at = coalesce(:started_at, started_at),
    progress = coalesce(:progress, progress), progress_text = coalesce(:progress_text, progress_text),
    transition = 'released', actor = worker, reason = NULL, updated_at = :now, revision = revision + 1
WHERE id = :id AND status = 'running' AND attempt = :attempt
  AND (:queue IS NULL OR (queue = :queue AND task IS NULL)) AND attempt < max_attempts

-- name: stop
-- running -> cancelled, by the attempt itself
UPDATE {p}jobs SET status = 'cancelled', finished_at = :now, lease = NULL,
    error_code = NULL, error_detail = :reason, fingerprint = NULL,
    started_at = coalesce(:started_at, started_at),
    progress = coalesce(:progress, progress), progress_text = coalesce(:progress_text, progress_text),
    transition = 'cancelled', actor = worker, reason = NULL, updated_at = :now, revision = revision + 1
WHERE id = :id AND status = 'running' AND attempt = :attempt
  AND (:queue IS NULL OR (queue = :queue AND task IS NULL))

-- name: renew
-- running -> running, with a new lease, for rows of id, attempt, queue, started_at, progress, progress_text
UPDATE {p}jobs SET started_at = coalesce({p}jobs.started_at, renewal.started_at), lease = ?2, heartbeat_at = ?3,
    progress = coalesce(renewal.progress, {p}jobs.progress),
    progress_text = coalesce(renewal.progress_text, {p}jobs.progress_text)
FROM (
    SELECT json_extract(value, '$[0]') AS id, json_extract(value, '$[1]') AS attempt,
           json_extract(value, '$[2]') AS queue, json_extract(value, '$[3]') AS started_at,
           json_extract(value, '$[4]') AS progress, json_extract(value, '$[5]') AS progress_text
    FROM json_each(?1)
) AS renewal
WHERE {p}jobs.id = renewal.id AND +status = 'running' AND {p}jobs.attempt = renewal.attempt
  AND (renewal.queue IS NULL OR ({p}jobs.queue = renewal.queue AND task IS NULL))
RETURNING id

-- name: save_state
-- running -> running, with the state that the attempt saves for the next one
UPDATE {p}jobs SET state = ?1 WHERE id = ?2 AND status = 'running' AND attempt = ?3

-- name: held
-- which of these rows of id, attempt and queue still hold their lease
SELECT job.id FROM json_each(?1) AS mine CROSS JOIN {p}jobs AS job ON job.id = json_extract(mine.value, '$[0]')
WHERE job.status = 'running' AND job.attempt = json_extract(mine.value, '$[1]')
  AND (json_extract(mine.value, '$[2]') IS NULL
       OR (job.queue = json_extract(mine.value, '$[2]') AND job.task IS NULL))
