-- References from jobs to large payloads and results, and the blobs that no job refers to.

-- name: set_args_blob
UPDATE {p}jobs SET args_blob = ? WHERE id = ?

-- name: set_result_blob
UPDATE {p}jobs SET result_blob = ? WHERE id = ?

-- name: hold_blob
-- Until this transaction ends, nobody deletes the blob; many names have one lock. And whether each statement of this
-- transaction sees what was committed before it.
SELECT pg_advisory_xact_lock_shared(hashtext('{p}blobs'), hashtext(CAST(? AS text)) & 255),
       current_setting('transaction_isolation') = 'read committed'

-- name: lock_blob
-- whether no other transaction holds the blob, or one with the same lock, until this one ends
SELECT pg_try_advisory_xact_lock(hashtext('{p}blobs'), hashtext(CAST(? AS text)) & 255)

-- name: is_unused_blob
-- if so, it may have been deleted since it was put
SELECT 1 FROM {p}unused_blobs WHERE name = ?

-- name: reuse_blob
DELETE FROM {p}unused_blobs WHERE name = ?

-- name: mark_unused
INSERT INTO {p}unused_blobs (name) VALUES (?) ON CONFLICT (name) DO UPDATE SET noted_at = NULL, gone_at = NULL

-- name: mark_args_unused
-- run before the job gets another payload
INSERT INTO {p}unused_blobs (name) SELECT args_blob FROM {p}jobs WHERE id = :id AND args_blob IS NOT NULL
ON CONFLICT (name) DO UPDATE SET noted_at = NULL, gone_at = NULL

-- name: mark_results_unused
-- run before the results of these jobs are cleared
INSERT INTO {p}unused_blobs (name) SELECT result_blob FROM {p}jobs
WHERE id IN (SELECT value FROM {p}each_id(:batch)) AND result_blob IS NOT NULL
ON CONFLICT (name) DO UPDATE SET noted_at = NULL, gone_at = NULL

-- name: mark_orphans_unused
-- the names among these that no job refers to
INSERT INTO {p}unused_blobs (name) SELECT found.value FROM {p}each_text(:names) AS found
WHERE NOT EXISTS (SELECT 1 FROM {p}jobs WHERE args_blob = found.value)
  AND NOT EXISTS (SELECT 1 FROM {p}jobs WHERE result_blob = found.value)
ON CONFLICT (name) DO UPDATE SET noted_at = NULL, gone_at = NULL

-- name: unreferenced_blobs
SELECT found.value FROM {p}each_text(:names) AS found
WHERE NOT EXISTS (SELECT 1 FROM {p}jobs WHERE args_blob = found.value)
  AND NOT EXISTS (SELECT 1 FROM {p}jobs WHERE result_blob = found.value)

-- name: note_unused_blobs
UPDATE {p}unused_blobs SET noted_at = :now
WHERE name IN (SELECT name FROM {p}unused_blobs WHERE gone_at IS NULL AND noted_at IS NULL LIMIT :limit)

-- name: unused_blobs
-- unused blobs to delete, unless a job refers to one after all
SELECT name FROM {p}unused_blobs WHERE gone_at IS NULL AND noted_at IS NOT NULL LIMIT ?

-- name: any_unused_blob
-- whether there are unused blobs that are not noted yet, any to delete, and names of deleted ones to forget
SELECT EXISTS (SELECT 1 FROM {p}unused_blobs WHERE gone_at IS NULL AND noted_at IS NULL),
       EXISTS (SELECT 1 FROM {p}unused_blobs WHERE gone_at IS NULL),
       EXISTS (SELECT 1 FROM {p}unused_blobs WHERE gone_at < ?)

-- name: is_blob_in_use
SELECT EXISTS (SELECT 1 FROM {p}jobs WHERE args_blob = ?1) OR EXISTS (SELECT 1 FROM {p}jobs WHERE result_blob = ?1)

-- name: blob_gone
UPDATE {p}unused_blobs SET gone_at = ? WHERE name = ?

-- name: forget_gone_blobs
DELETE FROM {p}unused_blobs WHERE gone_at < ?

-- name: forget_damaged_names
DELETE FROM {p}unused_blobs WHERE name !~ '^[0-9a-f]{64}$'

-- name: args_blobs_after
-- each name once, in order, with the first job that refers to it
SELECT args_blob, min(id) FROM {p}jobs WHERE args_blob IS NOT NULL AND args_blob > ? GROUP BY args_blob LIMIT ?

-- name: result_blobs_after
SELECT result_blob, min(id) FROM {p}jobs WHERE result_blob IS NOT NULL AND result_blob > ? GROUP BY result_blob LIMIT ?

-- name: store_blob_kind
INSERT INTO {p}meta (name, value) VALUES ('blob_store', ?) ON CONFLICT (name) DO NOTHING
