-- Bulk operations: see store/operate.py.

-- name: add_operation
INSERT INTO {p}operations (action, criteria, actor, reason, delay, attempts, matched, matched_all, until,
                           created_at, updated_at)
VALUES (:action, :criteria, :actor, :reason, :delay, :attempts, :matched, :matched_all,
        (SELECT coalesce(max(id), 0) FROM {p}jobs), :now, :now)
RETURNING id

-- name: forget_operations
-- all but the newest that are over
DELETE FROM {p}operations WHERE state <> 'running' AND id <= :id - :kept

-- name: operations
SELECT {columns} FROM {p}operations WHERE id > :low AND id < :high ORDER BY id DESC LIMIT :limit

-- name: operations_newer
SELECT {columns} FROM {p}operations WHERE id > :low ORDER BY id LIMIT :limit

-- name: running_operations
SELECT {columns} FROM {p}operations INDEXED BY {p}operations_running WHERE state = 'running' ORDER BY id LIMIT :limit

-- name: take_operation
-- Only one process works on it at a time. It may be taken from one that has not moved it for a while. The position is
-- an optimistic lock, so a process that was only slow changes nothing.
UPDATE {p}operations SET runner = :runner, position = :reached, updated_at = :now
WHERE id = :id AND state = 'running' AND position = :position
  AND (runner IS NULL OR runner = :runner OR updated_at <= :stale OR updated_at > :now)

-- name: count_changed
UPDATE {p}operations SET changed = changed + :changed WHERE id = :id

-- name: end_operation
UPDATE {p}operations SET state = :state, finished_at = :now, updated_at = :now, error = :error
WHERE id = :id AND state = 'running' AND position >= :reached
