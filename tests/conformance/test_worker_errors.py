"""Whatever goes wrong inside a worker, with one job or one row: the other jobs are settled, and its threads live."""

import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.clock import boot_ns
from holdfast.errors import DiskFull
from holdfast.worker.dispatcher import RunTimes
from holdfast.worker.executor import Executor
from holdfast.worker.thread_pool import ThreadPool
from support.running_worker import PATIENCE_SECONDS, RunningWorker, drain, eventually, outcomes

VICTIM = 3
JOBS = 6


@pytest.fixture(autouse=True)
def deaths() -> Iterator[list[str]]:
    """The threads that an exception has ended: none, at the end of each test."""
    found: list[str] = []
    before, threading.excepthook = threading.excepthook, lambda args: found.append(repr(args.exc_value))
    yield found
    threading.excepthook = before
    assert not found


class Unprintable(Exception):
    def __repr__(self) -> str:
        raise ValueError("no repr")

    __str__ = __repr__


def declare(app: Holdfast, kind: str) -> Any:
    if kind == "async":

        @app.task(name="work")
        async def work_later(n: int) -> int:
            return n

        return work_later

    @app.task(name="work")
    def work(n: int) -> int:
        return n

    return work


def is_of_victim(settlements: Any) -> bool:
    return any(one.result == str(VICTIM) for one in settlements)


def refuse_to_settle(
    app: Holdfast, monkeypatch: pytest.MonkeyPatch, refuses: Callable[[Any], bool], error: Any
) -> None:
    settle_and_claim = app.store.jobs.settle_and_claim

    def refuse(settlements: Any, requests: Any) -> Any:
        if refuses(settlements):
            raise error
        return settle_and_claim(settlements, requests)

    monkeypatch.setattr(app.store.jobs, "settle_and_claim", refuse)


def break_settling(app: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    refuse_to_settle(app, monkeypatch, is_of_victim, ValueError("thirteen"))


def break_settling_without_a_text(app: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    refuse_to_settle(app, monkeypatch, is_of_victim, Unprintable())


def break_measuring(app: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    def measure(self: RunTimes, batch: Any) -> None:
        raise IndexError("list index out of range")

    monkeypatch.setattr(RunTimes, "measure", measure)


def break_running(app: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    """`run` and `run_async` never raise; here they do, for one job, once."""
    run, run_async, raised = Executor.run, Executor.run_async, list[int]()

    def raise_once(attempt: Any) -> None:
        if attempt.claimed.args == b'{"n":%d}' % VICTIM and not raised:
            raised.append(attempt.claimed.id)
            raise Unprintable

    def broken(self: Executor, attempt: Any) -> Any:
        raise_once(attempt)
        return run(self, attempt)

    async def broken_later(self: Executor, attempt: Any) -> Any:
        raise_once(attempt)
        return await run_async(self, attempt)

    monkeypatch.setattr(Executor, "run", broken)
    monkeypatch.setattr(Executor, "run_async", broken_later)
    monkeypatch.setattr("holdfast.worker.dispatcher.SECOND", 0)  # run it again at once


def break_logging(app: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    """A log handler of the user's raises for every record."""

    class Broken(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise OSError("no space left for logs")

    logger = logging.getLogger("holdfast.worker")
    monkeypatch.setattr(logger, "handlers", [Broken()])
    monkeypatch.setattr(logger, "level", logging.DEBUG)
    monkeypatch.setattr(logger, "_cache", {})


def break_starting_threads(app: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    start, failed = ThreadPool._start, list[int]()

    def fail_once(self: ThreadPool) -> None:
        if self._thread_count and not failed:
            failed.append(1)
            raise RuntimeError("can't start new thread")
        start(self)

    monkeypatch.setattr(ThreadPool, "_start", fail_once)


BREAKS = [
    break_settling,
    break_settling_without_a_text,
    break_measuring,
    break_running,
    break_logging,
    break_starting_threads,
]
SPARED = {break_settling: False, break_settling_without_a_text: False}  # whether the victim can succeed


@pytest.mark.parametrize("kind", ["thread", "async"])
@pytest.mark.parametrize("fault", BREAKS)
def test_an_error_in_the_worker_costs_no_other_job_and_no_thread(
    app: Holdfast, monkeypatch: pytest.MonkeyPatch, kind: str, fault: Callable[..., None]
) -> None:
    work = declare(app, kind)
    jobs = [work.enqueue(n) for n in range(JOBS)]
    fault(app, monkeypatch)
    with RunningWorker(app, concurrency=2) as running:
        spared = [job for n, job in enumerate(jobs) if n != VICTIM or SPARED.get(fault, True)]
        eventually(lambda: all(job.refresh().status == "succeeded" for job in spared))
        if not SPARED.get(fault, True):
            eventually(lambda: jobs[VICTIM].refresh().status == "failed")
            assert jobs[VICTIM].error_code == "INTERNAL:NOT_SETTLED"
        more = [work.enqueue(n) for n in range(JOBS, 2 * JOBS)]
        eventually(lambda: all(job.refresh().status == "succeeded" for job in more))
        assert not running.has_ended()


def test_a_settlement_that_nothing_can_store_is_tried_again(
    app: Holdfast, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither the success nor the failure can be stored, until the fault is gone."""
    work = declare(app, "thread")
    jobs = [work.enqueue(n) for n in range(JOBS)]
    victim = jobs[VICTIM]
    broken = threading.Event()
    broken.set()
    refuse_to_settle(
        app,
        monkeypatch,
        lambda settlements: broken.is_set() and any(one.lease.id == victim.id for one in settlements),
        Unprintable(),
    )
    monkeypatch.setattr("holdfast.worker.housekeeping.HEARTBEAT_NS", 1)
    with RunningWorker(app, concurrency=2):
        eventually(lambda: all(job.refresh().status == "succeeded" for job in jobs if job is not victim))
        eventually(lambda: f"job {victim.id} cannot be settled" in caplog.text)
        assert victim.refresh().status == "running"
        broken.clear()
        eventually(lambda: victim.refresh().status == "succeeded")
    assert outcomes(app, victim.id) == ["succeeded"]


STEPS: dict[str, Callable[[Holdfast, Any], tuple[Any, str]]] = {
    "sweep": lambda app, _: (app.store.jobs, "sweep"),
    "heartbeat": lambda app, _: (app.store.workers, "heartbeat"),
    "fold": lambda app, _: (app.store.statistics, "fold"),
    "schedules": lambda _, run: (run._parts.scheduler, "fire_due"),
    "pruning": lambda _, run: (run._parts.upkeep, "do_some"),
}


@pytest.mark.parametrize("step", STEPS)
def test_an_error_in_one_step_of_housekeeping_keeps_the_worker_from_nothing_else(
    app: Holdfast, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, step: str
) -> None:
    """Such as a value that no constraint has refused."""
    work = declare(app, "thread")
    monkeypatch.setattr("holdfast.worker.housekeeping.HEARTBEAT_NS", 1)
    monkeypatch.setattr("holdfast.worker.housekeeping.FOLD_NS", 1)
    with RunningWorker(app, concurrency=2) as running:
        eventually(lambda: work.enqueue(0).wait(PATIENCE_SECONDS) == 0)
        owner, name = STEPS[step](app, running.worker._worker_run)
        monkeypatch.setattr(owner, name, lambda *_: "text" + 5)  # type: ignore[operator]
        eventually(lambda: "the worker continues" in caplog.text)
        jobs = [work.enqueue(n) for n in range(JOBS)]
        eventually(lambda: all(job.refresh().status == "succeeded" for job in jobs))
        assert not running.has_ended()
        monkeypatch.undo()
    assert sum("the worker continues" in record.message for record in caplog.records) < 5, "each is logged once"


@pytest.mark.parametrize("kind", ["thread", "async"])
def test_an_attempt_does_not_start_after_its_lease_may_have_ended(
    app: Holdfast, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """As after a suspend of the machine, between the claim and the start."""
    asleep, ran = [0], list[int]()
    for module in ("attempt", "dispatcher", "housekeeping"):
        monkeypatch.setattr(f"holdfast.worker.{module}.boot_ns", lambda: boot_ns() + asleep[0])
    prepare = Executor._prepare

    def slow(self: Executor, attempt: Any) -> Any:
        call = prepare(self, attempt)
        if not asleep[0]:  # the last moment at which the machine can fall asleep before the handler is called
            asleep[0] = 50 * 10**9
        return call

    monkeypatch.setattr(Executor, "_prepare", slow)

    if kind == "thread":

        @app.task
        def work() -> None:
            ran.append(1)
    else:

        @app.task
        async def work() -> None:
            ran.append(1)

    job = work.enqueue()
    drain(app, lease=60)
    assert ran == [1] and outcomes(app, job.id) == ["succeeded"]
    assert (job.refresh().attempt, job.max_attempts) == (2, 6), "the attempt that did not start does not count"


def test_what_is_being_settled_or_claimed_is_not_taken_for_lost(
    app: Holdfast, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A heartbeat at any moment, also while a batch is on its way to the database or its claims on their way back."""
    settle_and_claim = app.store.jobs.settle_and_claim
    housekeeping: list[Any] = []

    def settle_between_heartbeats(settlements: Any, requests: Any) -> Any:
        is_give_back = not requests and all(one.transition == "give_back" for one in settlements)
        for _ in range(0 if is_give_back else 3):
            housekeeping[0]._heartbeat()
        result = settle_and_claim(settlements, requests)
        for _ in range(0 if is_give_back else 3):
            housekeeping[0]._heartbeat()
        return result

    monkeypatch.setattr("holdfast.worker.worker.Housekeeping", remember(housekeeping))
    monkeypatch.setattr(app.store.jobs, "settle_and_claim", settle_between_heartbeats)
    ran: list[int] = []

    @app.task
    def work(n: int) -> None:
        ran.append(n)

    jobs = [work.enqueue(n) for n in range(JOBS)]
    drain(app, concurrency=2)
    assert sorted(ran) == list(range(JOBS))
    assert all(outcomes(app, job.id) == ["succeeded"] for job in jobs)
    assert "unknown to it" not in caplog.text


def test_a_claim_whose_reply_was_lost_is_given_back(
    app: Holdfast, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    settle_and_claim, lost = app.store.jobs.settle_and_claim, list[int]()

    def lose_a_reply(settlements: Any, requests: Any) -> Any:
        result = settle_and_claim(settlements, requests)
        if result.claimed and not lost:
            lost.append(result.claimed[0].id)
            raise DiskFull("the reply was lost")
        return result

    monkeypatch.setattr(app.store.jobs, "settle_and_claim", lose_a_reply)
    monkeypatch.setattr("holdfast.worker.housekeeping.HEARTBEAT_NS", 1)
    job = declare(app, "thread").enqueue(1)
    with RunningWorker(app):
        eventually(lambda: job.refresh().status == "succeeded")
    assert lost == [job.id] and "unknown to it; giving back" in caplog.text


def remember(made: list[Any]) -> Any:
    from holdfast.worker.housekeeping import Housekeeping

    def make(*arguments: Any) -> Housekeeping:
        made.append(Housekeeping(*arguments))
        return made[0]  # type: ignore[no-any-return]

    return make


def test_statistics_are_added_up_while_many_jobs_finish(
    app: Holdfast, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Housekeeping folds because many jobs have finished, several rounds in a row, before a second has passed."""
    monkeypatch.setattr("holdfast.worker.housekeeping.FOLD_JOBS", -1)
    monkeypatch.setattr("holdfast.worker.housekeeping.FOLD_BATCH", 1)
    monkeypatch.setattr("holdfast.store.statistics.FOLD_EVENTS", 2)
    work = declare(app, "sync")
    work.enqueue_many([{"n": n} for n in range(JOBS)])
    with caplog.at_level(logging.ERROR):
        drain(app)
    assert app.jobs.count(status="succeeded") == JOBS
    assert caplog.messages == []
