-- Explain the state of a job. Each statement reads a bounded part of an index.

-- name: job_details
-- the last transition of a job, the end of its lease, whether its queue is paused, and whether ends are unresolved
SELECT transition, coalesce(actor, worker), reason, lease,
       EXISTS (SELECT 1 FROM {p}queues WHERE name = {p}jobs.queue AND paused_at IS NOT NULL),
       EXISTS (SELECT 1 FROM {p}endings)
FROM {p}jobs WHERE id = ?

-- name: indirect_blockers
-- The chains that a job waits for indirectly, through blockers that are blocked themselves, if they are not blocked or
-- are external.
WITH RECURSIVE reached (chain, depth) AS (
    SELECT chain_id, 0 FROM {p}blockers WHERE job_id = :job AND outcome IS NULL
    UNION
    SELECT edge.chain_id, 1 FROM reached
    JOIN {p}blockers AS edge ON edge.outcome IS NULL AND edge.job_id =
        coalesce((SELECT id FROM {p}jobs WHERE chain_id = reached.chain ORDER BY chain_index DESC LIMIT 1), reached.chain)
)
SELECT reached.chain, CAST(NULL AS text), last.id, last.task, last.status, last.chain_index, last.external, last.expires_at,
       last.error_code
FROM (SELECT chain, depth FROM reached LIMIT :bound) AS reached LEFT JOIN {p}jobs AS last ON last.id =
    coalesce((SELECT id FROM {p}jobs WHERE chain_id = reached.chain ORDER BY chain_index DESC LIMIT 1), reached.chain)
WHERE reached.depth = 1 AND reached.chain NOT IN (SELECT chain_id FROM {p}blockers WHERE job_id = :job)
  AND (last.id IS NULL OR last.status <> 'blocked' OR last.external = 1)
ORDER BY CASE WHEN last.id IS NULL THEN 0 WHEN last.status = 'failed' THEN 1 WHEN last.status = 'cancelled' THEN 2
              WHEN last.external = 1 THEN 3 ELSE 4 END, reached.chain
LIMIT :limit

-- Ready jobs, or messages, that are ahead of one. The index is forced: SQLite would scan the table if most jobs are
-- ready.

-- name: ready_of_higher_priority
SELECT count(*) FROM (
    SELECT 1 FROM {p}jobs
    WHERE status = 'ready' AND queue = :queue AND coalesce(task, '') = coalesce(CAST(:task AS text), '') AND priority > :priority LIMIT :limit) AS bounded

-- name: ready_before
-- of the same priority, and enqueued earlier
SELECT count(*) FROM (
    SELECT 1 FROM {p}jobs
    WHERE status = 'ready' AND queue = :queue AND coalesce(task, '') = coalesce(CAST(:task AS text), '') AND priority = :priority AND id < :id LIMIT :limit) AS bounded

-- name: all_ready
SELECT count(*) FROM (
    SELECT 1 FROM {p}jobs
    WHERE status = 'ready' AND queue = :queue AND coalesce(task, '') = coalesce(CAST(:task AS text), '') LIMIT :limit) AS bounded
