-- The server: its clock, its locks, and the sizes of tables.

-- name: server_clock
SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint

-- name: server_start
-- when it was started, in microseconds, and for how many seconds it has run
SELECT (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint,
       extract(epoch FROM clock_timestamp() - pg_postmaster_start_time())::double precision

-- name: is_locked
-- whether any session holds this advisory lock
SELECT EXISTS (SELECT 1 FROM pg_locks
               WHERE locktype = 'advisory' AND granted AND objsubid = 2
                 AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
                 AND classid::bigint = (CAST(:class AS bigint) & 4294967295) AND objid::bigint = :number)

-- name: count_dead_workers
-- workers on record whose advisory lock nobody holds
SELECT count(*) FROM {p}workers AS worker WHERE ended_at IS NULL AND NOT EXISTS (
    SELECT 1 FROM pg_locks
    WHERE locktype = 'advisory' AND granted AND objsubid = 2
      AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
      AND classid::bigint = (CAST(? AS bigint) & 4294967295) AND objid::bigint = worker.slot)

-- name: table_sizes
-- bytes of all tables of this prefix, with their indexes
SELECT coalesce(sum(pg_total_relation_size(class.oid)), 0)::bigint, current_setting('block_size')::bigint
FROM pg_class AS class JOIN pg_namespace AS space ON space.oid = class.relnamespace
WHERE space.nspname = :schema AND class.relkind IN ('r', 'p') AND starts_with(class.relname, :prefix)

-- name: own_tables
SELECT format('%I.%I', space.nspname, class.relname)
FROM pg_class AS class JOIN pg_namespace AS space ON space.oid = class.relnamespace
WHERE space.nspname = :schema AND class.relkind IN ('r', 'p') AND starts_with(class.relname, :prefix)

-- name: same_database
-- identifies the database, to compare two connections
SELECT current_database(), (SELECT oid FROM pg_database WHERE datname = current_database())::bigint,
       (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint

-- name: put_blob
INSERT INTO {p}blobs (name, data) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET put_at = excluded.put_at

-- name: get_blob
SELECT data FROM {p}blobs WHERE name = ?

-- name: has_blob
SELECT 1 FROM {p}blobs WHERE name = ?

-- name: delete_blob
DELETE FROM {p}blobs WHERE name = ?

-- name: old_blobs
-- that were put before, in pages
SELECT name FROM {p}blobs WHERE put_at < :before AND name > :after ORDER BY name LIMIT :limit
