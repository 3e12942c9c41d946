-- Chains, blockers and batches: what waits for what, and what becomes of it when that has ended.

-- name: insert_linked
-- into `blocked`, `ready` or `scheduled`
INSERT INTO {p}jobs (args, queue, task, status, priority, run_at, created_at, max_attempts, timeout, key, tags,
                     history, trace, actor, on_blocker_failure, batch_id, external, timeout_at)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: insert_many_linked
INSERT INTO {p}jobs (args, queue, task, status, priority, run_at, created_at, max_attempts, timeout, key, tags,
                     history, trace, actor, on_blocker_failure, batch_id, external, timeout_at)
SELECT value, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ? FROM json_each(?) WHERE true ORDER BY key
RETURNING id

-- name: chains_to_wait_for
-- of each of these ids: its task, and its chain
SELECT asked.value, job.task, coalesce(job.chain_id, job.id)
FROM json_each(?) AS asked LEFT JOIN {p}jobs AS job ON job.id = asked.value ORDER BY asked.key

-- name: add_blockers
-- each of these jobs waits for each of these chains
INSERT INTO {p}blockers (job_id, position, chain_id)
SELECT job.value, chain.key, chain.value FROM json_each(:jobs) AS job CROSS JOIN json_each(:chains) AS chain

-- name: mark_awaited
UPDATE {p}jobs SET awaited = 1 WHERE id IN (SELECT value FROM json_each(:chains)) AND NOT awaited

-- name: note_ended
-- of these chains, those that have ended already
INSERT INTO {p}endings (chain_id)
SELECT DISTINCT chain.value FROM json_each(:chains) AS chain
CROSS JOIN {p}jobs AS last ON last.id =
    coalesce((SELECT id FROM {p}jobs WHERE chain_id = chain.value ORDER BY chain_index DESC LIMIT 1), chain.value)
WHERE last.status IN ('succeeded', 'failed', 'cancelled')

-- name: waits_for_itself
-- whether one of these chains waits for this one, by however many others
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
-- What waits for one of these chains, and is concerned by how it ended: it ended well, or the job does not hold. One
-- that is gone counts as cancelled.
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
-- blocked -> ready (or scheduled), when nothing holds it any more. By the index of what holds: of a thousand that a job
-- waits for, those that have ended are not looked at again each time.
UPDATE {p}jobs SET status = CASE WHEN run_at > :now THEN 'scheduled' ELSE 'ready' END, run_at = max(run_at, :now),
    transition = 'unblocked', actor = :actor, updated_at = :now, revision = revision + 1
WHERE id IN (SELECT value FROM json_each(:jobs)) AND +status = 'blocked' AND NOT external
  AND NOT EXISTS (SELECT 1 FROM {p}blockers INDEXED BY {p}blockers_holding
                  WHERE job_id = {p}jobs.id AND outcome IS NULL)

-- name: fail_blocked
-- blocked -> failed, since what it waited for did not end well
UPDATE {p}jobs SET status = 'failed', finished_at = :now, error_code = 'DEPENDENCY:BLOCKER', fingerprint = NULL,
    error_detail = (SELECT 'the chain ' || chain_id || ', which it waited for, ' ||
                           CASE outcome WHEN 'failed' THEN 'failed' ELSE 'was cancelled' END
                    FROM {p}blockers WHERE job_id = {p}jobs.id AND outcome IN ('failed', 'cancelled') ORDER BY position LIMIT 1),
    transition = 'failed', actor = :actor, updated_at = :now, revision = revision + 1
WHERE id IN (SELECT value FROM json_each(:jobs)) AND +status = 'blocked' AND on_blocker_failure = 'fail'
  AND EXISTS (SELECT 1 FROM {p}blockers WHERE job_id = {p}jobs.id AND outcome IN ('failed', 'cancelled'))

-- name: cancel_blocked
-- blocked -> cancelled, since what it waited for did not end well
UPDATE {p}jobs SET status = 'cancelled', finished_at = :now, error_code = NULL, fingerprint = NULL,
    error_detail = (SELECT 'the chain ' || chain_id || ', which it waited for, ' ||
                           CASE outcome WHEN 'failed' THEN 'failed' ELSE 'was cancelled' END
                    FROM {p}blockers WHERE job_id = {p}jobs.id AND outcome IN ('failed', 'cancelled') ORDER BY position LIMIT 1),
    transition = 'cancelled', actor = :actor, updated_at = :now, revision = revision + 1
WHERE id IN (SELECT value FROM json_each(:jobs)) AND +status = 'blocked' AND on_blocker_failure = 'cancel'
  AND EXISTS (SELECT 1 FROM {p}blockers WHERE job_id = {p}jobs.id AND outcome IN ('failed', 'cancelled'))

-- name: any_ending
SELECT 1 FROM {p}endings LIMIT 1

-- name: forget_endings
DELETE FROM {p}endings WHERE id IN (SELECT value FROM json_each(?))

-- name: time_out_external
-- blocked -> failed, when nobody has settled it in time
UPDATE {p}jobs SET status = 'failed', finished_at = :now, error_code = 'TIMEOUT:EXTERNAL', fingerprint = NULL,
    error_detail = 'nobody had settled it when its time was over',
    transition = 'failed', actor = :actor, updated_at = :now, revision = revision + 1
WHERE id IN (SELECT id FROM {p}jobs WHERE status = 'blocked' AND timeout_at <= :now ORDER BY timeout_at LIMIT :limit)

-- name: would_wait
-- Of these jobs, those that are to come back: their chains, and what each would wait for again.
SELECT job.id, coalesce(job.chain_id, job.id), json_group_array(edge.chain_id), job.on_blocker_failure = 'run'
FROM json_each(:batch) AS asked CROSS JOIN {p}jobs AS job ON job.id = asked.value
CROSS JOIN {p}blockers AS edge ON edge.job_id = job.id
WHERE job.status IN ('failed', 'cancelled')
  AND (edge.outcome IS NULL OR (edge.outcome <> 'succeeded' AND job.on_blocker_failure IN ('fail', 'cancel')))
GROUP BY job.id

-- name: hold_again
-- What this job waited for and was not well counts again, but for what is gone.
UPDATE {p}blockers SET outcome = CASE WHEN EXISTS (SELECT 1 FROM {p}jobs WHERE id = {p}blockers.chain_id) THEN NULL
                                      ELSE 'gone' END
WHERE job_id = :job AND (outcome IS NULL OR (outcome <> 'succeeded'
  AND EXISTS (SELECT 1 FROM {p}jobs WHERE id = :job AND on_blocker_failure IN ('fail', 'cancel'))))

-- name: note_ended_well
INSERT INTO {p}endings (chain_id)
SELECT DISTINCT chain.value FROM json_each(:chains) AS chain
CROSS JOIN {p}jobs AS last ON last.id =
    coalesce((SELECT id FROM {p}jobs WHERE chain_id = chain.value ORDER BY chain_index DESC LIMIT 1), chain.value)
WHERE last.status = 'succeeded'

-- --- chains ---

-- name: chain
SELECT {columns} FROM {p}jobs WHERE id = :chain
UNION ALL SELECT * FROM (SELECT {columns} FROM {p}jobs WHERE chain_id = :chain ORDER BY chain_index)

-- name: chain_end
-- its last job
SELECT {columns} FROM {p}jobs WHERE id =
    coalesce((SELECT id FROM {p}jobs WHERE chain_id = :chain ORDER BY chain_index DESC LIMIT 1), :chain)

-- name: jobs_of_chain
SELECT id, status FROM {p}jobs WHERE id = :chain OR chain_id = :chain

-- name: chains_waiting
-- who waits for this chain, and who for those, and so on: each with its chain
WITH RECURSIVE reached (chain) AS (
    SELECT :chain
    UNION
    SELECT coalesce(waiting.chain_id, waiting.id) FROM reached
    CROSS JOIN {p}blockers AS edge ON edge.chain_id = reached.chain
    CROSS JOIN {p}jobs AS waiting ON waiting.id = edge.job_id
    WHERE waiting.status IN ('blocked', 'scheduled', 'ready', 'running')
)
SELECT chain FROM reached

-- name: waiting_for
-- unfinished jobs that wait for this chain, or have its result still to read; or all that ever waited for it
SELECT {columns} FROM {p}jobs WHERE id IN (
    SELECT waiting.id FROM {p}blockers AS edge CROSS JOIN {p}jobs AS waiting ON waiting.id = edge.job_id
    WHERE edge.chain_id = :chain AND (:ended OR waiting.status IN ('blocked', 'scheduled', 'ready', 'running'))
) ORDER BY id LIMIT :limit

-- name: delete_jobs
-- any state -> gone, with attempts, events and tags
DELETE FROM {p}jobs WHERE id IN (SELECT value FROM json_each(:batch))

-- name: chains_among
-- the chains of more than one job that these belong to
SELECT DISTINCT coalesce(job.chain_id, job.id) FROM json_each(:batch) AS asked
CROSS JOIN {p}jobs AS job ON job.id = asked.value WHERE job.continued OR job.chain_id IS NOT NULL

-- name: delete_fitting_chain
-- any state but running -> gone, all jobs of a chain, if all of them fit and nobody waits for it
DELETE FROM {p}jobs WHERE id IN (SELECT id FROM {p}jobs WHERE id = :chain OR chain_id = :chain)
  AND NOT EXISTS (SELECT 1 FROM {p}jobs AS part
                  WHERE (part.id = :chain OR part.chain_id = :chain) AND NOT ({where} AND status <> 'running'))
  AND NOT EXISTS (
      SELECT 1 FROM {p}blockers AS edge CROSS JOIN {p}jobs AS waiting ON waiting.id = edge.job_id
      WHERE edge.chain_id = :chain AND waiting.status IN ('blocked', 'scheduled', 'ready', 'running'))

-- name: blockers_of
-- in order: the chain, how it ended if it holds the job no more, and the id of its last job
SELECT edge.chain_id, edge.outcome,
       coalesce((SELECT id FROM {p}jobs WHERE chain_id = edge.chain_id ORDER BY chain_index DESC LIMIT 1), edge.chain_id)
FROM {p}blockers AS edge WHERE edge.job_id = ? ORDER BY edge.position

-- --- batches ---

-- name: add_batch
INSERT INTO {p}batches (created_at, on_success, on_done) VALUES (:now, :on_success, :on_done)

-- name: seal_batch
UPDATE {p}batches SET sealed_at = :now WHERE id = :batch AND sealed_at IS NULL

-- name: note_batch
INSERT INTO {p}endings (batch_id) VALUES (:batch)

-- name: batch_is_open
-- it takes members: it was not sealed, or not all have ended
SELECT sealed_at IS NULL OR done_at IS NULL OR EXISTS (
    SELECT 1 FROM {p}jobs WHERE batch_id = {p}batches.id AND batch_id IS NOT NULL AND continued = 0
    AND status IN ('blocked', 'scheduled', 'ready', 'running'))
FROM {p}batches WHERE id = ?

-- name: batch
SELECT id, created_at, sealed_at, done_at, success_job_id, done_job_id, deleted FROM {p}batches WHERE id = ?

-- name: batch_of_callback
SELECT id FROM {p}batches WHERE success_job_id = :job
UNION ALL SELECT id FROM {p}batches WHERE done_job_id = :job LIMIT 1

-- name: batch_counts
-- its chains, by how each stands
SELECT status, count(*) FROM {p}jobs WHERE batch_id = ? AND batch_id IS NOT NULL AND continued = 0 GROUP BY status

-- name: batches_that_ended
-- Of these, those that are sealed and have no member left that has not ended: what is to be enqueued, and what was.
SELECT id, on_success, on_done, done_at, success_job_id,
       deleted = 0 AND NOT EXISTS (SELECT 1 FROM {p}jobs WHERE batch_id = {p}batches.id AND batch_id IS NOT NULL AND continued = 0
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
    transition = 'cancelled', actor = :actor, updated_at = :now, revision = revision + 1
WHERE batch_id = :batch AND batch_id IS NOT NULL AND continued = 0
  AND status IN ('blocked', 'scheduled', 'ready', 'running')

-- name: abandon_batch
-- nothing comes of it: the block that made it raised
UPDATE {p}batches SET on_success = NULL, on_done = NULL, sealed_at = coalesce(sealed_at, :now) WHERE id = :batch
