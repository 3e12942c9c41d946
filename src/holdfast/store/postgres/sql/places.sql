-- Claiming from remembered places of the index of ready jobs: see places.py.

-- name: ready_places
-- The first row is what to sweep before a claim, as in ready_pairs; of leases only those that ended after :since. The
-- other rows are the first ready job of each queue, task and priority, in the order of the index, and whether the queue
-- is paused. Each step is one lookup of what comes next: entries that are dead, but visible to a snapshot that somebody
-- holds, are passed once.
WITH RECURSIVE found (queue, task, priority, id) AS (
    (SELECT queue, coalesce(task, ''), priority, id FROM {p}jobs
     WHERE status = 'ready' ORDER BY queue, coalesce(task, ''), priority DESC, id LIMIT 1)
    UNION ALL
    SELECT next.* FROM found CROSS JOIN LATERAL (
        (SELECT queue, coalesce(task, ''), priority, id FROM {p}jobs
         WHERE status = 'ready' AND queue = found.queue AND coalesce(task, '') = found.task
           AND priority < found.priority ORDER BY priority DESC, id LIMIT 1)
        UNION ALL
        (SELECT queue, coalesce(task, ''), priority, id FROM {p}jobs
         WHERE status = 'ready' AND queue = found.queue AND coalesce(task, '') > found.task
         ORDER BY coalesce(task, ''), priority DESC, id LIMIT 1)
        UNION ALL
        (SELECT queue, coalesce(task, ''), priority, id FROM {p}jobs
         WHERE status = 'ready' AND queue > found.queue
         ORDER BY queue, coalesce(task, ''), priority DESC, id LIMIT 1)
        LIMIT 1
    ) AS next
)
SELECT (coalesce((SELECT min(run_at) FROM {p}jobs WHERE status = 'scheduled') <= :now, false)::int
        + 2 * (EXISTS (SELECT 1 FROM {p}endings)
               OR coalesce((SELECT min(expires_at) FROM {p}jobs
                            WHERE expires_at IS NOT NULL
                              AND (status = 'blocked' OR status = 'scheduled' OR status = 'ready')) <= :now,
                           false))::int)::text,
       ((SELECT min(coalesce(lease, 0)) FROM {p}jobs
         WHERE status = 'running' AND coalesce(lease, 0) > :since AND coalesce(lease, 0) <= :boot_now)
        IS NOT NULL)::int::text,
       ((SELECT min(queue) FROM {p}jobs WHERE status = 'ready' AND version > 0) IS NOT NULL)::int::bigint,
       CAST(0 AS bigint), 0
UNION ALL
(SELECT queue, task, priority, id, (queue IN (SELECT name FROM {p}queues WHERE paused_at IS NOT NULL))::int FROM found
 LIMIT CAST(:most AS bigint))

-- name: ready_places_in
-- the same for the given queues
WITH RECURSIVE found (queue, task, priority, id) AS (
    SELECT first.* FROM {p}each_text(:queues) AS wanted CROSS JOIN LATERAL (
        SELECT queue, coalesce(task, ''), priority, id FROM {p}jobs
        WHERE status = 'ready' AND queue = wanted.value ORDER BY coalesce(task, ''), priority DESC, id LIMIT 1
    ) AS first
    UNION ALL
    SELECT next.* FROM found CROSS JOIN LATERAL (
        (SELECT queue, coalesce(task, ''), priority, id FROM {p}jobs
         WHERE status = 'ready' AND queue = found.queue AND coalesce(task, '') = found.task
           AND priority < found.priority ORDER BY priority DESC, id LIMIT 1)
        UNION ALL
        (SELECT queue, coalesce(task, ''), priority, id FROM {p}jobs
         WHERE status = 'ready' AND queue = found.queue AND coalesce(task, '') > found.task
         ORDER BY coalesce(task, ''), priority DESC, id LIMIT 1)
        LIMIT 1
    ) AS next
)
SELECT (coalesce((SELECT min(run_at) FROM {p}jobs WHERE status = 'scheduled') <= :now, false)::int
        + 2 * (EXISTS (SELECT 1 FROM {p}endings)
               OR coalesce((SELECT min(expires_at) FROM {p}jobs
                            WHERE expires_at IS NOT NULL
                              AND (status = 'blocked' OR status = 'scheduled' OR status = 'ready')) <= :now,
                           false))::int)::text,
       ((SELECT min(coalesce(lease, 0)) FROM {p}jobs
         WHERE status = 'running' AND coalesce(lease, 0) > :since AND coalesce(lease, 0) <= :boot_now)
        IS NOT NULL)::int::text,
       ((SELECT min(queue) FROM {p}jobs WHERE status = 'ready' AND version > 0) IS NOT NULL)::int::bigint,
       CAST(0 AS bigint), 0
UNION ALL
(SELECT queue, task, priority, id, (queue IN (SELECT name FROM {p}queues WHERE paused_at IS NOT NULL))::int FROM found
 LIMIT CAST(:most AS bigint))

-- name: claim_place
-- ready -> running: the next jobs of a queue, task and priority, from a remembered place
WITH taken AS MATERIALIZED (
    SELECT id FROM {p}jobs
    WHERE status = 'ready' AND queue = :queue AND coalesce(task, '') = :task AND priority = :priority AND id > :after
      AND NOT EXISTS (SELECT 1 FROM {p}queues WHERE name = :queue AND paused_at IS NOT NULL)
    ORDER BY id LIMIT :limit FOR UPDATE SKIP LOCKED
)
UPDATE {p}jobs AS job SET status = 'running', attempt = attempt + 1,
    worker = :worker, lease = :lease, claimed_at = :now, started_at = NULL, heartbeat_at = :now,
    progress = NULL, progress_text = NULL,
    transition = 'claimed', actor = :worker, reason = NULL, updated_at = :now, revision = revision + 1
WHERE job.id = ANY (ARRAY(SELECT id FROM taken))
RETURNING -priority, job.id, attempt, max_attempts, queue, task, convert_to(args, 'UTF8'), timeout, history, uncounted,
          error_code, error_detail, run_at, convert_to(trace, 'UTF8'), args_blob

-- name: claim_places
-- the same from several places of one priority. The candidates are read without locks, and more than are wanted, since
-- others may have taken the first ones meanwhile.
WITH candidates AS MATERIALIZED (
    SELECT job.id FROM {p}each_row(:places) AS place CROSS JOIN LATERAL (
        SELECT id FROM {p}jobs
        WHERE status = 'ready' AND queue = (place.value ->> 0) AND coalesce(task, '') = (place.value ->> 1)
          AND priority = CAST(place.value ->> 2 AS bigint) AND id > CAST(place.value ->> 3 AS bigint)
        ORDER BY id LIMIT 2 * CAST(:each AS bigint) + 10
    ) AS job
    WHERE (place.value ->> 0) NOT IN (SELECT name FROM {p}queues WHERE paused_at IS NOT NULL)
), taken AS MATERIALIZED (
    SELECT id FROM {p}jobs
    WHERE id = ANY (ARRAY(SELECT id FROM candidates)) AND status IS NOT DISTINCT FROM 'ready'
    ORDER BY id LIMIT :limit FOR UPDATE SKIP LOCKED
)
UPDATE {p}jobs AS job SET status = 'running', attempt = attempt + 1,
    worker = :worker, lease = :lease, claimed_at = :now, started_at = NULL, heartbeat_at = :now,
    progress = NULL, progress_text = NULL,
    transition = 'claimed', actor = :worker, reason = NULL, updated_at = :now, revision = revision + 1
WHERE job.id = ANY (ARRAY(SELECT id FROM taken))
RETURNING -priority, job.id, attempt, max_attempts, queue, task, convert_to(args, 'UTF8'), timeout, history, uncounted,
          error_code, error_detail, run_at, convert_to(trace, 'UTF8'), args_blob
