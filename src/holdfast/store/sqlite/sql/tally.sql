-- What only counts up.

-- name: add_to_tallies
INSERT INTO {p}tallies (queue, task, what, upto, n, total) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (queue, task, what, upto) DO UPDATE SET n = n + excluded.n, total = total + excluded.total

-- name: tallies
SELECT queue, task, what, upto, n, total FROM {p}tallies

-- name: ever_enqueued
-- the last id that was given out: none comes back
SELECT seq FROM sqlite_sequence WHERE name = ?

-- name: paused_queues
SELECT name FROM {p}queues WHERE paused_at IS NOT NULL ORDER BY name

-- name: ready_since
-- the time at which the first of each queue's ready jobs was enqueued, or was due if that was later
SELECT queue, max(created_at, run_at) FROM {p}jobs
WHERE id IN (SELECT value FROM json_each(?)) AND status = 'ready'
