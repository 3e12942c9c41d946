-- What is not as it should be. Each reads a bounded part: a window at either end of an index, or at most so many rows;
-- a window of -1 is all of it.

-- name: orphaned_events
-- jobs that are gone, and of which events are left: somebody deleted them with foreign keys off. Where the event of the
-- deletion is there, they are deleted when they are folded.
SELECT DISTINCT job_id FROM (
    SELECT * FROM (SELECT job_id FROM {p}events WHERE job_id > 0 ORDER BY job_id LIMIT :window)
    UNION ALL SELECT * FROM (SELECT job_id FROM {p}events WHERE job_id > 0 ORDER BY job_id DESC LIMIT :window)
) AS found WHERE job_id NOT IN (SELECT id FROM {p}jobs)
  AND NOT EXISTS (SELECT 1 FROM {p}events WHERE job_id = found.job_id AND event = 'removed') LIMIT :most

-- name: orphaned_tags
SELECT DISTINCT job_id FROM (
    SELECT * FROM (SELECT job_id FROM {p}tags ORDER BY job_id LIMIT :window)
    UNION ALL SELECT * FROM (SELECT job_id FROM {p}tags ORDER BY job_id DESC LIMIT :window)
) WHERE job_id NOT IN (SELECT id FROM {p}jobs) LIMIT :most

-- name: orphaned_blockers
SELECT DISTINCT job_id FROM (
    SELECT * FROM (SELECT job_id FROM {p}blockers ORDER BY job_id LIMIT :window)
    UNION ALL SELECT * FROM (SELECT job_id FROM {p}blockers ORDER BY job_id DESC LIMIT :window)
) WHERE job_id NOT IN (SELECT id FROM {p}jobs) LIMIT :most

-- name: rootless_chains
-- of chains whose first job is gone, the first one that is left
SELECT DISTINCT (SELECT id FROM {p}jobs WHERE chain_id = found.chain_id ORDER BY chain_index LIMIT 1) FROM (
    SELECT * FROM (SELECT chain_id FROM {p}jobs WHERE chain_id IS NOT NULL ORDER BY chain_id LIMIT :window)
    UNION ALL
    SELECT * FROM (SELECT chain_id FROM {p}jobs WHERE chain_id IS NOT NULL ORDER BY chain_id DESC LIMIT :window)
) AS found WHERE chain_id NOT IN (SELECT id FROM {p}jobs) LIMIT :most

-- name: batchless_jobs
-- batches that are gone, and that some job is a member of
SELECT DISTINCT batch_id FROM (
    SELECT * FROM (SELECT batch_id FROM {p}jobs WHERE batch_id IS NOT NULL ORDER BY batch_id LIMIT :window)
    UNION ALL
    SELECT * FROM (SELECT batch_id FROM {p}jobs WHERE batch_id IS NOT NULL ORDER BY batch_id DESC LIMIT :window)
) WHERE batch_id NOT IN (SELECT id FROM {p}batches) LIMIT :most

-- name: overdue
-- run past their leases, and none of the live workers holds them
SELECT id FROM {p}jobs WHERE status = 'running' AND coalesce(lease, 0) <= :before
  AND (worker IS NULL OR worker NOT IN (SELECT value FROM json_each(:live))) LIMIT :most

-- name: abandoned
-- run in the name of a worker that is dead
SELECT id FROM {p}jobs WHERE status = 'running' AND worker IN (SELECT value FROM json_each(:dead)) LIMIT :most

-- name: unheld
-- blocked, though they wait for nothing
SELECT id FROM (SELECT id, external FROM {p}jobs WHERE status = 'blocked' LIMIT :window) AS waiting
WHERE NOT external AND NOT EXISTS (SELECT 1 FROM {p}blockers WHERE job_id = waiting.id AND outcome IS NULL) LIMIT :most

-- name: held_by_ended
-- blocked by what has ended, or is gone, and by nothing else: how many of each, and those that did not end well
SELECT waiting.id, waiting.on_blocker_failure, sum(last.status IS 'succeeded'),
       sum(last.status IS 'failed' OR last.status IS 'cancelled'), sum(last.id IS NULL),
       json_group_array(last.id) FILTER (WHERE last.status IN ('failed', 'cancelled'))
FROM (SELECT id, on_blocker_failure FROM {p}jobs WHERE status = 'blocked' AND NOT external LIMIT :window) AS waiting
CROSS JOIN {p}blockers AS edge ON edge.job_id = waiting.id AND edge.outcome IS NULL
LEFT JOIN {p}jobs AS last ON last.id =
    coalesce((SELECT id FROM {p}jobs WHERE chain_id = edge.chain_id ORDER BY chain_index DESC LIMIT 1), edge.chain_id)
GROUP BY waiting.id
HAVING max(coalesce(last.status, '') IN ('blocked', 'scheduled', 'ready', 'running')) = 0 LIMIT :most

-- name: endings_left
SELECT count(*) FROM (SELECT 1 FROM {p}endings LIMIT :most)

-- name: waiting_pairs
-- every queue and task with something ready, where the queue is not paused; each step is one look-up of a least value
WITH RECURSIVE found (queue, task, step) AS (
    SELECT min(queue), '', 0 FROM {p}jobs WHERE status = 'ready'
    UNION ALL
    SELECT CASE WHEN task IS NULL THEN (SELECT min(queue) FROM {p}jobs WHERE status = 'ready' AND queue > found.queue)
                ELSE queue END,
           CASE WHEN task IS NULL THEN ''
                ELSE (SELECT min(task) FROM {p}jobs
                      WHERE status = 'ready' AND queue = found.queue AND task > found.task) END,
           step + 1
    FROM found WHERE queue IS NOT NULL AND step <= :most
)
SELECT queue, task, (
    SELECT count(*) FROM (SELECT 1 FROM {p}jobs
                          WHERE status = 'ready' AND queue = found.queue AND task = found.task LIMIT :most))
FROM found
WHERE queue IS NOT NULL AND task <> '' AND queue NOT IN (SELECT name FROM {p}queues WHERE paused_at IS NOT NULL)

-- name: late
-- due since a moment, and nobody has made them ready
SELECT id FROM {p}jobs WHERE status = 'scheduled' AND run_at <= :before LIMIT :most

-- name: pauses
SELECT name, paused_at, EXISTS (SELECT 1 FROM {p}jobs INDEXED BY {p}jobs_ready WHERE status = 'ready' AND queue = name)
FROM {p}queues WHERE paused_at IS NOT NULL ORDER BY paused_at LIMIT :most

-- name: created_ahead
-- of the newest jobs, those that were made later than now
SELECT id FROM (SELECT id, created_at FROM {p}jobs ORDER BY id DESC LIMIT :newest) WHERE created_at > :after LIMIT :most

-- name: ended_ahead
-- that ended later than now
SELECT id FROM {p}jobs WHERE status IN ('succeeded', 'failed', 'cancelled') AND finished_at > :after LIMIT :most

-- name: ended_untimed
-- of the newest jobs, those that ended at no time: somebody changed the status by hand
SELECT id FROM (SELECT id, status, finished_at FROM {p}jobs ORDER BY id DESC LIMIT :newest)
WHERE status IN ('succeeded', 'failed', 'cancelled') AND finished_at IS NULL LIMIT :most

-- name: end_now
-- of these, those that ended at no time, or later than now
UPDATE {p}jobs SET finished_at = :now WHERE id IN (SELECT value FROM json_each(:batch))
  AND status IN ('succeeded', 'failed', 'cancelled') AND (finished_at IS NULL OR finished_at > :after)

-- name: far_ahead
SELECT id FROM {p}jobs WHERE status = 'scheduled' AND run_at > :after ORDER BY run_at DESC LIMIT :most

-- name: wrong_unit
-- of the newest jobs, those that were made before there were any
SELECT id FROM (SELECT id, created_at, run_at FROM {p}jobs ORDER BY id DESC LIMIT :newest)
WHERE created_at < :before OR run_at < :before LIMIT :most

-- name: steps_back
-- how often the log went back in time, and by how much at most; what others have put in by SQL does not count
SELECT count(*), coalesce(max(-step), 0) FROM (
    SELECT at - lag(at) OVER (ORDER BY id) AS step FROM (SELECT id, at, event FROM {p}events ORDER BY id DESC LIMIT :newest)
    WHERE event NOT IN ('enqueued', 'edited', 'removed')
) WHERE step < -:slack

-- name: schema_objects
SELECT type, name, tbl_name, sql FROM sqlite_master
WHERE sql IS NOT NULL AND (substr(name, 1, length(:prefix)) = :prefix OR substr(tbl_name, 1, length(:prefix)) = :prefix)

-- name: prefixes
-- how the names of Holdfast's tables begin, of whichever set
SELECT substr(name, 1, length(name) - length('migrations')) AS found FROM sqlite_master AS its
WHERE type = 'table' AND name LIKE '%migrations' AND EXISTS (
    SELECT 1 FROM sqlite_master WHERE type = 'table'
    AND name = substr(its.name, 1, length(its.name) - length('migrations')) || 'attempts')
ORDER BY 1 LIMIT 10

-- --- repairs ---

-- name: delete_leftovers
DELETE FROM {table} WHERE job_id IN (SELECT value FROM json_each(:jobs)) AND job_id NOT IN (SELECT id FROM {p}jobs)

-- name: forget_meta
DELETE FROM {p}meta WHERE name = ?

-- name: note_missed
-- chains that have ended, or are gone, and that blocked jobs still wait for; but for those that these hold for
INSERT INTO {p}endings (chain_id)
SELECT DISTINCT edge.chain_id FROM {p}jobs AS waiting
CROSS JOIN {p}blockers AS edge ON edge.job_id = waiting.id AND edge.outcome IS NULL
LEFT JOIN {p}jobs AS last ON last.id =
    coalesce((SELECT id FROM {p}jobs WHERE chain_id = edge.chain_id ORDER BY chain_index DESC LIMIT 1), edge.chain_id)
WHERE waiting.status = 'blocked'
  AND (last.status IS 'succeeded'
    OR (waiting.on_blocker_failure IS NOT NULL AND (last.id IS NULL OR last.status IN ('failed', 'cancelled'))))
LIMIT :most
