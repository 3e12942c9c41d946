-- Read single jobs, their history, and the table `meta`.

-- name: get
SELECT {columns} FROM {p}jobs WHERE id = ?

-- name: events_of
SELECT {columns} FROM {p}events WHERE id IN (SELECT event_id FROM {p}events_by_job WHERE job_id = ?) ORDER BY id

-- name: attempts_of
-- as the view {p}attempts has them
SELECT attempt, coalesce(worker, actor), claimed_at, started_at, at,
       CASE WHEN error_code = 'INTERNAL:WORKER_LOST' THEN 'lost' ELSE event END, error_code, error_detail, fingerprint
FROM {p}events WHERE id IN (SELECT event_id FROM {p}events_by_job WHERE job_id = ?1) AND claimed_at IS NOT NULL
UNION ALL
SELECT attempt, worker, claimed_at, started_at, NULL, 'running', NULL, NULL, NULL
FROM {p}jobs WHERE id = ?1 AND status = 'running' AND history = 1

-- name: traceback
SELECT traceback FROM {p}tracebacks WHERE fingerprint = ?

-- name: queues_ever_paused
-- queues that were ever paused, and since when they are paused, by whom and why
SELECT name, paused_at, paused_by, reason FROM {p}queues

-- name: get_meta
SELECT value FROM {p}meta WHERE name = ?

-- name: set_meta
INSERT INTO {p}meta (name, value) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value

-- name: end_leases_of_another_boot
-- leases are times of the boot clock: after a reboot of the machine all of them have ended
UPDATE {p}jobs SET lease = 0 WHERE status = 'running'

-- name: end_workers_of_another_boot
-- after a reboot no worker is alive; a slot below 0 is never locked
UPDATE {p}workers SET slot = -1 WHERE ended_at IS NULL

-- name: end_blocks_of_another_boot
-- after a reboot no process is in the block of a batch
UPDATE {p}batches SET slot = -1 WHERE sealed_at IS NULL AND done_at IS NULL AND slot IS NOT NULL
