-- Sweeping and claiming: into `ready` and from there into `running`.
--
-- Rows that are known by id are found by ARRAY(…), and their status is compared with IS NOT DISTINCT FROM: the planner
-- then uses the primary key, whatever it believes about the number of rows, and not a partial index. Whether there is
-- a row up to a time is asked as min(…) <= time: for EXISTS the planner reads the table if it believes that a row is
-- found soon.

-- name: peek_messages
-- whether a scheduled job is due, a lease has expired, and the queue has a ready message
SELECT coalesce((SELECT min(run_at) FROM {p}jobs WHERE status = 'scheduled') <= ?, false),
       coalesce((SELECT min(coalesce(lease, 0)) FROM {p}jobs WHERE status = 'running') <= ?, false),
       (SELECT min(id) FROM (SELECT id FROM {p}jobs WHERE status = 'ready' AND queue = ? AND coalesce(task, '') = ''
                             ORDER BY priority DESC, id LIMIT 1) AS first) IS NOT NULL

-- name: promote
-- scheduled -> ready, when due
UPDATE {p}jobs SET status = 'ready',
    transition = 'promoted', actor = :actor, reason = NULL, updated_at = :now, revision = revision + 1
WHERE id IN (SELECT id FROM {p}jobs WHERE status = 'scheduled' AND run_at <= :now ORDER BY run_at LIMIT :limit
             FOR UPDATE SKIP LOCKED)

-- name: recover
-- running -> ready, when the lease has expired
UPDATE {p}jobs SET status = 'ready', run_at = greatest(run_at, :now), worker = NULL, lease = NULL,
    error_code = CASE WHEN task IS NULL THEN 'TIMEOUT:VISIBILITY' ELSE 'TIMEOUT:LEASE' END,
    error_detail = 'attempt ' || attempt || ' was not settled before its lease ended', fingerprint = NULL,
    transition = 'recovered', actor = :actor, reason = NULL, updated_at = :now, revision = revision + 1
WHERE id IN (SELECT id FROM {p}jobs WHERE status = 'running' AND coalesce(lease, 0) <= :boot_now
             ORDER BY coalesce(lease, 0) LIMIT :limit FOR UPDATE SKIP LOCKED)
  AND attempt < max_attempts

-- name: recover_spent
-- running -> failed, when the lease of the last attempt has expired
UPDATE {p}jobs SET status = 'failed', finished_at = :now, worker = NULL, lease = NULL,
    error_code = CASE WHEN task IS NULL THEN 'TIMEOUT:VISIBILITY' ELSE 'TIMEOUT:LEASE' END,
    error_detail = 'attempt ' || attempt || ', the last, was not settled before its lease ended', fingerprint = NULL,
    transition = 'failed', actor = :actor, reason = NULL, updated_at = :now, revision = revision + 1
WHERE id IN (SELECT id FROM {p}jobs WHERE status = 'running' AND coalesce(lease, 0) <= :boot_now
             ORDER BY coalesce(lease, 0) LIMIT :limit FOR UPDATE SKIP LOCKED)
  AND attempt >= max_attempts

-- name: claim_messages
-- ready -> running: the next messages of a queue, unless it is paused. Locks no more than it takes.
WITH taken AS MATERIALIZED (
    SELECT id FROM {p}jobs WHERE status = 'ready' AND queue = ?4 AND coalesce(task, '') = ''
      AND NOT EXISTS (SELECT 1 FROM {p}queues WHERE name = ?4 AND paused_at IS NOT NULL)
    ORDER BY priority DESC, id LIMIT ?5 FOR UPDATE SKIP LOCKED
)
UPDATE {p}jobs AS job SET status = 'running', attempt = attempt + 1,
    worker = ?1, lease = ?2, claimed_at = ?3, started_at = ?3, heartbeat_at = ?3,
    transition = 'claimed', actor = ?1, reason = NULL, updated_at = ?3, revision = revision + 1
WHERE job.id = ANY (ARRAY(SELECT id FROM taken))
RETURNING job.id, attempt, max_attempts, convert_to(args, 'UTF8'), timeout, history, priority,
          convert_to(trace, 'UTF8'), args_blob

-- name: claim_next_message
-- ready -> running: the next message of a queue, unless it is paused or there are jobs to sweep first
WITH taken AS MATERIALIZED (
    SELECT id FROM {p}jobs WHERE status = 'ready' AND queue = ?4 AND coalesce(task, '') = ''
      AND NOT EXISTS (SELECT 1 FROM {p}queues WHERE name = ?4 AND paused_at IS NOT NULL)
      AND coalesce((SELECT min(run_at) FROM {p}jobs WHERE status = 'scheduled') > ?3, true)
      AND coalesce((SELECT min(coalesce(lease, 0)) FROM {p}jobs WHERE status = 'running') > ?5, true)
    ORDER BY priority DESC, id LIMIT 1 FOR UPDATE SKIP LOCKED
)
UPDATE {p}jobs AS job SET status = 'running', attempt = attempt + 1,
    worker = ?1, lease = ?2, claimed_at = ?3, started_at = ?3, heartbeat_at = ?3,
    transition = 'claimed', actor = ?1, reason = NULL, updated_at = ?3, revision = revision + 1
WHERE job.id = ANY (ARRAY(SELECT id FROM taken))
RETURNING job.id, attempt, max_attempts, convert_to(args, 'UTF8'), timeout, history, priority,
          convert_to(trace, 'UTF8'), args_blob

-- name: ready_pairs
-- The first row is what to sweep before a claim. Column 1 is a sum: 1 if a scheduled job is due, 2 if an ended job is
-- not resolved or a waiting job has expired. Column 2: whether a lease has expired. Column 3: whether a ready job has a
-- version. The other rows are the pairs of queue and task with ready jobs after (:queue, :task), and whether the queue
-- is paused. All numbers are text, since the rows of a union have the same types.
-- Each step is one index lookup of a minimum. The first step of a queue has no task and counts too, so that queues of
-- messages are bounded as well.
WITH RECURSIVE found (queue, task, step) AS (
    SELECT CAST(:queue AS text) COLLATE "C", CAST(:task AS text) COLLATE "C", CAST(0 AS bigint)
    UNION ALL
    SELECT CASE WHEN task IS NULL THEN (SELECT min(queue) FROM {p}jobs WHERE status = 'ready' AND queue > found.queue)
                ELSE queue END,
           CASE WHEN task IS NULL THEN ''
                ELSE (SELECT min(coalesce(task, '')) FROM {p}jobs
                      WHERE status = 'ready' AND queue = found.queue AND coalesce(task, '') > found.task) END,
           step + CAST(task IS NOT NULL AS int)
    FROM found WHERE queue IS NOT NULL AND step <= CAST(:most AS bigint)
)
SELECT (coalesce((SELECT min(run_at) FROM {p}jobs WHERE status = 'scheduled') <= :now, false)::int
        + 2 * (EXISTS (SELECT 1 FROM {p}endings)
               OR coalesce((SELECT min(expires_at) FROM {p}jobs
                            WHERE expires_at IS NOT NULL
                              AND (status = 'blocked' OR status = 'scheduled' OR status = 'ready')) <= :now,
                           false))::int)::text,
       coalesce((SELECT min(coalesce(lease, 0)) FROM {p}jobs WHERE status = 'running') <= :boot_now, false)::int::text,
       ((SELECT min(queue) FROM {p}jobs WHERE status = 'ready' AND version > 0) IS NOT NULL)::int::text
UNION ALL
(SELECT queue, task, (queue IN (SELECT name FROM {p}queues WHERE paused_at IS NOT NULL))::int::text FROM found
 WHERE step > 0 AND queue IS NOT NULL AND task IS NOT NULL LIMIT CAST(:most AS bigint))

-- name: ready_pairs_in
-- the same for the given queues
WITH RECURSIVE found (queue, task) AS (
    SELECT value COLLATE "C", '' COLLATE "C" FROM {p}each_text(:queues)
    UNION ALL
    SELECT queue, (SELECT min(coalesce(task, '')) FROM {p}jobs
                   WHERE status = 'ready' AND queue = found.queue AND coalesce(task, '') > found.task)
    FROM found WHERE task IS NOT NULL
)
SELECT (coalesce((SELECT min(run_at) FROM {p}jobs WHERE status = 'scheduled') <= :now, false)::int
        + 2 * (EXISTS (SELECT 1 FROM {p}endings)
               OR coalesce((SELECT min(expires_at) FROM {p}jobs
                            WHERE expires_at IS NOT NULL
                              AND (status = 'blocked' OR status = 'scheduled' OR status = 'ready')) <= :now,
                           false))::int)::text,
       coalesce((SELECT min(coalesce(lease, 0)) FROM {p}jobs WHERE status = 'running') <= :boot_now, false)::int::text,
       ((SELECT min(queue) FROM {p}jobs WHERE status = 'ready' AND version > 0) IS NOT NULL)::int::text
UNION ALL
SELECT queue, task, (queue IN (SELECT name FROM {p}queues WHERE paused_at IS NOT NULL))::int::text FROM found
WHERE task <> ''

-- name: claim_task
-- ready -> running: the next jobs of one pair of queue and task, which are not returned; locks no more than it takes
WITH taken AS MATERIALIZED (
    SELECT id FROM {p}jobs WHERE status = 'ready' AND queue = :queue AND coalesce(task, '') = :task
      AND NOT EXISTS (SELECT 1 FROM {p}queues WHERE name = :queue AND paused_at IS NOT NULL)
    ORDER BY priority DESC, id LIMIT :limit FOR UPDATE SKIP LOCKED
)
UPDATE {p}jobs AS job SET status = 'running', attempt = attempt + 1,
    worker = :worker, lease = :lease, claimed_at = :now, started_at = NULL, heartbeat_at = :now,
    progress = NULL, progress_text = NULL,
    transition = 'claimed', actor = :worker, reason = NULL, updated_at = :now, revision = revision + 1
WHERE job.id = ANY (ARRAY(SELECT id FROM taken))
RETURNING -priority, job.id, attempt, max_attempts, convert_to(args, 'UTF8'), timeout, history, uncounted,
          error_code, error_detail, run_at, convert_to(trace, 'UTF8'), args_blob

-- name: claim_tasks
-- ready -> running: the next jobs of several pairs of queue and task, by priority across the pairs. The candidates are
-- read without locks, and more than are wanted, since others may have taken the first ones meanwhile.
WITH candidates AS MATERIALIZED (
    SELECT job.id, job.priority FROM {p}each_row(:pairs) AS pair CROSS JOIN LATERAL (
        SELECT id, priority FROM {p}jobs
        WHERE status = 'ready' AND queue = (pair.value ->> 0) AND coalesce(task, '') = (pair.value ->> 1)
        ORDER BY priority DESC, id LIMIT 2 * CAST(:each AS bigint) + 10
    ) AS job
    WHERE (pair.value ->> 0) NOT IN (SELECT name FROM {p}queues WHERE paused_at IS NOT NULL)
), taken AS MATERIALIZED (
    SELECT id FROM {p}jobs
    WHERE id = ANY (ARRAY(SELECT id FROM candidates)) AND status IS NOT DISTINCT FROM 'ready'
    ORDER BY priority DESC, id LIMIT :limit FOR UPDATE SKIP LOCKED
)
UPDATE {p}jobs AS job SET status = 'running', attempt = attempt + 1,
    worker = :worker, lease = :lease, claimed_at = :now, started_at = NULL, heartbeat_at = :now,
    progress = NULL, progress_text = NULL,
    transition = 'claimed', actor = :worker, reason = NULL, updated_at = :now, revision = revision + 1
WHERE job.id = ANY (ARRAY(SELECT id FROM taken))
RETURNING -priority, job.id, attempt, max_attempts, queue, task, convert_to(args, 'UTF8'), timeout, history, uncounted,
          error_code, error_detail, run_at, convert_to(trace, 'UTF8'), args_blob

-- name: claim_readable
-- ready -> running: as claim_tasks, but neither jobs of a newer version than the third value of the pair nor those to
-- skip, and only among the first jobs of each pair
WITH candidates AS MATERIALIZED (
    SELECT job.id, job.priority FROM {p}each_row(:pairs) AS pair CROSS JOIN LATERAL (
        SELECT id, priority FROM (
            SELECT id, priority, version FROM {p}jobs
            WHERE status = 'ready' AND queue = (pair.value ->> 0) AND coalesce(task, '') = (pair.value ->> 1)
            ORDER BY priority DESC, id LIMIT :scanned
        ) AS scanned
        WHERE version <= CAST(pair.value ->> 2 AS bigint) AND id NOT IN (SELECT value FROM {p}each_id(:skip))
        ORDER BY priority DESC, id LIMIT 2 * CAST(:each AS bigint) + 10
    ) AS job
    WHERE (pair.value ->> 0) NOT IN (SELECT name FROM {p}queues WHERE paused_at IS NOT NULL)
), taken AS MATERIALIZED (
    SELECT id FROM {p}jobs
    WHERE id = ANY (ARRAY(SELECT id FROM candidates)) AND status IS NOT DISTINCT FROM 'ready'
    ORDER BY priority DESC, id LIMIT :limit FOR UPDATE SKIP LOCKED
)
UPDATE {p}jobs AS job SET status = 'running', attempt = attempt + 1,
    worker = :worker, lease = :lease, claimed_at = :now, started_at = NULL, heartbeat_at = :now,
    progress = NULL, progress_text = NULL,
    transition = 'claimed', actor = :worker, reason = NULL, updated_at = :now, revision = revision + 1
WHERE job.id = ANY (ARRAY(SELECT id FROM taken))
RETURNING -priority, job.id, attempt, max_attempts, queue, task, convert_to(args, 'UTF8'), timeout, history, uncounted,
          error_code, error_detail, run_at, convert_to(trace, 'UTF8'), args_blob

-- name: newest_versions
-- the newest version of the ready jobs of each of these pairs of queue and task
SELECT (SELECT max(version) FROM {p}jobs
        WHERE status = 'ready' AND version > 0 AND queue = (value ->> 0) AND task = (value ->> 1))
FROM {p}each_row(:pairs) ORDER BY key

-- name: claim_one
-- ready -> running: one job of a task by id, unless its queue is paused
UPDATE {p}jobs SET status = 'running', attempt = attempt + 1,
    worker = :worker, lease = :lease, claimed_at = :now, started_at = NULL, heartbeat_at = :now,
    progress = NULL, progress_text = NULL,
    transition = 'claimed', actor = :worker, reason = NULL, updated_at = :now, revision = revision + 1
WHERE id = :id AND status = 'ready' AND task IS NOT NULL AND attempt < max_attempts
  AND queue NOT IN (SELECT name FROM {p}queues WHERE paused_at IS NOT NULL)
RETURNING -priority, id, attempt, max_attempts, queue, task, convert_to(args, 'UTF8'), timeout, history, uncounted, error_code,
          error_detail, run_at, convert_to(trace, 'UTF8'), args_blob

-- name: next_due
-- When the next scheduled job is due and the next waiting job expires (wall clock), and when the next lease expires (boot
-- clock). Of leases only those that end before :until: nobody waits longer. Those that ended before :since were
-- recovered, or are found by the next look of a worker, and their dead entries are not passed again each time.
SELECT (SELECT min(run_at) FROM {p}jobs WHERE status = 'scheduled'),
       (SELECT min(expires_at) FROM {p}jobs
        WHERE expires_at IS NOT NULL AND (status = 'blocked' OR status = 'scheduled' OR status = 'ready')),
       (SELECT min(coalesce(lease, 0)) FROM {p}jobs
        WHERE status = 'running' AND coalesce(lease, 0) > :since AND coalesce(lease, 0) <= :until)

-- name: awaited
-- What waiting threads and coroutines wait for: the queues with ready messages, at most :most of each, and the jobs,
-- chains and batches that have ended or are gone. And when the next scheduled job is due (wall clock), and when the
-- next lease expires (boot clock). Numbers are text, since the rows of a union have the same types.
SELECT 'due', (SELECT min(run_at) FROM {p}jobs WHERE status = 'scheduled')::text, CAST(0 AS bigint)
UNION ALL
SELECT 'lease', (SELECT min(coalesce(lease, 0)) FROM {p}jobs WHERE status = 'running')::text, 0
UNION ALL
SELECT 'queue', name, count FROM (
    SELECT value AS name, (SELECT count(*) FROM (
        SELECT 1 FROM {p}jobs WHERE status = 'ready' AND queue = value AND coalesce(task, '') = ''
        ORDER BY priority DESC, id LIMIT :most) AS bounded) AS count
    FROM {p}each_text(:queues) WHERE value NOT IN (SELECT name FROM {p}queues WHERE paused_at IS NOT NULL)
) AS found WHERE count > 0
UNION ALL
SELECT 'job', value::text, 1 FROM {p}each_id(:jobs) WHERE NOT EXISTS (
    SELECT 1 FROM {p}jobs WHERE id = value AND status NOT IN ('succeeded', 'failed', 'cancelled'))
UNION ALL
SELECT 'chain', value::text, 1 FROM {p}each_id(:chains) WHERE NOT EXISTS (
    SELECT 1 FROM {p}jobs
    WHERE id = coalesce((SELECT id FROM {p}jobs WHERE chain_id = value ORDER BY chain_index DESC LIMIT 1), value)
      AND status NOT IN ('succeeded', 'failed', 'cancelled'))
UNION ALL
SELECT 'batch', value::text, 1 FROM {p}each_id(:batches) WHERE NOT EXISTS (
    SELECT 1 FROM {p}batches WHERE id = value AND done_at IS NULL)
