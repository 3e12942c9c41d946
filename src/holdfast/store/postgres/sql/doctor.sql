-- Other queries of the doctor, and its repairs. Each query reads a bounded part of the database; see doctor_samples.sql.

-- name: blocked_by_finished
-- blocked only by jobs that have finished or were deleted: how many of each, and the ids that did not succeed
SELECT waiting.id, waiting.on_blocker_failure, count(*) FILTER (WHERE last.status = 'succeeded'),
       count(*) FILTER (WHERE last.status IN ('failed', 'cancelled')), count(*) FILTER (WHERE last.id IS NULL),
       CAST(json_agg(last.id) FILTER (WHERE last.status IN ('failed', 'cancelled')) AS text)
FROM (SELECT id, on_blocker_failure FROM {p}jobs WHERE status = 'blocked' AND external = 0
      LIMIT nullif(CAST(:window AS bigint), -1)) AS waiting
JOIN {p}blockers AS edge ON edge.job_id = waiting.id AND edge.outcome IS NULL
LEFT JOIN {p}jobs AS last ON last.id =
    coalesce((SELECT id FROM {p}jobs WHERE chain_id = edge.chain_id ORDER BY chain_index DESC LIMIT 1), edge.chain_id)
GROUP BY waiting.id, waiting.on_blocker_failure
HAVING NOT bool_or(coalesce(last.status, '') IN ('blocked', 'scheduled', 'ready', 'running')) LIMIT :limit

-- name: count_endings
SELECT count(*) FROM (SELECT 1 FROM {p}endings LIMIT :limit) AS bounded

-- name: ready_by_queue_and_task
-- every queue and task with ready jobs, and their newest version, without paused queues; each step looks up one smallest value in an index
WITH RECURSIVE found (queue, task, step) AS (
    SELECT min(queue), CAST('' AS text) COLLATE "C", 0 FROM {p}jobs WHERE status = 'ready'
    UNION ALL
    SELECT CASE WHEN task IS NULL THEN (SELECT min(queue) FROM {p}jobs WHERE status = 'ready' AND queue > found.queue)
                ELSE queue END,
           CASE WHEN task IS NULL THEN CAST('' AS text) COLLATE "C"
                ELSE (SELECT min(task) FROM {p}jobs
                      WHERE status = 'ready' AND queue = found.queue AND task > found.task) END,
           step + 1
    FROM found WHERE queue IS NOT NULL AND step <= :limit
)
SELECT queue, task, (
    SELECT count(*) FROM (SELECT 1 FROM {p}jobs
                          WHERE status = 'ready' AND queue = found.queue AND task = found.task LIMIT :limit) AS bounded), (
    SELECT coalesce(max(version), 0) FROM {p}jobs
    WHERE status = 'ready' AND version > 0 AND queue = found.queue AND task = found.task)
FROM found
WHERE queue IS NOT NULL AND task <> '' AND queue NOT IN (SELECT name FROM {p}queues WHERE paused_at IS NOT NULL)

-- name: paused_queues
SELECT name, paused_at, EXISTS (SELECT 1 FROM {p}jobs WHERE status = 'ready' AND queue = name)
FROM {p}queues WHERE paused_at IS NOT NULL ORDER BY paused_at LIMIT :limit

-- name: clock_steps
-- how often the newest events went back in time, and the largest step; events of plain SQL may have any time
SELECT count(*), coalesce(max(-step), 0) FROM (
    SELECT at - lag(at) OVER (ORDER BY id) AS step
    FROM (SELECT id, at, event FROM {p}events ORDER BY id DESC LIMIT :recent) AS newest
    WHERE event NOT IN ('enqueued', 'edited', 'removed')
) AS steps WHERE step < -CAST(:tolerance AS bigint)

-- name: schema_objects
-- tables with their columns and constraints, indexes, triggers, functions and views, as the server writes them
WITH mine AS (
    SELECT class.oid, class.relname, class.relkind FROM pg_class AS class
    WHERE class.relnamespace = CAST(:space AS regnamespace) AND starts_with(class.relname, :prefix)
)
SELECT 'table', relname, relname, '' FROM mine WHERE relkind IN ('r', 'p')
UNION ALL
SELECT 'column', mine.relname || '.' || attname, mine.relname,
       format_type(atttypid, atttypmod) || CASE WHEN attnotnull THEN ' NOT NULL' ELSE '' END || ' '
           || CAST(attidentity AS text) || coalesce(' ' || CAST(CAST(nullif(attcollation, 0) AS regcollation) AS text), '')
           || coalesce(' DEFAULT ' || pg_get_expr(adbin, adrelid), '')
FROM mine JOIN pg_attribute ON attrelid = mine.oid AND attnum > 0 AND NOT attisdropped
LEFT JOIN pg_attrdef ON adrelid = mine.oid AND adnum = attnum WHERE mine.relkind IN ('r', 'p')
UNION ALL
SELECT 'constraint', conname, mine.relname, pg_get_constraintdef(con.oid)
FROM mine JOIN pg_constraint AS con ON con.conrelid = mine.oid AND con.contype IN ('c', 'f', 'p', 'u') WHERE mine.relkind IN ('r', 'p')
UNION ALL
SELECT 'index', idx.relname, mine.relname, pg_get_indexdef(idx.oid) || CASE WHEN indisvalid THEN '' ELSE ' INVALID' END
FROM mine JOIN pg_index ON indrelid = mine.oid JOIN pg_class AS idx ON idx.oid = indexrelid
WHERE NOT EXISTS (SELECT 1 FROM pg_constraint WHERE conindid = idx.oid)
UNION ALL
SELECT 'trigger', tgname, mine.relname, pg_get_triggerdef(tg.oid) || CASE WHEN tgenabled = 'O' THEN '' ELSE ' ' || CAST(tgenabled AS text) END
FROM mine JOIN pg_trigger AS tg ON tgrelid = mine.oid WHERE NOT tgisinternal
UNION ALL
SELECT 'function', proname, proname, pg_get_functiondef(oid) FROM pg_proc
WHERE pronamespace = CAST(:space AS regnamespace) AND starts_with(proname, :prefix) AND prokind = 'f'
UNION ALL
SELECT 'view', relname, relname, pg_get_viewdef(oid) FROM mine WHERE relkind = 'v'

-- name: prefixes
-- the prefixes of all sets of Holdfast tables in the schema
SELECT left(its.relname, -length('migrations')) FROM pg_class AS its
JOIN pg_namespace AS space ON space.oid = its.relnamespace
WHERE space.nspname = :schema AND its.relkind = 'r' AND its.relname LIKE '%migrations'
  AND EXISTS (SELECT 1 FROM pg_class WHERE relnamespace = space.oid AND relname = left(its.relname, -length('migrations')) || 'events')
ORDER BY 1 LIMIT 10

-- --- the server ---

-- name: server_settings
-- whether it can be written, and the settings that a new session has
SELECT current_setting('server_version'),
       NOT pg_is_in_recovery() AND (SELECT reset_val FROM pg_settings WHERE name = 'default_transaction_read_only') = 'off',
       (SELECT reset_val FROM pg_settings WHERE name = 'synchronous_commit')

-- name: settings_that_are_off
SELECT name FROM pg_settings WHERE name IN ('fsync', 'full_page_writes', 'autovacuum', 'track_counts') AND setting = 'off' ORDER BY name

-- name: xmin_holders
-- who keeps dead rows of this database from being removed: since when, and how many transactions have begun since
SELECT 'transaction', CAST(pid AS text), concat_ws(' ', nullif(application_name, ''), 'of', usename, state),
       CAST(extract(epoch FROM clock_timestamp() - xact_start) AS double precision),
       age(coalesce(backend_xmin, backend_xid))
FROM pg_stat_activity
WHERE coalesce(backend_xmin, backend_xid) IS NOT NULL AND pid <> pg_backend_pid() AND xact_start IS NOT NULL
  AND backend_type = 'client backend' AND datname = current_database()
UNION ALL
SELECT 'slot', slot_name, CASE WHEN active THEN 'in use' ELSE 'not in use' END, NULL, age(xmin)
FROM pg_replication_slots WHERE xmin IS NOT NULL
UNION ALL
SELECT 'prepared', gid, 'of ' || owner, CAST(extract(epoch FROM clock_timestamp() - prepared) AS double precision), age(transaction)
FROM pg_prepared_xacts WHERE database = current_database()
UNION ALL
SELECT 'standby', coalesce(nullif(application_name, ''), CAST(pid AS text)), coalesce(host(client_addr), 'on this machine'), NULL,
       age(backend_xmin)
FROM pg_stat_replication WHERE backend_xmin IS NOT NULL

-- name: table_rows
SELECT class.relname, stat.n_live_tup, stat.n_dead_tup,
       NOT coalesce('autovacuum_enabled=false' = ANY (class.reloptions) OR 'autovacuum_enabled=off' = ANY (class.reloptions), false)
FROM pg_stat_all_tables AS stat JOIN pg_class AS class ON class.oid = stat.relid
WHERE stat.schemaname = :schema AND starts_with(stat.relname, :prefix) AND class.relkind = 'r'
  AND NOT EXISTS (SELECT 1 FROM pg_class AS other WHERE other.relnamespace = class.relnamespace AND other.relkind = 'r'
                  AND other.relname LIKE '%migrations' AND starts_with(other.relname, :prefix)
                  AND other.relname <> :prefix || 'migrations' AND starts_with(class.relname, left(other.relname, -10)))
ORDER BY class.relname LIMIT 100

-- name: connections
-- how many clients are connected, how many can be, and how many are Holdfast's in this database
SELECT count(*) FILTER (WHERE backend_type = 'client backend'),
       current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int,
       count(*) FILTER (WHERE datname = current_database() AND application_name LIKE 'holdfast%')
FROM pg_stat_activity

-- --- repairs ---

-- name: set_finished_now
UPDATE {p}jobs SET finished_at = :now WHERE id IN (SELECT value FROM {p}each_id(:batch))
  AND status IN ('succeeded', 'failed', 'cancelled') AND (finished_at IS NULL OR finished_at > :future)

-- name: delete_orphaned_events
DELETE FROM {p}events WHERE job_id IN (SELECT value FROM {p}each_id(:jobs)) AND job_id NOT IN (SELECT id FROM {p}jobs)

-- name: delete_orphaned_tags
DELETE FROM {p}tags WHERE job_id IN (SELECT value FROM {p}each_id(:jobs)) AND job_id NOT IN (SELECT id FROM {p}jobs)

-- name: delete_orphaned_blockers
DELETE FROM {p}blockers WHERE job_id IN (SELECT value FROM {p}each_id(:jobs)) AND job_id NOT IN (SELECT id FROM {p}jobs)

-- name: delete_meta
DELETE FROM {p}meta WHERE name = ?

-- name: insert_missed_endings
-- chains that have finished or were deleted, and that blocked jobs still wait for, unless the job stays blocked
INSERT INTO {p}endings (chain_id)
SELECT DISTINCT edge.chain_id FROM {p}jobs AS waiting
JOIN {p}blockers AS edge ON edge.job_id = waiting.id AND edge.outcome IS NULL
LEFT JOIN {p}jobs AS last ON last.id =
    coalesce((SELECT id FROM {p}jobs WHERE chain_id = edge.chain_id ORDER BY chain_index DESC LIMIT 1), edge.chain_id)
WHERE waiting.status = 'blocked'
  AND (last.status = 'succeeded'
    OR (waiting.on_blocker_failure IS NOT NULL AND (last.id IS NULL OR last.status IN ('failed', 'cancelled'))))
LIMIT :limit
