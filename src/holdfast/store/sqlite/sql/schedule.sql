-- Cron schedules. `revision` is an optimistic lock: firing a schedule that has changed meanwhile does nothing.

-- name: get_schedule
SELECT {columns} FROM {p}schedules WHERE name = ?

-- name: list_schedules
-- A damaged name that is not text comes after every text, so that no page would be the last one: it is left out.
SELECT {columns} FROM {p}schedules WHERE name > ? AND typeof(name) = 'text' ORDER BY name LIMIT ?

-- name: due_schedules
-- Schedules of these tasks that are due, or whose last occurrence is in the future because the clock was set back.
-- Schedules from code are left to programs that still declare them.
SELECT {columns} FROM {p}schedules
WHERE paused_at IS NULL AND task IN (SELECT value FROM json_each(:tasks))
  AND (next_at IS NULL OR next_at <= :now OR handled_at > :now)
  AND (source = 'runtime' OR name IN (SELECT value FROM json_each(:declared)))
  AND name > :after AND typeof(name) = 'text'
ORDER BY name LIMIT :limit

-- name: next_occurrence
SELECT min(next_at) FROM {p}schedules
WHERE paused_at IS NULL AND task IN (SELECT value FROM json_each(:tasks)) AND next_at > :now
  AND (source = 'runtime' OR name IN (SELECT value FROM json_each(:declared)))

-- name: add_schedule
INSERT INTO {p}schedules (name, cron, tz, task, args, queue, priority, max_attempts, timeout, expires, key, tags, version, missed,
                          catch_up_limit, jitter, source, handled_at, next_at, created_at, updated_at)
VALUES (:name, :cron, :tz, :task, :args, :queue, :priority, :max_attempts, :timeout, :expires, :key, :tags, :version, :missed,
        :catch_up_limit, :jitter, :source, :handled_at, :next_at, :now, :now)

-- name: change_schedule
UPDATE {p}schedules SET cron = :cron, tz = :tz, task = :task, args = :args, queue = :queue, priority = :priority,
    max_attempts = :max_attempts, timeout = :timeout, expires = :expires, key = :key, tags = :tags,
    version = :version, missed = :missed, catch_up_limit = :catch_up_limit, jitter = :jitter, source = :source, handled_at = :handled_at, next_at = :next_at,
    updated_at = :now, revision = revision + 1
WHERE name = :name

-- name: remove_schedule
DELETE FROM {p}schedules WHERE name = :name

-- name: pause_schedule
UPDATE {p}schedules SET paused_at = :now, updated_at = :now, revision = revision + 1
WHERE name = :name AND paused_at IS NULL

-- name: resume_schedule
-- counts from now: occurrences missed during the pause do not fire
UPDATE {p}schedules SET paused_at = NULL, handled_at = :now, next_at = :next_at, updated_at = :now,
    revision = revision + 1
WHERE name = :name AND paused_at IS NOT NULL

-- name: advance_schedule
UPDATE {p}schedules SET handled_at = :handled_at, next_at = :next_at, revision = revision + 1
WHERE name = :name AND revision = :revision AND paused_at IS NULL

-- name: add_fire
INSERT INTO {p}fires (schedule, fire_at) VALUES (:name, :fire_at) ON CONFLICT (schedule, fire_at) DO NOTHING

-- name: set_fire_job
UPDATE {p}fires SET job_id = :job_id WHERE schedule = :name AND fire_at = :fire_at

-- name: runs_of_schedule
SELECT fire_at, job_id FROM {p}fires WHERE schedule = :name ORDER BY id DESC LIMIT :limit

-- name: set_last_job
UPDATE {p}schedules SET last_at = :fire_at, last_job_id = :job_id WHERE name = :name

-- name: prune_fires
-- the oldest in order of insertion, not of their time, which may be wrong by years
DELETE FROM {p}fires WHERE schedule = :name
  AND id <= (SELECT id FROM {p}fires WHERE schedule = :name ORDER BY id DESC LIMIT 1 OFFSET :keep)
