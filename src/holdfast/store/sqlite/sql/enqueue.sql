-- Enqueueing: into `ready`, `scheduled` or `blocked`. The trigger jobs_enqueued writes the event.
-- statements.py lists the columns of a new job.

-- name: insert
INSERT INTO {p}jobs ({columns}) VALUES ({values})

-- name: insert_keyed
-- nothing if an unfinished job has the key
INSERT INTO {p}jobs ({columns}) VALUES ({values}) ON CONFLICT DO NOTHING

-- name: insert_many
-- All values except `args`, the first, are the same for every row, so one statement inserts a thousand rows.
INSERT INTO {p}jobs ({columns}) SELECT value, {other_values} FROM json_each(?) WHERE true ORDER BY key
RETURNING id

-- name: insert_continuation
-- idempotent: a chain has one job per index
INSERT INTO {p}jobs ({columns}) VALUES ({values})
ON CONFLICT (chain_id, chain_index) WHERE chain_id IS NOT NULL DO NOTHING

-- name: find_live_key
-- the job that holds the key now: it has not finished, or its chain has not
SELECT id FROM {p}jobs
WHERE task = :task AND task IS NOT NULL AND key = :key AND key IS NOT NULL
  AND (status IN ('new', 'blocked', 'scheduled', 'ready', 'running') OR (continued = 1 AND chain_ended_at IS NULL))
UNION ALL
SELECT id FROM {p}jobs
WHERE :task IS NULL AND task IS NULL AND queue = :queue AND key = :key AND key IS NOT NULL
  AND status IN ('new', 'blocked', 'scheduled', 'ready', 'running')

-- name: find_finished_key
-- the last job with the key that finished since, or whose chain did
SELECT id FROM (
    SELECT id, finished_at AS ended_at FROM {p}jobs
    WHERE key = :key AND finished_at IS NOT NULL AND finished_at > :since
      AND ((task IS NOT NULL AND task = :task) OR (task IS NULL AND :task IS NULL AND queue = :queue))
    UNION ALL
    SELECT id, chain_ended_at FROM {p}jobs
    WHERE key = :key AND key IS NOT NULL AND chain_ended_at IS NOT NULL AND chain_ended_at > :since AND task = :task
) ORDER BY ended_at DESC LIMIT 1

-- name: replace
-- ready, scheduled, blocked -> the same, or between ready and scheduled: new arguments, time and priority
UPDATE {p}jobs SET
    status = CASE WHEN status = 'blocked' THEN status ELSE :status END,
    args = :args, args_blob = :args_blob, run_at = :run_at, priority = :priority, max_attempts = max(:max_attempts, attempt + 1),
    timeout = :timeout, expires_at = :expires_at, trace = :trace, version = :version, unfit_since = NULL,
    transition = 'replaced', actor = :actor, reason = NULL, updated_at = :now, revision = revision + 1
WHERE id = :id AND status IN ('ready', 'scheduled', 'blocked')
