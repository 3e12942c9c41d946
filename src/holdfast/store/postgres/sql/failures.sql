-- Failures, for the hooks of @app.on_failure. The cursor of a hook is a row of `meta` with the name of its task.

-- name: newest_event
-- the last event before which none will appear any more
SELECT coalesce(max(id), 0) FROM {p}events WHERE id < {p}horizon()

-- name: failures_scan_end
-- the last of a bounded number of events, since jobs may be deleted with theirs and ids have gaps
SELECT coalesce((SELECT id FROM {p}events WHERE id > :after AND id <= :newest ORDER BY id LIMIT 1 OFFSET :scan), :newest)

-- name: failures_between
-- jobs and messages that failed, except jobs of hooks: a hook that fails must not call another one
SELECT event.id, event.job_id, event.task, event.queue, event.attempt, coalesce(job.max_attempts, event.attempt),
       event.error_code, event.error_detail, event.at,
       CASE WHEN event.claimed_at IS NOT NULL THEN coalesce(event.worker, event.actor) END, event.fingerprint
FROM {p}events AS event LEFT JOIN {p}jobs AS job ON job.id = event.job_id
WHERE event.id > :after AND event.id <= :until AND event.event = 'failed' AND event.job_id IS NOT NULL
  AND (event.task IS NULL OR substr(event.task, 1, 11) <> 'on_failure:')
ORDER BY event.id LIMIT :limit

-- name: add_cursor
-- a hook that is new in this database, or whose row was changed by hand
INSERT INTO {p}meta (name, value) VALUES (:name, :new)
ON CONFLICT (name) DO UPDATE SET value = excluded.value WHERE {p}meta.value ~ '[^0-9]'

-- name: move_cursor
UPDATE {p}meta SET value = :new WHERE name = :name AND value = :old
