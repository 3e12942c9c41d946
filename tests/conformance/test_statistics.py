"""Statistics from the event log, whether it is folded or not: counts, outcomes, durations, failures."""

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from holdfast import Cancel, Context, Fail, Holdfast, Retention, Retry, Snooze, Then
from holdfast.clock import SECOND
from holdfast.failure import Failure
from holdfast.fold import MINUTE, OUTCOMES
from holdfast.testing import FakeClock
from support.running_worker import PATIENCE_SECONDS, drain
from support.transitions import fail, fold_all, recover, retry, snooze, succeed

Claim = Callable[..., Any]
Sql = Callable[..., list[Any]]
Open = Callable[..., Holdfast]


def ends(app: Holdfast) -> list[tuple[int, str, int]]:
    """Return the counted outcomes per minute."""
    return [
        (one.minute, one.measure, one.count) for one in app.store.statistics.minutes(0) if one.measure in OUTCOMES
    ]


def test_finished_jobs_are_counted_by_their_attempt_number(app: Holdfast) -> None:
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
def test_each_outcome_of_an_attempt_is_counted_in_its_minute(app: Holdfast, outcome: Any, what: str) -> None:
    app.task(name="work")(lambda: outcome).enqueue()
    drain(app)
    minute = app.clock.now() // MINUTE
    assert ends(app) == [(minute, what, 1)]
    fold_all(app)
    assert ends(app) == [(minute, what, 1)]


def test_an_attempt_that_lost_its_lease_is_not_counted(app: Holdfast) -> None:
    @app.task
    def work(ctx: Context) -> None:
        app.jobs.cancel(ctx.job_id or 0)

    work.enqueue()
    drain(app)
    assert [one[1:] for one in ends(app)] == [("cancelled", 1)]


def test_every_job_of_a_chain_is_counted(app: Holdfast) -> None:
    @app.task
    def down(n: int) -> Any:
        return Then(down, n - 1) if n else None

    down.enqueue(2)
    drain(app)
    (found,) = app.observe.attempts()
    assert (found.succeeded, found.by_attempt) == (3, {1: 3})


def test_a_job_whose_continuation_is_invalid_is_counted_as_failed(app: Holdfast, caplog: Any) -> None:
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
    with caplog.at_level(logging.INFO):
        drain(app)
    assert job.refresh().result == 3
    assert [one[1:] for one in ends(app)] == [("completed", 1)]
    assert f"work {job.id} was completed by" in caplog.text and "lost its lease" not in caplog.text


def test_a_job_that_cannot_be_settled_fails_alone_and_is_counted(app: Holdfast, monkeypatch: Any) -> None:
    """The last resort if the store raises an unexpected exception."""
    settle_and_claim = app.store.jobs.settle_and_claim

    def refuse(settlements: Any, wants: Any) -> Any:
        if any(one.result == "13" for one in settlements):
            raise ValueError("thirteen")
        return settle_and_claim(settlements, wants)

    monkeypatch.setattr(app.store.jobs, "settle_and_claim", refuse)

    @app.task
    def work(number: int) -> int:
        return number

    jobs = [work.enqueue(number) for number in (12, 13, 14)]
    drain(app)
    assert [job.refresh().status for job in jobs] == ["succeeded", "failed", "succeeded"]
    assert app.jobs.get(jobs[1].id).error_code == "INTERNAL:NOT_SETTLED"
    (found,) = app.observe.attempts()
    assert (found.succeeded, found.failed, found.by_attempt) == (2, 1, {1: 3})


def test_a_job_that_can_never_be_settled_keeps_no_other_from_it(
    app: Holdfast, monkeypatch: Any, caplog: pytest.LogCaptureFixture
) -> None:
    settle_and_claim = app.store.jobs.settle_and_claim

    @app.task
    def work(number: int) -> int:
        return number

    jobs = [work.enqueue(number) for number in (12, 13, 14)]

    def refuse(settlements: Any, wants: Any) -> Any:
        if any(one.lease.id == jobs[1].id for one in settlements):
            raise ValueError("thirteen")
        return settle_and_claim(settlements, wants)

    monkeypatch.setattr(app.store.jobs, "settle_and_claim", refuse)
    app.worker(until_idle=True).run()
    assert [job.refresh().status for job in (jobs[0], jobs[2])] == ["succeeded", "succeeded"]
    assert f"job {jobs[1].id} cannot be settled" in caplog.text


def test_releases_are_not_failures_and_jobs_that_never_ran_have_no_attempts(app: Holdfast) -> None:
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


def test_waiting_time_starts_when_a_job_becomes_ready(app: Holdfast, clock: FakeClock, claim: Claim) -> None:
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
    recover(app.store)
    clock.advance(3)
    assert [(one.job_id, one.age) for one in app.observe.oldest()] == [(lost.id, 3.0)]


def test_an_attempt_that_uses_ctx_complete_is_counted(app: Holdfast) -> None:
    @app.task(retry=0)
    def work(ctx: Context) -> None:
        with ctx.complete():
            if ctx.attempt == 1:
                raise ValueError

    work.enqueue()
    drain(app)
    (found,) = app.observe.attempts()
    assert (found.by_attempt, found.succeeded, found.retried) == ({2: 1}, 1, 1)


def test_messages_and_operator_actions_are_counted(app: Holdfast) -> None:
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


def test_jobs_that_an_operator_ends_are_counted_by_attempt_if_they_had_one(app: Holdfast, claim: Claim) -> None:
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


def test_messages_without_history_are_counted_while_they_exist(app: Holdfast) -> None:
    """They write no events, so they are not in the throughput."""
    fast = app.queue("fast", history=False)
    fast.send_many(range(5))
    for message in fast.receive_many(3):
        assert message.ack()
    assert app.observe.counts().by_status == {"ready": 2}
    assert app.observe.throughput() == [] and app.store.statistics.totals().enqueued == 5


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


def test_failures_have_queue_task_and_traceback(app: Holdfast, clock: FakeClock) -> None:
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


def test_failures_since_a_time_are_counted_since_then(app: Holdfast, clock: FakeClock) -> None:
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


def test_statistics_stay_when_the_jobs_are_deleted(app: Holdfast) -> None:
    app.task(name="broken", max_attempts=1)(lambda: 1 / 0).enqueue()
    drain(app)
    before = app.observe.throughput(), app.observe.failures(), app.observe.latency()
    app.jobs.delete(status="failed")
    assert (app.observe.throughput(), app.observe.failures(), app.observe.latency()) == before
    assert app.observe.counts().total == 0


def test_latency_has_percentiles_of_waiting_and_running(app: Holdfast, claim: Claim, clock: FakeClock) -> None:
    work = app.task(name="work")(lambda: None)
    for seconds in range(5, 101, 5):
        work.enqueue()
        clock.advance(seconds)
        drain(app)
    (found,) = app.observe.latency(task="work", since=timedelta(days=1))
    assert found.count == 20
    assert found.wait.p50 == pytest.approx(50, rel=0.25)
    assert found.wait.p99 == pytest.approx(99, rel=0.25)
    assert app.observe.latency(task="other") == []


def test_waiting_time_does_not_start_before_the_job_was_created(app: Holdfast, clock: FakeClock, sql: Sql) -> None:
    """Some programs pass 1970 for "at once": such waiting times would soon overflow the sum."""
    work, now = app.task(name="work")(lambda: None), clock.now()
    work.using(run_at=datetime(1970, 1, 1, tzinfo=UTC)).enqueue()
    sql("INSERT INTO holdfast_jobs (task, created_at, run_at) VALUES ('work', ?, ?)", (now, now // 10))
    clock.advance(3)
    drain(app)
    (found,) = app.observe.latency()
    assert found.count == 2 and found.wait.p99 is not None and found.wait.p99 < 86_400
    (waited,) = [one for (*_, measure), one in app.store.statistics.totals().durations.items() if measure == "wait"]
    assert 6 * SECOND <= waited < 86_400 * SECOND


def test_messages_have_percentiles(app: Holdfast, clock: FakeClock) -> None:
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


# --- folded and unfolded --------------------------------------------------------------------------


def all_statistics(app: Holdfast) -> list[Any]:
    """Return all statistics of the store."""
    failures = [
        sorted(app.store.statistics.failures(since, 100), key=lambda one: (one.error_code, one.queue, one.task or ""))
        for since in (None, 0, app.clock.now() // MINUTE)
    ]
    return [
        app.store.statistics.counts().items,
        app.store.statistics.minutes(0),
        app.store.statistics.minutes(0, 60),
        app.store.statistics.totals(),
        *failures,
    ]


def recounted(sql: Sql) -> dict[tuple[str, str, str | None], int]:
    rows = sql("SELECT status, queue, task, count(*) FROM holdfast_jobs GROUP BY 1, 2, 3")
    return {tuple(row[:3]): row[3] for row in rows}


def counted(app: Holdfast) -> dict[tuple[str, str, str | None], int | None]:
    return {(one.status, one.queue, one.task): one.count for one in app.store.statistics.counts().items}


def all_transitions(app: Holdfast, clock: FakeClock, sql: Sql) -> Iterator[str]:
    """Run all kinds of transitions: by workers, consumers, operators and plain SQL. Yield after each step."""

    @app.task(retry=0, max_attempts=2, queue="mail")
    def work(how: str) -> Any:
        match how:
            case "raise":
                raise ConnectionError("no line")
            case "fail":
                return Fail("INVALID_INPUT:SCHEMA")
            case "cancel":
                return Cancel("enough")
            case "snooze":
                return Snooze(3600)
            case "go on":
                return Then(work, "well")
        return how

    hows = ["well", "raise", "fail", "cancel", "snooze", "go on", "well"]
    ids = work.enqueue_many([{"how": how} for how in hows])
    yield "enqueued"
    clock.advance(7)
    drain(app)
    yield "worked off"
    clock.advance(60)
    inbox = app.queue("inbox", visibility=30, max_attempts=3)
    inbox.send_many(range(6))
    yield "sent"
    first, second, third = inbox.receive_many(3)
    clock.advance(1.5)
    assert first.ack() and second.release() and third.fail("TEST:REFUSED")
    yield "settled"
    assert inbox.receive() is not None
    clock.advance(60)
    assert inbox.receive() is not None
    yield "recovered"
    approval = app.external("approve")
    work.using(after=approval).enqueue("well")
    yield "blocked"
    app.jobs.complete(approval.id)
    app.jobs.retry(status="failed")
    app.jobs.cancel(queue="inbox", status="ready")
    yield "operated on"
    drain(app)
    yield "worked off again"
    sql(
        "UPDATE holdfast_jobs SET status = 'ready', max_attempts = attempt + 1, finished_at = NULL "
        "WHERE status = 'failed'"
    )
    yield "status edited"
    sql("UPDATE holdfast_jobs SET status = 'failed' WHERE status = 'running'")
    yield "a running job edited"
    sql("UPDATE holdfast_jobs SET queue = 'elsewhere' WHERE id = ?", (ids[0],))
    sql("UPDATE holdfast_jobs SET queue = 'elsewhere', status = 'scheduled' WHERE id = ?", (ids[1],))
    yield "queue edited"
    sql("UPDATE holdfast_jobs SET task = 'renamed' WHERE queue = 'elsewhere'")
    sql("UPDATE holdfast_jobs SET task = NULL WHERE id = ?", (ids[2],))
    yield "task edited"
    sql("INSERT INTO holdfast_jobs (task, args) VALUES ('by hand', '{}')")
    sql("INSERT INTO holdfast_jobs (task, status) VALUES ('by hand', 'failed'), ('by hand', 'running')")
    yield "inserted"
    sql("DELETE FROM holdfast_jobs WHERE queue = 'elsewhere' OR status = 'cancelled'")
    yield "deleted by plain SQL"
    app.jobs.delete(status="succeeded")
    yield "deleted"
    clock.step(-86_400)
    work.enqueue("raise")
    drain(app)
    yield "a day earlier"
    sql("DELETE FROM holdfast_jobs")
    yield "all deleted"


@pytest.mark.parametrize("step", [None, 3, 20_000], ids=["nothing folded", "half folded", "all folded"])
def test_the_counts_equal_a_recount_at_any_stage_of_folding(
    app: Holdfast, clock: FakeClock, sql: Sql, monkeypatch: pytest.MonkeyPatch, step: int | None
) -> None:
    monkeypatch.setattr("holdfast.store.statistics.FOLD_EVENTS", step or 1)
    fold = app.store.statistics.fold
    with monkeypatch.context() as here:
        here.setattr(app.store.statistics, "fold", lambda: 0)  # no worker folds meanwhile
        for what in all_transitions(app, clock, sql):
            assert counted(app) == recounted(sql), what
            if step is not None:
                fold()
                assert counted(app) == recounted(sql), what
    assert app.check().of("COUNTS") is not None
    fold_all(app)
    assert sql("SELECT * FROM holdfast_counts") == [] and counted(app) == {}


def test_statistics_do_not_depend_on_how_much_is_folded(
    app: Holdfast, clock: FakeClock, sql: Sql, monkeypatch: pytest.MonkeyPatch
) -> None:
    fold = app.store.statistics.fold
    monkeypatch.setattr(app.store.statistics, "fold", lambda: 0)  # no worker folds meanwhile
    for what in all_transitions(app, clock, sql):
        if what == "deleted by plain SQL":
            break
    monkeypatch.setattr("holdfast.store.statistics.FOLD_EVENTS", 1)
    expected, steps = all_statistics(app), 0
    while fold():
        assert all_statistics(app) == expected
        steps += 1
    assert steps > 50 and len(expected[1]) > 30


def test_another_process_does_not_count_events_twice(open_app: Open, app: Holdfast, clock: FakeClock) -> None:
    app.queue("inbox").send_many(range(10))
    app.store.statistics.fold()
    app.queue("inbox").send_many(range(5))
    other = open_app(clock=clock)
    assert all_statistics(other) == all_statistics(app)
    fold_all(other)
    assert all_statistics(other) == all_statistics(app)
    assert app.store.statistics.fold() == other.store.statistics.fold() == 0


def test_concurrent_folds_neither_lose_nor_double_count_events(
    open_app: Open, sql: Sql, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two apps, each with two threads that fold, while two more threads send, receive and delete."""
    monkeypatch.setattr("holdfast.store.statistics.FOLD_EVENTS", 7)
    apps = open_app(), open_app()
    working, rounds = threading.Barrier(6, timeout=PATIENCE_SECONDS), 60
    left, errors = [2], list[BaseException]()

    @contextmanager
    def collecting_errors() -> Iterator[None]:
        try:
            working.wait()
            yield
        except BaseException as error:  # noqa: BLE001  the test checks them
            errors.append(error)

    def fold(app: Holdfast) -> None:
        with collecting_errors():
            while left[0]:
                app.store.statistics.fold()

    def work(app: Holdfast) -> None:
        with collecting_errors():
            inbox = app.queue("inbox")
            for number in range(rounds):
                inbox.send_many([number] * 3)
                for message in inbox.receive_many(2):
                    assert message.ack()
                if number % 10 == 9:
                    app.jobs.delete(status="succeeded", queue="inbox")
        left[0] -= 1

    threads = [threading.Thread(target=do, args=(app,)) for app in apps for do in (fold, fold, work)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
    assert errors == [] and not any(thread.is_alive() for thread in threads)
    for app in apps:
        assert counted(app) == recounted(sql)
    fold_all(apps[0])
    for app in apps:
        assert counted(app) == recounted(sql)
        happened = {one.measure: 0 for one in app.store.statistics.minutes(0)}
        for one in app.store.statistics.minutes(0):
            happened[one.measure] += one.count
        assert happened["enqueued"] == 2 * 3 * rounds and happened["succeeded"] == happened["run"] == 2 * 2 * rounds
        assert sum(app.store.statistics.totals().outcomes.values()) == 2 * 2 * rounds
    assert sql("SELECT count(*) FROM holdfast_events WHERE job_id NOT IN (SELECT id FROM holdfast_jobs)") == [(0,)]


TABLES = ("fold", "counts", "minutes", "totals", "failures", "failure_minutes", "error_totals")


def test_no_transition_writes_a_counter(app: Holdfast, clock: FakeClock, sql: Sql, claim: Claim) -> None:
    def stored() -> list[Any]:
        return [sql(f"SELECT * FROM holdfast_{table} ORDER BY 1, 2, 3") for table in TABLES]  # noqa: S608

    work = app.task(name="work", max_attempts=2)(lambda: None)
    inbox = app.queue("inbox", visibility=30)
    work.enqueue()
    inbox.send(0)
    succeed(app.store, claim("work").lease)
    fold_all(app)
    before = stored()
    assert all(before[:4])

    work.enqueue_many([{}] * 4)
    inbox.send_many(range(4))
    succeed(app.store, claim("work").lease)
    retry(app.store, claim("work").lease, 0, Failure("TEST:AGAIN", "", "f00d", "Traceback"))
    fail(app.store, claim("work").lease, Failure("TEST:BROKEN"))
    snooze(app.store, claim("work").lease, 60 * SECOND)
    first, second, third = inbox.receive_many(3)
    assert first.ack() and second.release() and third.fail("TEST:REFUSED")
    assert inbox.receive() is not None
    clock.advance(31)
    recover(app.store)
    app.jobs.cancel(status="ready")
    app.jobs.retry(status="failed")
    sql("UPDATE holdfast_jobs SET status = 'failed' WHERE status = 'succeeded'")
    sql("DELETE FROM holdfast_jobs WHERE status = 'cancelled'")
    assert stored() == before
    fold_all(app)
    assert all(now != then for now, then in zip(stored(), before, strict=True))


def test_an_edit_by_plain_sql_is_not_a_failure(app: Holdfast, sql: Sql, claim: Claim) -> None:
    """The row still has the error of its last attempt."""
    app.task(name="work", max_attempts=3)(lambda: None).enqueue()
    retry(app.store, claim("work").lease, 60 * SECOND, Failure("TEST:AGAIN", "", "f00d", "Traceback"))
    sql("UPDATE holdfast_jobs SET status = 'ready'")
    fail(app.store, claim("work").lease, Failure("TEST:BROKEN"))
    sql("UPDATE holdfast_jobs SET status = 'scheduled', queue = 'elsewhere'")
    sql("UPDATE holdfast_jobs SET status = 'cancelled'")
    assert {one.error_code: one.count for one in app.observe.failures()} == {"TEST:AGAIN": 1, "TEST:BROKEN": 1}
    assert len(app.observe.failures(since=timedelta(hours=1))) == 2


def test_a_failure_that_recurs_after_it_was_pruned_is_counted_from_one(
    app: Holdfast, clock: FakeClock, sql: Sql, claim: Claim
) -> None:
    """Its minutes may be retained longer."""
    work = app.task(name="work", max_attempts=1)(lambda: None)

    def found() -> list[list[int]]:
        both = app.observe.failures(), app.observe.failures(since=timedelta(days=1))
        return [[one.count for one in some] for some in both]

    for lately in (1, 2):
        work.enqueue()
        fail(app.store, claim("work").lease, Failure("TEST:BROKEN"))
        clock.advance(3600)
        assert found() == [[1], [lately]]
        fold_all(app)
        assert found() == [[1], [lately]]
        sql("DELETE FROM holdfast_failures")
        assert found() == [[], []]


def test_a_rare_failure_is_listed_when_it_becomes_frequent(app: Holdfast, claim: Claim, clock: FakeClock) -> None:
    work = app.task(name="work", max_attempts=1)(lambda: None)

    def fail_often(code: str, times: int) -> None:
        work.enqueue_many([{}] * times)
        for _ in range(times):
            fail(app.store, claim("work").lease, Failure(code))

    fail_often("TEST:A", 3), fail_often("TEST:B", 2), fail_often("TEST:C", 1)
    fold_all(app)
    fail_often("TEST:C", 3)
    for since in (None, timedelta(hours=1)):
        found = app.observe.failures(since=since, limit=2)
        assert [(one.error_code, one.count) for one in found] == [("TEST:C", 4), ("TEST:A", 3)]


def test_deleting_jobs_leaves_at_most_the_events_of_one_job(app: Holdfast, sql: Sql, clock: FakeClock) -> None:
    """The job with the newest event may keep its events, whether Holdfast or plain SQL deletes the jobs."""
    inbox, seen = app.queue("inbox"), 0
    for _ in range(20):
        inbox.send_many(range(3))
        for message in inbox.receive_many(3):
            assert message.ack()
        clock.advance(60)
        assert app.prune(retention=Retention(succeeded=0)).succeeded == 3
        inbox.send(1)
        ((newest,),) = sql("SELECT max(id) FROM holdfast_events")
        assert newest > seen, "no id is reused"
        seen = newest
        sql("DELETE FROM holdfast_jobs")
        fold_all(app)
    left = sql("SELECT event FROM holdfast_events WHERE event <> 'pruned' ORDER BY id")
    assert left in ([], [("enqueued",), ("removed",)])


# --- jobs without history -------------------------------------------------------------------------


def test_jobs_without_history_are_counted_up_to_a_limit(app: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.store.statistics.MAX_UNLOGGED_JOBS", 10)
    app.queue("another").send_many(range(30))
    fast, few = app.queue("fast", history=False, max_attempts=1), app.queue("a few", history=False)
    few.send_many(range(2))
    fast.send_many(range(7))
    message = fast.receive()
    assert message is not None and message.fail("TEST")
    assert counted(app) == {
        ("ready", "another", None): 30,
        ("ready", "a few", None): 2,
        ("ready", "fast", None): 6,
        ("failed", "fast", None): 1,
    }
    stats = fast.stats()
    assert (stats.ready, stats.failed, stats.total) == (6, 1, 7)

    fast.send(7)  # the tenth
    found = counted(app)
    assert (found["ready", "another", None], found["ready", "a few", None]) == (30, 2)
    assert found["ready", "fast", None] is None and found["failed", "fast", None] is None
    assert [one.queue for one in app.observe.counts().unknown] == ["fast"] * len(app.observe.counts().unknown)
    assert app.observe.counts().by_queue["a few"] == 2
    fast.send_many(range(10))
    stats = fast.stats()
    assert (stats.ready, stats.failed, stats.total) == (None, None, None) and stats.oldest_ready_age is not None
    assert few.stats().total == 2, "a queue is counted by itself"
    overview = {one.name: one for one in app.queues()}
    assert (overview["fast"].ready, overview["a few"].ready, overview["another"].ready) == (None, 2, 30)


def test_a_queue_beyond_the_limit_is_not_reported_as_empty(app: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.store.statistics.MAX_UNLOGGED_JOBS", 10)
    app.queue("a", history=False).send_many(range(20))
    app.queue("b", history=False).send(1)
    app.queue("b").send(2)
    found = counted(app)
    assert found["ready", "a", None] is found["ready", "b", None] is None
    assert {one.queue for one in app.store.statistics.oldest(10, ["ready"])} == {"a", "b"}
    app.queue("a").purge()
    assert counted(app) == {("ready", "b", None): 2}
