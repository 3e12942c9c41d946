-- Moving to and from another database.

-- name: columns_of
SELECT attname FROM pg_attribute WHERE attrelid = CAST(:table AS regclass) AND attnum > 0 AND NOT attisdropped ORDER BY attnum

-- name: continue_ids
SELECT setval(CAST(:sequence AS regclass), greatest(:last, max(id)), true) FROM {table} HAVING greatest(:last, max(id)) > 0

-- name: next_event
SELECT CAST(CAST(pg_snapshot_xmax(pg_current_snapshot()) AS text) AS bigint) << 20

-- name: place_of_open_batches
-- batches whose block was open in a process that used the other database: as if the process had ended
UPDATE {p}batches SET place = 0 WHERE slot = -1 AND place IS NULL

-- name: return_running
-- running -> ready, for all that runs when the database is moved; the attempts do not count
UPDATE {p}jobs SET status = 'ready', worker = NULL, lease = NULL,
    max_attempts = max_attempts + 1, uncounted = uncounted + 1,
    transition = 'returned', actor = :actor, reason = NULL, updated_at = :now, revision = revision + 1
WHERE status = 'running'

-- name: count_running
SELECT count(*) FROM {p}jobs WHERE status = 'running'

-- name: is_empty
SELECT NOT EXISTS (SELECT 1 FROM {p}jobs) AND NOT EXISTS (SELECT 1 FROM {p}events WHERE job_id IS NOT NULL)

-- name: last_job_id
SELECT coalesce(max(id), 0) FROM {p}jobs

-- name: last_event_id
SELECT coalesce(max(id), 0) FROM {p}events

-- name: sizes_of_tables
SELECT (SELECT count(*) FROM {p}jobs), (SELECT count(*) FROM {p}events)

-- name: last_id
SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM {sequence}
