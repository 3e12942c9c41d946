-- Jobs whose rows break a constraint. These statements run only after SQLite has refused to change such a row, and
-- never in a doctor's run. The search reads all jobs: a damaged row can be missing from every index.

-- name: damaged_jobs
-- unfinished jobs whose rows break a constraint; the caller inserts the conditions
SELECT id FROM {p}jobs
WHERE status <> 'succeeded' AND status <> 'failed' AND status <> 'cancelled' AND ({where}) LIMIT :limit

-- name: fail_damaged
-- blocked, scheduled, ready, running or anything else -> failed, for jobs whose rows break a constraint
UPDATE {p}jobs SET status = 'failed', finished_at = :now, lease = NULL, error_code = 'INTERNAL:DAMAGED_ROW',
    error_detail = 'the row holds a value that the schema does not allow', fingerprint = NULL,
    transition = 'failed', actor = :actor, reason = NULL, updated_at = :now, revision = coalesce(revision, 0) + 1
WHERE id IN (SELECT value FROM json_each(:ids))
  AND status <> 'succeeded' AND status <> 'failed' AND status <> 'cancelled'
