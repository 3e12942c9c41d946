-- Operator actions. Each takes a JSON array of ids, and skips jobs that are in another state or no longer match the
-- filters.

-- name: requeue
-- failed, cancelled -> ready (or scheduled, or blocked by unfinished blockers). `attempt` is never reset, so
-- `max_attempts` is raised: by :attempts, or by as many as the job had at first, which is always the difference of
-- `max_attempts` and `uncounted`. Skips jobs whose key, or whose chain's key, an unfinished job has taken since.
UPDATE {p}jobs SET
    status = CASE WHEN external = 1 OR EXISTS (SELECT 1 FROM {p}blockers WHERE job_id = {p}jobs.id AND outcome IS NULL)
                  THEN 'blocked' WHEN CAST(:run_at AS bigint) > CAST(:now AS bigint) THEN 'scheduled' ELSE 'ready' END,
    run_at = :run_at, expires_at = NULL, unfit_since = NULL,
    max_attempts = greatest(max_attempts, attempt + coalesce(:attempts, greatest(1, max_attempts - uncounted))),
    uncounted = greatest(max_attempts, attempt + coalesce(:attempts, greatest(1, max_attempts - uncounted)))
        - max_attempts + uncounted,
    finished_at = NULL, result = NULL, result_blob = NULL, worker = NULL,
    transition = 'requeued', actor = :actor, reason = :reason, updated_at = :now, revision = revision + 1
WHERE id IN (SELECT value FROM {p}each_id(:batch)) AND {where} AND status IN ('failed', 'cancelled')
  AND (chain_id IS NULL OR NOT EXISTS (
      SELECT 1 FROM {p}jobs AS root JOIN {p}jobs AS other ON other.task = root.task AND other.task IS NOT NULL
          AND other.key = root.key AND other.key IS NOT NULL AND other.id <> root.id
          AND (other.status IN ('blocked', 'scheduled', 'ready', 'running')
               OR (other.continued = 1 AND other.chain_ended_at IS NULL))
      WHERE root.id = {p}jobs.chain_id AND root.key IS NOT NULL))
  AND (key IS NULL OR NOT EXISTS (
      SELECT 1 FROM {p}jobs AS other
      WHERE other.key = {p}jobs.key AND other.id <> {p}jobs.id
        AND (other.task = {p}jobs.task OR (other.task IS NULL AND {p}jobs.task IS NULL AND other.queue = {p}jobs.queue))
        AND (other.status IN ('blocked', 'scheduled', 'ready', 'running')
             OR (other.continued = 1 AND other.chain_ended_at IS NULL))))
  AND (key IS NULL OR id = (
      SELECT max(twin.id) FROM {p}jobs AS twin
      WHERE twin.id IN (SELECT value FROM {p}each_id(:batch)) AND twin.key = {p}jobs.key
        AND twin.task IS NOT DISTINCT FROM {p}jobs.task AND (twin.task IS NOT NULL OR twin.queue = {p}jobs.queue)
        AND twin.status IN ('failed', 'cancelled')))

-- name: cancel
-- blocked, scheduled, ready, running -> cancelled; this fences a running attempt
UPDATE {p}jobs SET status = 'cancelled', finished_at = :now, lease = NULL,
    error_code = NULL, error_detail = :reason, fingerprint = NULL,
    transition = 'cancelled', actor = :actor, reason = :reason, updated_at = :now, revision = revision + 1
WHERE id IN (SELECT value FROM {p}each_id(:batch)) AND {where} AND status IN ('blocked', 'scheduled', 'ready', 'running')

-- name: run_now
-- scheduled -> ready
UPDATE {p}jobs SET status = 'ready', run_at = :now,
    transition = 'run_now', actor = :actor, reason = :reason, updated_at = :now, revision = revision + 1
WHERE id IN (SELECT value FROM {p}each_id(:batch)) AND {where} AND status = 'scheduled'

-- name: complete
-- blocked, scheduled, ready, running -> succeeded, by an external system; this fences a running attempt
UPDATE {p}jobs SET status = 'succeeded', finished_at = :now, lease = NULL, result = :result, result_blob = :result_blob,
    error_code = NULL, error_detail = NULL, fingerprint = NULL,
    transition = 'completed', actor = :actor, reason = :reason, updated_at = :now, revision = revision + 1
WHERE id IN (SELECT value FROM {p}each_id(:batch)) AND {where} AND task IS NOT NULL
  AND status IN ('blocked', 'scheduled', 'ready', 'running')

-- name: fail_outside
-- blocked, scheduled, ready, running -> failed, by an external system; this fences a running attempt
UPDATE {p}jobs SET status = 'failed', finished_at = :now, lease = NULL,
    error_code = :failure_code, error_detail = :failure_detail, fingerprint = NULL,
    transition = 'failed', actor = :actor, reason = :reason, updated_at = :now, revision = revision + 1
WHERE id IN (SELECT value FROM {p}each_id(:batch)) AND {where} AND task IS NOT NULL
  AND status IN ('blocked', 'scheduled', 'ready', 'running')

-- name: delete
-- any state but running -> deleted, with attempts, events and tags: jobs outside chains that no unfinished job waits for
DELETE FROM {p}jobs WHERE id IN (SELECT value FROM {p}each_id(:batch)) AND {where} AND status <> 'running'
  AND continued = 0 AND chain_id IS NULL
  AND (awaited = 0 OR NOT EXISTS (
      SELECT 1 FROM {p}blockers AS edge JOIN {p}jobs AS waiting ON waiting.id = edge.job_id
      WHERE edge.chain_id = {p}jobs.id AND waiting.status IN ('blocked', 'scheduled', 'ready', 'running')))

-- name: purge
-- any state -> deleted
DELETE FROM {p}jobs WHERE id IN (SELECT value FROM {p}each_id(:batch)) AND {where}

-- name: log_event
-- an event about a queue, or about deleted jobs
INSERT INTO {p}events (at, event, actor, detail) VALUES (:now, :event, :actor, :detail)

-- name: pause
INSERT INTO {p}queues (name, paused_at, paused_by, reason) VALUES (:queue, :now, :actor, :reason)
ON CONFLICT (name) DO UPDATE SET paused_at = excluded.paused_at, paused_by = excluded.paused_by, reason = excluded.reason
WHERE {p}queues.paused_at IS NULL

-- name: resume
UPDATE {p}queues SET paused_at = NULL WHERE name = :queue AND paused_at IS NOT NULL
