-- What only counts up.

-- name: add_to_tallies
INSERT INTO {p}tallies (queue, task, what, upto, n, total) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (queue, task, what, upto) DO UPDATE SET n = n + excluded.n, total = total + excluded.total

-- name: tallies
SELECT queue, task, what, upto, n, total, ran FROM {p}tallies

-- name: ever_enqueued
-- the last id that was given out: none comes back
SELECT seq FROM sqlite_sequence WHERE name = ?

-- name: paused_queues
SELECT name FROM {p}queues WHERE paused_at IS NOT NULL ORDER BY name
