-- Find jobs by filters: see listing.py. These are templates. {where} is the condition of the filters, {order} is empty
-- or DESC; {source} is a table, {range} the condition of a part of that index.

-- --- scan by id ---

-- name: scan_ids
SELECT id FROM {p}jobs WHERE id > :low AND id < :high AND {where} ORDER BY id {order} LIMIT :limit

-- name: scan_end
-- the last id of a scan over this many rows; nothing if there are fewer
SELECT id FROM {p}jobs WHERE id > :low AND id < :high ORDER BY id {order} LIMIT 1 OFFSET :max_jobs - 1

-- name: matching
-- the ids among these that match
SELECT id FROM {p}jobs WHERE id IN (SELECT value FROM {p}each_id(:batch)) AND {where}

-- name: records
SELECT {columns} FROM {p}jobs WHERE id IN (SELECT value FROM {p}each_id(:batch)) ORDER BY id DESC

-- name: last_job
SELECT coalesce(max(id), 0) FROM {p}jobs

-- name: zones_without_history
SELECT DISTINCT id / :ids FROM {p}jobs WHERE history = 0

-- --- a part of an index that is not in the order of ids: read completely and sorted ---

-- name: sorted_ids
SELECT id FROM {source} WHERE {range} AND id > :low AND id < :high ORDER BY id {order} LIMIT :limit

-- name: size_of_part
-- up to a bound
SELECT count(*) FROM (SELECT 1 FROM {source} WHERE {range} LIMIT :bound) AS bounded

-- --- ranges of an index, each in the order of ids ---

-- name: heads
-- the first id of each of these ranges
SELECT range.key, (SELECT {first}({id}) FROM {source} WHERE {range} AND {id} > :low AND {id} < :high)
FROM {p}each_row(:ranges) AS range

-- name: range_ids
SELECT {id} FROM {source} WHERE {range} AND {id} > :low AND {id} < :high ORDER BY {id} {order} LIMIT :limit

-- name: size_of_ranges
SELECT count(*) FROM (SELECT 1 FROM {p}each_row(:ranges) AS range CROSS JOIN {source} WHERE {range} LIMIT :bound) AS bounded

-- Skip scans that find the ranges of an index. Each step is one lookup of the next value; NULL ends the series.

-- name: queues_in
WITH RECURSIVE found (queue) AS (
    SELECT min(queue) FROM {source} WHERE {range}
    UNION ALL
    SELECT (SELECT min(queue) FROM {source} WHERE {range} AND queue > found.queue) FROM found WHERE queue IS NOT NULL
)
SELECT queue FROM found LIMIT :bound

-- name: tasks_in
-- of these queues; '' stands for messages
WITH RECURSIVE found (queue, has_jobs, task) AS (
    SELECT value COLLATE "C", EXISTS (SELECT 1 FROM {source} WHERE {range} AND queue = value AND coalesce(task, '') = ''), '' COLLATE "C"
    FROM {p}each_text(:queues)
    UNION ALL
    SELECT queue, true, (SELECT min(coalesce(task, '')) FROM {source}
                         WHERE {range} AND queue = found.queue AND coalesce(task, '') > found.task)
    FROM found WHERE task IS NOT NULL
)
SELECT queue, has_jobs, task FROM found LIMIT :bound

-- name: priorities_in
-- of these queues and tasks
WITH RECURSIVE found (queue, task, priority) AS (
    SELECT (value ->> 0) COLLATE "C", (value ->> 1) COLLATE "C", (
        SELECT max(priority) FROM {source}
        WHERE {range} AND queue = (value ->> 0) AND coalesce(task, '') = coalesce(value ->> 1, ''))
    FROM {p}each_row(:pairs)
    UNION ALL
    SELECT queue, task, (
        SELECT max(priority) FROM {source}
        WHERE {range} AND queue = found.queue AND coalesce(task, '') = coalesce(found.task, '') AND priority < found.priority)
    FROM found WHERE priority IS NOT NULL
)
SELECT queue, task, priority FROM found LIMIT :bound

-- name: error_codes
WITH RECURSIVE found (code) AS (
    SELECT min(error_code) FROM {p}jobs WHERE error_code IS NOT NULL
    UNION ALL
    SELECT (SELECT min(error_code) FROM {p}jobs WHERE error_code > found.code) FROM found WHERE code IS NOT NULL
)
SELECT code FROM found LIMIT :bound

-- --- chains ---

-- name: continued_chains
-- first jobs of chains of more than one job, by a skip scan
WITH RECURSIVE found (chain, n) AS (
    SELECT {first}(chain_id), CAST(1 AS bigint) FROM {p}jobs WHERE chain_id > :low AND chain_id < :high
    UNION ALL
    SELECT (SELECT {first}(chain_id) FROM {p}jobs
            WHERE chain_id > {low} AND chain_id < {high}), n + 1
    FROM found WHERE chain IS NOT NULL AND n < :limit
)
SELECT chain FROM found WHERE chain IS NOT NULL

-- name: size_of_chains
SELECT count(*) FROM (SELECT 1 FROM {p}jobs WHERE chain_id IS NOT NULL LIMIT :bound) AS bounded

-- name: chains_of
-- the chains that these jobs belong to
SELECT DISTINCT coalesce(chain_id, id) FROM {p}jobs WHERE id IN (SELECT value FROM {p}each_id(:batch))

-- --- deletable jobs ---

-- name: count_deletable
-- The jobs among these that `delete` and `delete_matching_chain` would delete: jobs outside chains, and chains of which
-- all jobs match, counted with their first job; but no job that an unfinished job waits for.
SELECT (
    SELECT count(*) FROM {p}jobs
    WHERE id IN (SELECT value FROM {p}each_id(:batch)) AND {where} AND status <> 'running'
      AND continued = 0 AND chain_id IS NULL
      AND (awaited = 0 OR NOT EXISTS (
          SELECT 1 FROM {p}blockers AS edge JOIN {p}jobs AS waiting ON waiting.id = edge.job_id
          WHERE edge.chain_id = {p}jobs.id AND waiting.status IN ('blocked', 'scheduled', 'ready', 'running')))
) + (
    SELECT CAST(coalesce(sum((SELECT count(*) FROM {p}jobs WHERE id = root.id OR chain_id = root.id)), 0) AS bigint)
    FROM {p}jobs AS root
    WHERE root.id IN (SELECT value FROM {p}each_id(:batch)) AND root.continued = 1 AND root.chain_id IS NULL
      AND NOT EXISTS (SELECT 1 FROM {p}jobs
                      WHERE (id = root.id OR chain_id = root.id) AND ({where} AND status <> 'running') IS NOT TRUE)
      AND NOT EXISTS (
          SELECT 1 FROM {p}blockers AS edge JOIN {p}jobs AS waiting ON waiting.id = edge.job_id
          WHERE edge.chain_id = root.id AND waiting.status IN ('blocked', 'scheduled', 'ready', 'running'))
)

-- name: in_chains
-- all jobs of chains of more than one job
SELECT id FROM {p}jobs WHERE chain_id IS NOT NULL
UNION
SELECT chain_id FROM {p}jobs WHERE chain_id IS NOT NULL

-- name: size_of_blockers
-- up to a bound
SELECT count(*) FROM (SELECT 1 FROM {p}blockers LIMIT :bound) AS bounded

-- name: awaited_chains
SELECT DISTINCT chain_id FROM {p}blockers
