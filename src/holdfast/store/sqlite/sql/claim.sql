-- Sweeping and claiming: into `ready` and from there into `running`.
-- Workers use claim_task or claim_tasks, during a deployment claim_readable; consumers of messages claim_messages and
-- claim_next_message; claim_one is for one job by its id.
--
-- An index finds the jobs, and the row itself is asked for its status once more (+status, so that no index answers): in
-- a damaged file an index may still have a job that has ended, and it must not run again.

-- name: peek_messages
-- whether a scheduled job is due, a lease has expired, and the queue has a ready message
SELECT EXISTS (SELECT 1 FROM {p}jobs WHERE status = 'scheduled' AND run_at <= ?),
       EXISTS (SELECT 1 FROM {p}jobs WHERE status = 'running' AND coalesce(lease, 0) <= ?),
       EXISTS (SELECT 1 FROM {p}jobs INDEXED BY {p}jobs_ready WHERE status = 'ready' AND queue = ? AND task IS NULL)

-- name: promote
-- scheduled -> ready, when due
UPDATE {p}jobs SET status = 'ready',
    transition = 'promoted', actor = :actor, reason = NULL, updated_at = :now, revision = revision + 1
WHERE id IN (SELECT id FROM {p}jobs WHERE status = 'scheduled' AND run_at <= :now ORDER BY run_at LIMIT :limit)
  AND +status = 'scheduled'

-- name: recover
-- running -> ready, when the lease has expired
UPDATE {p}jobs SET status = 'ready', run_at = max(run_at, :now), worker = NULL, lease = NULL,
    error_code = CASE WHEN task IS NULL THEN 'TIMEOUT:VISIBILITY' ELSE 'TIMEOUT:LEASE' END,
    error_detail = 'attempt ' || attempt || ' was not settled before its lease ended', fingerprint = NULL,
    transition = 'recovered', actor = :actor, reason = NULL, updated_at = :now, revision = revision + 1
WHERE id IN (SELECT id FROM {p}jobs WHERE status = 'running' AND coalesce(lease, 0) <= :boot_now
             ORDER BY coalesce(lease, 0) LIMIT :limit)
  AND attempt < max_attempts AND +status = 'running'

-- name: recover_spent
-- running -> failed, when the lease of the last attempt has expired
UPDATE {p}jobs SET status = 'failed', finished_at = :now, worker = NULL, lease = NULL,
    error_code = CASE WHEN task IS NULL THEN 'TIMEOUT:VISIBILITY' ELSE 'TIMEOUT:LEASE' END,
    error_detail = 'attempt ' || attempt || ', the last, was not settled before its lease ended', fingerprint = NULL,
    transition = 'failed', actor = :actor, reason = NULL, updated_at = :now, revision = revision + 1
WHERE id IN (SELECT id FROM {p}jobs WHERE status = 'running' AND coalesce(lease, 0) <= :boot_now
             ORDER BY coalesce(lease, 0) LIMIT :limit)
  AND attempt >= max_attempts AND +status = 'running'

-- name: claim_messages
-- ready -> running: the next messages of a queue, unless it is paused
UPDATE {p}jobs SET status = 'running', attempt = attempt + 1,
    worker = ?1, lease = ?2, claimed_at = ?3, started_at = ?3, heartbeat_at = ?3,
    transition = 'claimed', actor = NULL, reason = NULL, updated_at = ?3, revision = revision + 1
WHERE id IN (
    SELECT id FROM {p}jobs WHERE status = 'ready' AND queue = ?4 AND task IS NULL
      AND NOT EXISTS (SELECT 1 FROM {p}queues WHERE name = ?4 AND paused_at IS NOT NULL)
    ORDER BY priority DESC, id LIMIT ?5
) AND +status = 'ready'
RETURNING id, attempt, max_attempts, CAST(args AS BLOB), timeout, history, priority, CAST(trace AS BLOB),
          CAST(args_blob AS TEXT)

-- name: claim_next_message
-- ready -> running: the next message of a queue, unless it is paused or there are jobs to sweep first
UPDATE {p}jobs SET status = 'running', attempt = attempt + 1,
    worker = ?1, lease = ?2, claimed_at = ?3, started_at = ?3, heartbeat_at = ?3,
    transition = 'claimed', actor = NULL, reason = NULL, updated_at = ?3, revision = revision + 1
WHERE id = (
    SELECT id FROM {p}jobs WHERE status = 'ready' AND queue = ?4 AND task IS NULL
      AND NOT EXISTS (SELECT 1 FROM {p}queues WHERE name = ?4 AND paused_at IS NOT NULL)
      AND NOT EXISTS (SELECT 1 FROM {p}jobs WHERE status = 'scheduled' AND run_at <= ?3)
      AND NOT EXISTS (SELECT 1 FROM {p}jobs WHERE status = 'running' AND coalesce(lease, 0) <= ?5)
    ORDER BY priority DESC, id LIMIT 1
) AND +status = 'ready'
RETURNING id, attempt, max_attempts, CAST(args AS BLOB), timeout, history, priority, CAST(trace AS BLOB),
          CAST(args_blob AS TEXT)

-- name: ready_pairs
-- The first row is what to sweep before a claim. Column 1 is a sum: 1 if a scheduled job is due, 2 if an ended job is
-- not resolved or a waiting job has expired. Column 2: whether a lease has expired. Column 3: whether a ready job
-- has a version.
-- The other rows are the pairs of queue and task with ready jobs after (:queue, :task), and whether the queue is
-- paused.
-- Each step is one index lookup of a minimum: the comparison (queue, task) > (?, ?) would scan all jobs of a pair.
-- The first step of a queue has no task and counts too, so that queues of messages are bounded as well.
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
                  OR EXISTS (SELECT 1 FROM {p}jobs WHERE expires_at IS NOT NULL AND (status = 'blocked' OR status = 'scheduled' OR status = 'ready')
                             AND expires_at <= :now)),
       EXISTS (SELECT 1 FROM {p}jobs WHERE status = 'running' AND coalesce(lease, 0) <= :boot_now),
       EXISTS (SELECT 1 FROM {p}jobs INDEXED BY {p}jobs_versioned
               WHERE status = 'ready' AND version > 0 AND queue >= '')
UNION ALL
SELECT queue, task, queue IN (SELECT name FROM {p}queues WHERE paused_at IS NOT NULL) FROM found
WHERE step > 0 AND queue IS NOT NULL AND task IS NOT NULL LIMIT :most + 1

-- name: ready_pairs_in
-- the same for the given queues
WITH RECURSIVE found (queue, task) AS (
    SELECT value, '' FROM json_each(:queues)
    UNION ALL
    SELECT queue, (SELECT min(task) FROM {p}jobs WHERE status = 'ready' AND queue = found.queue AND task > found.task)
    FROM found WHERE task IS NOT NULL
)
SELECT EXISTS (SELECT 1 FROM {p}jobs WHERE status = 'scheduled' AND run_at <= :now)
           + 2 * (EXISTS (SELECT 1 FROM {p}endings)
                  OR EXISTS (SELECT 1 FROM {p}jobs WHERE expires_at IS NOT NULL AND (status = 'blocked' OR status = 'scheduled' OR status = 'ready')
                             AND expires_at <= :now)),
       EXISTS (SELECT 1 FROM {p}jobs WHERE status = 'running' AND coalesce(lease, 0) <= :boot_now),
       EXISTS (SELECT 1 FROM {p}jobs INDEXED BY {p}jobs_versioned
               WHERE status = 'ready' AND version > 0 AND queue >= '')
UNION ALL
SELECT queue, task, queue IN (SELECT name FROM {p}queues WHERE paused_at IS NOT NULL) FROM found WHERE task <> ''

-- name: claim_task
-- ready -> running: the next jobs of one pair of queue and task, which are not returned; scans a bounded range of the index
UPDATE {p}jobs SET status = 'running', attempt = attempt + 1,
    worker = :worker, lease = :lease, claimed_at = :now, started_at = NULL, heartbeat_at = :now,
    progress = NULL, progress_text = NULL,
    transition = 'claimed', actor = NULL, reason = NULL, updated_at = :now, revision = revision + 1
WHERE id IN (
    SELECT id FROM {p}jobs WHERE status = 'ready' AND queue = :queue AND task = :task
      AND NOT EXISTS (SELECT 1 FROM {p}queues WHERE name = :queue AND paused_at IS NOT NULL)
    ORDER BY priority DESC, id LIMIT :limit
) AND +status = 'ready'
RETURNING -priority, id, attempt, max_attempts, CAST(args AS BLOB), timeout, history, uncounted, error_code, error_detail,
          run_at, CAST(trace AS BLOB), CAST(args_blob AS TEXT)

-- name: claim_tasks
-- ready -> running: the next jobs of several pairs of queue and task; scans a bounded range of the index for each
UPDATE {p}jobs SET status = 'running', attempt = attempt + 1,
    worker = :worker, lease = :lease, claimed_at = :now, started_at = NULL, heartbeat_at = :now,
    progress = NULL, progress_text = NULL,
    transition = 'claimed', actor = NULL, reason = NULL, updated_at = :now, revision = revision + 1
WHERE id IN (
    SELECT job.id FROM json_each(:pairs) AS pair CROSS JOIN {p}jobs AS job ON job.id IN (
        SELECT id FROM {p}jobs
        WHERE status = 'ready' AND queue = json_extract(pair.value, '$[0]') AND task = json_extract(pair.value, '$[1]')
        ORDER BY priority DESC, id LIMIT :each
    )
    WHERE json_extract(pair.value, '$[0]') NOT IN (SELECT name FROM {p}queues WHERE paused_at IS NOT NULL)
    ORDER BY job.priority DESC, job.id LIMIT :limit
) AND +status = 'ready'
RETURNING -priority, id, attempt, max_attempts, queue, task, CAST(args AS BLOB), timeout, history, uncounted, error_code,
          error_detail, run_at, CAST(trace AS BLOB), CAST(args_blob AS TEXT)

-- name: claim_readable
-- ready -> running: as claim_tasks, but neither jobs of a newer version than the third value of the pair nor those to
-- skip, and only among the first jobs of each pair
UPDATE {p}jobs SET status = 'running', attempt = attempt + 1,
    worker = :worker, lease = :lease, claimed_at = :now, started_at = NULL, heartbeat_at = :now,
    progress = NULL, progress_text = NULL,
    transition = 'claimed', actor = NULL, reason = NULL, updated_at = :now, revision = revision + 1
WHERE id IN (
    SELECT job.id FROM json_each(:pairs) AS pair CROSS JOIN {p}jobs AS job ON job.id IN (
        SELECT id FROM (
            SELECT id, priority, version FROM {p}jobs
            WHERE status = 'ready' AND queue = json_extract(pair.value, '$[0]') AND task = json_extract(pair.value, '$[1]')
            ORDER BY priority DESC, id LIMIT :scanned
        ) WHERE version <= json_extract(pair.value, '$[2]') AND id NOT IN (SELECT value FROM json_each(:skip))
        ORDER BY priority DESC, id LIMIT :each
    )
    WHERE json_extract(pair.value, '$[0]') NOT IN (SELECT name FROM {p}queues WHERE paused_at IS NOT NULL)
    ORDER BY job.priority DESC, job.id LIMIT :limit
) AND +status = 'ready'
RETURNING -priority, id, attempt, max_attempts, queue, task, CAST(args AS BLOB), timeout, history, uncounted, error_code,
          error_detail, run_at, CAST(trace AS BLOB), CAST(args_blob AS TEXT)

-- name: newest_versions
-- the newest version of the ready jobs of each of these pairs of queue and task
SELECT (SELECT max(version) FROM {p}jobs INDEXED BY {p}jobs_versioned
        WHERE status = 'ready' AND version > 0 AND queue = json_extract(value, '$[0]')
          AND task = json_extract(value, '$[1]'))
FROM json_each(:pairs) ORDER BY key

-- name: claim_one
-- ready -> running: one job of a task by id, unless its queue is paused
UPDATE {p}jobs SET status = 'running', attempt = attempt + 1,
    worker = :worker, lease = :lease, claimed_at = :now, started_at = NULL, heartbeat_at = :now,
    progress = NULL, progress_text = NULL,
    transition = 'claimed', actor = NULL, reason = NULL, updated_at = :now, revision = revision + 1
WHERE id = :id AND status = 'ready' AND task IS NOT NULL AND attempt < max_attempts
  AND queue NOT IN (SELECT name FROM {p}queues WHERE paused_at IS NOT NULL)
RETURNING -priority, id, attempt, max_attempts, queue, task, CAST(args AS BLOB), timeout, history, uncounted, error_code,
          error_detail, run_at, CAST(trace AS BLOB), CAST(args_blob AS TEXT)

-- name: next_due
-- when the next scheduled job is due and the next waiting job expires (wall clock), and when the next lease expires
-- (boot clock)
SELECT CAST((SELECT min(run_at) FROM {p}jobs WHERE status = 'scheduled') AS INTEGER),
       CAST((SELECT min(expires_at) FROM {p}jobs WHERE expires_at IS NOT NULL
               AND (status = 'blocked' OR status = 'scheduled' OR status = 'ready')) AS INTEGER),
       CAST((SELECT min(coalesce(lease, 0)) FROM {p}jobs WHERE status = 'running') AS INTEGER)

-- name: awaited
-- What waiting threads and coroutines wait for: the queues with ready messages, at most :most of each, and the jobs,
-- chains and batches that have ended or are gone. And when the next scheduled job is due (wall clock), and when the
-- next lease expires (boot clock).
SELECT 'due', CAST(min(run_at) AS INTEGER), 0 FROM {p}jobs WHERE status = 'scheduled'
UNION ALL
SELECT 'lease', CAST(min(coalesce(lease, 0)) AS INTEGER), 0 FROM {p}jobs WHERE status = 'running'
UNION ALL
SELECT 'queue', name, count FROM (
    SELECT value AS name, (SELECT count(*) FROM (
        SELECT 1 FROM {p}jobs INDEXED BY {p}jobs_ready WHERE status = 'ready' AND queue = value AND task IS NULL
        LIMIT :most)) AS count
    FROM json_each(:queues) WHERE value NOT IN (SELECT name FROM {p}queues WHERE paused_at IS NOT NULL)
) WHERE count > 0
UNION ALL
SELECT 'job', value, 1 FROM json_each(:jobs) WHERE NOT EXISTS (
    SELECT 1 FROM {p}jobs WHERE id = value AND +status NOT IN ('succeeded', 'failed', 'cancelled'))
UNION ALL
SELECT 'chain', value, 1 FROM json_each(:chains) WHERE NOT EXISTS (
    SELECT 1 FROM {p}jobs
    WHERE id = coalesce((SELECT id FROM {p}jobs WHERE chain_id = value ORDER BY chain_index DESC LIMIT 1), value)
      AND +status NOT IN ('succeeded', 'failed', 'cancelled'))
UNION ALL
SELECT 'batch', value, 1 FROM json_each(:batches) WHERE NOT EXISTS (
    SELECT 1 FROM {p}batches WHERE id = value AND done_at IS NULL)
