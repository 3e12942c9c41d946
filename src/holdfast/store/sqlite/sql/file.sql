-- The pages of the database file.

-- name: page_counts
SELECT (SELECT page_count FROM pragma_page_count), (SELECT freelist_count FROM pragma_freelist_count),
       (SELECT page_size FROM pragma_page_size), (SELECT auto_vacuum FROM pragma_auto_vacuum)

-- --- moving: see move.sql ---

-- name: triggers_of
SELECT name, CAST(sql AS TEXT) FROM sqlite_master WHERE type = 'trigger' AND tbl_name = :table

-- name: last_ids
SELECT name, seq FROM sqlite_sequence

-- name: begin_ids
INSERT INTO sqlite_sequence (name, seq) SELECT :table, :last WHERE NOT EXISTS (SELECT 1 FROM sqlite_sequence WHERE name = :table)

-- name: forget_event_blocks
DELETE FROM {p}event_blocks

-- name: index_events_by_job
-- as the trigger does when events are folded
INSERT INTO {p}event_blocks (jobs, events)
SELECT DISTINCT job_id / 8, id / 8 FROM {p}events
WHERE id <= (SELECT cursor FROM {p}fold) AND typeof(job_id) = 'integer'
