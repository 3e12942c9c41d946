-- Other queries of the doctor, and its repairs. Each query reads a bounded part of the database; see doctor_samples.sql.

-- name: blocked_by_finished
-- blocked only by jobs that have finished or were deleted: how many of each, and the ids that did not succeed
SELECT waiting.id, waiting.on_blocker_failure, sum(last.status IS 'succeeded'),
       sum(last.status IS 'failed' OR last.status IS 'cancelled'), sum(last.id IS NULL),
       json_group_array(last.id) FILTER (WHERE last.status IN ('failed', 'cancelled'))
FROM (SELECT id, on_blocker_failure FROM {p}jobs WHERE status = 'blocked' AND NOT external LIMIT :window) AS waiting
CROSS JOIN {p}blockers AS edge ON edge.job_id = waiting.id AND edge.outcome IS NULL
LEFT JOIN {p}jobs AS last ON last.id =
    coalesce((SELECT id FROM {p}jobs WHERE chain_id = edge.chain_id ORDER BY chain_index DESC LIMIT 1), edge.chain_id)
GROUP BY waiting.id
HAVING max(coalesce(last.status, '') IN ('blocked', 'scheduled', 'ready', 'running')) = 0 LIMIT :limit

-- name: count_endings
SELECT count(*) FROM (SELECT 1 FROM {p}endings LIMIT :limit)

-- name: ready_by_queue_and_task
-- every queue and task with ready jobs, and their newest version, without paused queues; each step looks up one smallest value in an index
WITH RECURSIVE found (queue, task, step) AS (
    SELECT min(queue), '', 0 FROM {p}jobs WHERE status = 'ready'
    UNION ALL
    SELECT CASE WHEN task IS NULL THEN (SELECT min(queue) FROM {p}jobs WHERE status = 'ready' AND queue > found.queue)
                ELSE queue END,
           CASE WHEN task IS NULL THEN ''
                ELSE (SELECT min(task) FROM {p}jobs
                      WHERE status = 'ready' AND queue = found.queue AND task > found.task) END,
           step + 1
    FROM found WHERE queue IS NOT NULL AND step <= :limit
)
SELECT queue, task, (
    SELECT count(*) FROM (SELECT 1 FROM {p}jobs
                          WHERE status = 'ready' AND queue = found.queue AND task = found.task LIMIT :limit)), (
    SELECT coalesce(max(version), 0) FROM {p}jobs INDEXED BY {p}jobs_versioned
    WHERE status = 'ready' AND version > 0 AND queue = found.queue AND task = found.task)
FROM found
WHERE queue IS NOT NULL AND task <> '' AND queue NOT IN (SELECT name FROM {p}queues WHERE paused_at IS NOT NULL)

-- name: paused_queues
SELECT name, paused_at, EXISTS (SELECT 1 FROM {p}jobs INDEXED BY {p}jobs_ready WHERE status = 'ready' AND queue = name)
FROM {p}queues WHERE paused_at IS NOT NULL ORDER BY paused_at LIMIT :limit

-- name: clock_steps
-- how often the newest events went back in time, and the largest step; events of plain SQL may have any time
SELECT count(*), coalesce(max(-step), 0) FROM (
    SELECT at - lag(at) OVER (ORDER BY id) AS step FROM (SELECT id, at, event FROM {p}events ORDER BY id DESC LIMIT :recent)
    WHERE event NOT IN ('enqueued', 'edited', 'removed')
) WHERE step < -:tolerance

-- name: schema_objects
SELECT type, CAST(name AS TEXT), CAST(tbl_name AS TEXT), CAST(sql AS TEXT) FROM sqlite_master
WHERE sql IS NOT NULL AND (substr(name, 1, length(:prefix)) = :prefix OR substr(tbl_name, 1, length(:prefix)) = :prefix)

-- name: prefixes
-- the prefixes of all sets of Holdfast tables in the file
SELECT substr(name, 1, length(name) - length('migrations')) AS found FROM sqlite_master AS its
WHERE type = 'table' AND name LIKE '%migrations' AND EXISTS (
    SELECT 1 FROM sqlite_master WHERE type = 'table'
    AND name = substr(its.name, 1, length(its.name) - length('migrations')) || 'events')
ORDER BY 1 LIMIT 10

-- --- repairs ---

-- name: set_finished_now
UPDATE {p}jobs SET finished_at = :now WHERE id IN (SELECT value FROM json_each(:batch))
  AND status IN ('succeeded', 'failed', 'cancelled') AND (finished_at IS NULL OR finished_at > :future)

-- name: delete_orphaned_events
DELETE FROM {p}events WHERE id IN (
    SELECT event.id FROM json_each(:jobs) AS job CROSS JOIN {p}event_blocks AS block ON block.jobs = job.value / 8
    CROSS JOIN {p}events AS event
      ON event.id >= block.events * 8 AND event.id < block.events * 8 + 8 AND event.job_id = job.value
    WHERE +event.id <= (SELECT cursor FROM {p}fold))
  AND job_id NOT IN (SELECT id FROM {p}jobs)

-- name: delete_orphaned_tags
DELETE FROM {p}tags WHERE job_id IN (SELECT value FROM json_each(:jobs)) AND job_id NOT IN (SELECT id FROM {p}jobs)

-- name: delete_orphaned_blockers
DELETE FROM {p}blockers WHERE job_id IN (SELECT value FROM json_each(:jobs)) AND job_id NOT IN (SELECT id FROM {p}jobs)

-- name: delete_meta
DELETE FROM {p}meta WHERE name = ?

-- name: insert_missed_endings
-- chains that have finished or were deleted, and that blocked jobs still wait for, unless the job stays blocked
INSERT INTO {p}endings (chain_id)
SELECT DISTINCT edge.chain_id FROM {p}jobs AS waiting
CROSS JOIN {p}blockers AS edge ON edge.job_id = waiting.id AND edge.outcome IS NULL
LEFT JOIN {p}jobs AS last ON last.id =
    coalesce((SELECT id FROM {p}jobs WHERE chain_id = edge.chain_id ORDER BY chain_index DESC LIMIT 1), edge.chain_id)
WHERE waiting.status = 'blocked'
  AND (last.status IS 'succeeded'
    OR (waiting.on_blocker_failure IS NOT NULL AND (last.id IS NULL OR last.status IN ('failed', 'cancelled'))))
LIMIT :limit
