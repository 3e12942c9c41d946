"""What must hold after every step: the database and the model say the same, and the database is sound."""

from collections import Counter
from collections.abc import Callable
from typing import Any

from holdfast import Holdfast, Queue
from holdfast.clock import SECOND
from support.model_queue import Model

Rows = Callable[..., list[Any]]
"""Runs a statement on a connection of its own, and returns its rows."""

TERMINAL = frozenset({"succeeded", "failed", "cancelled"})


def jobs_are_as_in_the_model(rows: Rows, model: Model) -> None:
    found = rows(
        "SELECT id, queue, task, status, attempt, max_attempts, priority, run_at, created_at, finished_at, lease,"
        " key, history, result FROM holdfast_jobs"
    )
    assert {id: tuple(row) for id, *row in found} == {one.id: one.row for one in model.entries.values()}
    for id, _, _, status, attempt, max_attempts, _, _, _, finished_at, lease, *_ in found:
        assert attempt <= max_attempts, id
        assert (finished_at is not None) == (status in TERMINAL), id
        assert (lease is not None) == (status == "running"), id
    silent = rows("SELECT id FROM holdfast_jobs WHERE status = 'failed' AND error_code IS NULL")
    assert silent == [], "a failed job must say why"


def stats_are_as_in_the_model(queue: Queue[Any], model: Model) -> None:
    stats, counts = queue.stats(), Counter(one.status for one in model.messages(queue.name))
    expected = [counts[status] for status in ("ready", "scheduled", "running", "failed")]
    assert [stats.ready, stats.scheduled, stats.running, stats.failed] == expected
    assert stats.total == sum(expected)
    assert stats.paused == (queue.name in model.paused)
    ready = model.messages(queue.name, "ready")
    since = min((max(one.created_at, one.run_at) for one in ready), default=None)
    assert stats.oldest_ready_age == (None if since is None else max(0.0, (model.clock.now() - since) / SECOND))
    dead = [job.id for job in queue.dead_letters()]
    assert dead == [one.id for one in reversed(model.messages(queue.name, "failed"))]


def a_follower_sees_every_event_once(rows: Rows, model: Model, cursor: int) -> int:
    """Read the log from where the last step left it; returns the new end."""
    found = rows("SELECT job_id, event, attempt FROM holdfast_events WHERE id > ? AND event <> 'removed'", (cursor,))
    assert Counter(found) == model.fresh
    model.fresh.clear()
    end: int = rows("SELECT coalesce(max(id), 0) FROM holdfast_events")[0][0]
    assert end >= cursor, "the log's end went back, so a follower would miss what comes next"
    return end


def the_log_replays_to_the_current_status(rows: Rows, model: Model) -> None:
    logs: dict[int, list[Any]] = {}
    for id, *row in rows(
        "SELECT job_id, event, attempt, old_status, new_status FROM holdfast_events "
        "WHERE job_id IS NOT NULL ORDER BY id"
    ):
        logs.setdefault(id, []).append(row)
    with_history = {one.id: one for one in model.entries.values() if one.history}
    assert logs.keys() == with_history.keys()
    for id, log in logs.items():
        assert [(name, attempt) for name, attempt, *_ in log] == with_history[id].log
        assert with_history[id].status == replay(log), (id, log)


def replay(log: list[Any]) -> str | None:
    """Where a job is after these events, each of which must begin where the one before ended."""
    now: str | None = None
    for _, _, old, new in log:
        assert old == now, log
        now = new
    return now


def counts_are_as_in_the_model(app: Holdfast, model: Model) -> None:
    counts = {(one.queue, one.task, one.status): one.count for one in app.store.statistics.counts().items}
    assert counts == Counter((one.queue, one.task, one.status) for one in model.entries.values())


def attempts_are_as_in_the_model(rows: Rows, model: Model) -> None:
    found: dict[int, dict[int, str | None]] = {}
    for id, attempt, outcome, finished_at in rows(
        "SELECT job_id, attempt, nullif(outcome, 'running'), finished_at FROM holdfast_attempts"
    ):
        found.setdefault(id, {})[attempt] = outcome
        assert (outcome is None) == (finished_at is None)
    assert found == {one.id: one.outcomes for one in model.entries.values() if one.outcomes}
    for id, outcomes in found.items():
        one = model.entries[id]
        assert sorted(outcomes) == list(range(1, one.attempt + 1))
        running = [attempt for attempt, outcome in outcomes.items() if outcome is None]
        assert running == ([one.attempt] if one.status == "running" else [])
