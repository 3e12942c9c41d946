-- Queries of the doctor that return ids. All of them are run; a check names the one whose result it reports.
-- Each reads a bounded part of the database: :window rows at either end of an index, or the :newest jobs (-1: all of
-- them), and returns at most :limit ids. diagnose.py has the other parameters.

-- name: orphaned_events
-- Deleted jobs with folded events but without the event of the deletion. With that event, they are deleted when it is
-- folded. A block has up to eight events.
SELECT DISTINCT event.job_id FROM (
    SELECT * FROM (SELECT jobs, events FROM {p}event_blocks ORDER BY jobs, events
                   LIMIT CASE WHEN :window < 0 THEN -1 ELSE :window / 8 + 1 END)
    UNION ALL SELECT * FROM (SELECT jobs, events FROM {p}event_blocks ORDER BY jobs DESC, events DESC
                             LIMIT CASE WHEN :window < 0 THEN -1 ELSE :window / 8 + 1 END)
) AS block CROSS JOIN {p}events AS event
  ON event.id >= block.events * 8 AND event.id < block.events * 8 + 8 AND event.job_id / 8 = block.jobs
WHERE +event.id <= (SELECT cursor FROM {p}fold) AND event.job_id > 0 AND event.job_id NOT IN (SELECT id FROM {p}jobs)
  AND event.job_id NOT IN (SELECT job_id FROM {p}events WHERE event = 'removed' AND job_id IS NOT NULL) LIMIT :limit

-- name: orphaned_tags
SELECT DISTINCT job_id FROM (
    SELECT * FROM (SELECT job_id FROM {p}tags ORDER BY job_id LIMIT :window)
    UNION ALL SELECT * FROM (SELECT job_id FROM {p}tags ORDER BY job_id DESC LIMIT :window)
) WHERE job_id NOT IN (SELECT id FROM {p}jobs) LIMIT :limit

-- name: orphaned_blockers
SELECT DISTINCT job_id FROM (
    SELECT * FROM (SELECT job_id FROM {p}blockers ORDER BY job_id LIMIT :window)
    UNION ALL SELECT * FROM (SELECT job_id FROM {p}blockers ORDER BY job_id DESC LIMIT :window)
) WHERE job_id NOT IN (SELECT id FROM {p}jobs) LIMIT :limit

-- name: chains_without_root
-- the first remaining job of each chain whose first job was deleted
SELECT DISTINCT (SELECT id FROM {p}jobs WHERE chain_id = found.chain_id ORDER BY chain_index LIMIT 1) FROM (
    SELECT * FROM (SELECT chain_id FROM {p}jobs WHERE chain_id IS NOT NULL ORDER BY chain_id LIMIT :window)
    UNION ALL
    SELECT * FROM (SELECT chain_id FROM {p}jobs WHERE chain_id IS NOT NULL ORDER BY chain_id DESC LIMIT :window)
) AS found WHERE chain_id NOT IN (SELECT id FROM {p}jobs) LIMIT :limit

-- name: deleted_batches
-- batches that were deleted while jobs are members of them
SELECT DISTINCT batch_id FROM (
    SELECT * FROM (SELECT batch_id FROM {p}jobs WHERE batch_id IS NOT NULL ORDER BY batch_id LIMIT :window)
    UNION ALL
    SELECT * FROM (SELECT batch_id FROM {p}jobs WHERE batch_id IS NOT NULL ORDER BY batch_id DESC LIMIT :window)
) WHERE batch_id NOT IN (SELECT id FROM {p}batches) LIMIT :limit

-- name: abandoned_batches
-- in the last day
SELECT id FROM {p}batches WHERE abandoned_at IS NOT NULL AND abandoned_at > :yesterday ORDER BY id DESC LIMIT :limit

-- name: expired_leases
-- running past the lease, and not held by a live worker
SELECT id FROM {p}jobs WHERE status = 'running' AND coalesce(lease, 0) <= :expired_before
  AND (worker IS NULL OR worker NOT IN (SELECT value FROM json_each(:live_workers))) LIMIT :limit

-- name: jobs_of_dead_workers
SELECT id FROM {p}jobs WHERE status = 'running' AND worker IN (SELECT value FROM json_each(:dead_workers)) LIMIT :limit

-- name: blocked_without_blockers
SELECT id FROM (SELECT id, external FROM {p}jobs WHERE status = 'blocked' LIMIT :window) AS waiting
WHERE NOT external AND NOT EXISTS (SELECT 1 FROM {p}blockers WHERE job_id = waiting.id AND outcome IS NULL) LIMIT :limit

-- name: late_jobs
-- due for a while, and still scheduled
SELECT id FROM {p}jobs WHERE status = 'scheduled' AND run_at <= :late_before LIMIT :limit

-- name: expired_jobs
-- expired a while ago, and still waiting
SELECT id FROM {p}jobs WHERE expires_at IS NOT NULL AND (status = 'blocked' OR status = 'scheduled' OR status = 'ready')
  AND expires_at <= :late_before LIMIT :limit

-- name: unfit_jobs
-- whose payload does not fit the code of the workers that have tried it
SELECT id FROM (
    SELECT * FROM (SELECT id, unfit_since FROM {p}jobs INDEXED BY {p}jobs_ready WHERE status = 'ready' LIMIT :window)
    UNION ALL
    SELECT * FROM (SELECT id, unfit_since FROM {p}jobs WHERE status = 'scheduled' ORDER BY run_at LIMIT :window)
) WHERE unfit_since IS NOT NULL LIMIT :limit

-- name: created_in_future
SELECT id FROM (SELECT id, created_at FROM {p}jobs ORDER BY id DESC LIMIT :newest)
WHERE created_at > :future LIMIT :limit

-- name: finished_in_future
SELECT id FROM {p}jobs WHERE status IN ('succeeded', 'failed', 'cancelled') AND finished_at > :future LIMIT :limit

-- name: finished_without_time
-- the status was changed by hand
SELECT id FROM (SELECT id, status, finished_at FROM {p}jobs ORDER BY id DESC LIMIT :newest)
WHERE status IN ('succeeded', 'failed', 'cancelled') AND finished_at IS NULL LIMIT :limit

-- name: scheduled_far_in_future
SELECT id FROM {p}jobs WHERE status = 'scheduled' AND run_at > :far_future ORDER BY run_at DESC LIMIT :limit

-- name: times_in_wrong_unit
-- before 2001, if read as microseconds
SELECT id FROM (SELECT id, created_at, run_at FROM {p}jobs ORDER BY id DESC LIMIT :newest)
WHERE created_at < :earliest OR run_at < :earliest LIMIT :limit
