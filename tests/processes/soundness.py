"""What must hold of jobs, chains, blockers, batches and effects when everything has been worked off.

Each question finds nothing in a sound database. They count on a table `effects`, whose rows are stored with
`ctx.complete()`; on tasks called `on_done` and `on_success`, which nothing but batches enqueues; on jobs `offspring`,
each enqueued in the transaction that completes its `parent`; and on nobody having brought an ended job back.
"""

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from holdfast import Holdfast
from support.transitions import fold_all

LAST = """coalesce((SELECT status FROM holdfast_jobs AS next WHERE next.chain_id = edge.chain_id
                    ORDER BY chain_index DESC LIMIT 1),
                   (SELECT status FROM holdfast_jobs AS root WHERE root.id = edge.chain_id))"""
MEMBERS = "FROM holdfast_jobs AS member WHERE member.batch_id = batch.id AND NOT member.continued"
UNFINISHED = "status IN ('blocked', 'scheduled', 'ready', 'running')"

QUESTIONS = {
    "a damaged file": "SELECT * FROM pragma_integrity_check WHERE integrity_check <> 'ok'",
    "a dangling reference": "SELECT * FROM pragma_foreign_key_check",
    "an end that nobody has worked off": "SELECT * FROM holdfast_endings",
    # --- attempts and events ---
    "an attempt that was not counted": """SELECT id FROM holdfast_jobs
        WHERE attempt <> (SELECT count(*) FROM holdfast_attempts WHERE job_id = id)""",
    "an attempt without an end": """SELECT job_id FROM holdfast_attempts
        WHERE outcome = 'running' OR finished_at IS NULL""",
    "more attempts than it may have": "SELECT id FROM holdfast_jobs WHERE attempt > max_attempts",
    "a success by another attempt than the last": """SELECT job_id FROM holdfast_attempts
        JOIN holdfast_jobs AS job ON job.id = job_id
        WHERE (outcome = 'succeeded') <> (job.status = 'succeeded' AND job.attempt = holdfast_attempts.attempt)""",
    "claims that are not in the history": """SELECT id FROM holdfast_jobs AS job WHERE attempt <>
        (SELECT count(*) FROM holdfast_events WHERE job_id = job.id AND event = 'claimed')""",
    "an end that is not in the history once, and last": """SELECT id FROM holdfast_jobs AS job
        WHERE status IN ('succeeded', 'failed', 'cancelled') AND (
            1 <> (SELECT count(*) FROM holdfast_events
                  WHERE job_id = job.id AND event IN ('succeeded', 'failed', 'cancelled'))
            OR status <> (SELECT event FROM holdfast_events WHERE job_id = job.id ORDER BY id DESC LIMIT 1))""",
    # --- chains ---
    "a chain that did not go on, or more than once": """SELECT id FROM holdfast_jobs AS job WHERE continued <>
        (SELECT count(*) FROM holdfast_jobs AS next
         WHERE next.chain_id = coalesce(job.chain_id, job.id) AND next.chain_index = job.chain_index + 1)""",
    "a chain that went on from what had not succeeded": """SELECT id FROM holdfast_jobs AS next
        WHERE chain_id IS NOT NULL AND NOT EXISTS (
            SELECT 1 FROM holdfast_jobs AS job WHERE coalesce(job.chain_id, job.id) = next.chain_id
            AND job.chain_index = next.chain_index - 1 AND job.status = 'succeeded' AND job.continued)""",
    # --- blockers ---
    "a job that was released more than once": """SELECT job_id FROM holdfast_events WHERE event = 'unblocked'
        GROUP BY job_id HAVING count(*) > 1""",
    "a job that ran before it was released": """SELECT job_id FROM holdfast_blockers WHERE
        (SELECT min(id) FROM holdfast_events AS event WHERE event.job_id = holdfast_blockers.job_id
         AND event = 'claimed') <
        (SELECT coalesce(min(id), 9e18) FROM holdfast_events AS event WHERE event.job_id = holdfast_blockers.job_id
         AND event = 'unblocked')""",
    "a job that ran though not all it waited for had succeeded": f"""SELECT job.id FROM holdfast_jobs AS job
        WHERE attempt > 0 AND on_blocker_failure IS NOT 'run' AND EXISTS (
            SELECT 1 FROM holdfast_blockers AS edge WHERE edge.job_id = job.id AND {LAST} <> 'succeeded')""",  # noqa: S608
    "a job that is blocked, and not by something that ended badly or is blocked itself": f"""
        SELECT job.id FROM holdfast_jobs AS job WHERE status = 'blocked' AND NOT EXISTS (
            SELECT 1 FROM holdfast_blockers AS edge WHERE edge.job_id = job.id
            AND ({LAST} = 'blocked' OR (on_blocker_failure IS NULL AND {LAST} IN ('failed', 'cancelled'))))""",  # noqa: S608
    # --- batches ---
    "a batch that is done and has members that are not, or the other way round": f"""
        SELECT id FROM holdfast_batches AS batch WHERE (done_at IS NOT NULL) <>
            (sealed_at IS NOT NULL AND NOT EXISTS (SELECT 1 {MEMBERS} AND {UNFINISHED}))""",  # noqa: S608
    "a batch that is done and called nobody, or the other way round": """SELECT id FROM holdfast_batches
        WHERE on_done IS NOT NULL AND (done_at IS NULL) <> (done_job_id IS NULL)""",
    "a batch that told of a success that was none, or the other way round": f"""
        SELECT id FROM holdfast_batches AS batch WHERE on_success IS NOT NULL AND (success_job_id IS NOT NULL) <>
            (done_at IS NOT NULL AND abandoned_at IS NULL
             AND NOT EXISTS (SELECT 1 {MEMBERS} AND status <> 'succeeded'))""",  # noqa: S608
    "a batch whose process died in its block, and that did not end": """SELECT id FROM holdfast_batches
        WHERE sealed_at IS NULL""",
    "callbacks that no batch knows of, or more of them than batches": """SELECT id FROM holdfast_jobs AS job
        WHERE task IN ('on_done', 'on_success') AND chain_id IS NULL AND 1 <>
            (SELECT count(*) FROM holdfast_batches WHERE job.id IN (done_job_id, success_job_id))""",
    "a callback that is gone": """SELECT id FROM holdfast_batches AS batch
        WHERE 0 < (done_job_id IS NOT NULL AND NOT EXISTS (
                       SELECT 1 FROM holdfast_jobs WHERE id = done_job_id AND task = 'on_done'))
                + (success_job_id IS NOT NULL AND NOT EXISTS (
                       SELECT 1 FROM holdfast_jobs WHERE id = success_job_id AND task = 'on_success'))""",
    "a callback before the end of a member": f"""SELECT id FROM holdfast_batches AS batch
        WHERE EXISTS (SELECT 1 FROM holdfast_events AS calling WHERE calling.job_id IN (done_job_id, success_job_id)
            AND calling.event = 'enqueued' AND EXISTS (
                SELECT 1 FROM holdfast_events AS late WHERE late.id > calling.id
                AND late.job_id IN (SELECT id {MEMBERS})))""",  # noqa: S608
    # --- effects ---
    "an effect of an attempt that did not succeed": """SELECT effects.* FROM effects WHERE NOT EXISTS (
        SELECT 1 FROM holdfast_attempts AS done WHERE done.job_id = effects.job_id
        AND done.attempt = effects.attempt AND done.outcome = 'succeeded')""",
    "an effect that was there twice": "SELECT job_id FROM effects GROUP BY job_id HAVING count(*) > 1",
    "a job whose completion enqueued more or less than one": """SELECT id FROM holdfast_jobs AS parent
        WHERE (task IN ('breed', 'do_all', 'do_all_later', 'do_all_apart') OR task IS NULL)
          AND (status = 'succeeded') <> (SELECT count(*) FROM holdfast_jobs AS child
              WHERE child.task = 'offspring' AND json_extract(child.args, '$.parent') = parent.id)""",
}


# --- statistics: the sums, with what is not folded yet, against a recount of jobs, attempts and the whole log ---

TAIL = "holdfast_events WHERE queue IS NOT NULL AND id > (SELECT cursor FROM holdfast_fold)"
OUTCOMES = """('succeeded', 'completed', 'failed', 'cancelled', 'retry_scheduled', 'recovered', 'released',
    'snoozed')"""
TIMED = "('succeeded', 'failed', 'cancelled', 'retry_scheduled', 'snoozed')"
# Of an attempt whose worker was lost, the event says whether there was another.
BADLY = "CASE WHEN {0} IN ('failed', 'recovered', 'lost') THEN 'badly' ELSE {0} END"

INDEXED = {
    "a folded event that the index of events by job does not have": """SELECT job_id, id FROM holdfast_events
        WHERE job_id IS NOT NULL AND id <= (SELECT cursor FROM holdfast_fold)
          AND (job_id / 8, id / 8) NOT IN (SELECT jobs, events FROM holdfast_event_blocks)""",
    "an entry in the index of events by job without an event": """SELECT jobs, events FROM holdfast_event_blocks
        WHERE (jobs, events) NOT IN (SELECT job_id / 8, id / 8 FROM holdfast_events WHERE job_id IS NOT NULL)""",
}

COUNTED = INDEXED | {
    "a count that a recount does not give": f"""SELECT status, queue, task, sum(kept), sum(counted) FROM (
            SELECT status, queue, task, n AS kept, 0 AS counted FROM holdfast_counts
            UNION ALL SELECT new_status, queue, coalesce(task, ''), 1, 0 FROM {TAIL} AND new_status IS NOT NULL
            UNION ALL SELECT old_status, queue, coalesce(task, ''), -1, 0 FROM {TAIL} AND old_status IS NOT NULL
            UNION ALL SELECT status, queue, coalesce(task, ''), 0, 1 FROM holdfast_jobs WHERE history)
        GROUP BY 1, 2, 3 HAVING sum(kept) <> sum(counted)""",  # noqa: S608
    "minutes that have other ends than the log": f"""SELECT measure, queue, task, minute, sum(kept), sum(counted)
        FROM (
            SELECT replace(measure, 'untried_', '') AS measure, queue, task, minute, n AS kept, 0 AS counted
            FROM holdfast_minutes
            UNION ALL SELECT event, queue, coalesce(task, ''), at / 60000000, 1, 0 FROM {TAIL}
            UNION ALL SELECT event, queue, coalesce(task, ''), at / 60000000, 0, 1 FROM holdfast_events)
        WHERE measure IN ('enqueued', 'succeeded', 'completed', 'failed', 'cancelled')
           OR measure IN ('retry_scheduled', 'snoozed', 'recovered', 'released')
        GROUP BY 1, 2, 3, 4 HAVING sum(kept) <> sum(counted)""",  # noqa: S608
    "totals that have other attempts than the table of attempts": f"""SELECT what, queue, task,
        sum(kept), sum(counted)
        FROM (
            SELECT {BADLY.format("measure")} AS what, queue, task, n AS kept, 0 AS counted FROM holdfast_totals
            WHERE measure IN {OUTCOMES}
            UNION ALL SELECT {BADLY.format("event")}, queue, coalesce(task, ''), 1, 0 FROM {TAIL}
            AND old_status = 'running' AND event IN {OUTCOMES}
            UNION ALL SELECT {BADLY.format("outcome")}, queue, coalesce(task, ''), 0, 1 FROM holdfast_attempts
            JOIN holdfast_jobs ON id = job_id WHERE outcome IN {OUTCOMES} OR outcome = 'lost')
        GROUP BY 1, 2, 3 HAVING sum(kept) <> sum(counted)""",  # noqa: S608
    "totals that have other jobs than there are": f"""SELECT queue, task, sum(kept), sum(counted) FROM (
            SELECT queue, task, n AS kept, 0 AS counted FROM holdfast_totals WHERE measure = 'enqueued'
            UNION ALL SELECT queue, coalesce(task, ''), 1, 0 FROM {TAIL} AND event = 'enqueued'
            UNION ALL SELECT queue, coalesce(task, ''), 0, 1 FROM holdfast_jobs WHERE history)
        GROUP BY 1, 2 HAVING sum(kept) <> sum(counted)""",  # noqa: S608
    "durations that are not those of the log": f"""SELECT measure, queue, task, sum(n), sum(micros) FROM (
            SELECT measure, queue, task, n, sum AS micros FROM holdfast_totals WHERE measure IN ('wait', 'run')
            UNION ALL SELECT 'run', queue, coalesce(task, ''), 1, ran FROM {TAIL} AND event IN {TIMED} AND ran >= 0
            UNION ALL SELECT 'wait', queue, coalesce(task, ''), 1, waited FROM {TAIL}
            AND event IN {TIMED} AND waited >= 0
            UNION ALL SELECT 'run', queue, coalesce(task, ''), -1, -ran FROM holdfast_events
            WHERE event IN {TIMED} AND ran >= 0
            UNION ALL SELECT 'wait', queue, coalesce(task, ''), -1, -waited FROM holdfast_events
            WHERE event IN {TIMED} AND waited >= 0)
        GROUP BY 1, 2, 3 HAVING sum(n) <> 0 OR sum(micros) <> 0""",  # noqa: S608
    "an attempt that succeeded and was not timed": """SELECT job_id FROM holdfast_events
        WHERE event = 'succeeded' AND old_status = 'running' AND (waited IS NULL OR ran IS NULL)""",
    "failures that are not those of the attempts": f"""SELECT code, sum(kept), sum(counted) FROM (
            SELECT error_code AS code, n AS kept, 0 AS counted FROM holdfast_failures
            UNION ALL SELECT error_code, 1, 0 FROM {TAIL} AND error_code IS NOT NULL
            UNION ALL SELECT error_code, 0, 1 FROM holdfast_attempts WHERE error_code IS NOT NULL
            UNION ALL SELECT error_code, 0, 1 FROM holdfast_jobs WHERE attempt = 0 AND error_code IS NOT NULL)
        GROUP BY 1 HAVING sum(kept) <> sum(counted)""",  # noqa: S608
    "failures that are not the same in all three tables": """SELECT error_code, queue, task,
        sum(one), sum(two), sum(three)
        FROM (
            SELECT error_code, queue, task, n AS one, 0 AS two, 0 AS three FROM holdfast_failures
            UNION ALL SELECT error_code, queue, task, 0, n, 0 FROM holdfast_failure_minutes
            UNION ALL SELECT error_code, queue, task, 0, 0, n FROM holdfast_error_totals)
        GROUP BY 1, 2, 3 HAVING sum(one) <> sum(two) OR sum(one) <> sum(three)""",
}


def index_events_by_job(connection: sqlite3.Connection) -> None:
    """For the questions below, which look for the events of each job in the log itself."""
    connection.execute("CREATE INDEX IF NOT EXISTS log_by_job ON holdfast_events (job_id)")
    connection.commit()


def unsound(connection: sqlite3.Connection, without_effect: Sequence[str]) -> dict[str, list[object]]:
    """What was found that must not be. without_effect: tasks that leave none."""
    index_events_by_job(connection)
    asked = (
        QUESTIONS
        | COUNTED
        | {
            "a success without its effect": f"""SELECT id, task FROM holdfast_jobs WHERE status = 'succeeded'
            AND coalesce(task, '') NOT IN ({", ".join(repr(name) for name in without_effect)})
            AND NOT EXISTS (SELECT 1 FROM effects WHERE effects.job_id = holdfast_jobs.id)"""  # noqa: S608
        }
    )
    found = {what: connection.execute(question).fetchmany(5) for what, question in asked.items()}
    return {what: rows for what, rows in found.items() if rows}


def unsound_however_folded(database: Path, without_effect: Sequence[str]) -> dict[str, list[object]]:
    """As it was left, and once more when the whole log is folded; and as Holdfast itself counts."""
    found: dict[str, list[object]] = {}
    with closing(sqlite3.connect(database)) as connection, Holdfast(database, busy_timeout=60) as app:
        for _ in ("as it was left", "all folded"):
            found |= unsound(connection, without_effect)
            rows = connection.execute("SELECT queue, task, status, count(*) FROM holdfast_jobs GROUP BY 1, 2, 3")
            told = {(one.queue, one.task, one.status): one.count for one in app.store.statistics.counts().items}
            if told != {tuple(key): n for *key, n in rows.fetchall()}:
                found["counts that Holdfast tells and that are wrong"] = [told]
            fold_all(app)
        left = connection.execute(
            "SELECT max(id) - (SELECT cursor FROM holdfast_fold) FROM holdfast_events"
        ).fetchone()
        if left != (0,):
            found["events that are not folded"] = [left]
    return found


def count(connection: sqlite3.Connection, table: str, where: str = "true") -> int:
    (number,) = connection.execute(f"SELECT count(*) FROM {table} WHERE {where}").fetchone()  # noqa: S608
    return int(number)
