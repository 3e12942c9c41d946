-- Settling: out of `running`. Every statement is fenced: it changes nothing unless this attempt still holds the job.
-- If a queue is given, the job must be a message of that queue. IS NOT DISTINCT FROM: see claim.sql.

-- name: succeed
-- running -> succeeded
UPDATE {p}jobs SET status = 'succeeded', finished_at = ?1, lease = NULL, result = ?2,
    started_at = coalesce(CAST(?6 AS bigint), started_at), progress = coalesce(?7, progress), progress_text = coalesce(?8, progress_text),
    error_code = NULL, error_detail = NULL, fingerprint = NULL,
    transition = 'succeeded', actor = worker, reason = NULL, updated_at = ?1, revision = revision + 1
WHERE id = ?3 AND status IS NOT DISTINCT FROM 'running' AND attempt = ?4 AND (CAST(?5 AS text) IS NULL OR (queue = ?5 AND task IS NULL))
  AND (history = 1 OR awaited = 1 OR chain_id IS NOT NULL OR batch_id IS NOT NULL)

-- name: succeed_many
-- running -> succeeded, for rows of id, attempt, result, started_at, finished_at. The rows are locked in the order of
-- ids, so that two statements never wait for each other, and then checked.
WITH done AS MATERIALIZED (
    SELECT CAST(value ->> 0 AS bigint) AS id, CAST(value ->> 1 AS bigint) AS attempt, value ->> 2 AS result,
           CAST(value ->> 3 AS bigint) AS started_at, CAST(value ->> 4 AS bigint) AS finished_at
    FROM {p}each_row(?) ORDER BY 1
), held AS MATERIALIZED (
    SELECT done.*, job.status = 'running' AND job.attempt = done.attempt
           AND (history = 1 OR awaited = 1 OR chain_id IS NOT NULL OR batch_id IS NOT NULL) AS fits
    FROM done CROSS JOIN LATERAL (
        SELECT status, attempt, history, awaited, chain_id, batch_id FROM {p}jobs WHERE id = done.id FOR UPDATE
    ) AS job
)
UPDATE {p}jobs AS job SET status = 'succeeded', started_at = held.started_at, finished_at = held.finished_at,
    lease = NULL, result = held.result, error_code = NULL, error_detail = NULL, fingerprint = NULL,
    transition = 'succeeded', actor = worker, reason = NULL, updated_at = held.finished_at, revision = revision + 1
FROM held WHERE job.id = held.id AND held.fits

-- name: continue_many
-- running -> succeeded, with a continuation: rows as for succeed_many, without results, and with progress
UPDATE {p}jobs AS job SET status = 'succeeded', continued = 1, started_at = done.started_at, finished_at = done.finished_at,
    lease = NULL, result = NULL, error_code = NULL, error_detail = NULL, fingerprint = NULL,
    progress = coalesce(done.progress, job.progress),
    progress_text = coalesce(done.progress_text, job.progress_text),
    transition = 'succeeded', actor = worker, reason = NULL, updated_at = done.finished_at, revision = revision + 1
FROM (
    SELECT CAST(value ->> 0 AS bigint) AS id, CAST(value ->> 1 AS bigint) AS attempt,
           CAST(value ->> 3 AS bigint) AS started_at, CAST(value ->> 4 AS bigint) AS finished_at,
           CAST(value ->> 5 AS double precision) AS progress, (value ->> 6) AS progress_text
    FROM {p}each_row(?1)
) AS done
WHERE job.id = done.id AND status IS NOT DISTINCT FROM 'running' AND job.attempt = done.attempt
RETURNING job.id, coalesce(chain_id, job.id), chain_index + 1, batch_id, worker, convert_to(trace, 'UTF8')

-- name: unsettled
-- which of these rows of id and attempt were not settled by succeed_many
SELECT CAST(value ->> 0 AS bigint) FROM {p}each_row(?1) AS done
WHERE NOT EXISTS (SELECT 1 FROM {p}jobs WHERE id = CAST(done.value ->> 0 AS bigint)
                  AND attempt = CAST(done.value ->> 1 AS bigint)
                    AND status IS NOT DISTINCT FROM 'succeeded' AND transition = 'succeeded')

-- name: succeed_without_history
-- running -> deleted, for a job that keeps no history and that no job waits for
DELETE FROM {p}jobs
WHERE id = ?1 AND status IS NOT DISTINCT FROM 'running' AND attempt = ?2 AND (CAST(?3 AS text) IS NULL OR (queue = ?3 AND task IS NULL))
  AND NOT (history = 1 OR awaited = 1 OR chain_id IS NOT NULL OR batch_id IS NOT NULL)

-- name: retry
-- running -> scheduled (or ready, if there is no delay), while attempts are left
UPDATE {p}jobs SET status = CASE WHEN CAST(:run_at AS bigint) > CAST(:clock AS bigint) THEN 'scheduled' ELSE 'ready' END, run_at = :run_at,
    worker = NULL, lease = NULL,
    error_code = :error_code, error_detail = :error_detail, fingerprint = :fingerprint,
    started_at = coalesce(:started_at, started_at), unfit_since = NULL,
    progress = coalesce(:progress, progress), progress_text = coalesce(:progress_text, progress_text),
    transition = 'retry_scheduled', actor = worker, reason = NULL, updated_at = :now, revision = revision + 1
WHERE id = :id AND status IS NOT DISTINCT FROM 'running' AND attempt = :attempt
  AND (CAST(:queue AS text) IS NULL OR (queue = :queue AND task IS NULL)) AND attempt < max_attempts

-- name: fail
-- running -> failed
UPDATE {p}jobs SET status = 'failed', finished_at = :now, lease = NULL,
    error_code = :error_code, error_detail = :error_detail, fingerprint = :fingerprint,
    started_at = coalesce(:started_at, started_at),
    progress = coalesce(:progress, progress), progress_text = coalesce(:progress_text, progress_text),
    transition = 'failed', actor = worker, reason = NULL, updated_at = :now, revision = revision + 1
WHERE id = :id AND status IS NOT DISTINCT FROM 'running' AND attempt = :attempt
  AND (CAST(:queue AS text) IS NULL OR (queue = :queue AND task IS NULL))

-- name: remember_traceback
INSERT INTO {p}tracebacks (fingerprint, error_code, traceback, first_seen, last_seen)
VALUES (:fingerprint, :error_code, coalesce(:traceback, ''), :now, :now)
ON CONFLICT (fingerprint) DO UPDATE SET last_seen = excluded.last_seen

-- name: snooze
-- running -> scheduled (or ready, if there is no delay); the attempt does not count
UPDATE {p}jobs SET status = CASE WHEN CAST(:run_at AS bigint) > CAST(:clock AS bigint) THEN 'scheduled' ELSE 'ready' END, run_at = :run_at,
    worker = NULL, lease = NULL, max_attempts = max_attempts + 1, uncounted = uncounted + 1,
    started_at = coalesce(:started_at, started_at), unfit_since = NULL,
    progress = coalesce(:progress, progress), progress_text = coalesce(:progress_text, progress_text),
    transition = 'snoozed', actor = worker, reason = NULL, updated_at = :now, revision = revision + 1
WHERE id = :id AND status IS NOT DISTINCT FROM 'running' AND attempt = :attempt
  AND (CAST(:queue AS text) IS NULL OR (queue = :queue AND task IS NULL))

-- name: interrupt
-- running -> ready, when the worker stops; the attempt does not count
UPDATE {p}jobs SET status = 'ready', run_at = greatest(run_at, :now), worker = NULL, lease = NULL,
    max_attempts = max_attempts + 1, uncounted = uncounted + 1, started_at = coalesce(:started_at, started_at), unfit_since = NULL,
    progress = coalesce(:progress, progress), progress_text = coalesce(:progress_text, progress_text),
    transition = 'interrupted', actor = worker, reason = NULL, updated_at = :now, revision = revision + 1
WHERE id = :id AND status IS NOT DISTINCT FROM 'running' AND attempt = :attempt

-- name: give_back
-- running -> ready, for a job that was claimed and not started; the attempt does not count
UPDATE {p}jobs SET status = 'ready', worker = NULL, lease = NULL,
    max_attempts = max_attempts + 1, uncounted = uncounted + 1,
    transition = 'returned', actor = worker, reason = NULL, updated_at = :now, revision = revision + 1
WHERE id = :id AND status IS NOT DISTINCT FROM 'running' AND attempt = :attempt

-- name: return_unfit
-- running -> ready (or scheduled, if there is a delay), when the payload does not fit the worker's code, for as long as
-- it is kept for newer code; the attempt does not count
UPDATE {p}jobs SET status = CASE WHEN CAST(:run_at AS bigint) > CAST(:clock AS bigint) THEN 'scheduled' ELSE 'ready' END,
    run_at = CASE WHEN CAST(:run_at AS bigint) > CAST(:clock AS bigint) THEN :run_at ELSE run_at END, worker = NULL, lease = NULL,
    max_attempts = max_attempts + 1, uncounted = uncounted + 1, unfit_since = coalesce(unfit_since, :clock),
    transition = 'returned', actor = worker, reason = :error_detail, updated_at = :now, revision = revision + 1
WHERE id = :id AND status IS NOT DISTINCT FROM 'running' AND attempt = :attempt
  AND coalesce(unfit_since, :clock) > :clock - :keep

-- name: release
-- running -> ready (or scheduled, if there is a delay), while attempts are left
UPDATE {p}jobs SET status = CASE WHEN CAST(:run_at AS bigint) > CAST(:clock AS bigint) THEN 'scheduled' ELSE 'ready' END, run_at = :run_at,
    worker = NULL, lease = NULL,
    started_at = coalesce(:started_at, started_at),
    progress = coalesce(:progress, progress), progress_text = coalesce(:progress_text, progress_text),
    transition = 'released', actor = worker, reason = NULL, updated_at = :now, revision = revision + 1
WHERE id = :id AND status IS NOT DISTINCT FROM 'running' AND attempt = :attempt
  AND (CAST(:queue AS text) IS NULL OR (queue = :queue AND task IS NULL)) AND attempt < max_attempts

-- name: stop
-- running -> cancelled, by the attempt itself
UPDATE {p}jobs SET status = 'cancelled', finished_at = :now, lease = NULL,
    error_code = NULL, error_detail = :reason, fingerprint = NULL,
    started_at = coalesce(:started_at, started_at),
    progress = coalesce(:progress, progress), progress_text = coalesce(:progress_text, progress_text),
    transition = 'cancelled', actor = worker, reason = NULL, updated_at = :now, revision = revision + 1
WHERE id = :id AND status IS NOT DISTINCT FROM 'running' AND attempt = :attempt
  AND (CAST(:queue AS text) IS NULL OR (queue = :queue AND task IS NULL))

-- name: renew
-- running -> running, with a new lease, for rows of id, attempt, queue, started_at, progress, progress_text
UPDATE {p}jobs AS job SET started_at = coalesce(job.started_at, renewal.started_at), lease = ?2, heartbeat_at = ?3,
    progress = coalesce(renewal.progress, job.progress),
    progress_text = coalesce(renewal.progress_text, job.progress_text)
FROM (
    SELECT CAST(value ->> 0 AS bigint) AS id, CAST(value ->> 1 AS bigint) AS attempt,
           (value ->> 2) AS queue, CAST(value ->> 3 AS bigint) AS started_at,
           CAST(value ->> 4 AS double precision) AS progress, (value ->> 5) AS progress_text
    FROM {p}each_row(?1)
) AS renewal
WHERE job.id = renewal.id AND status IS NOT DISTINCT FROM 'running' AND job.attempt = renewal.attempt
  AND (renewal.queue IS NULL OR (job.queue = renewal.queue AND task IS NULL))
RETURNING job.id

-- name: save_state
-- running -> running, with the state that the attempt saves for the next one
UPDATE {p}jobs SET state = ?1 WHERE id = ?2 AND status IS NOT DISTINCT FROM 'running' AND attempt = ?3

-- name: held
-- which of these rows of id, attempt and queue still hold their lease; in a transaction, until it ends
SELECT job.id FROM {p}each_row(?1) AS mine JOIN {p}jobs AS job ON job.id = CAST(mine.value ->> 0 AS bigint)
WHERE job.status IS NOT DISTINCT FROM 'running' AND job.attempt = CAST(mine.value ->> 1 AS bigint)
  AND ((mine.value ->> 2) IS NULL
       OR (job.queue = (mine.value ->> 2) AND job.task IS NULL))
ORDER BY job.id FOR UPDATE OF job
