"""`@app.on_failure`: a job for each job that failed for good, whatever ended it."""

import threading
from collections.abc import Callable
from typing import Any

import pytest

from holdfast import Cancel, Context, Fail, FailureReport, Holdfast, Retry
from holdfast import testing as holdfast_testing
from holdfast.clock import SECOND
from holdfast.errors import InvalidTask
from holdfast.model.worker import WorkerRecord
from holdfast.testing import FakeClock
from holdfast.worker.housekeeping import FailureReporter
from support.backend import Backend
from support.running_worker import RunningWorker, comes_true, drain, eventually, let_time_run_out

Open = Callable[..., Holdfast]
Told = list[FailureReport]


def listen(app: Holdfast, **options: Any) -> Told:
    """Add a hook that records what it is told."""
    told: Told = []

    @app.on_failure(**options)
    def notify(job: FailureReport) -> None:
        told.append(job)

    return told


def begin(app: Holdfast) -> None:
    """Let a worker start and stop: failures count from the first start of a worker with the hook."""
    drain(app)


# --- what is told ---------------------------------------------------------------------------------


def test_a_hook_learns_all_about_a_failure(app: Holdfast) -> None:
    told = listen(app)

    @app.task(queue="mail", max_attempts=2, retry=0)
    def send(to: str) -> None:
        raise ConnectionError("no line")

    job = send.enqueue("ada@example.org")
    drain(app)
    (one,) = told
    assert (one.id, one.task, one.queue, one.attempt, one.max_attempts) == (job.id, "send", "mail", 2, 2)
    assert (one.error_code, one.error_detail) == ("DEPENDENCY:CONNECTION", "ConnectionError: no line")
    assert one.failed_at == job.refresh().finished_at
    assert one.worker == job.worker
    assert one.traceback is not None
    assert 'raise ConnectionError("no line")' in one.traceback


def test_a_coroutine_can_be_a_hook_and_may_ask_for_its_context(app: Holdfast) -> None:
    told: list[Any] = []

    @app.on_failure
    async def notify(ctx: Context, job: FailureReport) -> None:
        told.append((ctx.task, job.id, job.traceback is not None))

    @app.task(max_attempts=1)
    def break_down() -> None:
        raise ValueError("no")

    job = break_down.enqueue()
    drain(app)
    assert told == [("on_failure:notify", job.id, True)]


def test_every_kind_of_final_failure_is_told(app: Holdfast, clock: FakeClock, backend: Backend, claim: Any) -> None:
    told = listen(app)

    @app.task(max_attempts=1)
    def work(how: str) -> Any:
        if how == "raise":
            raise ValueError("no")
        return Fail("REJECTED:BUDGET", "too much")

    @app.task(max_attempts=1)
    def hang(ctx: Context) -> None:
        let_time_run_out(ctx)
        while not ctx.cancelled:
            threading.Event().wait(0.001)

    @app.task
    def wrong_result() -> int:
        return "twelve"  # type: ignore[return-value]

    begin(app)
    died = work.enqueue("died")
    claim("work", worker="gone", lease=3600)
    expected = {died.id: "TIMEOUT:LEASE"}
    clock.advance(7200)
    app.store.jobs.sweep()
    expected[work.enqueue("raise").id] = "INVALID_INPUT:VALUE"
    expected[work.enqueue("fail").id] = "REJECTED:BUDGET"
    expected[hang.using(timeout=3600).enqueue().id] = "TIMEOUT:HANDLER"
    expected[wrong_result.enqueue().id] = "RESULT:WRONG_TYPE"
    (broken,) = backend.sql("INSERT INTO holdfast_jobs (task, args) VALUES ('work', 'no JSON') RETURNING id")
    expected[broken[0]] = "INVALID_INPUT:PAYLOAD"
    by_operator = work.using(delay=3600).enqueue("later")
    app.jobs.fail(by_operator.id, "REJECTED:KIM")
    expected[by_operator.id] = "REJECTED:KIM"
    waiting = work.using(after=by_operator, on_blocker_failure="fail").enqueue("after")
    expected[waiting.id] = "DEPENDENCY:BLOCKER"
    drain(app)
    assert {one.id: one.error_code for one in told} == expected


def test_a_job_whose_worker_died_in_its_last_attempt_is_told(app: Holdfast, backend: Backend, claim: Any) -> None:
    told = listen(app)
    work = app.task(name="work", max_attempts=1)(lambda: None)
    begin(app)
    job = work.enqueue()
    now = app.clock.now()
    app.store.workers.register(WorkerRecord("w1", 1, "host", None, ("work",), 1, 60 * SECOND, now, now))
    claim("work", worker="w1", lease=60)
    backend.bury_workers()
    drain(app)
    assert [(one.id, one.error_code, one.worker) for one in told] == [(job.id, "INTERNAL:WORKER_LOST", "w1")]


def test_retries_cancellations_and_successes_are_not_told(app: Holdfast) -> None:
    told = listen(app)

    @app.task(max_attempts=2, retry=0)
    def work(ctx: Context, how: str) -> Any:
        if how == "cancel":
            return Cancel("enough")
        return Retry(after=0) if ctx.attempt == 1 else "done"

    work.enqueue("cancel")
    work.enqueue("retry")
    drain(app)
    assert told == []


def test_dead_letters_are_told_as_messages(app: Holdfast, clock: FakeClock) -> None:
    told = listen(app)
    begin(app)
    inbox = app.queue("inbox", max_attempts=1, visibility=30)
    message = inbox.send({"text": "hello"})
    assert inbox.receive() is not None
    clock.advance(31)
    assert inbox.receive() is None
    drain(app)
    assert [(one.id, one.task, one.queue, one.error_code) for one in told] == [
        (message, None, "inbox", "TIMEOUT:VISIBILITY")
    ]


def test_a_job_that_is_retried_and_fails_again_is_told_again(app: Holdfast) -> None:
    told = listen(app)

    @app.task(max_attempts=1)
    def work() -> None:
        raise ValueError("no")

    job = work.enqueue()
    drain(app)
    app.jobs.retry(job.id)
    drain(app)
    assert [(one.id, one.attempt) for one in told] == [(job.id, 1), (job.id, 2)]


# --- the guarantee --------------------------------------------------------------------------------


def test_each_failure_becomes_one_job_of_each_hook_whatever_the_number_of_workers(open_app: Open) -> None:
    first, second = open_app(), open_app()
    for app in (first, second):

        @app.on_failure
        def notify(job: FailureReport) -> None: ...

        @app.on_failure(name="page")
        def call(job: FailureReport) -> None: ...

        @app.task(max_attempts=1)
        def work(n: int) -> None:
            raise ValueError(str(n))

    with RunningWorker(first), RunningWorker(second):
        ids = [job_id for _ in range(5) for job_id in first.tasks["work"].enqueue_many([{"n": n} for n in range(50)])]
        eventually(lambda: first.jobs.count(task=["on_failure:notify", "on_failure:page"], status="succeeded") == 500)
    for name in ("on_failure:notify", "on_failure:page"):
        jobs = [job for page in _pages(first, task=name) for job in page]
        assert sorted(job.args["job"]["id"] for job in jobs) == sorted(ids)


def _pages(app: Holdfast, **filters: Any) -> Any:
    page = app.jobs.list(limit=1000, **filters)
    yield page
    while page.next is not None:
        page = app.jobs.list(limit=1000, cursor=page.next, **filters)
        yield page


def test_failures_while_no_worker_runs_are_told_when_one_starts(
    app: Holdfast, open_app: Open, clock: FakeClock
) -> None:
    told = listen(app)

    @app.task
    def work() -> None: ...

    begin(app)
    job = work.enqueue()
    other = open_app(clock=clock)
    other.jobs.fail(job.id, "REJECTED:KIM")
    assert told == []
    drain(app)
    assert [one.id for one in told] == [job.id]


def test_a_new_hook_is_not_told_about_the_past(app: Holdfast) -> None:
    @app.task(max_attempts=1)
    def work() -> None:
        raise ValueError("no")

    work.enqueue()
    drain(app)
    told = listen(app)
    drain(app)
    assert told == []


def test_a_hook_that_raises_is_retried_as_any_job_and_its_own_failure_is_not_told(app: Holdfast) -> None:
    told: Told = []

    @app.on_failure(max_attempts=2, retry=0)
    def notify(job: FailureReport) -> None:
        told.append(job)
        raise ConnectionError("the mail server is down")

    @app.task(max_attempts=1)
    def work() -> None:
        raise ValueError("no")

    work.enqueue()
    drain(app)
    assert [one.task for one in told] == ["work", "work"]
    (hook_job,) = app.jobs.list(task="on_failure:notify")
    assert (hook_job.status, hook_job.error_code) == ("failed", "DEPENDENCY:CONNECTION")


def test_a_hook_that_hangs_stops_no_other_job(live: Holdfast) -> None:
    begun, done, release = threading.Event(), threading.Event(), threading.Event()

    @live.on_failure
    def notify(job: FailureReport) -> None:
        begun.set()
        comes_true(release)

    @live.task(max_attempts=1)
    def work(fails: bool) -> None:
        if fails:
            raise ValueError("no")
        done.set()

    with RunningWorker(live, concurrency=2):
        work.enqueue(True)
        comes_true(begun)
        work.enqueue(False)
        comes_true(done)
        release.set()


def test_a_hook_has_a_timeout_unless_it_is_given_another(app: Holdfast) -> None:
    @app.on_failure
    def notify(job: FailureReport) -> None: ...

    @app.on_failure(timeout=5, queue="alerts", max_attempts=9)
    def page(job: FailureReport) -> None: ...

    assert app.tasks["on_failure:notify"].options.timeout == 60_000_000
    options = app.tasks["on_failure:page"].options
    assert (options.timeout, options.queue, options.max_attempts) == (5_000_000, "alerts", 9)


# --- refused --------------------------------------------------------------------------------------


def test_a_hook_that_cannot_take_a_failed_job_is_refused(app: Holdfast) -> None:
    with pytest.raises(InvalidTask, match="on_failure"):

        @app.on_failure
        def nothing() -> None: ...

    with pytest.raises(InvalidTask, match="on_failure"):

        @app.on_failure
        def two(job: FailureReport, more: int) -> None: ...


# --- tests of programs ----------------------------------------------------------------------------


def test_drain_of_the_testing_package_runs_hooks(app: Holdfast) -> None:
    told = listen(app)

    @app.task(max_attempts=1)
    def work() -> None:
        raise ValueError("no")

    job = work.enqueue()
    drained = holdfast_testing.drain(app)
    assert [one.id for one in told] == [job.id]
    assert (drained.failed, drained.succeeded) == (1, 1)


def test_a_worker_that_came_second_tells_what_the_first_had_not_read(
    app: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    listen(app)
    (hook,) = app.failure_hooks()
    work = app.task(name="work")(lambda: None)
    ids = work.enqueue_many([{}, {}])
    reporter, jobs = FailureReporter(app.store, [hook]), app.store.jobs
    reporter.report()
    app.jobs.fail(ids[0], "REJECTED:KIM")
    read_by_first = jobs.unreported_failures(hook.name, 0)
    app.jobs.fail(ids[1], "REJECTED:KIM")
    report = jobs.report_failures

    def after_the_first(*what: Any) -> list[int]:
        monkeypatch.setattr(jobs, "report_failures", report)
        assert report(hook.name, read_by_first, [hook.report(one) for one in read_by_first.failed])
        return report(*what)

    monkeypatch.setattr(jobs, "report_failures", after_the_first)
    reporter.report()
    reporter.report()
    assert sorted(job.args["job"]["id"] for job in app.jobs.list(task=hook.name)) == ids


def test_hooks_run_inline_in_tests(app: Holdfast) -> None:
    told = listen(app)

    @app.task(max_attempts=1)
    def work() -> None:
        raise ValueError("no")

    with holdfast_testing.inline(app, raise_errors=False):
        job = work.enqueue()
    assert [one.id for one in told] == [job.id]
