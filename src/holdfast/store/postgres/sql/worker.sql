-- Workers, and the jobs of dead or stopped ones.

-- name: register_worker
INSERT INTO {p}workers (id, slot, place, pid, host, queues, tasks, limits, concurrency, lease, started_at, heartbeat_at,
                        version, memory)
VALUES (:id, :slot, :place, :pid, :host, :queues, :tasks, :limits, :concurrency, :lease, :started_at, :started_at,
        :version, :memory)

-- name: delete_ended_workers
-- all but the newest ones
DELETE FROM {p}workers WHERE id IN (
    SELECT id FROM {p}workers WHERE ended_at IS NOT NULL ORDER BY ended_at DESC OFFSET :keep
)

-- name: heartbeat
UPDATE {p}workers SET heartbeat_at = :now, slot = :slot, place = :place, memory = coalesce(:memory, memory)
WHERE id = :id AND ended_at IS NULL

-- name: ask_to_stop
-- its housekeeping sees this
UPDATE {p}workers SET stop_at = :now WHERE id = :id AND ended_at IS NULL AND stop_at IS NULL

-- name: is_asked_to_stop
-- no row: there is no such worker
SELECT stop_at IS NOT NULL FROM {p}workers WHERE id = :id

-- name: end_worker
UPDATE {p}workers SET ended_at = :now, ending = :ending WHERE id = :id AND ended_at IS NULL

-- name: present_workers
SELECT id, slot, place, pid, host, lease FROM {p}workers WHERE ended_at IS NULL

-- name: workers
-- newest first
SELECT slot, place, id, pid, host, queues, tasks, concurrency, lease, started_at, heartbeat_at, ended_at, ending, limits,
       version, memory, stop_at
FROM {p}workers ORDER BY started_at DESC, id

-- name: return_all
-- running -> ready, for jobs that a stopped worker still held; the attempts do not count
UPDATE {p}jobs SET status = 'ready', worker = NULL, lease = NULL,
    max_attempts = max_attempts + 1, uncounted = uncounted + 1,
    transition = 'returned', actor = worker, reason = NULL, updated_at = :now, revision = revision + 1
WHERE status = 'running' AND worker = :worker

-- name: recover_lost
-- running -> ready, when the worker is dead
UPDATE {p}jobs SET status = 'ready', run_at = greatest(run_at, :now), worker = NULL, lease = NULL,
    error_code = 'INTERNAL:WORKER_LOST', fingerprint = NULL,
    error_detail = 'the worker ' || CAST(:worker AS text) || ' died in attempt ' || attempt,
    transition = 'recovered', actor = :actor, reason = NULL, updated_at = :now, revision = revision + 1
WHERE id IN (SELECT id FROM {p}jobs WHERE status = 'running' AND worker = :worker ORDER BY id LIMIT :limit
             FOR UPDATE)
  AND attempt < max_attempts

-- name: recover_lost_spent
-- running -> failed, when the worker is dead and this was the last attempt
UPDATE {p}jobs SET status = 'failed', finished_at = :now, worker = NULL, lease = NULL,
    error_code = 'INTERNAL:WORKER_LOST', fingerprint = NULL,
    error_detail = 'the worker ' || CAST(:worker AS text) || ' died in attempt ' || attempt || ', the last',
    transition = 'failed', actor = :actor, reason = NULL, updated_at = :now, revision = revision + 1
WHERE id IN (SELECT id FROM {p}jobs WHERE status = 'running' AND worker = :worker ORDER BY id LIMIT :limit
             FOR UPDATE)
  AND attempt >= max_attempts

-- name: renew_for
-- running -> running, for a live worker that did not renew in time. A job with a timeout gets that time once, counted
-- from the end of its lease: heartbeat_at stays NULL until the worker itself renews. All of it is on the boot clock.
UPDATE {p}jobs SET heartbeat_at = NULL,
    lease = CASE WHEN timeout IS NULL THEN :boot_now + :lease ELSE lease + least(timeout, :longest) END
WHERE status = 'running' AND coalesce(lease, 0) <= :boot_now AND worker = :worker
  AND (timeout IS NULL OR (heartbeat_at IS NOT NULL AND lease + least(timeout, :longest) > :boot_now))

-- name: workers_with_expired_leases
SELECT DISTINCT worker FROM {p}jobs WHERE status = 'running' AND coalesce(lease, 0) <= :boot_now AND worker IS NOT NULL

-- name: claimed_by_workers
-- how many jobs each worker has claimed, by queue and task, among a bounded number of running jobs
SELECT worker, queue, task, count(*)
FROM (SELECT worker, queue, task FROM {p}jobs WHERE status = 'running' LIMIT :bound) AS held
WHERE worker IS NOT NULL GROUP BY worker, queue, task

-- name: leases_of
SELECT id, attempt FROM {p}jobs WHERE status = 'running' AND worker = ?
