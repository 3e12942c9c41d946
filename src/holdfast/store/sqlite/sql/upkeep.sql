-- Pruning: what is old goes, a little at a time. What is to go is found by reads, and looked at again in the
-- transaction that deletes it.

-- name: ended_after
-- those that ended in one way, from one place in their line up to another
SELECT id, queue, task, finished_at, attempt, coalesce(chain_id, id),
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
-- who waited for these chains, and is there still, with the chain of each
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
DELETE FROM {p}batches WHERE id IN (SELECT value FROM json_each(:batches)) AND done_at IS NOT NULL
  AND NOT EXISTS (SELECT 1 FROM {p}jobs WHERE batch_id = {p}batches.id AND batch_id IS NOT NULL)
  AND NOT EXISTS (SELECT 1 FROM {p}jobs AS job WHERE job.id = success_job_id)
  AND NOT EXISTS (SELECT 1 FROM {p}jobs AS job WHERE job.id = done_job_id)

-- name: some_batches
-- in order of their ids, and whether each is empty
SELECT id, done_at IS NOT NULL AND done_at < :before
       AND NOT EXISTS (SELECT 1 FROM {p}jobs WHERE batch_id = {p}batches.id AND batch_id IS NOT NULL)
FROM {p}batches WHERE id > :after ORDER BY id LIMIT :limit

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
DELETE FROM {p}events WHERE id IN (SELECT id FROM {p}events WHERE job_id = :job LIMIT :limit)
  AND EXISTS (SELECT 1 FROM {p}jobs WHERE id = :job AND +status = :status AND +finished_at <= :until)

-- name: trim_attempts
DELETE FROM {p}attempts WHERE job_id = :job AND attempt IN (
    SELECT attempt FROM {p}attempts WHERE job_id = :job ORDER BY attempt LIMIT :limit)
  AND EXISTS (SELECT 1 FROM {p}jobs WHERE id = :job AND +status = :status AND +finished_at <= :until)

-- --- what belongs to no job ---

-- name: prune_minutes
-- whole minutes, the oldest first
DELETE FROM {p}minutes WHERE minute < :before AND minute <= (
    SELECT max(minute) FROM (SELECT minute FROM {p}minutes ORDER BY minute LIMIT :limit))

-- name: first_minute
SELECT minute FROM {p}minutes ORDER BY minute LIMIT 1

-- name: old_failures
SELECT error_code, queue, task, fingerprint FROM {p}failures WHERE last_seen < :before LIMIT :limit

-- name: prune_failures
-- rows of code, queue, task and fingerprint
DELETE FROM {p}failures WHERE (error_code, queue, task, fingerprint) IN (
    SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]'), json_extract(value, '$[2]'), json_extract(value, '$[3]')
    FROM json_each(:rows)) AND last_seen < :before

-- name: some_tracebacks
-- in order, and whether each is old and nothing leads to it
SELECT fingerprint, last_seen < :before AND fingerprint NOT IN (SELECT fingerprint FROM {p}failures)
FROM {p}tracebacks WHERE fingerprint > :after ORDER BY fingerprint LIMIT :limit

-- name: prune_tracebacks
DELETE FROM {p}tracebacks WHERE fingerprint IN (SELECT value FROM json_each(:rows)) AND last_seen < :before

-- name: oldest_audit
-- events that belong to no job, and when they were
SELECT id, at FROM {p}events WHERE job_id IS NULL ORDER BY id LIMIT :limit

-- name: prune_audit
-- never the newest of all: its id must not be given again
DELETE FROM {p}events WHERE id IN (SELECT value FROM json_each(:rows)) AND job_id IS NULL
  AND id < (SELECT max(id) FROM {p}events)

-- name: any_empty_total
SELECT 1 FROM {p}totals WHERE n <= 0 LIMIT 1

-- name: prune_totals
DELETE FROM {p}totals WHERE n <= 0

-- --- who does it ---

-- name: upkeep
SELECT token, actor, kind, pid, slot, inode, begun_at, counts, note, last_at, last_counts FROM {p}upkeep WHERE name = 'prune'

-- name: take_upkeep
INSERT INTO {p}upkeep (name, token, actor, kind, pid, slot, inode, begun_at, counts, note)
VALUES ('prune', :token, :actor, :kind, :pid, :slot, :inode, :now, '{}', :note)
ON CONFLICT (name) DO UPDATE SET token = excluded.token, actor = excluded.actor, kind = excluded.kind,
    pid = excluded.pid, slot = excluded.slot, inode = excluded.inode, begun_at = excluded.begun_at,
    counts = excluded.counts, note = excluded.note

-- name: count_upkeep
-- only while this run has it still
UPDATE {p}upkeep SET counts = :counts WHERE name = 'prune' AND token = :token

-- name: end_upkeep
UPDATE {p}upkeep SET token = NULL, last_at = CASE WHEN :deleted THEN :now ELSE last_at END,
    last_counts = CASE WHEN :deleted THEN counts ELSE last_counts END
WHERE name = 'prune' AND token = :token

-- --- to be written elsewhere before they are deleted ---

-- name: whole_jobs
SELECT * FROM {p}jobs WHERE id IN (SELECT value FROM json_each(:batch)) ORDER BY id

-- name: whole_attempts
SELECT * FROM {p}attempts WHERE job_id IN (SELECT value FROM json_each(:batch)) ORDER BY job_id, attempt

-- name: whole_events
SELECT * FROM {p}events WHERE job_id IN (SELECT value FROM json_each(:batch)) ORDER BY job_id, id

-- name: whole_blockers
SELECT * FROM {p}blockers WHERE job_id IN (SELECT value FROM json_each(:batch)) ORDER BY job_id, position

-- name: page_counts
SELECT (SELECT page_count FROM pragma_page_count), (SELECT freelist_count FROM pragma_freelist_count),
       (SELECT page_size FROM pragma_page_size), (SELECT auto_vacuum FROM pragma_auto_vacuum)
