-- name: get
SELECT {columns} FROM {p}jobs WHERE id = ?

-- name: list_older
SELECT {columns} FROM {p}jobs WHERE {where} ORDER BY id DESC LIMIT :limit

-- name: list_newer
SELECT {columns} FROM {p}jobs WHERE {where} ORDER BY id LIMIT :limit

-- name: select_ids
SELECT id FROM {p}jobs WHERE {where} AND id > :after ORDER BY id LIMIT :limit

-- name: events_of
SELECT at, event, attempt, actor, detail FROM {p}events WHERE job_id = ? ORDER BY id

-- name: attempts_of
SELECT attempt, worker, claimed_at, started_at, finished_at, outcome, error_code, error_detail, fingerprint
FROM {p}attempts WHERE job_id = ? ORDER BY attempt

-- name: traceback
SELECT traceback FROM {p}tracebacks WHERE fingerprint = ?

-- name: message_stats
SELECT (SELECT count(*) FROM {p}jobs WHERE status = 'ready' AND queue = :queue AND task IS NULL),
       (SELECT count(*) FROM {p}jobs WHERE status = 'scheduled' AND queue = :queue AND task IS NULL),
       (SELECT count(*) FROM {p}jobs WHERE status = 'running' AND queue = :queue AND task IS NULL),
       (SELECT count(*) FROM {p}jobs WHERE status = 'failed' AND queue = :queue AND task IS NULL),
       (SELECT created_at FROM {p}jobs WHERE id =
           (SELECT min(id) FROM {p}jobs WHERE status = 'ready' AND queue = :queue AND task IS NULL)),
       EXISTS (SELECT 1 FROM {p}queues WHERE name = :queue AND paused_at IS NOT NULL)

-- name: count
SELECT count(*) FROM {p}jobs WHERE {where}

-- name: queue_overview
-- every queue that has something in one of the five states, or was ever paused; jobs that have ended well are not read
WITH counted (queue, ready, scheduled, blocked, running, failed, paused, oldest) AS (
    SELECT queue, count(*), 0, 0, 0, 0, 0, min(id) FROM {p}jobs WHERE status = 'ready' GROUP BY queue
    UNION ALL SELECT queue, 0, count(*), 0, 0, 0, 0, NULL FROM {p}jobs WHERE status = 'scheduled' GROUP BY queue
    UNION ALL SELECT queue, 0, 0, count(*), 0, 0, 0, NULL FROM {p}jobs WHERE status = 'blocked' GROUP BY queue
    UNION ALL SELECT queue, 0, 0, 0, count(*), 0, 0, NULL FROM {p}jobs WHERE status = 'running' GROUP BY queue
    UNION ALL SELECT queue, 0, 0, 0, 0, count(*), 0, NULL FROM {p}jobs WHERE status = 'failed' GROUP BY queue
    UNION ALL SELECT name, 0, 0, 0, 0, 0, paused_at IS NOT NULL, NULL FROM {p}queues
), summed AS (
    SELECT queue, sum(ready) AS ready, sum(scheduled) AS scheduled, sum(blocked) AS blocked, sum(running) AS running,
           sum(failed) AS failed, min(oldest) AS oldest, max(paused) AS paused
    FROM counted GROUP BY queue
)
SELECT queue, ready, scheduled, blocked, running, failed, (SELECT created_at FROM {p}jobs WHERE id = oldest), paused
FROM summed ORDER BY queue

-- name: get_meta
SELECT value FROM {p}meta WHERE name = ?

-- name: set_meta
INSERT INTO {p}meta (name, value) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value

-- name: end_leases_of_another_boot
-- a lease is a time of the boot clock: after a restart of the machine every one of them has ended
UPDATE {p}jobs SET lease = 0 WHERE status = 'running'

-- name: end_workers_of_another_boot
-- none of them lives: a slot below 0 is held by nobody
UPDATE {p}workers SET slot = -1 WHERE ended_at IS NULL
