-- What an operator may do. Each takes a JSON array of ids, and leaves alone what is in another state or does not
-- fit the filters any more.

-- name: requeue
-- failed, cancelled -> ready (or scheduled); `attempt` goes on, so `max_attempts` rises. OR IGNORE leaves those
-- whose key a live job has taken since.
UPDATE OR IGNORE {p}jobs SET status = CASE WHEN :run_at > :now THEN 'scheduled' ELSE 'ready' END, run_at = :run_at,
    max_attempts = max(max_attempts, attempt + :attempts), finished_at = NULL, result = NULL, worker = NULL,
    transition = 'requeued', actor = :actor, updated_at = :now, revision = revision + 1
WHERE id IN (SELECT value FROM json_each(:batch)) AND {where} AND status IN ('failed', 'cancelled')

-- name: cancel
-- blocked, scheduled, ready, running -> cancelled; a running attempt is thereby fenced
UPDATE {p}jobs SET status = 'cancelled', finished_at = :now, lease = NULL,
    error_code = NULL, error_detail = :reason, fingerprint = NULL,
    transition = 'cancelled', actor = :actor, updated_at = :now, revision = revision + 1
WHERE id IN (SELECT value FROM json_each(:batch)) AND {where} AND status IN ('blocked', 'scheduled', 'ready', 'running')

-- name: run_now
-- scheduled -> ready
UPDATE {p}jobs SET status = 'ready', run_at = :now,
    transition = 'run_now', actor = :actor, updated_at = :now, revision = revision + 1
WHERE id IN (SELECT value FROM json_each(:batch)) AND {where} AND status = 'scheduled'

-- name: delete
-- any state but running -> gone, with attempts, events and tags
DELETE FROM {p}jobs WHERE id IN (SELECT value FROM json_each(:batch)) AND {where} AND status <> 'running'

-- name: purge
-- any state -> gone
DELETE FROM {p}jobs WHERE id IN (SELECT value FROM json_each(:batch)) AND {where}

-- name: note
-- an event about a queue, or about jobs that are gone
INSERT INTO {p}events (at, event, actor, detail) VALUES (:now, :event, :actor, :detail)

-- name: pause
INSERT INTO {p}queues (name, paused_at) VALUES (:queue, :now)
ON CONFLICT (name) DO UPDATE SET paused_at = :now WHERE paused_at IS NULL

-- name: resume
UPDATE {p}queues SET paused_at = NULL WHERE name = :queue AND paused_at IS NOT NULL
