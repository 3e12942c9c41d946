-- Moving to and from another database.

-- name: place_of_open_batches
-- batches whose block was open in a process that used the other database: as if the process had ended
UPDATE {p}batches SET inode = 0 WHERE slot = -1 AND inode IS NULL

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

-- name: columns_of
SELECT name FROM pragma_table_info(:table)

-- name: continue_ids
UPDATE sqlite_sequence SET seq = max(seq, :last) WHERE name = :table
