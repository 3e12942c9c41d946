"""What is counted when attempts end: by outcome, by minute, by how long they waited and ran, and why they failed."""

from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from holdfast import Cancel, Context, Fail, Holdfast, Retry, Snooze, Then
from holdfast.clock import SECOND
from holdfast.rollup import LEASTS, counts, least_of, percentile
from holdfast.testing import FakeClock
from shift import drain

Claim = Callable[..., Any]
Sql = Callable[..., list[Any]]


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


def test_a_job_whose_chain_cannot_go_on_is_counted_as_failed(app: Holdfast, caplog: Any) -> None:
    following = app.task(name="following")(lambda: None)
    app.task(name="work")(lambda: Then(following.using(after=[999_999]))).enqueue()
    drain(app)
    (found,) = app.observe.attempts()
    assert (found.succeeded, found.failed, found.by_attempt) == (0, 1, {1: 1})
    assert "work 1 failed with RESULT:BAD_CONTINUATION" in caplog.text


def test_a_job_that_is_completed_while_it_runs_is_counted_once(app: Holdfast, caplog: Any) -> None:
    @app.task
    def work(ctx: Context) -> int:
        app.jobs.complete(ctx.job_id or 0, 3)
        return 4

    job = work.enqueue()
    drain(app)
    assert job.refresh().result == 3
    assert [(one.what, one.count) for one in app.store.slices(0, 1)] == [("completed", 1)]
    assert "came too late" in caplog.text


def test_a_job_that_cannot_be_settled_fails_alone_and_is_counted(app: Holdfast, monkeypatch: Any) -> None:
    """As the last resort, where the store raises what nobody has thought of."""
    exchange = app.store.exchange

    def refuse(settlements: Any, wants: Any, samples: Any = ()) -> Any:
        if any(one.result == "13" for one in settlements):
            raise ValueError("thirteen")
        return exchange(settlements, wants, samples)

    monkeypatch.setattr(app.store, "exchange", refuse)

    @app.task
    def work(number: int) -> int:
        return number

    jobs = [work.enqueue(number) for number in (12, 13, 14)]
    drain(app)
    assert [job.refresh().status for job in jobs] == ["succeeded", "failed", "succeeded"]
    assert app.jobs.get(jobs[1].id).error_code == "INTERNAL:NOT_SETTLED"
    (found,) = app.observe.attempts()
    assert (found.succeeded, found.failed, found.by_attempt) == (2, 1, {1: 3})


def test_a_release_is_no_failure_and_an_end_without_an_attempt_no_attempt(app: Holdfast) -> None:
    inbox = app.queue("inbox", max_attempts=9)
    inbox.send(1)
    for _ in range(5):
        message = inbox.receive()
        assert message is not None and message.release()
    message = inbox.receive()
    assert message is not None and message.ack()
    broken = app.task(name="broken", max_attempts=1)(lambda: 1 / 0).enqueue()
    waiting = app.task(name="waiting")(lambda: None)
    for _ in range(3):
        waiting.using(after=broken, on_blocker_failure="fail").enqueue()
    drain(app)
    found = {one.task: one for one in app.observe.attempts()}
    assert (found[None].succeeded, found[None].retried, found[None].failure_rate) == (1, 0, 0.0)
    assert "waiting" not in found
    assert {one.task: one.failed for one in app.observe.throughput()}["waiting"] == 3


def test_a_job_waits_from_when_it_could_be_taken(app: Holdfast, clock: FakeClock, claim: Claim) -> None:
    approval = app.external("approve")
    ship = app.task(name="ship")(lambda: None).using(after=approval).enqueue()
    clock.advance(86400)
    app.jobs.complete(approval.id)
    clock.advance(7)
    assert [(one.job_id, one.age) for one in app.observe.oldest()] == [(ship.id, 7.0)]
    drain(app)
    (found,) = app.observe.latency("ship")
    assert found.wait.p99 is not None and found.wait.p99 < 10
    lost = app.task(name="work")(lambda: None).enqueue()
    claim("work", lease=5)
    clock.advance(3600)
    app.store.recover()
    clock.advance(3)
    assert [(one.job_id, one.age) for one in app.observe.oldest()] == [(lost.id, 3.0)]


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


def test_failures_of_a_time_are_counted_for_that_time(app: Holdfast, clock: FakeClock) -> None:
    @app.task(max_attempts=1)
    def work(code: str) -> None:
        raise Fail(code)

    for code in ["OLD", "OLD", "OLD", "BOTH", "BOTH"]:
        work.enqueue(code)
    drain(app)
    clock.advance(7200)
    work.enqueue("BOTH")
    drain(app)
    assert [(one.error_code, one.count) for one in app.observe.failures()] == [("BOTH", 3), ("OLD", 3)]
    (lately,) = app.observe.failures(since=timedelta(hours=1))
    assert (lately.error_code, lately.count) == ("BOTH", 1)
    assert (lately.last_seen - lately.first_seen) >= timedelta(hours=2)
    assert len(app.observe.failures(since=timedelta(days=1))) == 2


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
