-- Chains, blockers and batches, and the resolution of ended jobs.

-- name: chains_to_wait_for
-- the task and the chain of each of these jobs
SELECT wanted.value, job.task, coalesce(job.chain_id, job.id)
FROM json_each(?) AS wanted LEFT JOIN {p}jobs AS job ON job.id = wanted.value ORDER BY wanted.key

-- name: add_blockers
-- each of these jobs waits for each of these chains
INSERT INTO {p}blockers (job_id, position, chain_id)
SELECT job.value, chain.key, chain.value FROM json_each(:jobs) AS job CROSS JOIN json_each(:chains) AS chain

-- name: mark_awaited
UPDATE {p}jobs SET awaited = 1 WHERE id IN (SELECT value FROM json_each(:chains)) AND NOT awaited

-- name: queue_finished
-- Queue in `endings` the chains among these that have finished already.
INSERT INTO {p}endings (chain_id)
SELECT DISTINCT chain.value FROM json_each(:chains) AS chain
CROSS JOIN {p}jobs AS last ON last.id =
    coalesce((SELECT id FROM {p}jobs WHERE chain_id = chain.value ORDER BY chain_index DESC LIMIT 1), chain.value)
WHERE last.status IN ('succeeded', 'failed', 'cancelled')

-- name: waits_for_itself
-- whether one of these chains waits for this one, directly or through others
WITH RECURSIVE reached (chain) AS (
    SELECT value FROM json_each(:chains)
    UNION
    SELECT edge.chain_id FROM reached
    CROSS JOIN {p}jobs AS last ON last.status = 'blocked' AND last.id =
        coalesce((SELECT id FROM {p}jobs WHERE chain_id = reached.chain ORDER BY chain_index DESC LIMIT 1), reached.chain)
    CROSS JOIN {p}blockers AS edge ON edge.job_id = last.id AND edge.outcome IS NULL
)
SELECT 1 FROM reached WHERE chain = :chain

-- name: endings
SELECT id, chain_id, batch_id FROM {p}endings ORDER BY id LIMIT ?

-- name: edges_of_ended
-- Jobs that wait for one of these chains and are affected by its end: the chain succeeded, or the job has a rule for
-- failed blockers. A deleted chain counts as cancelled.
SELECT edge.job_id, edge.position, coalesce(last.status, 'cancelled')
FROM json_each(:chains) AS chain
LEFT JOIN {p}jobs AS last ON last.id =
    coalesce((SELECT id FROM {p}jobs WHERE chain_id = chain.value ORDER BY chain_index DESC LIMIT 1), chain.value)
CROSS JOIN {p}blockers AS edge ON edge.chain_id = chain.value AND edge.outcome IS NULL
CROSS JOIN {p}jobs AS waiting ON waiting.id = edge.job_id
WHERE last.status = 'succeeded'
   OR ((last.id IS NULL OR last.status IN ('failed', 'cancelled')) AND waiting.status = 'blocked' AND waiting.on_blocker_failure IS NOT NULL)
LIMIT :limit

-- name: mark_edges
-- rows of job, position and outcome
UPDATE {p}blockers SET outcome = ended.outcome
FROM (
    SELECT json_extract(value, '$[0]') AS job_id, json_extract(value, '$[1]') AS position,
           json_extract(value, '$[2]') AS outcome
    FROM json_each(:edges)
) AS ended
WHERE {p}blockers.job_id = ended.job_id AND {p}blockers.position = ended.position

-- name: unblock
-- blocked -> ready (or scheduled), when all blockers have finished. Uses the index of unfinished blockers, so that the
-- finished ones of a thousand are not read again each time.
UPDATE {p}jobs SET status = CASE WHEN run_at > :now THEN 'scheduled' ELSE 'ready' END, run_at = max(run_at, :now),
    transition = 'unblocked', actor = :actor, reason = NULL, updated_at = :now, revision = revision + 1
WHERE id IN (SELECT value FROM json_each(:jobs)) AND +status = 'blocked' AND NOT external
  AND NOT EXISTS (SELECT 1 FROM {p}blockers INDEXED BY {p}blockers_holding
                  WHERE job_id = {p}jobs.id AND outcome IS NULL)

-- name: fail_blocked
-- blocked -> failed, because a blocker failed or was cancelled
UPDATE {p}jobs SET status = 'failed', finished_at = :now, error_code = 'DEPENDENCY:BLOCKER', fingerprint = NULL,
    error_detail = (SELECT 'the chain ' || chain_id || ', which it waited for, ' ||
                           CASE outcome WHEN 'failed' THEN 'failed' ELSE 'was cancelled' END
                    FROM {p}blockers WHERE job_id = {p}jobs.id AND outcome IN ('failed', 'cancelled') ORDER BY position LIMIT 1),
    transition = 'failed', actor = :actor, reason = NULL, updated_at = :now, revision = revision + 1
WHERE id IN (SELECT value FROM json_each(:jobs)) AND +status = 'blocked' AND on_blocker_failure = 'fail'
  AND EXISTS (SELECT 1 FROM {p}blockers WHERE job_id = {p}jobs.id AND outcome IN ('failed', 'cancelled'))

-- name: cancel_blocked
-- blocked -> cancelled, because a blocker failed or was cancelled
UPDATE {p}jobs SET status = 'cancelled', finished_at = :now, error_code = NULL, fingerprint = NULL,
    error_detail = (SELECT 'the chain ' || chain_id || ', which it waited for, ' ||
                           CASE outcome WHEN 'failed' THEN 'failed' ELSE 'was cancelled' END
                    FROM {p}blockers WHERE job_id = {p}jobs.id AND outcome IN ('failed', 'cancelled') ORDER BY position LIMIT 1),
    transition = 'cancelled', actor = :actor, reason = NULL, updated_at = :now, revision = revision + 1
WHERE id IN (SELECT value FROM json_each(:jobs)) AND +status = 'blocked' AND on_blocker_failure = 'cancel'
  AND EXISTS (SELECT 1 FROM {p}blockers WHERE job_id = {p}jobs.id AND outcome IN ('failed', 'cancelled'))

-- name: any_ending
SELECT 1 FROM {p}endings LIMIT 1

-- name: delete_endings
DELETE FROM {p}endings WHERE id IN (SELECT value FROM json_each(?))

-- name: time_out_external
-- blocked -> failed, when an external job was not settled in time
UPDATE {p}jobs SET status = 'failed', finished_at = :now, error_code = 'TIMEOUT:EXTERNAL', fingerprint = NULL,
    error_detail = 'the external job was not settled before its timeout',
    transition = 'failed', actor = :actor, reason = NULL, updated_at = :now, revision = revision + 1
WHERE id IN (SELECT id FROM {p}jobs WHERE expires_at IS NOT NULL AND (status = 'blocked' OR status = 'scheduled' OR status = 'ready')
               AND expires_at <= :now ORDER BY expires_at LIMIT :limit)
  AND external AND +status IN ('blocked', 'scheduled', 'ready')

-- name: expire
-- blocked, scheduled, ready -> cancelled, when the job was not started before it expired
UPDATE {p}jobs SET status = 'cancelled', finished_at = :now, error_code = 'TIMEOUT:EXPIRED', fingerprint = NULL,
    error_detail = 'the job expired before attempt ' || (attempt + 1) || ' was started',
    transition = 'cancelled', actor = :actor, reason = 'expired', updated_at = :now, revision = revision + 1
WHERE id IN (SELECT id FROM {p}jobs WHERE expires_at IS NOT NULL AND (status = 'blocked' OR status = 'scheduled' OR status = 'ready')
               AND expires_at <= :now ORDER BY expires_at LIMIT :limit)
  AND NOT external AND +status IN ('blocked', 'scheduled', 'ready')

-- name: blocked_if_requeued
-- The jobs among these that can be requeued and would wait again: their chains, and the chains that each waits for.
SELECT job.id, coalesce(job.chain_id, job.id), json_group_array(edge.chain_id), job.on_blocker_failure = 'run'
FROM json_each(:batch) AS wanted CROSS JOIN {p}jobs AS job ON job.id = wanted.value
CROSS JOIN {p}blockers AS edge ON edge.job_id = job.id
WHERE job.status IN ('failed', 'cancelled')
  AND (edge.outcome IS NULL OR (edge.outcome <> 'succeeded' AND job.on_blocker_failure IN ('fail', 'cancel')))
GROUP BY job.id

-- name: hold_again
-- A requeued job waits again for blockers that have not succeeded, except deleted ones.
UPDATE {p}blockers SET outcome = CASE WHEN EXISTS (SELECT 1 FROM {p}jobs WHERE id = {p}blockers.chain_id) THEN NULL
                                      ELSE 'gone' END
WHERE job_id = :job AND (outcome IS NULL OR (outcome <> 'succeeded'
  AND EXISTS (SELECT 1 FROM {p}jobs WHERE id = :job AND on_blocker_failure IN ('fail', 'cancel'))))

-- name: queue_succeeded
-- Queue in `endings` the chains among these that have succeeded.
INSERT INTO {p}endings (chain_id)
SELECT DISTINCT chain.value FROM json_each(:chains) AS chain
CROSS JOIN {p}jobs AS last ON last.id =
    coalesce((SELECT id FROM {p}jobs WHERE chain_id = chain.value ORDER BY chain_index DESC LIMIT 1), chain.value)
WHERE last.status = 'succeeded'

-- --- chains ---

-- name: chain
-- The root, the jobs between two indexes, and the last job.
SELECT {columns} FROM {p}jobs WHERE id = :chain
UNION ALL SELECT * FROM (
    SELECT {columns} FROM {p}jobs WHERE chain_id = :chain AND chain_index BETWEEN :low AND :high ORDER BY chain_index)
UNION ALL SELECT {columns} FROM {p}jobs
WHERE id = (SELECT id FROM {p}jobs WHERE chain_id = :chain ORDER BY chain_index DESC LIMIT 1)
  AND chain_index NOT BETWEEN :low AND :high

-- name: chain_end
-- the last job of a chain
SELECT {columns} FROM {p}jobs WHERE id =
    coalesce((SELECT id FROM {p}jobs WHERE chain_id = :chain ORDER BY chain_index DESC LIMIT 1), :chain)

-- name: jobs_of_chain
SELECT id, status FROM {p}jobs WHERE id = :chain OR chain_id = :chain

-- name: chains_waiting
-- this chain, and all chains of unfinished jobs that wait for it, directly or indirectly
WITH RECURSIVE reached (chain) AS (
    SELECT ?
    UNION
    SELECT coalesce(waiting.chain_id, waiting.id) FROM reached
    CROSS JOIN {p}blockers AS edge ON edge.chain_id = reached.chain
    CROSS JOIN {p}jobs AS waiting ON waiting.id = edge.job_id
    WHERE waiting.status IN ('blocked', 'scheduled', 'ready', 'running')
)
SELECT chain FROM reached

-- name: waiting_for
-- Unfinished jobs that wait for this chain, or waited for it and may read its result; or finished ones, too. Jobs that
-- it still blocks come first.
SELECT {columns} FROM {p}jobs WHERE id IN (
    SELECT waiting.id
    FROM (SELECT job_id FROM {p}blockers WHERE chain_id = :chain ORDER BY outcome LIMIT :bound) AS found
    CROSS JOIN {p}jobs AS waiting ON waiting.id = found.job_id
    WHERE :include_finished OR waiting.status IN ('blocked', 'scheduled', 'ready', 'running')
) ORDER BY id LIMIT :limit

-- name: delete_jobs
-- any state -> deleted, with attempts, events and tags
DELETE FROM {p}jobs WHERE id IN (SELECT value FROM json_each(:batch))

-- name: chains_among
-- the chains of more than one job that these belong to
SELECT DISTINCT coalesce(job.chain_id, job.id) FROM json_each(:batch) AS wanted
CROSS JOIN {p}jobs AS job ON job.id = wanted.value WHERE job.continued OR job.chain_id IS NOT NULL

-- name: delete_matching_chain
-- any state but running -> deleted, all jobs of a chain, if all of them match and no unfinished job waits for it
DELETE FROM {p}jobs WHERE id IN (SELECT id FROM {p}jobs WHERE id = :chain OR chain_id = :chain)
  AND NOT EXISTS (SELECT 1 FROM {p}jobs AS part
                  WHERE (part.id = :chain OR part.chain_id = :chain) AND ({where} AND status <> 'running') IS NOT TRUE)
  AND NOT EXISTS (
      SELECT 1 FROM {p}blockers AS edge CROSS JOIN {p}jobs AS waiting ON waiting.id = edge.job_id
      WHERE edge.chain_id = :chain AND waiting.status IN ('blocked', 'scheduled', 'ready', 'running'))

-- name: blockers
-- The chains that a job waits for or waited for, each with its last job: one per position; or, if :urgent, each chain
-- once, those that need an operator first.
SELECT found.chain_id, found.outcome, last.id, last.task, last.status, last.chain_index, last.external, last.expires_at,
       last.error_code
FROM (SELECT chain_id, outcome, min(position) AS position FROM {p}blockers WHERE job_id = :job
      GROUP BY chain_id, CASE WHEN NOT :urgent THEN position END) AS found
LEFT JOIN {p}jobs AS last ON last.id =
    coalesce((SELECT id FROM {p}jobs WHERE chain_id = found.chain_id ORDER BY chain_index DESC LIMIT 1), found.chain_id)
ORDER BY :urgent AND found.outcome IS NOT NULL,
         CASE WHEN NOT :urgent THEN 0 WHEN last.id IS NULL THEN 0 WHEN last.status = 'failed' THEN 1
              WHEN last.status = 'cancelled' THEN 2 WHEN last.external THEN 3 WHEN last.status = 'blocked' THEN 4
              WHEN last.status = 'succeeded' THEN 6 ELSE 5 END,
         found.position
LIMIT :limit

-- name: count_blockers
-- how many chains a job waits for or waited for, and how many of them still block it
SELECT count(DISTINCT chain_id), count(DISTINCT CASE WHEN outcome IS NULL THEN chain_id END)
FROM {p}blockers WHERE job_id = ?

-- --- batches ---

-- name: add_batch
INSERT INTO {p}batches (created_at, on_success, on_done, creator, slot, inode)
VALUES (:now, :on_success, :on_done, :creator, :slot, :place)

-- name: seal_batch
UPDATE {p}batches SET sealed_at = :now WHERE id = :batch AND sealed_at IS NULL

-- name: abandon_batch
-- seals it; `on_success` will not run
UPDATE {p}batches SET sealed_at = :now, abandoned_at = :now WHERE id = :batch AND sealed_at IS NULL

-- name: open_blocks
-- the processes that are in a block, by their locks, and the batches of each
SELECT slot, inode, json_group_array(id) FROM (
    SELECT id, slot, inode FROM {p}batches INDEXED BY {p}batches_undone
    WHERE done_at IS NULL AND sealed_at IS NULL AND slot IS NOT NULL LIMIT :limit
) GROUP BY slot, inode

-- name: reopen_batches
-- done batches run again, because members of them are among these retried jobs
UPDATE {p}batches SET done_at = NULL
WHERE done_at IS NOT NULL AND id IN (
    SELECT batch_id FROM {p}jobs WHERE id IN (SELECT value FROM json_each(:retried)) AND batch_id IS NOT NULL
      AND status IN ('blocked', 'scheduled', 'ready', 'running'))

-- name: note_batch
INSERT INTO {p}endings (batch_id) VALUES (:batch)

-- name: batch_is_open
-- whether it accepts members: it is not sealed, or has an unfinished member
SELECT sealed_at IS NULL OR done_at IS NULL OR EXISTS (
    SELECT 1 FROM {p}jobs WHERE batch_id = {p}batches.id AND batch_id IS NOT NULL AND continued = 0
    AND status IN ('blocked', 'scheduled', 'ready', 'running'))
FROM {p}batches WHERE id = ?

-- name: batch
-- by its id, or by the job that was enqueued as its callback
SELECT {columns} FROM {p}batches
WHERE id = coalesce(:batch, (SELECT id FROM {p}batches WHERE success_job_id = :callback),
                    (SELECT id FROM {p}batches WHERE done_job_id = :callback))

-- name: batch_counts
-- the number of chains in it, by status
SELECT status, count(*) FROM {p}jobs WHERE batch_id = ? AND batch_id IS NOT NULL AND continued = 0 GROUP BY status

-- name: bounded_batch_counts
-- the same for each of these batches, each number up to a bound
SELECT batch.value, status.value, (
    SELECT count(*) FROM (
        SELECT 1 FROM {p}jobs INDEXED BY {p}jobs_batch
        WHERE batch_id = batch.value AND batch_id IS NOT NULL AND continued = 0 AND status = status.value LIMIT :bound))
FROM json_each(:batches) AS batch CROSS JOIN json_each(:statuses) AS status

-- name: batches_by_id
SELECT {columns} FROM {p}batches WHERE id > :low AND id < :high ORDER BY id {order} LIMIT :limit

-- name: batches_open
SELECT {columns} FROM {p}batches INDEXED BY {p}batches_undone
WHERE done_at IS NULL AND sealed_at IS NULL AND id > :low AND id < :high ORDER BY id {order} LIMIT :limit

-- name: batches_running
SELECT {columns} FROM {p}batches INDEXED BY {p}batches_undone
WHERE done_at IS NULL AND sealed_at IS NOT NULL AND id > :low AND id < :high ORDER BY id {order} LIMIT :limit

-- name: batches_done
SELECT {columns} FROM {p}batches
WHERE done_at IS NOT NULL AND id > :low AND id < :high ORDER BY id {order} LIMIT :limit

-- name: batches_abandoned
SELECT {columns} FROM {p}batches INDEXED BY {p}batches_abandoned
WHERE abandoned_at IS NOT NULL AND id > :low AND id < :high ORDER BY id {order} LIMIT :limit

-- name: ended_batches
-- The batches among these that are sealed and have no unfinished member, with their callbacks.
SELECT id, on_success, on_done, done_job_id, success_job_id,
       deleted = 0 AND abandoned_at IS NULL AND NOT EXISTS (SELECT 1 FROM {p}jobs WHERE batch_id = {p}batches.id AND batch_id IS NOT NULL AND continued = 0
                   AND status IN ('failed', 'cancelled'))
FROM {p}batches WHERE id IN (SELECT value FROM json_each(:batches)) AND sealed_at IS NOT NULL
  AND NOT EXISTS (SELECT 1 FROM {p}jobs WHERE batch_id = {p}batches.id AND batch_id IS NOT NULL AND continued = 0
                  AND status IN ('blocked', 'scheduled', 'ready', 'running'))

-- name: batch_done
UPDATE {p}batches SET done_at = coalesce(done_at, :now), done_job_id = coalesce(done_job_id, :done_job),
    success_job_id = coalesce(success_job_id, :success_job)
WHERE id = :batch

-- name: cancel_members
-- blocked, scheduled, ready, running -> cancelled, all members of a batch
UPDATE {p}jobs SET status = 'cancelled', finished_at = :now, lease = NULL,
    error_code = NULL, error_detail = :reason, fingerprint = NULL,
    transition = 'cancelled', actor = :actor, reason = NULL, updated_at = :now, revision = revision + 1
WHERE batch_id = :batch AND batch_id IS NOT NULL AND continued = 0
  AND status IN ('blocked', 'scheduled', 'ready', 'running')

-- name: drop_callbacks
UPDATE {p}batches SET on_success = NULL, on_done = NULL WHERE id = :batch
