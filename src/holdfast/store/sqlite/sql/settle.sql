-- Every statement here is fenced: it changes nothing unless this attempt still holds the job. Where a queue is
-- given, it must be a message of that queue.

-- name: succeed
-- running -> succeeded
UPDATE {p}jobs SET status = 'succeeded', finished_at = ?1, lease = NULL, result = ?2,
    error_code = NULL, error_detail = NULL, fingerprint = NULL,
    transition = 'succeeded', actor = worker, updated_at = ?1, revision = revision + 1
WHERE id = ?3 AND status = 'running' AND attempt = ?4 AND (?5 IS NULL OR (queue = ?5 AND task IS NULL)) AND history

-- name: forget
-- running -> gone, for a job that keeps no history
DELETE FROM {p}jobs
WHERE id = ?1 AND status = 'running' AND attempt = ?2 AND (?3 IS NULL OR (queue = ?3 AND task IS NULL)) AND NOT history

-- name: retry
-- running -> scheduled (or ready, without delay), while attempts are left
UPDATE {p}jobs SET status = CASE WHEN :run_at > :now THEN 'scheduled' ELSE 'ready' END, run_at = :run_at,
    worker = NULL, lease = NULL,
    error_code = :error_code, error_detail = :error_detail, fingerprint = :fingerprint,
    transition = 'retry_scheduled', actor = worker, updated_at = :now, revision = revision + 1
WHERE id = :id AND status = 'running' AND attempt = :attempt
  AND (:queue IS NULL OR (queue = :queue AND task IS NULL)) AND attempt < max_attempts

-- name: fail
-- running -> failed
UPDATE {p}jobs SET status = 'failed', finished_at = :now, lease = NULL,
    error_code = :error_code, error_detail = :error_detail, fingerprint = :fingerprint,
    transition = 'failed', actor = worker, updated_at = :now, revision = revision + 1
WHERE id = :id AND status = 'running' AND attempt = :attempt
  AND (:queue IS NULL OR (queue = :queue AND task IS NULL))

-- name: remember_traceback
INSERT INTO {p}tracebacks (fingerprint, error_code, traceback, first_seen, last_seen)
VALUES (:fingerprint, :error_code, coalesce(:traceback, ''), :now, :now)
ON CONFLICT (fingerprint) DO UPDATE SET last_seen = :now, count = count + 1

-- name: snooze
-- running -> scheduled (or ready), and the attempt does not count
UPDATE {p}jobs SET status = CASE WHEN :run_at > :now THEN 'scheduled' ELSE 'ready' END, run_at = :run_at,
    worker = NULL, lease = NULL, max_attempts = max_attempts + 1,
    transition = 'snoozed', actor = worker, updated_at = :now, revision = revision + 1
WHERE id = :id AND status = 'running' AND attempt = :attempt
  AND (:queue IS NULL OR (queue = :queue AND task IS NULL))

-- name: release
-- running -> ready (or scheduled, with a delay), while attempts are left
UPDATE {p}jobs SET status = CASE WHEN :run_at > :now THEN 'scheduled' ELSE 'ready' END, run_at = :run_at,
    worker = NULL, lease = NULL,
    transition = 'released', actor = worker, updated_at = :now, revision = revision + 1
WHERE id = :id AND status = 'running' AND attempt = :attempt
  AND (:queue IS NULL OR (queue = :queue AND task IS NULL)) AND attempt < max_attempts

-- name: stop
-- running -> cancelled, by the attempt itself
UPDATE {p}jobs SET status = 'cancelled', finished_at = :now, lease = NULL,
    error_code = NULL, error_detail = :reason, fingerprint = NULL,
    transition = 'cancelled', actor = worker, updated_at = :now, revision = revision + 1
WHERE id = :id AND status = 'running' AND attempt = :attempt
  AND (:queue IS NULL OR (queue = :queue AND task IS NULL))

-- name: extend
-- running -> running, with a new lease
UPDATE {p}jobs SET lease = ?1, heartbeat_at = ?2
WHERE id = ?3 AND status = 'running' AND attempt = ?4 AND (?5 IS NULL OR (queue = ?5 AND task IS NULL))
