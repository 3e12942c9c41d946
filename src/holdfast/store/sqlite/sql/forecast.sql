-- What pruning would delete, without deleting it.

-- name: weigh_jobs
-- each with what goes along: attempts, events, large payloads; and about so many bytes, with what indexes have of it
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
SELECT count(*) FROM {p}minutes WHERE minute < :before

-- name: count_old_failures
SELECT count(*) FROM {p}failures WHERE last_seen < :before

-- name: count_loose_tracebacks
-- those to which nothing leads once the old failures are gone
SELECT count(*) FROM {p}tracebacks WHERE last_seen < :before
  AND fingerprint NOT IN (SELECT fingerprint FROM {p}failures WHERE last_seen >= :before)

-- name: count_old_audit
SELECT count(*) FROM {p}events WHERE job_id IS NULL AND at < :before AND id < (SELECT max(id) FROM {p}events)
