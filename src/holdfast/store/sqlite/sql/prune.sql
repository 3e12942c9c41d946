-- Pruning: what is old is deleted, a little at a time. It is found by reads, and looked at again in the transaction
-- that deletes it.

-- name: ended_after
-- jobs that ended in one way, in the order in which they did, from one mark to another
SELECT id, status, queue, task, finished_at, attempt, coalesce(chain_id, id),
       continued OR chain_id IS NOT NULL OR awaited OR batch_id IS NOT NULL
FROM {p}jobs
WHERE status = :status AND finished_at >= :after AND finished_at <= :until
  AND (finished_at, id) > (:after, :after_id) AND (finished_at, id) <= (:until, :until_id)
ORDER BY finished_at, id LIMIT :limit

-- name: prune_alone
-- succeeded, failed, cancelled -> gone, with attempts, events and tags: jobs that have nothing to do with others
DELETE FROM {p}jobs WHERE id IN (SELECT value FROM json_each(:batch)) AND +status = :status AND +finished_at <= :until
  AND NOT continued AND chain_id IS NULL AND NOT awaited AND batch_id IS NULL

-- name: members_of_chains
-- the jobs of these chains
SELECT chain.value, job.id, job.status, job.queue, job.task, job.finished_at, job.batch_id, job.attempt
FROM json_each(:chains) AS chain CROSS JOIN {p}jobs AS job ON job.id = chain.value
UNION ALL
SELECT chain.value, job.id, job.status, job.queue, job.task, job.finished_at, job.batch_id, job.attempt
FROM json_each(:chains) AS chain CROSS JOIN {p}jobs AS job ON job.chain_id = chain.value

-- name: waiters_of_chains
-- jobs that waited for these chains and are still there, with the chain of each
SELECT chain.value, waiting.id, coalesce(waiting.chain_id, waiting.id)
FROM json_each(:chains) AS chain CROSS JOIN {p}blockers AS edge ON edge.chain_id = chain.value
CROSS JOIN {p}jobs AS waiting ON waiting.id = edge.job_id LIMIT :limit

-- name: edges_of_jobs
-- which of these jobs waited for which chains
SELECT DISTINCT edge.job_id, edge.chain_id FROM json_each(:batch) AS asked
CROSS JOIN {p}blockers AS edge ON edge.job_id = asked.value

-- name: ends_of_batches
-- when they were done; NULL if their members stay, since not all have ended, or a callback has not
SELECT id, CASE WHEN NOT EXISTS (SELECT 1 FROM {p}jobs AS job WHERE job.id = success_job_id
                                 AND +job.status NOT IN ('succeeded', 'failed', 'cancelled'))
                 AND NOT EXISTS (SELECT 1 FROM {p}jobs AS job WHERE job.id = done_job_id
                                 AND +job.status NOT IN ('succeeded', 'failed', 'cancelled')) THEN done_at END
FROM {p}batches WHERE id IN (SELECT value FROM json_each(:batches))

-- name: batches_of_callbacks
-- the batches that these jobs were enqueued for
SELECT batch.id FROM json_each(:batch) AS asked CROSS JOIN {p}batches AS batch ON batch.success_job_id = asked.value
UNION SELECT batch.id FROM json_each(:batch) AS asked CROSS JOIN {p}batches AS batch ON batch.done_job_id = asked.value

-- name: batches_of_jobs
SELECT DISTINCT batch_id FROM {p}jobs WHERE id IN (SELECT value FROM json_each(:batch)) AND batch_id IS NOT NULL

-- name: prune_batches
-- of these, those that are done and have neither members nor callbacks left
DELETE FROM {p}batches WHERE id IN (SELECT value FROM json_each(:rows)) AND done_at IS NOT NULL
  AND NOT EXISTS (SELECT 1 FROM {p}jobs WHERE batch_id = {p}batches.id AND batch_id IS NOT NULL)
  AND NOT EXISTS (SELECT 1 FROM {p}jobs AS job WHERE job.id = success_job_id)
  AND NOT EXISTS (SELECT 1 FROM {p}jobs AS job WHERE job.id = done_job_id)

-- name: chain_may_go
-- of a long chain, of which all but the last job have succeeded and went on: whether its last one is still ended, and
-- nobody has come to wait for it
SELECT 1 FROM {p}jobs WHERE id =
    coalesce((SELECT id FROM {p}jobs WHERE chain_id = :chain ORDER BY chain_index DESC LIMIT 1), :chain)
  AND +status IN ('succeeded', 'failed', 'cancelled') AND +finished_at <= :until
  AND NOT EXISTS (SELECT 1 FROM {p}blockers WHERE chain_id = :chain)

-- name: end_of_chain
-- the last jobs of a chain, its first at the very end
SELECT id, status FROM (SELECT id, status FROM {p}jobs WHERE chain_id = :chain ORDER BY chain_index DESC LIMIT :limit)
UNION ALL
SELECT id, status FROM {p}jobs WHERE id = :chain
  AND (SELECT count(*) FROM (SELECT 1 FROM {p}jobs WHERE chain_id = :chain LIMIT :limit)) < :limit

-- name: trim_events
-- that are folded
DELETE FROM {p}events
WHERE id IN (SELECT id FROM {p}events WHERE job_id = :job AND id <= (SELECT cursor FROM {p}fold) LIMIT :limit)
  AND EXISTS (SELECT 1 FROM {p}jobs WHERE id = :job AND +status = :status AND +finished_at <= :until)

-- --- what belongs to no job: keys in order, and whether each may go ---

-- name: old_minutes
SELECT minute, 1 FROM {p}minutes WHERE minute < :before
UNION ALL SELECT minute, 1 FROM {p}failure_minutes WHERE minute < :before
ORDER BY 1 LIMIT :limit

-- name: prune_minutes
DELETE FROM {p}minutes WHERE minute IN (SELECT value FROM json_each(:rows))

-- name: prune_failure_minutes
DELETE FROM {p}failure_minutes WHERE minute IN (SELECT value FROM json_each(:rows))

-- name: old_failures
-- the key is JSON
SELECT json_array(error_code, queue, task, fingerprint), 1 FROM {p}failures WHERE last_seen < :before LIMIT :limit

-- name: prune_failures
DELETE FROM {p}failures WHERE (error_code, queue, task, fingerprint) IN (
    SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]'), json_extract(value, '$[2]'), json_extract(value, '$[3]')
    FROM json_each(:rows)) AND last_seen < :before

-- name: old_tracebacks
-- which are old, and no failure leads to them
SELECT fingerprint, last_seen < :before AND fingerprint NOT IN (SELECT fingerprint FROM {p}failures)
FROM {p}tracebacks WHERE fingerprint > coalesce(:after, '') ORDER BY fingerprint LIMIT :limit

-- name: prune_tracebacks
DELETE FROM {p}tracebacks WHERE fingerprint IN (SELECT value FROM json_each(:rows)) AND last_seen < :before

-- name: old_audit
-- events that belong to no job; never the newest of all, whose id must not be given out again
SELECT id, at < :before AND id < (SELECT max(id) FROM {p}events)
FROM {p}events WHERE job_id IS NULL ORDER BY id LIMIT :limit

-- name: prune_audit
DELETE FROM {p}events WHERE id IN (SELECT value FROM json_each(:rows)) AND job_id IS NULL
  AND id < (SELECT max(id) FROM {p}events)

-- name: old_batches
-- which are done, and have no members
SELECT id, done_at IS NOT NULL AND done_at < :before
       AND NOT EXISTS (SELECT 1 FROM {p}jobs WHERE batch_id = {p}batches.id AND batch_id IS NOT NULL)
FROM {p}batches WHERE id > coalesce(:after, 0) ORDER BY id LIMIT :limit

-- --- the run ---

-- name: upkeep
-- the last columns are the lock by which it is seen whether the process lives
SELECT token, actor, kind, pid, begun_at, counts, note, last_at, last_counts, slot, inode FROM {p}upkeep WHERE name = 'prune'

-- name: take_upkeep
INSERT INTO {p}upkeep (name, token, actor, kind, pid, slot, inode, begun_at, counts, note)
VALUES ('prune', :token, :actor, :kind, :pid, :slot, :inode, :now, '{}', :note)
ON CONFLICT (name) DO UPDATE SET token = excluded.token, actor = excluded.actor, kind = excluded.kind,
    pid = excluded.pid, slot = excluded.slot, inode = excluded.inode, begun_at = excluded.begun_at,
    counts = excluded.counts, note = excluded.note

-- name: count_upkeep
-- only while this run has the token
UPDATE {p}upkeep SET counts = :counts WHERE name = 'prune' AND token = :token

-- name: end_upkeep
UPDATE {p}upkeep SET token = NULL, last_at = CASE WHEN :deleted THEN :now ELSE last_at END,
    last_counts = CASE WHEN :deleted THEN counts ELSE last_counts END
WHERE name = 'prune' AND token = :token

-- --- exporting ---

-- name: whole_jobs
SELECT * FROM {p}jobs WHERE id IN (SELECT value FROM json_each(:batch)) ORDER BY id

-- name: whole_attempts
SELECT * FROM {p}attempts WHERE job_id IN (SELECT value FROM json_each(:batch)) ORDER BY job_id, attempt

-- name: whole_events
SELECT * FROM {p}events WHERE job_id IN (SELECT value FROM json_each(:batch)) ORDER BY job_id, id

-- name: whole_blockers
SELECT * FROM {p}blockers WHERE job_id IN (SELECT value FROM json_each(:batch)) ORDER BY job_id, position

-- --- weighing: what would be deleted ---

-- name: weigh_jobs
-- each with what goes with it: attempts, events, large payloads, and about how many bytes
SELECT job.id, job.status, job.queue, job.task, job.batch_id, job.args_blob, job.result_blob,
       (SELECT count(*) FROM {p}attempts WHERE job_id = job.id), (SELECT count(*) FROM {p}events WHERE job_id = job.id),
       length(CAST(job.args AS BLOB)) + coalesce(length(CAST(job.result AS BLOB)), 0)
           + coalesce(length(job.error_detail), 0) * (1 + job.attempt) + coalesce(length(job.tags), 0) * 3
           + coalesce(length(job.key), 0) * 2 + coalesce(length(job.trace), 0) + coalesce(length(job.progress_text), 0)
FROM json_each(:batch) AS asked CROSS JOIN {p}jobs AS job ON job.id = asked.value

-- name: callbacks_of_batches
-- which of these jobs were enqueued for which batches
SELECT batch.id, asked.value FROM json_each(:batch) AS asked
CROSS JOIN {p}batches AS batch ON batch.success_job_id = asked.value
UNION ALL
SELECT batch.id, asked.value FROM json_each(:batch) AS asked
CROSS JOIN {p}batches AS batch ON batch.done_job_id = asked.value

-- name: fates_of_batches
-- of those that are done: how many members they have, and which callbacks there are
SELECT id, (SELECT count(*) FROM {p}jobs WHERE batch_id = batch.id AND batch_id IS NOT NULL),
       (SELECT job.id FROM {p}jobs AS job WHERE job.id = batch.success_job_id),
       (SELECT job.id FROM {p}jobs AS job WHERE job.id = batch.done_job_id)
FROM {p}batches AS batch WHERE id IN (SELECT value FROM json_each(:batches)) AND done_at IS NOT NULL

-- name: references_to_blobs
SELECT found.value, (SELECT count(*) FROM {p}jobs WHERE args_blob = found.value)
                  + (SELECT count(*) FROM {p}jobs WHERE result_blob = found.value)
FROM json_each(:names) AS found

-- name: count_unused_blobs
SELECT count(*) FROM {p}unused_blobs WHERE gone_at IS NULL
  AND NOT EXISTS (SELECT 1 FROM {p}jobs WHERE args_blob = name) AND NOT EXISTS (SELECT 1 FROM {p}jobs WHERE result_blob = name)

-- name: count_old_minutes
SELECT (SELECT count(*) FROM {p}minutes WHERE minute < :before)
     + (SELECT count(*) FROM {p}failure_minutes WHERE minute < :before)

-- name: count_old_failures
SELECT count(*) FROM {p}failures WHERE last_seen < :before

-- name: count_old_tracebacks
-- those to which no failure leads once the old failures are gone
SELECT count(*) FROM {p}tracebacks WHERE last_seen < :before
  AND fingerprint NOT IN (SELECT fingerprint FROM {p}failures WHERE last_seen >= :before)

-- name: count_old_audit
SELECT count(*) FROM {p}events WHERE job_id IS NULL AND at < :before AND id < (SELECT max(id) FROM {p}events)
