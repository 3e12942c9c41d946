-- name: look_for_messages
-- what there is to do before and at a claim: due jobs, ended leases, ready messages
SELECT EXISTS (SELECT 1 FROM {p}jobs WHERE status = 'scheduled' AND run_at <= ?),
       EXISTS (SELECT 1 FROM {p}jobs WHERE status = 'running' AND coalesce(lease, 0) <= ?),
       EXISTS (SELECT 1 FROM {p}jobs INDEXED BY {p}jobs_ready WHERE status = 'ready' AND queue = ? AND task IS NULL)

-- name: promote
-- scheduled -> ready, when due
UPDATE {p}jobs SET status = 'ready',
    transition = 'promoted', actor = :actor, reason = NULL, updated_at = :now, revision = revision + 1
WHERE id IN (SELECT id FROM {p}jobs WHERE status = 'scheduled' AND run_at <= :now ORDER BY run_at LIMIT :limit)

-- name: recover
-- running -> ready, when the lease has ended
UPDATE {p}jobs SET status = 'ready', run_at = max(run_at, :now), worker = NULL, lease = NULL,
    error_code = CASE WHEN task IS NULL THEN 'TIMEOUT:VISIBILITY' ELSE 'TIMEOUT:LEASE' END,
    error_detail = 'attempt ' || attempt || ' was not settled before its lease ended', fingerprint = NULL,
    transition = 'recovered', actor = :actor, reason = NULL, updated_at = :now, revision = revision + 1
WHERE id IN (SELECT id FROM {p}jobs WHERE status = 'running' AND coalesce(lease, 0) <= :boot_now
             ORDER BY coalesce(lease, 0) LIMIT :limit)
  AND attempt < max_attempts

-- name: recover_spent
-- running -> failed, when the lease of the last attempt has ended
UPDATE {p}jobs SET status = 'failed', finished_at = :now, worker = NULL, lease = NULL,
    error_code = CASE WHEN task IS NULL THEN 'TIMEOUT:VISIBILITY' ELSE 'TIMEOUT:LEASE' END,
    error_detail = 'attempt ' || attempt || ', the last, was not settled before its lease ended', fingerprint = NULL,
    transition = 'failed', actor = :actor, reason = NULL, updated_at = :now, revision = revision + 1
WHERE id IN (SELECT id FROM {p}jobs WHERE status = 'running' AND coalesce(lease, 0) <= :boot_now
             ORDER BY coalesce(lease, 0) LIMIT :limit)
  AND attempt >= max_attempts

-- name: claim_messages
-- ready -> running, the next messages of a queue unless it is paused
UPDATE {p}jobs SET status = 'running', attempt = attempt + 1,
    worker = ?1, lease = ?2, claimed_at = ?3, started_at = ?3, heartbeat_at = ?3,
    transition = 'claimed', actor = ?1, reason = NULL, updated_at = ?3, revision = revision + 1
WHERE id IN (
    SELECT id FROM {p}jobs WHERE status = 'ready' AND queue = ?4 AND task IS NULL
      AND NOT EXISTS (SELECT 1 FROM {p}queues WHERE name = ?4 AND paused_at IS NOT NULL)
    ORDER BY priority DESC, id LIMIT ?5
)
RETURNING id, attempt, max_attempts, queue, task, CAST(args AS BLOB), timeout, history, priority, CAST(trace AS BLOB),
          CAST(args_blob AS TEXT)

-- name: claim_message_at_once
-- ready -> running, the next message of a queue unless it is paused, or something else must be swept first
UPDATE {p}jobs SET status = 'running', attempt = attempt + 1,
    worker = ?1, lease = ?2, claimed_at = ?3, started_at = ?3, heartbeat_at = ?3,
    transition = 'claimed', actor = ?1, reason = NULL, updated_at = ?3, revision = revision + 1
WHERE id = (
    SELECT id FROM {p}jobs WHERE status = 'ready' AND queue = ?4 AND task IS NULL
      AND NOT EXISTS (SELECT 1 FROM {p}queues WHERE name = ?4 AND paused_at IS NOT NULL)
      AND NOT EXISTS (SELECT 1 FROM {p}jobs WHERE status = 'scheduled' AND run_at <= ?3)
      AND NOT EXISTS (SELECT 1 FROM {p}jobs WHERE status = 'running' AND coalesce(lease, 0) <= ?5)
    ORDER BY priority DESC, id LIMIT 1
)
RETURNING id, attempt, max_attempts, queue, task, CAST(args AS BLOB), timeout, history, priority, CAST(trace AS BLOB),
          CAST(args_blob AS TEXT)

-- name: ready_pairs
-- First, whether something is due (1), and whether something has ended that was not worked off yet, or is out of time
-- (2); and whether a lease has ended. Then every queue and task with something ready after a place in the index, and
-- whether the queue is paused. Each step is one look-up of a least value: a comparison of pairs, (queue, task) > (?, ?),
-- would walk over all jobs of the place.
-- A queue comes first without a task, which counts as a step, so that queues of messages count too.
WITH RECURSIVE found (queue, task, step) AS (
    SELECT :queue, :task, 0
    UNION ALL
    SELECT CASE WHEN task IS NULL THEN (SELECT min(queue) FROM {p}jobs WHERE status = 'ready' AND queue > found.queue)
                ELSE queue END,
           CASE WHEN task IS NULL THEN ''
                ELSE (SELECT min(task) FROM {p}jobs
                      WHERE status = 'ready' AND queue = found.queue AND task > found.task) END,
           step + (task IS NOT NULL)
    FROM found WHERE queue IS NOT NULL AND step <= :most
)
SELECT EXISTS (SELECT 1 FROM {p}jobs WHERE status = 'scheduled' AND run_at <= :now)
           + 2 * (EXISTS (SELECT 1 FROM {p}endings)
                  OR EXISTS (SELECT 1 FROM {p}jobs WHERE status = 'blocked' AND timeout_at <= :now)),
       EXISTS (SELECT 1 FROM {p}jobs WHERE status = 'running' AND coalesce(lease, 0) <= :boot_now), NULL
UNION ALL
SELECT queue, task, queue IN (SELECT name FROM {p}queues WHERE paused_at IS NOT NULL) FROM found
WHERE step > 0 AND queue IS NOT NULL AND task IS NOT NULL LIMIT :most + 1

-- name: ready_pairs_in
-- the same within some queues
WITH RECURSIVE found (queue, task) AS (
    SELECT value, '' FROM json_each(:queues)
    UNION ALL
    SELECT queue, (SELECT min(task) FROM {p}jobs WHERE status = 'ready' AND queue = found.queue AND task > found.task)
    FROM found WHERE task IS NOT NULL
)
SELECT EXISTS (SELECT 1 FROM {p}jobs WHERE status = 'scheduled' AND run_at <= :now)
           + 2 * (EXISTS (SELECT 1 FROM {p}endings)
                  OR EXISTS (SELECT 1 FROM {p}jobs WHERE status = 'blocked' AND timeout_at <= :now)),
       EXISTS (SELECT 1 FROM {p}jobs WHERE status = 'running' AND coalesce(lease, 0) <= :boot_now), NULL
UNION ALL
SELECT queue, task, queue IN (SELECT name FROM {p}queues WHERE paused_at IS NOT NULL) FROM found WHERE task <> ''

-- name: claim_task
-- ready -> running, the next jobs of one queue and task; a bounded range of the index
UPDATE {p}jobs SET status = 'running', attempt = attempt + 1,
    worker = :worker, lease = :lease, claimed_at = :now, started_at = NULL, heartbeat_at = :now,
    progress = NULL, progress_text = NULL,
    transition = 'claimed', actor = :worker, reason = NULL, updated_at = :now, revision = revision + 1
WHERE id IN (
    SELECT id FROM {p}jobs WHERE status = 'ready' AND queue = :queue AND task = :task
      AND NOT EXISTS (SELECT 1 FROM {p}queues WHERE name = :queue AND paused_at IS NOT NULL)
    ORDER BY priority DESC, id LIMIT :limit
)
RETURNING -priority, id, attempt, max_attempts, queue, task, CAST(args AS BLOB), timeout, history, uncounted, error_code,
          error_detail, run_at, CAST(trace AS BLOB), CAST(args_blob AS TEXT)

-- name: claim_tasks
-- ready -> running, the next jobs of these pairs of queue and task; each pair is one bounded range of the index
UPDATE {p}jobs SET status = 'running', attempt = attempt + 1,
    worker = :worker, lease = :lease, claimed_at = :now, started_at = NULL, heartbeat_at = :now,
    progress = NULL, progress_text = NULL,
    transition = 'claimed', actor = :worker, reason = NULL, updated_at = :now, revision = revision + 1
WHERE id IN (
    SELECT job.id FROM json_each(:pairs) AS pair CROSS JOIN {p}jobs AS job ON job.id IN (
        SELECT id FROM {p}jobs
        WHERE status = 'ready' AND queue = json_extract(pair.value, '$[0]') AND task = json_extract(pair.value, '$[1]')
        ORDER BY priority DESC, id LIMIT :each
    )
    WHERE json_extract(pair.value, '$[0]') NOT IN (SELECT name FROM {p}queues WHERE paused_at IS NOT NULL)
    ORDER BY job.priority DESC, job.id LIMIT :limit
)
RETURNING -priority, id, attempt, max_attempts, queue, task, CAST(args AS BLOB), timeout, history, uncounted, error_code,
          error_detail, run_at, CAST(trace AS BLOB), CAST(args_blob AS TEXT)

-- name: claim_one
-- ready -> running, one job of a task by its id, unless its queue is paused
UPDATE {p}jobs SET status = 'running', attempt = attempt + 1,
    worker = :worker, lease = :lease, claimed_at = :now, started_at = NULL, heartbeat_at = :now,
    progress = NULL, progress_text = NULL,
    transition = 'claimed', actor = :worker, reason = NULL, updated_at = :now, revision = revision + 1
WHERE id = :id AND status = 'ready' AND task IS NOT NULL AND attempt < max_attempts
  AND queue NOT IN (SELECT name FROM {p}queues WHERE paused_at IS NOT NULL)
RETURNING -priority, id, attempt, max_attempts, queue, task, CAST(args AS BLOB), timeout, history, uncounted, error_code,
          error_detail, run_at, CAST(trace AS BLOB), CAST(args_blob AS TEXT)

-- name: next_due
-- when the next scheduled job is due, or the time of an external one is over (wall clock), and when the next lease
-- ends (boot clock)
SELECT (SELECT min(run_at) FROM {p}jobs WHERE status = 'scheduled'),
       (SELECT min(timeout_at) FROM {p}jobs WHERE status = 'blocked' AND timeout_at IS NOT NULL),
       (SELECT min(coalesce(lease, 0)) FROM {p}jobs WHERE status = 'running')
