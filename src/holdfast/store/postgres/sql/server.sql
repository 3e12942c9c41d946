-- The server: its clock, its locks, and the sizes of tables.

-- name: server_clock
SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint

-- name: session
-- the process of the session, the incarnation of the server, whether commits are flushed, whether it is a
-- standby. The incarnation is made of the start of the server, the last crash (it resets the statistics), and the
-- timeline (a promotion begins a new one). Then when the session began, and the first id that an event written later
-- can have.
SELECT pg_backend_pid(), hashtextextended(concat_ws('/', extract(epoch FROM pg_postmaster_start_time()),
           (SELECT extract(epoch FROM stats_reset) FROM pg_stat_bgwriter),
           CASE WHEN NOT pg_is_in_recovery() THEN left(pg_walfile_name(pg_current_wal_lsn()), 8) END), 0),
       current_setting('synchronous_commit') IN ('on', 'remote_apply'), pg_is_in_recovery(),
       (SELECT extract(epoch FROM backend_start) * 1000000 FROM pg_stat_get_activity(pg_backend_pid()))::bigint,
       pg_snapshot_xmax(pg_current_snapshot())::text::bigint << 20

-- name: event_bound
-- the first id that an event written later can have
SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint << 20

-- name: lock_holder
-- whether a session holds this advisory lock, the last heartbeat of the worker that it is of, and the incarnation
SELECT EXISTS (SELECT 1 FROM pg_locks
               WHERE locktype = 'advisory' AND granted AND objsubid = 2
                 AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
                 AND classid::bigint = (CAST(:class AS bigint) & 4294967295) AND objid::bigint = :number),
       (SELECT max(heartbeat_at) FROM {p}workers WHERE slot = :number AND ended_at IS NULL), hashtextextended(concat_ws('/', extract(epoch FROM pg_postmaster_start_time()),
           (SELECT extract(epoch FROM stats_reset) FROM pg_stat_bgwriter),
           CASE WHEN NOT pg_is_in_recovery() THEN left(pg_walfile_name(pg_current_wal_lsn()), 8) END), 0)

-- name: count_dead_workers
-- workers on record whose advisory lock nobody holds, or, without one, whose last heartbeat is old
SELECT count(*) FROM {p}workers AS worker
WHERE ended_at IS NULL AND CASE WHEN slot >= :first_without_lock THEN heartbeat_at < :since ELSE NOT EXISTS (
    SELECT 1 FROM pg_locks
    WHERE locktype = 'advisory' AND granted AND objsubid = 2
      AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
      AND classid::bigint = (CAST(:class AS bigint) & 4294967295) AND objid::bigint = worker.slot) END

-- name: touch_workers
-- those of this process live, here
UPDATE {p}workers SET heartbeat_at = greatest(heartbeat_at, :now), place = :place
WHERE ended_at IS NULL AND slot IN (SELECT value FROM {p}each_id(:slots))

-- name: transaction_status
SELECT pg_xact_status(CAST(CAST(:transaction AS text) AS xid8))

-- name: confirm
-- writes to the log of the server, and nothing else
SELECT pg_logical_emit_message(true, 'holdfast', '')::text

-- name: wrote_event
-- Whether a transaction of this process enqueued something until a time, by the numbers of its events. Other events
-- do not count: a settlement that is stored after a crash has the time at which the attempt ended, before it.
SELECT EXISTS (SELECT 1 FROM {p}events WHERE id >= :first AND id < :end AND at <= :until
               AND event = 'enqueued' AND actor = :actor)

-- name: end_session
-- Whether a session is still there that may run what was sent to it. One that waits for a statement is ended, since what
-- was sent may still be under way.
SELECT CASE WHEN state = 'idle' THEN pg_terminate_backend(pid) END FROM pg_stat_activity
WHERE pid = :pid AND (extract(epoch FROM backend_start) * 1000000)::bigint = :begun

-- name: find_enqueued
-- the job that this process has enqueued at a time, by its event
SELECT job_id FROM {p}events WHERE id >= :bound AND event = 'enqueued' AND at = :at AND actor = :actor

-- name: notify
-- but not if nobody sleeps: those who do hold a shared lock
SELECT CASE WHEN pg_try_advisory_xact_lock(CAST(:class AS int), CAST(:sleepers AS int)) THEN NULL
            ELSE pg_notify(:channel, '')::text END

-- name: table_sizes
-- bytes of all tables of this prefix, with their indexes; but not of a longer prefix that begins with it
SELECT coalesce(sum(pg_total_relation_size(class.oid)), 0)::bigint, current_setting('block_size')::bigint
FROM pg_class AS class JOIN pg_namespace AS space ON space.oid = class.relnamespace
WHERE space.nspname = :schema AND class.relkind IN ('r', 'p') AND starts_with(class.relname, :prefix)
  AND NOT EXISTS (SELECT 1 FROM pg_class AS other WHERE other.relnamespace = class.relnamespace AND other.relkind = 'r'
                  AND other.relname LIKE '%migrations' AND starts_with(other.relname, :prefix)
                  AND other.relname <> :prefix || 'migrations' AND starts_with(class.relname, left(other.relname, -10)))

-- name: used_bytes
-- of the table and its indexes: in proportion to the rows in a sample of about a thousand pages of the table
WITH size AS (
    SELECT pg_table_size('{table}') AS bytes, pg_total_relation_size('{table}') AS total,
           least(1.0, 1000.0 * current_setting('block_size')::int / greatest(pg_relation_size('{table}'), 1)) AS share)
SELECT CASE WHEN bytes = 0 THEN 0 ELSE (total * least(1.0, live / share / bytes))::bigint END
FROM size, LATERAL (SELECT coalesce(sum(pg_column_size(sampled.*) + 4), 0) AS live
                    FROM {table} AS sampled TABLESAMPLE SYSTEM (share * 100)) AS rows

-- name: own_tables
-- but not those of a longer prefix that begins with this one
SELECT format('%I.%I', space.nspname, class.relname)
FROM pg_class AS class JOIN pg_namespace AS space ON space.oid = class.relnamespace
WHERE space.nspname = :schema AND class.relkind IN ('r', 'p') AND starts_with(class.relname, :prefix)
  AND NOT EXISTS (SELECT 1 FROM pg_class AS other WHERE other.relnamespace = class.relnamespace AND other.relkind = 'r'
                  AND other.relname LIKE '%migrations' AND starts_with(other.relname, :prefix)
                  AND other.relname <> :prefix || 'migrations' AND starts_with(class.relname, left(other.relname, -10)))

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
