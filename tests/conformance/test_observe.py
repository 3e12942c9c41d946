"""`app.observe`: counts, oldest jobs, attempts, failures, workers, the event log and the retention status."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from threading import Thread
from typing import Any

import pytest

from holdfast import Context, Holdfast
from holdfast.clock import as_datetime
from holdfast.errors import InvalidInput
from holdfast.testing import FakeClock
from support.backend import Backend
from support.running_worker import drain
from support.transitions import promote

Claim = Callable[..., Any]
Sql = Callable[..., list[Any]]


def counted(app: Holdfast) -> dict[tuple[str, str, str | None], int]:
    return {(one.status, one.queue, one.task): one.count for one in app.observe.counts().items}


@pytest.fixture
def busy(app: Holdfast, claim: Claim) -> Holdfast:
    """Jobs and messages in each state."""
    work = app.task(name="work")(lambda: None)
    app.task(name="broken", max_attempts=1)(lambda: 1 / 0).enqueue()
    work.enqueue_many([{}] * 3)
    drain(app)
    app.task(name="idle", queue="slow")(lambda: None).using(delay=60).enqueue()
    app.external("approve")
    inbox = app.queue("inbox")
    inbox.send_many([1, 2])
    message = inbox.receive()
    assert message is not None and message.ack()
    app.jobs.cancel(work.using(delay=5).enqueue().id)
    work.enqueue()
    claim("work")
    return app


def test_every_job_is_counted_once_in_its_state(busy: Holdfast) -> None:
    assert counted(busy) == {
        ("succeeded", "default", "work"): 3,
        ("failed", "default", "broken"): 1,
        ("scheduled", "slow", "idle"): 1,
        ("blocked", "default", "approve"): 1,
        ("ready", "inbox", None): 1,
        ("succeeded", "inbox", None): 1,
        ("cancelled", "default", "work"): 1,
        ("running", "default", "work"): 1,
    }
    counts = busy.observe.counts()
    assert (counts.total, counts.by_status["succeeded"], counts.by_queue["inbox"]) == (10, 4, 2)


def test_the_counts_agree_with_the_table_after_every_operation(busy: Holdfast, sql: Sql) -> None:
    def agree() -> None:
        rows = sql("SELECT status, queue, task, count(*) FROM holdfast_jobs GROUP BY 1, 2, 3")
        assert counted(busy) == {tuple(row[:3]): row[3] for row in rows}

    agree()
    busy.jobs.retry(status="failed")
    agree()
    busy.jobs.delete(status="succeeded")
    agree()
    sql("UPDATE holdfast_jobs SET status = 'succeeded' WHERE status = 'ready'")
    agree()
    sql("INSERT INTO holdfast_jobs (task, status) VALUES ('by hand', 'failed')")
    agree()
    sql("DELETE FROM holdfast_jobs WHERE status = 'cancelled'")
    agree()
    sql("UPDATE holdfast_jobs SET status = 'failed' WHERE status = 'succeeded'")
    agree()
    sql("UPDATE holdfast_jobs SET queue = 'elsewhere' WHERE task IS NULL OR status = 'blocked'")
    agree()
    sql("UPDATE holdfast_jobs SET queue = 'elsewhere', status = 'scheduled' WHERE status = 'failed'")
    agree()
    sql("UPDATE holdfast_jobs SET task = 'renamed' WHERE queue = 'elsewhere' AND task IS NOT NULL")
    agree()
    sql("UPDATE holdfast_jobs SET status = 'running' WHERE status IN ('scheduled', 'blocked')")
    agree()
    sql("INSERT INTO holdfast_jobs (task, status) VALUES ('by hand', 'running'), ('by hand', 'blocked')")
    agree()
    sql("INSERT INTO holdfast_jobs (task, run_at, created_at) VALUES ('by hand', 9, 5), ('by hand', 5, 9)")
    agree()
    sql("DELETE FROM holdfast_jobs")
    agree()
    assert busy.observe.counts().total == 0


def test_the_oldest_job_comes_first_with_its_worker(app: Holdfast, claim: Claim, clock: FakeClock) -> None:
    work = app.task(name="work")(lambda: None)
    first = work.enqueue()
    claim("work", worker="gone")
    clock.advance(30)
    second = work.enqueue()
    clock.advance(5)
    waiting = app.external("approve")
    clock.advance(1)
    found = app.observe.oldest()
    assert [(one.job_id, one.status, one.age) for one in found] == [
        (first.id, "running", 36.0),
        (second.id, "ready", 6.0),
        (waiting.id, "blocked", 1.0),
    ]
    assert [one.job_id for one in app.observe.oldest(limit=1)] == [first.id]


def test_the_longest_waiting_job_is_found_behind_newer_ones(app: Holdfast, clock: FakeClock) -> None:
    inbox = app.queue("inbox")
    inbox.send("delayed", delay=3600)
    second = inbox.send("at once")
    clock.advance(3601)
    promote(app.store)
    (found,) = app.observe.oldest()
    assert (found.job_id, found.age) == (second, 3601.0)
    assert inbox.stats().oldest_ready_age == app.queues()[0].oldest_ready_age == 3601.0


def test_a_delayed_job_waits_since_it_became_due(app: Holdfast, clock: FakeClock) -> None:
    inbox = app.queue("inbox")
    inbox.send("delayed", delay=3600)
    clock.advance(3605)
    assert [(one.status, one.age) for one in app.observe.oldest()] == [("scheduled", 5.0)]
    clock.advance(5)
    promote(app.store)
    assert [(one.status, one.age) for one in app.observe.oldest()] == [("ready", 10.0)]
    assert inbox.stats().oldest_ready_age == 10.0
    message = inbox.receive()
    assert message is not None and message.release()
    clock.advance(1)
    assert inbox.stats().oldest_ready_age == 1.0


@pytest.mark.parametrize("sign", [1, -1])
def test_the_oldest_job_is_found_among_very_many_priorities(app: Holdfast, clock: FakeClock, sign: int) -> None:
    work = app.task(name="work")(lambda: None)
    first = work.using(priority=0).enqueue()
    clock.advance(60)
    for priority in range(1, 1500):
        work.using(priority=sign * priority).enqueue()
    assert [(one.job_id, one.age) for one in app.observe.oldest()] == [(first.id, 60.0)]


def test_running_jobs_come_before_waiting_ones(app: Holdfast, claim: Claim, clock: FakeClock) -> None:
    waiting = app.external("approve")
    clock.advance(30)
    ready = app.queue("inbox").send(1)
    clock.advance(30)
    work = app.task(name="work")(lambda: None)
    first = work.enqueue()
    claim("work", worker="a")
    clock.advance(1)
    second = work.enqueue()
    claim("work", worker="b")
    found = app.observe.oldest()
    assert [one.job_id for one in found] == [first.id, second.id, ready, waiting.id]
    assert app.observe.snapshot().oldest == found


def test_many_jobs_of_one_state_do_not_hide_the_others(app: Holdfast, claim: Claim, clock: FakeClock) -> None:
    """Neither a busy worker nor many idle queues hide waiting jobs."""
    queues = [app.queue(f"queue {number}").send(1) for number in range(20)]
    clock.advance(3600)
    work = app.task(name="work")(lambda: None)
    jobs = work.enqueue_many([{}] * 20)
    for _ in jobs:
        claim("work", worker="busy")
    waiting = app.external("approve")
    statuses = [one.status for one in app.observe.oldest()]
    assert statuses == ["running"] * 5 + ["ready"] * 4 + ["blocked"]
    assert [one.job_id for one in app.observe.oldest(3)] == [jobs[0], queues[0], waiting.id]


def test_a_worker_is_listed_with_the_jobs_that_it_runs(app: Holdfast) -> None:
    seen: list[Any] = []

    @app.task
    def look(ctx: Context) -> None:
        seen.extend(app.observe.workers())
        seen.extend(app.observe.oldest())

    look.enqueue()
    drain(app, concurrency=3)
    worker, oldest = seen
    assert (worker.alive, worker.state, worker.running, worker.concurrency) == (True, "alive", 1, 3)
    assert (oldest.status, oldest.worker.id) == ("running", worker.id)
    (ended,) = app.observe.workers()
    assert (ended.alive, ended.state, ended.running, ended.ending) == (False, "stopped", 0, "stopped")


def test_the_log_can_be_followed_from_a_cursor(app: Holdfast) -> None:
    work = app.task(name="work")(lambda: None)
    first, second = work.enqueue(), work.enqueue()
    place = app.observe.last_event()
    drain(app)
    new = app.observe.events(after=place)
    assert {one.event for one in new} == {"claimed", "succeeded"} and len(new) == 4
    assert [one.event for one in app.observe.events(job=first.id)] == ["enqueued", "claimed", "succeeded"]
    assert app.observe.events(after=app.observe.last_event(), job=second.id) == []
    assert [one.event for one in app.observe.last_events(2, job=second.id)] == ["claimed", "succeeded"]
    assert app.observe.last_events(3) == app.observe.events()[-3:]
    assert app.observe.last_events(3, before=app.observe.events()[-3].id) == app.observe.events()[:-3][-3:]
    (end,) = app.observe.last_events(1, second.id)
    assert [one.event for one in app.observe.last_events(9, second.id, before=end.id)] == ["enqueued", "claimed"]


def test_a_snapshot_contains_all_results(busy: Holdfast) -> None:
    snapshot = busy.observe.snapshot()
    assert snapshot.counts.total == 10
    assert snapshot.oldest and snapshot.failures and snapshot.attempts and snapshot.workers and snapshot.latency
    assert snapshot.retention == busy.observe.retention() and snapshot.storage.database_bytes > 0


def test_a_snapshot_is_one_read_transaction(
    busy: Holdfast, open_app: Callable[..., Holdfast], monkeypatch: pytest.MonkeyPatch
) -> None:
    other, first_read = open_app(), busy.observe.workers

    def then_send(*arguments: Any) -> Any:
        found = first_read(*arguments)
        sender = Thread(target=other.queue("inbox").send, args=[3])
        sender.start()
        sender.join()
        return found

    monkeypatch.setattr(busy.observe, "workers", then_send)
    assert busy.observe.snapshot().counts.total == 10
    assert busy.observe.counts().total == 11


def test_the_retention_status_names_the_next_job_to_expire(app: Holdfast, clock: FakeClock) -> None:
    work = app.task(name="work")(lambda: None)
    first = work.enqueue()
    drain(app)
    ended = as_datetime(clock.now())
    kept = app.observe.retention()
    assert kept.rules == app.retention.in_words() and kept.automatic
    assert (kept.due, kept.next_job_id, kept.last_pruned_at) == (0, first.id, None)
    assert kept.next_at is not None and abs(kept.next_at - ended - timedelta(days=30)) < timedelta(minutes=10)
    clock.advance(31 * 86400)
    assert (app.observe.retention().due, app.observe.retention().more_due) == (1, False)
    app.prune()
    kept = app.observe.retention()
    assert (kept.due, kept.next_job_id, kept.last_pruned_jobs, kept.left_behind) == (0, None, 1, 0)


@pytest.mark.parametrize(
    "ask",
    [
        lambda observe: observe.oldest(limit=2**63),
        lambda observe: observe.failures(limit=-1),
        lambda observe: observe.failures(task=5),
        lambda observe: observe.latency(queue=[]),
        lambda observe: observe.events(after=2**63),
        lambda observe: observe.events(job="1"),
        lambda observe: observe.last_events(before=2.5),
        lambda observe: observe.last_events(job=[]),
        lambda observe: observe.throughput(step=timedelta(seconds=90)),
        lambda observe: observe.throughput(step=timedelta(0)),
        lambda observe: observe.throughput(step=60),
    ],
)
def test_invalid_arguments_are_refused(app: Holdfast, ask: Callable[[Any], Any]) -> None:
    with pytest.raises(InvalidInput):
        ask(app.observe)


@pytest.mark.parametrize("since", [timedelta.max, timedelta.min, datetime.max.replace(tzinfo=UTC)])
def test_extreme_times_are_accepted(app: Holdfast, since: Any) -> None:
    assert app.observe.failures(since=since) == app.observe.latency("\ud800", since=since) == []


def test_a_task_without_a_name_is_refused_by_the_database(app: Holdfast, sql: Sql, backend: Backend) -> None:
    with pytest.raises(backend.DatabaseError, match=r"(?i)task"):
        sql("INSERT INTO holdfast_jobs (task) VALUES ('')")


@pytest.mark.parametrize("since", [5, "1h", None])
def test_since_must_be_a_time(app: Holdfast, since: Any) -> None:
    with pytest.raises(InvalidInput, match="timedelta"):
        app.observe.throughput(since=since)


def test_failures_have_a_trend_over_equal_parts_of_the_period(app: Holdfast, clock: FakeClock) -> None:
    broken = app.task(name="broken", max_attempts=1)(lambda: 1 / 0)
    other = app.task(name="other", max_attempts=1)(lambda: [][0])
    for failures in (3, 0, 2):
        broken.enqueue_many([{}] * failures)
        drain(app)
        clock.advance(20 * 60)
    other.enqueue()
    drain(app)
    found = {one.task: one.trend for one in app.observe.failures(timedelta(hours=2), parts=6)}
    assert {task: (len(trend), sum(trend)) for task, trend in found.items()} == {"broken": (6, 5), "other": (6, 1)}
    assert [count for count in found["broken"] if count] == [3, 2]
    assert found["other"][-1] == 1, "the last part is now"
    app.store.statistics.fold()
    assert {one.task: one.trend for one in app.observe.failures(timedelta(hours=2), parts=6)} == found
    assert [one.trend for one in app.observe.failures()] == [[], []]
    assert {one.task: sum(one.trend) for one in app.observe.failures(parts=24)} == {"broken": 5, "other": 1}
    with pytest.raises(InvalidInput, match="parts"):
        app.observe.failures(parts=-1)


def test_throughput_counts_what_was_enqueued(app: Holdfast) -> None:
    work = app.task(name="work")(lambda: None)
    work.enqueue_many([{}] * 3)
    work.using(delay=60).enqueue()
    drain(app)
    assert [(one.task, one.enqueued, one.succeeded) for one in app.observe.throughput()] == [("work", 4, 3)]
