-- Why a job is where it is, and what is around it. Each reads a bounded part of an index, whatever the tables hold.

-- name: situation
-- how a job came to its state, when its lease ends, whether its queue is paused, whether some end is not worked off
SELECT transition, actor, lease,
       EXISTS (SELECT 1 FROM {p}queues WHERE name = {p}jobs.queue AND paused_at IS NOT NULL),
       EXISTS (SELECT 1 FROM {p}endings)
FROM {p}jobs WHERE id = ?

-- name: blockers_by_urgency
-- The chains that a job waits for, or waited for, each with its last job: first those that somebody must see to.
SELECT edge.chain_id, edge.outcome, last.id, last.task, last.status, last.chain_index, last.external, last.timeout_at,
       last.error_code
FROM (SELECT chain_id, outcome, min(position) AS position FROM {p}blockers WHERE job_id = :job GROUP BY chain_id) AS edge
LEFT JOIN {p}jobs AS last ON last.id =
    coalesce((SELECT id FROM {p}jobs WHERE chain_id = edge.chain_id ORDER BY chain_index DESC LIMIT 1), edge.chain_id)
ORDER BY edge.outcome IS NOT NULL,
         CASE WHEN last.id IS NULL THEN 0 WHEN last.status = 'failed' THEN 1 WHEN last.status = 'cancelled' THEN 2
              WHEN last.external THEN 3 WHEN last.status = 'blocked' THEN 4 WHEN last.status = 'succeeded' THEN 6
              ELSE 5 END,
         edge.position
LIMIT :limit

-- name: count_blockers
-- how many there are, and how many of them hold the job
SELECT count(DISTINCT chain_id), count(DISTINCT CASE WHEN outcome IS NULL THEN chain_id END)
FROM {p}blockers WHERE job_id = ?

-- name: behind_blockers
-- What a job waits for in the end, by way of others: chains that are not blocked themselves, or by nobody here.
WITH RECURSIVE reached (chain, depth) AS (
    SELECT chain_id, 0 FROM {p}blockers WHERE job_id = :job AND outcome IS NULL
    UNION
    SELECT edge.chain_id, 1 FROM reached
    CROSS JOIN {p}blockers AS edge ON edge.outcome IS NULL AND edge.job_id =
        coalesce((SELECT id FROM {p}jobs WHERE chain_id = reached.chain ORDER BY chain_index DESC LIMIT 1), reached.chain)
    LIMIT :most
)
SELECT reached.chain, NULL, last.id, last.task, last.status, last.chain_index, last.external, last.timeout_at,
       last.error_code
FROM reached LEFT JOIN {p}jobs AS last ON last.id =
    coalesce((SELECT id FROM {p}jobs WHERE chain_id = reached.chain ORDER BY chain_index DESC LIMIT 1), reached.chain)
WHERE reached.depth = 1 AND reached.chain NOT IN (SELECT chain_id FROM {p}blockers WHERE job_id = :job)
  AND (last.id IS NULL OR last.status <> 'blocked' OR last.external)
ORDER BY CASE WHEN last.id IS NULL THEN 0 WHEN last.status = 'failed' THEN 1 WHEN last.status = 'cancelled' THEN 2
              WHEN last.external THEN 3 ELSE 4 END, reached.chain
LIMIT :limit

-- name: present_in_full
SELECT slot, inode, id, pid, host, queues, tasks, concurrency, lease, started_at, heartbeat_at, ended_at, ending, limits
FROM {p}workers WHERE ended_at IS NULL

-- name: places_taken
-- how many jobs each of these workers has taken, by queue and task
SELECT job.worker, job.queue, job.task, count(*)
FROM (SELECT id, worker FROM {p}jobs WHERE status = 'running' LIMIT :most) AS held
CROSS JOIN {p}jobs AS job ON job.id = held.id
WHERE held.worker IN (SELECT value FROM json_each(:workers))
GROUP BY job.worker, job.queue, job.task

-- Counts of what is ahead. The index is named, since the planner would walk over the table where most of it is ready.

-- name: tasks_of_higher_priority
SELECT count(*) FROM (
    SELECT 1 FROM {p}jobs INDEXED BY {p}jobs_ready
    WHERE status = 'ready' AND queue = :queue AND task = :task AND priority > :priority LIMIT :limit)

-- name: tasks_in_front
-- of the same priority, and enqueued before
SELECT count(*) FROM (
    SELECT 1 FROM {p}jobs INDEXED BY {p}jobs_ready
    WHERE status = 'ready' AND queue = :queue AND task = :task AND priority = :priority AND id < :id LIMIT :limit)

-- name: tasks_ready
SELECT count(*) FROM (
    SELECT 1 FROM {p}jobs INDEXED BY {p}jobs_ready
    WHERE status = 'ready' AND queue = :queue AND task = :task LIMIT :limit)

-- name: messages_of_higher_priority
SELECT count(*) FROM (
    SELECT 1 FROM {p}jobs INDEXED BY {p}jobs_ready
    WHERE status = 'ready' AND queue = :queue AND task IS NULL AND priority > :priority LIMIT :limit)

-- name: messages_in_front
SELECT count(*) FROM (
    SELECT 1 FROM {p}jobs INDEXED BY {p}jobs_ready
    WHERE status = 'ready' AND queue = :queue AND task IS NULL AND priority = :priority AND id < :id LIMIT :limit)

-- name: chain_around
-- jobs of a chain near one place in it, its first and its last
SELECT id, task, status, chain_index FROM {p}jobs WHERE id = :chain
UNION
SELECT id, task, status, chain_index FROM {p}jobs WHERE chain_id = :chain AND chain_index BETWEEN :low AND :high
UNION
SELECT * FROM (SELECT id, task, status, chain_index FROM {p}jobs WHERE chain_id = :chain ORDER BY chain_index DESC LIMIT 1)
ORDER BY chain_index

-- name: waiting_around
-- unfinished jobs that wait for this chain, and some that waited for it
SELECT DISTINCT waiting.id, waiting.task, waiting.status, waiting.chain_index
FROM (SELECT job_id FROM {p}blockers WHERE chain_id = :chain ORDER BY outcome LIMIT :most) AS edge
CROSS JOIN {p}jobs AS waiting ON waiting.id = edge.job_id
WHERE waiting.status IN ('blocked', 'scheduled', 'ready', 'running')
ORDER BY waiting.id LIMIT :limit

-- name: count_waiting
SELECT count(DISTINCT waiting.id)
FROM (SELECT job_id FROM {p}blockers WHERE chain_id = :chain ORDER BY outcome LIMIT :most) AS edge
CROSS JOIN {p}jobs AS waiting ON waiting.id = edge.job_id
WHERE waiting.status IN ('blocked', 'scheduled', 'ready', 'running')

-- name: removal_waiting
-- unfinished jobs that keep a chain from being deleted
SELECT DISTINCT waiting.id FROM {p}blockers AS edge CROSS JOIN {p}jobs AS waiting ON waiting.id = edge.job_id
WHERE edge.chain_id = :chain AND waiting.status IN ('blocked', 'scheduled', 'ready', 'running') ORDER BY waiting.id

-- name: count_deletable
-- what `delete` and `delete_fitting_chain` would delete: jobs that are alone, and chains all of whose jobs fit; but
-- nothing that somebody waits for
SELECT (
    SELECT count(*) FROM {p}jobs WHERE {where} AND status <> 'running' AND NOT continued AND chain_id IS NULL
      AND NOT EXISTS (
          SELECT 1 FROM {p}blockers AS edge CROSS JOIN {p}jobs AS waiting ON waiting.id = edge.job_id
          WHERE edge.chain_id = {p}jobs.id AND waiting.status IN ('blocked', 'scheduled', 'ready', 'running'))
) + (
    SELECT coalesce(sum(fitting), 0)
    FROM (SELECT coalesce(chain_id, id) AS chain, count(*) AS fitting FROM {p}jobs
          WHERE {where} AND status <> 'running' AND (continued OR chain_id IS NOT NULL) GROUP BY 1) AS found
    WHERE fitting = (SELECT count(*) FROM {p}jobs AS part WHERE part.id = found.chain OR part.chain_id = found.chain)
      AND NOT EXISTS (
          SELECT 1 FROM {p}blockers AS edge CROSS JOIN {p}jobs AS waiting ON waiting.id = edge.job_id
          WHERE edge.chain_id = found.chain AND waiting.status IN ('blocked', 'scheduled', 'ready', 'running'))
)
