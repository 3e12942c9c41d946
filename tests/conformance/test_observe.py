"""`app.observe`: how many, stuck on whom, tried how often, failing why; and what is kept when the jobs are gone."""

from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from holdfast import Cancel, Context, Fail, Holdfast, Retry, Snooze, Then
from holdfast.clock import SECOND, as_datetime
from holdfast.errors import InvalidInput
from holdfast.rollup import LEASTS, counts, least_of, percentile
from holdfast.testing import FakeClock
from shift import drain

Claim = Callable[..., Any]
Sql = Callable[..., list[Any]]


def counted(app: Holdfast) -> dict[tuple[str, str, str | None], int]:
    return {(one.status, one.queue, one.task): one.count for one in app.observe.counts().items}


@pytest.fixture
def busy(app: Holdfast, claim: Claim) -> Holdfast:
    """One of everything: each state, tasks and messages."""
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


def test_the_counts_agree_with_the_table_whatever_was_done(busy: Holdfast, sql: Sql) -> None:
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


def test_what_is_stuck_the_longest_comes_first_with_its_worker(app: Holdfast, claim: Claim, clock: FakeClock) -> None:
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


def test_what_runs_comes_before_what_waits_however_long_that_is(
    app: Holdfast, claim: Claim, clock: FakeClock
) -> None:
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


def test_many_of_one_kind_do_not_hide_the_others(app: Holdfast, claim: Claim, clock: FakeClock) -> None:
    """A worker that is busy is no reason not to say what waits, nor are many queues that stand still."""
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


def test_a_worker_is_named_with_what_it_runs(app: Holdfast) -> None:
    seen: list[Any] = []

    @app.task
    def look(ctx: Context) -> None:
        seen.extend(app.observe.workers())
        seen.extend(app.observe.oldest())

    look.enqueue()
    drain(app, concurrency=3)
    worker, oldest = seen
    assert (worker.alive, worker.stopped, worker.running, worker.concurrency) == (True, False, 1, 3)
    assert (oldest.status, oldest.worker.id) == ("running", worker.id)
    (ended,) = app.observe.workers()
    assert (ended.alive, ended.running, ended.ending) == (False, 0, "stopped")


def test_attempts_are_counted_by_how_many_a_job_needed(app: Holdfast) -> None:
    @app.task(retry=0, max_attempts=3)
    def work(good: int) -> Any:
        tries.append(good)
        return Retry(after=0) if tries.count(good) < good else None

    tries: list[int] = []
    for good in (1, 1, 2, 3, 4):
        tries.clear()
        work.enqueue(good)
        drain(app)
    (found,) = app.observe.attempts()
    assert found.by_attempt == {1: 2, 2: 1, 3: 2}
    assert (found.jobs, found.succeeded, found.retried, found.failed) == (5, 4, 5, 1)
    assert found.failure_rate == pytest.approx(0.6)


@pytest.mark.parametrize(
    ("outcome", "what"),
    [
        (None, "succeeded"),
        (Fail("TEST"), "failed"),
        (Cancel("x"), "cancelled"),
        (Snooze(60), "snoozed"),
        (Retry(after=60), "retry_scheduled"),
    ],
)
def test_each_end_of_an_attempt_is_counted_in_its_minute(app: Holdfast, outcome: Any, what: str) -> None:
    app.task(name="work")(lambda: outcome).enqueue()
    drain(app)
    minute = app.clock.now() // (60 * SECOND)
    assert [(one.minute, one.what, one.count) for one in app.store.slices(0, 1)] == [(minute, what, 1)]


def test_a_lost_attempt_is_not_counted(app: Holdfast) -> None:
    @app.task
    def work(ctx: Context) -> None:
        app.jobs.cancel(ctx.job_id or 0)

    work.enqueue()
    drain(app)
    assert [(one.what, one.count) for one in app.store.slices(0, 1)] == [("cancelled", 1)]


def test_every_step_of_a_chain_is_a_job_that_ended(app: Holdfast) -> None:
    @app.task
    def down(n: int) -> Any:
        return Then(down, n - 1) if n else None

    down.enqueue(2)
    drain(app)
    (found,) = app.observe.attempts()
    assert (found.succeeded, found.by_attempt) == (3, {1: 3})


def test_an_attempt_that_completes_itself_is_counted_with_its_writes(app: Holdfast) -> None:
    @app.task(retry=0)
    def work(ctx: Context) -> None:
        with ctx.complete():
            if ctx.attempt == 1:
                raise ValueError

    work.enqueue()
    drain(app)
    (found,) = app.observe.attempts()
    assert (found.by_attempt, found.succeeded, found.retried) == ({2: 1}, 1, 1)


def test_messages_and_what_operators_do_are_counted_as_well(app: Holdfast) -> None:
    inbox = app.queue("inbox")
    inbox.send_many([1, 2, 3])
    for message in inbox.receive_many(2):
        message.ack()
    approval = app.external("approve")
    app.jobs.complete(approval.id)
    app.jobs.cancel(queue="inbox", status="ready")
    found = {(one.queue, one.task): one for one in app.observe.throughput()}
    assert (found["inbox", None].succeeded, found["inbox", None].cancelled) == (2, 1)
    assert found["default", "approve"].succeeded == 1


def test_jobs_that_others_end_are_counted_by_their_attempts_if_they_had_any(app: Holdfast, claim: Claim) -> None:
    work = app.task(name="work")(lambda: None)
    ids = [work.enqueue().id for _ in range(3)]
    claim("work"), claim("work")
    app.jobs.cancel(ids[0])
    app.jobs.fail(ids[1], "TEST")
    app.jobs.cancel(ids[2])
    inbox = app.queue("inbox", max_attempts=2)
    inbox.send_many([1, 2])
    for message in inbox.receive_many(2):
        assert message.release()
    for message in inbox.receive_many(2):
        assert message.fail("TEST") if message.body == 1 else message.ack()
    by_attempt = {one.task: one.by_attempt for one in app.observe.attempts()}
    assert by_attempt == {"work": {1: 2}, None: {2: 2}}


def test_messages_without_history_are_counted_too(app: Holdfast) -> None:
    fast = app.queue("fast", history=False)
    fast.send_many(range(5))
    for message in fast.receive_many(3):
        assert message.ack()
    (found,) = app.observe.throughput()
    assert (found.queue, found.succeeded) == ("fast", 3)
    assert app.observe.counts().by_status == {"ready": 2}


def test_throughput_is_summed_over_steps(app: Holdfast, clock: FakeClock) -> None:
    work = app.task(name="work")(lambda: None)
    for _ in range(3):
        work.enqueue_many([{}] * 2)
        drain(app)
        clock.advance(60)
    assert [one.succeeded for one in app.observe.throughput()] == [2, 2, 2]
    coarse = app.observe.throughput(step=timedelta(hours=1))
    assert sum(one.succeeded for one in coarse) == 6 and len(coarse) <= 2
    assert app.observe.throughput(since=timedelta(seconds=1)) == []


def test_failures_are_named_with_their_places_and_tracebacks(app: Holdfast, clock: FakeClock) -> None:
    @app.task(max_attempts=2, retry=0)
    def work(how: str) -> None:
        if how == "raise":
            raise ConnectionError("refused")
        raise Fail("INVALID_INPUT:ROW", how)

    first = app.clock.now()
    work.enqueue("raise")
    drain(app)
    clock.advance(10)
    last = work.enqueue("raise")
    work.enqueue("fail")
    drain(app)
    often, once = app.observe.failures()
    assert (often.error_code, often.count, often.last_job_id) == ("DEPENDENCY:CONNECTION", 4, last.id)
    assert (often.last_seen - often.first_seen) >= timedelta(seconds=9)
    assert "refused" in (often.traceback or "") and often.first_seen.timestamp() >= first / SECOND - 1
    assert (once.error_code, once.count, once.traceback) == ("INVALID_INPUT:ROW", 1, None)
    assert app.observe.failures(limit=1) == [often]
    assert app.observe.failures(queue="default", task="work") == [often, once]
    assert app.observe.failures(queue="mail") == app.observe.failures(task="other") == []
    assert app.observe.failures(with_tracebacks=False)[0].traceback is None


def test_charts_stay_when_the_jobs_are_gone(app: Holdfast) -> None:
    app.task(name="broken", max_attempts=1)(lambda: 1 / 0).enqueue()
    drain(app)
    before = app.observe.throughput(), app.observe.failures(), app.observe.latency()
    app.jobs.delete(status="failed")
    assert (app.observe.throughput(), app.observe.failures(), app.observe.latency()) == before
    assert app.observe.counts().total == 0


def test_latency_has_percentiles_of_waiting_and_running(app: Holdfast, claim: Claim, clock: FakeClock) -> None:
    work = app.task(name="work")(lambda: None)
    for seconds in range(1, 101):
        work.enqueue()
        clock.advance(seconds)
        drain(app)
    (found,) = app.observe.latency(task="work", since=timedelta(days=1))
    assert found.count == 100
    assert found.wait.p50 == pytest.approx(50, rel=0.25)
    assert found.wait.p99 == pytest.approx(99, rel=0.25)
    assert app.observe.latency(task="other") == []


def test_messages_have_percentiles_too(app: Holdfast, clock: FakeClock) -> None:
    inbox = app.queue("inbox")
    for seconds in range(1, 21):
        inbox.send(seconds)
        clock.advance(seconds)
        message = inbox.receive(visibility=1000)
        clock.advance(seconds * 2)
        assert message is not None and message.ack()
    (found,) = app.observe.latency(queue="inbox")
    assert found.count == 20
    assert found.wait.p50 == pytest.approx(10, rel=0.25)
    assert found.run.p95 == pytest.approx(38, rel=0.25)


def test_a_bucket_holds_what_is_put_in_it() -> None:
    times = [*range(3000), *(10**power + 7 for power in range(4, 14))]
    for microseconds in times:
        ((bucket, n),) = counts([microseconds])
        assert least_of(bucket) <= microseconds < least_of(bucket + 1) and n == 1
    assert dict(counts(times)) == Counter(bucket for time in times for bucket, _ in counts([time]))
    assert list(counts([1 << 62])) == [(len(LEASTS) - 1, 1)]
    assert percentile({}, 0.5) is None
    ((bucket, _),) = counts([1000])
    assert percentile({bucket: 10}, 1.0) == least_of(bucket + 1)


def test_the_buckets_of_the_database_are_those_of_the_program(app: Holdfast, sql: Sql) -> None:
    rows = sql("SELECT least, bucket FROM holdfast_buckets")
    assert [least for least, _ in sorted(rows)] == LEASTS
    assert all(least_of(bucket) == least for least, bucket in rows)


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


def test_the_size_of_the_file_is_told(app: Holdfast) -> None:
    storage = app.observe.storage()
    assert storage.database_bytes >= storage.page_size > 0
    assert storage.disk_free_bytes > 0


def test_a_snapshot_has_all_of_it(busy: Holdfast) -> None:
    snapshot = busy.observe.snapshot()
    assert snapshot.counts.total == 10
    assert snapshot.oldest and snapshot.failures and snapshot.attempts and snapshot.workers and snapshot.latency
    assert snapshot.kept == busy.observe.kept() and snapshot.storage.database_bytes > 0


def test_what_is_kept_and_what_goes_next_is_told(app: Holdfast, clock: FakeClock, sql: Sql) -> None:
    work = app.task(name="work")(lambda: None)
    first = work.enqueue()
    drain(app)
    ended = as_datetime(clock.now())
    kept = app.observe.kept()
    assert kept.rules == app.retention.in_words() and kept.automatic
    assert (kept.due, kept.next_job_id, kept.last_pruned_at) == (0, first.id, None)
    assert kept.next_at is not None and abs(kept.next_at - ended - timedelta(days=30)) < timedelta(seconds=5)
    clock.advance(31 * 86400)
    assert (app.observe.kept().due, app.observe.kept().more_due) == (1, False)
    app.prune()
    kept = app.observe.kept()
    assert (kept.due, kept.next_job_id, kept.last_pruned_jobs, kept.left_behind) == (0, None, 1, 0)
    work.enqueue()
    sql("PRAGMA foreign_keys = OFF")
    sql("DELETE FROM holdfast_jobs")
    assert app.observe.kept().left_behind == 1


@pytest.mark.parametrize("since", [5, "1h", None])
def test_what_is_no_time_is_refused(app: Holdfast, since: Any) -> None:
    with pytest.raises(InvalidInput, match="timedelta"):
        app.observe.throughput(since=since)
