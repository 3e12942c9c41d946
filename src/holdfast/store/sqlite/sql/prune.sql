-- Pruning. Candidates are found by reads, and checked again in the transaction that deletes them.

-- name: finished_after
-- jobs of one status between two positions, in the order in which they finished. A damaged row may hold a fraction,
-- which no position could name: it is left out.
SELECT id, status, queue, task, finished_at, attempt, coalesce(chain_id, id),
       continued OR chain_id IS NOT NULL OR awaited OR batch_id IS NOT NULL
FROM {p}jobs
WHERE status = :status AND finished_at >= :after AND finished_at <= :until
  AND (finished_at, id) > (:after, :after_id) AND (finished_at, id) <= (:until, :until_id)
  AND typeof(finished_at) = 'integer'
ORDER BY finished_at, id LIMIT :limit

-- name: delete_standalone_jobs
-- finished jobs without a chain, a batch or waiting jobs, with their attempts, events and tags
DELETE FROM {p}jobs WHERE id IN (SELECT value FROM json_each(:batch)) AND +status = :status AND +finished_at <= :until
  AND NOT continued AND chain_id IS NULL AND NOT awaited AND batch_id IS NULL

-- name: members_of_chains
-- jobs of these chains
SELECT chain.value, job.id, job.status, job.queue, job.task, job.finished_at, job.batch_id, job.attempt
FROM json_each(:chains) AS chain CROSS JOIN {p}jobs AS job ON job.id = chain.value
UNION ALL
SELECT chain.value, job.id, job.status, job.queue, job.task, job.finished_at, job.batch_id, job.attempt
FROM json_each(:chains) AS chain CROSS JOIN {p}jobs AS job ON job.chain_id = chain.value

-- name: waiters_of_chains
-- jobs that waited for these chains and still exist, with the chain of each
SELECT chain.value, waiting.id, coalesce(waiting.chain_id, waiting.id)
FROM json_each(:chains) AS chain CROSS JOIN {p}blockers AS edge ON edge.chain_id = chain.value
CROSS JOIN {p}jobs AS waiting ON waiting.id = edge.job_id LIMIT :limit

-- name: blockers_of_jobs
-- chains for which these jobs waited
SELECT DISTINCT edge.job_id, edge.chain_id FROM json_each(:batch) AS given
CROSS JOIN {p}blockers AS edge ON edge.job_id = given.value

-- name: batch_done_times
-- NULL: the members stay, since one of them or a callback is not finished
SELECT id, CASE WHEN NOT EXISTS (SELECT 1 FROM {p}jobs AS job WHERE job.id = success_job_id
                                 AND +job.status NOT IN ('succeeded', 'failed', 'cancelled'))
                 AND NOT EXISTS (SELECT 1 FROM {p}jobs AS job WHERE job.id = done_job_id
                                 AND +job.status NOT IN ('succeeded', 'failed', 'cancelled')) THEN done_at END
FROM {p}batches WHERE id IN (SELECT value FROM json_each(:batches))

-- name: batches_of_callbacks
-- batches whose callback is one of these jobs
SELECT batch.id FROM json_each(:batch) AS given CROSS JOIN {p}batches AS batch ON batch.success_job_id = given.value
UNION SELECT batch.id FROM json_each(:batch) AS given CROSS JOIN {p}batches AS batch ON batch.done_job_id = given.value

-- name: batches_of_jobs
SELECT DISTINCT batch_id FROM {p}jobs WHERE id IN (SELECT value FROM json_each(:batch)) AND batch_id IS NOT NULL

-- name: delete_batches
-- batches that are done and have neither members nor callbacks left
DELETE FROM {p}batches WHERE id IN (SELECT value FROM json_each(:rows)) AND done_at IS NOT NULL
  AND NOT EXISTS (SELECT 1 FROM {p}jobs WHERE batch_id = {p}batches.id AND batch_id IS NOT NULL)
  AND NOT EXISTS (SELECT 1 FROM {p}jobs AS job WHERE job.id = success_job_id)
  AND NOT EXISTS (SELECT 1 FROM {p}jobs AS job WHERE job.id = done_job_id)

-- name: chain_is_deletable
-- whether the last job of a chain is still finished, and no job waits for the chain (the others have succeeded)
SELECT 1 FROM {p}jobs WHERE id =
    coalesce((SELECT id FROM {p}jobs WHERE chain_id = :chain ORDER BY chain_index DESC LIMIT 1), :chain)
  AND +status IN ('succeeded', 'failed', 'cancelled') AND +finished_at <= :until
  AND NOT EXISTS (SELECT 1 FROM {p}blockers WHERE chain_id = :chain)

-- name: chain_tail
-- the last jobs of a chain; the first job comes last
SELECT id, status FROM (SELECT id, status FROM {p}jobs WHERE chain_id = :chain ORDER BY chain_index DESC LIMIT :limit)
UNION ALL
SELECT id, status FROM {p}jobs WHERE id = :chain
  AND (SELECT count(*) FROM (SELECT 1 FROM {p}jobs WHERE chain_id = :chain LIMIT :limit)) < :limit

-- name: trim_events
-- only folded events
DELETE FROM {p}events
WHERE id IN (SELECT event_id FROM {p}events_by_job WHERE job_id = :job AND event_id <= (SELECT cursor FROM {p}fold)
             LIMIT :limit)
  AND EXISTS (SELECT 1 FROM {p}jobs WHERE id = :job AND +status = :status AND +finished_at <= :until)

-- --- rows that belong to no job: the key of each, and whether it has expired ---

-- name: expired_minutes
-- hours and days by their last minute
SELECT minute, 1 FROM {p}minutes WHERE minute < :before
UNION ALL SELECT minute, 1 FROM {p}failure_minutes WHERE minute < :before
UNION ALL SELECT last, 1 FROM {p}rollups WHERE minutes = -60 AND last < :before
UNION ALL SELECT last, 1 FROM {p}rollups WHERE minutes = 60 AND last < :before
UNION ALL SELECT last, 1 FROM {p}rollups WHERE minutes = 360 AND last < :before
UNION ALL SELECT last, 1 FROM {p}rollups WHERE minutes = 1440 AND last < :before
ORDER BY 1 LIMIT :limit

-- name: delete_minutes
DELETE FROM {p}minutes WHERE minute IN (SELECT value FROM json_each(:rows))

-- name: delete_failure_minutes
DELETE FROM {p}failure_minutes WHERE minute IN (SELECT value FROM json_each(:rows))

-- name: delete_rollups
DELETE FROM {p}rollups WHERE minutes IN (-60, 60, 360, 1440) AND last IN (SELECT value FROM json_each(:rows))

-- name: expired_failures
-- the key is JSON
SELECT json_array(error_code, queue, task, fingerprint), 1 FROM {p}failures WHERE last_seen < :before LIMIT :limit

-- name: delete_failures
DELETE FROM {p}failures WHERE (error_code, queue, task, fingerprint) IN (
    SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]'), json_extract(value, '$[2]'), json_extract(value, '$[3]')
    FROM json_each(:rows)) AND last_seen < :before

-- name: expired_tracebacks
-- expired: old, and no failure refers to them
SELECT fingerprint, last_seen < :before AND fingerprint NOT IN (SELECT fingerprint FROM {p}failures)
FROM {p}tracebacks WHERE fingerprint > coalesce(:after, '') ORDER BY fingerprint LIMIT :limit

-- name: delete_tracebacks
DELETE FROM {p}tracebacks WHERE fingerprint IN (SELECT value FROM json_each(:rows)) AND last_seen < :before

-- name: expired_audit
-- events without a job; never the newest of all events, since SQLite would reuse its id
SELECT id, at < :before AND id < (SELECT max(id) FROM {p}events)
FROM {p}events WHERE job_id IS NULL ORDER BY id LIMIT :limit

-- name: delete_audit
DELETE FROM {p}events WHERE id IN (SELECT value FROM json_each(:rows)) AND job_id IS NULL
  AND id < (SELECT max(id) FROM {p}events)

-- name: expired_batches
-- expired: done, and without members
SELECT id, done_at IS NOT NULL AND done_at < :before
       AND NOT EXISTS (SELECT 1 FROM {p}jobs WHERE batch_id = {p}batches.id AND batch_id IS NOT NULL)
FROM {p}batches WHERE id > coalesce(:after, 0) ORDER BY id LIMIT :limit

-- --- the run ---

-- name: get_prune_run
-- the last columns identify the lock that the process of the run holds while it lives
SELECT token, actor, kind, pid, begun_at, counts, note, last_at, last_counts, slot, inode FROM {p}upkeep WHERE name = 'prune'

-- name: begin_prune_run
INSERT INTO {p}upkeep (name, token, actor, kind, pid, slot, inode, begun_at, counts, note)
VALUES ('prune', :token, :actor, :kind, :pid, :slot, :place, :now, '{}', :note)
ON CONFLICT (name) DO UPDATE SET token = excluded.token, actor = excluded.actor, kind = excluded.kind,
    pid = excluded.pid, slot = excluded.slot, inode = excluded.inode, begun_at = excluded.begun_at,
    counts = excluded.counts, note = excluded.note

-- name: save_prune_counts
-- only while this run holds the token
UPDATE {p}upkeep SET counts = :counts WHERE name = 'prune' AND token = :token

-- name: end_prune_run
UPDATE {p}upkeep SET token = NULL, last_at = CASE WHEN :deleted THEN :now ELSE last_at END,
    last_counts = CASE WHEN :deleted THEN counts ELSE last_counts END
WHERE name = 'prune' AND token = :token

-- --- exporting ---

-- name: export_jobs
SELECT * FROM {p}jobs WHERE id IN (SELECT value FROM json_each(:batch)) ORDER BY id

-- name: export_attempts
-- as the view {p}attempts has them; none of these jobs runs
SELECT job_id, attempt, coalesce(worker, actor) AS worker, claimed_at, started_at, at AS finished_at,
       CASE WHEN error_code = 'INTERNAL:WORKER_LOST' THEN 'lost' ELSE event END AS outcome, error_code, error_detail,
       fingerprint
FROM {p}events WHERE id IN (
    SELECT event.id FROM json_each(:batch) AS job CROSS JOIN {p}event_blocks AS block ON block.jobs = job.value / 8
    CROSS JOIN {p}events AS event
      ON event.id >= block.events * 8 AND event.id < block.events * 8 + 8 AND event.job_id = job.value
    UNION ALL
    SELECT id FROM {p}events WHERE id > (SELECT cursor FROM {p}fold) AND job_id IN (SELECT value FROM json_each(:batch))
) AND claimed_at IS NOT NULL ORDER BY job_id, id

-- name: export_events
SELECT * FROM {p}events WHERE id IN (
    SELECT event.id FROM json_each(:batch) AS job CROSS JOIN {p}event_blocks AS block ON block.jobs = job.value / 8
    CROSS JOIN {p}events AS event
      ON event.id >= block.events * 8 AND event.id < block.events * 8 + 8 AND event.job_id = job.value
    UNION ALL
    SELECT id FROM {p}events WHERE id > (SELECT cursor FROM {p}fold) AND job_id IN (SELECT value FROM json_each(:batch))
) ORDER BY job_id, id

-- name: export_blockers
SELECT * FROM {p}blockers WHERE job_id IN (SELECT value FROM json_each(:batch)) ORDER BY job_id, position

-- --- dry run ---

-- name: footprints
-- jobs with what is deleted with them: attempts, events, large payloads, and bytes (approximately)
WITH history (job_id, attempts, events) AS (
    SELECT job_id, count(claimed_at), count(*) FROM {p}events WHERE id IN (
        SELECT event.id FROM json_each(:batch) AS job CROSS JOIN {p}event_blocks AS block ON block.jobs = job.value / 8
        CROSS JOIN {p}events AS event
          ON event.id >= block.events * 8 AND event.id < block.events * 8 + 8 AND event.job_id = job.value
        UNION ALL
        SELECT id FROM {p}events WHERE id > (SELECT cursor FROM {p}fold) AND job_id IN (SELECT value FROM json_each(:batch))
    ) GROUP BY 1
)
SELECT job.id, job.status, job.queue, job.task, job.batch_id, job.args_blob, job.result_blob,
       coalesce(history.attempts, 0), coalesce(history.events, 0),
       length(CAST(job.args AS BLOB)) + coalesce(length(CAST(job.result AS BLOB)), 0)
           + coalesce(length(job.error_detail), 0) * (1 + job.attempt) + coalesce(length(job.tags), 0) * 3
           + coalesce(length(job.key), 0) * 2 + coalesce(length(job.trace), 0) + coalesce(length(job.progress_text), 0)
FROM json_each(:batch) AS given CROSS JOIN {p}jobs AS job ON job.id = given.value
     LEFT JOIN history ON history.job_id = job.id

-- name: callbacks_of_batches
-- batches whose callback is one of these jobs, with the job
SELECT batch.id, given.value FROM json_each(:batch) AS given
CROSS JOIN {p}batches AS batch ON batch.success_job_id = given.value
UNION ALL
SELECT batch.id, given.value FROM json_each(:batch) AS given
CROSS JOIN {p}batches AS batch ON batch.done_job_id = given.value

-- name: remaining_of_batches
-- done batches: the number of members, and the callbacks that exist
SELECT id, (SELECT count(*) FROM {p}jobs WHERE batch_id = batch.id AND batch_id IS NOT NULL),
       (SELECT job.id FROM {p}jobs AS job WHERE job.id = batch.success_job_id),
       (SELECT job.id FROM {p}jobs AS job WHERE job.id = batch.done_job_id)
FROM {p}batches AS batch WHERE id IN (SELECT value FROM json_each(:batches)) AND done_at IS NOT NULL

-- name: blob_references
SELECT found.value, (SELECT count(*) FROM {p}jobs WHERE args_blob = found.value)
                  + (SELECT count(*) FROM {p}jobs WHERE result_blob = found.value)
FROM json_each(:names) AS found

-- name: count_unused_blobs
SELECT count(*) FROM {p}unused_blobs WHERE gone_at IS NULL
  AND NOT EXISTS (SELECT 1 FROM {p}jobs WHERE args_blob = name) AND NOT EXISTS (SELECT 1 FROM {p}jobs WHERE result_blob = name)

-- name: count_expired_minutes
SELECT (SELECT count(*) FROM {p}minutes WHERE minute < :before)
     + (SELECT count(*) FROM {p}failure_minutes WHERE minute < :before)
     + (SELECT count(*) FROM {p}rollups WHERE minutes IN (-60, 60, 360, 1440) AND last < :before)

-- name: count_expired_failures
SELECT count(*) FROM {p}failures WHERE last_seen < :before

-- name: count_expired_tracebacks
-- not referred to by any failure that stays
SELECT count(*) FROM {p}tracebacks WHERE last_seen < :before
  AND fingerprint NOT IN (SELECT fingerprint FROM {p}failures WHERE last_seen >= :before)

-- name: count_expired_audit
SELECT count(*) FROM {p}events WHERE job_id IS NULL AND at < :before AND id < (SELECT max(id) FROM {p}events)
