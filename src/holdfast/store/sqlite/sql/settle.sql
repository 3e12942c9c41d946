-- Every statement here is fenced: it changes nothing unless this attempt still holds the job. Where a queue is
-- given, it must be a message of that queue.

-- name: succeed
-- running -> succeeded
UPDATE {p}jobs SET status = 'succeeded', finished_at = ?1, lease = NULL, result = ?2,
    started_at = coalesce(?6, started_at), error_code = NULL, error_detail = NULL, fingerprint = NULL,
    transition = 'succeeded', actor = worker, updated_at = ?1, revision = revision + 1
WHERE id = ?3 AND status = 'running' AND attempt = ?4 AND (?5 IS NULL OR (queue = ?5 AND task IS NULL))
  AND (history OR awaited OR chain_id IS NOT NULL OR batch_id IS NOT NULL)

-- name: succeed_many
-- running -> succeeded, for many at once: rows of id, attempt, result, started_at, finished_at. The + keeps SQLite
-- from walking all that is running to find them.
UPDATE {p}jobs SET status = 'succeeded', started_at = done.started_at, finished_at = done.finished_at, lease = NULL,
    result = done.result, error_code = NULL, error_detail = NULL, fingerprint = NULL,
    transition = 'succeeded', actor = worker, updated_at = done.finished_at, revision = revision + 1
FROM (
    SELECT json_extract(value, '$[0]') AS id, json_extract(value, '$[1]') AS attempt,
           json_extract(value, '$[2]') AS result, json_extract(value, '$[3]') AS started_at,
           json_extract(value, '$[4]') AS finished_at
    FROM json_each(?1)
) AS done
WHERE {p}jobs.id = done.id AND +status = 'running' AND {p}jobs.attempt = done.attempt
  AND (history OR awaited OR chain_id IS NOT NULL OR batch_id IS NOT NULL)

-- name: continue_many
-- running -> succeeded, where the chain goes on: rows as for succeed_many, without results
UPDATE {p}jobs SET status = 'succeeded', continued = 1, started_at = done.started_at, finished_at = done.finished_at,
    lease = NULL, result = NULL, error_code = NULL, error_detail = NULL, fingerprint = NULL,
    transition = 'succeeded', actor = worker, updated_at = done.finished_at, revision = revision + 1
FROM (
    SELECT json_extract(value, '$[0]') AS id, json_extract(value, '$[1]') AS attempt,
           json_extract(value, '$[3]') AS started_at, json_extract(value, '$[4]') AS finished_at
    FROM json_each(?1)
) AS done
WHERE {p}jobs.id = done.id AND +status = 'running' AND {p}jobs.attempt = done.attempt
RETURNING id

-- name: insert_next
-- What a chain goes on with: rows of the id and attempt that led to it, then the new job. It is made once, however
-- often this is tried. A large payload is given by itself: SQLite would parse it several times.
INSERT INTO {p}jobs (chain_id, chain_index, batch_id, actor, queue, task, args, status, run_at, priority, max_attempts,
                     timeout, tags, on_blocker_failure, created_at, trace)
SELECT coalesce(before.chain_id, before.id), before.chain_index + 1, before.batch_id, before.worker,
       json_extract(new.value, '$[2]'), json_extract(new.value, '$[3]'), coalesce(?2, json_extract(new.value, '$[4]')),
       json_extract(new.value, '$[5]'), json_extract(new.value, '$[6]'), json_extract(new.value, '$[7]'),
       json_extract(new.value, '$[8]'), json_extract(new.value, '$[9]'), json_extract(new.value, '$[10]'),
       json_extract(new.value, '$[11]'), ?3, coalesce(json_extract(new.value, '$[12]'), before.trace)
FROM json_each(?1) AS new CROSS JOIN {p}jobs AS before ON before.id = json_extract(new.value, '$[0]')
WHERE before.status = 'succeeded' AND before.continued AND before.attempt = json_extract(new.value, '$[1]')
ORDER BY new.key
ON CONFLICT (chain_id, chain_index) WHERE chain_id IS NOT NULL DO NOTHING
RETURNING id

-- name: unsettled
-- which of these rows of id and attempt are running still, or were never this attempt's to settle
SELECT json_extract(value, '$[0]') FROM json_each(?1) AS done
WHERE NOT EXISTS (SELECT 1 FROM {p}jobs WHERE id = json_extract(done.value, '$[0]')
                  AND attempt = json_extract(done.value, '$[1]') AND status = 'succeeded' AND transition = 'succeeded')

-- name: forget
-- running -> gone, for a job that keeps no history and that nobody waits for
DELETE FROM {p}jobs
WHERE id = ?1 AND status = 'running' AND attempt = ?2 AND (?3 IS NULL OR (queue = ?3 AND task IS NULL))
  AND NOT (history OR awaited OR chain_id IS NOT NULL OR batch_id IS NOT NULL)

-- name: retry
-- running -> scheduled (or ready, without delay), while attempts are left
UPDATE {p}jobs SET status = CASE WHEN :run_at > :clock THEN 'scheduled' ELSE 'ready' END, run_at = :run_at,
    worker = NULL, lease = NULL,
    error_code = :error_code, error_detail = :error_detail, fingerprint = :fingerprint,
    started_at = coalesce(:started_at, started_at),
    transition = 'retry_scheduled', actor = worker, updated_at = :now, revision = revision + 1
WHERE id = :id AND status = 'running' AND attempt = :attempt
  AND (:queue IS NULL OR (queue = :queue AND task IS NULL)) AND attempt < max_attempts

-- name: fail
-- running -> failed
UPDATE {p}jobs SET status = 'failed', finished_at = :now, lease = NULL,
    error_code = :error_code, error_detail = :error_detail, fingerprint = :fingerprint,
    started_at = coalesce(:started_at, started_at),
    transition = 'failed', actor = worker, updated_at = :now, revision = revision + 1
WHERE id = :id AND status = 'running' AND attempt = :attempt
  AND (:queue IS NULL OR (queue = :queue AND task IS NULL))

-- name: remember_traceback
INSERT INTO {p}tracebacks (fingerprint, error_code, traceback, first_seen, last_seen)
VALUES (:fingerprint, :error_code, coalesce(:traceback, ''), :now, :now)
ON CONFLICT (fingerprint) DO UPDATE SET last_seen = :now, count = count + 1

-- name: snooze
-- running -> scheduled (or ready), and the attempt does not count
UPDATE {p}jobs SET status = CASE WHEN :run_at > :clock THEN 'scheduled' ELSE 'ready' END, run_at = :run_at,
    worker = NULL, lease = NULL, max_attempts = max_attempts + 1, uncounted = uncounted + 1,
    started_at = coalesce(:started_at, started_at),
    transition = 'snoozed', actor = worker, updated_at = :now, revision = revision + 1
WHERE id = :id AND status = 'running' AND attempt = :attempt
  AND (:queue IS NULL OR (queue = :queue AND task IS NULL))

-- name: interrupt
-- running -> ready, when its worker stops; the attempt does not count
UPDATE {p}jobs SET status = 'ready', run_at = max(run_at, :now), worker = NULL, lease = NULL,
    max_attempts = max_attempts + 1, uncounted = uncounted + 1, started_at = coalesce(:started_at, started_at),
    transition = 'interrupted', actor = worker, updated_at = :now, revision = revision + 1
WHERE id = :id AND status = 'running' AND attempt = :attempt

-- name: give_back
-- running -> ready, when it was taken and never begun; the attempt does not count
UPDATE {p}jobs SET status = 'ready', worker = NULL, lease = NULL,
    max_attempts = max_attempts + 1, uncounted = uncounted + 1,
    transition = 'returned', actor = worker, updated_at = :now, revision = revision + 1
WHERE id = :id AND status = 'running' AND attempt = :attempt

-- name: release
-- running -> ready (or scheduled, with a delay), while attempts are left
UPDATE {p}jobs SET status = CASE WHEN :run_at > :clock THEN 'scheduled' ELSE 'ready' END, run_at = :run_at,
    worker = NULL, lease = NULL,
    started_at = coalesce(:started_at, started_at),
    transition = 'released', actor = worker, updated_at = :now, revision = revision + 1
WHERE id = :id AND status = 'running' AND attempt = :attempt
  AND (:queue IS NULL OR (queue = :queue AND task IS NULL)) AND attempt < max_attempts

-- name: stop
-- running -> cancelled, by the attempt itself
UPDATE {p}jobs SET status = 'cancelled', finished_at = :now, lease = NULL,
    error_code = NULL, error_detail = :reason, fingerprint = NULL,
    started_at = coalesce(:started_at, started_at),
    transition = 'cancelled', actor = worker, updated_at = :now, revision = revision + 1
WHERE id = :id AND status = 'running' AND attempt = :attempt
  AND (:queue IS NULL OR (queue = :queue AND task IS NULL))

-- name: extend
-- running -> running, with a new lease
UPDATE {p}jobs SET lease = ?1, heartbeat_at = ?2
WHERE id = ?3 AND status = 'running' AND attempt = ?4 AND (?5 IS NULL OR (queue = ?5 AND task IS NULL))

-- name: report
-- running -> running: rows of id, attempt, started_at, progress, text; with a new lease
UPDATE {p}jobs SET started_at = coalesce({p}jobs.started_at, goes_on.started_at), lease = ?2, heartbeat_at = ?3,
    progress = coalesce(goes_on.progress, {p}jobs.progress),
    progress_text = coalesce(goes_on.progress_text, {p}jobs.progress_text)
FROM (
    SELECT json_extract(value, '$[0]') AS id, json_extract(value, '$[1]') AS attempt,
           json_extract(value, '$[2]') AS started_at, json_extract(value, '$[3]') AS progress,
           json_extract(value, '$[4]') AS progress_text
    FROM json_each(?1)
) AS goes_on
WHERE {p}jobs.id = goes_on.id AND +status = 'running' AND {p}jobs.attempt = goes_on.attempt
RETURNING id

-- name: report_starts
UPDATE {p}attempts SET started_at = goes_on.started_at
FROM (
    SELECT json_extract(value, '$[0]') AS id, json_extract(value, '$[1]') AS attempt,
           json_extract(value, '$[2]') AS started_at
    FROM json_each(?1)
) AS goes_on
WHERE job_id = goes_on.id AND {p}attempts.attempt = goes_on.attempt AND {p}attempts.started_at IS NULL

-- name: held
-- which of these rows of id and attempt are this attempt's still
SELECT job.id FROM json_each(?1) AS mine CROSS JOIN {p}jobs AS job ON job.id = json_extract(mine.value, '$[0]')
WHERE job.status = 'running' AND job.attempt = json_extract(mine.value, '$[1]')
