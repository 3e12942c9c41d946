"""The worker: how a job is settled, by what its handler returns or raises."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from holdfast import Cancel, Context, Fail, Holdfast, JobError, Retry, Snooze
from holdfast.failure import BUILT_IN_CODES
from holdfast.testing import FakeClock
from support.running_worker import attempts, drain, due_in, left, outcomes

Sql = Callable[..., list[Any]]
Body = Callable[[Context], Any]
Define = Callable[..., Any]


@pytest.fixture(params=["returned", "raised"])
def give(request: pytest.FixtureRequest) -> Callable[[Exception], Any]:
    """Return a function that returns or raises an outcome."""

    def end(outcome: Exception) -> Any:
        if request.param == "raised":
            raise outcome
        return outcome

    return end


def one_each(task: Any, values: Sequence[object]) -> list[int]:
    """Enqueue a job for each value. In a new database the first has the id 1."""
    ids: list[int] = task.enqueue_many([{}] * len(values))
    assert ids == list(range(1, len(values) + 1))
    return ids


# --- results --------------------------------------------------------------------------------------


RESULTS = [None, 0, False, "", "text", 1.5, [1, {"two": None}], {"é": "\U0001f600"}, "x" * 5_000, "x" * 1_000_000]


def test_the_return_value_of_a_handler_is_the_result(app: Holdfast, define: Define) -> None:
    ids = one_each(define(lambda ctx: RESULTS[ctx.job_id - 1]), RESULTS)
    report = drain(app)
    jobs = [app.jobs.get(job_id) for job_id in ids]
    assert [job.result for job in jobs] == RESULTS
    assert {(job.status, job.error_code) for job in jobs} == {("succeeded", None)}
    assert all(outcomes(app, job_id) == ["succeeded"] for job_id in ids)
    assert report.succeeded == len(RESULTS)


@dataclass
class Receipt:
    number: int
    lines: list[str]


def test_a_result_has_the_annotated_type(app: Holdfast) -> None:
    @app.task
    def buy(number: int) -> Receipt:
        return Receipt(number, ["tea"])

    @app.task
    async def sell(number: int) -> Receipt:
        return Receipt(number, ["cake"])

    bought, sold = buy.enqueue(7), sell.enqueue(8)
    drain(app)
    assert bought.refresh().result == Receipt(7, ["tea"])
    assert sold.refresh().result == Receipt(8, ["cake"])


def test_a_result_of_another_type_than_the_annotated_one_fails_the_job_at_once(app: Holdfast) -> None:
    @app.task
    def count() -> int:
        return "twelve"  # type: ignore[return-value]

    @app.task
    def wait(ctx: Context) -> str:
        return f"{ctx.blocker_results[0]}"

    job = count.enqueue()
    waits = wait.using(after=job, on_blocker_failure="run").enqueue()
    drain(app)
    assert (job.refresh().status, job.attempt, job.error_code) == ("failed", 1, "RESULT:WRONG_TYPE")
    assert "Expected `int`, got `str`" in (job.error_detail or "")
    assert "RESULT:WRONG_TYPE" in str(waits.refresh().result)


def test_a_missing_result_fails_the_job_if_the_annotation_does_not_allow_none(app: Holdfast) -> None:
    @app.task
    def count() -> int:  # type: ignore[return]
        pass

    @app.task
    def maybe() -> int | None:
        return None

    job, other = count.enqueue(), maybe.enqueue()
    drain(app)
    assert (job.refresh().status, job.attempt, job.error_code) == ("failed", 1, "RESULT:WRONG_TYPE")
    assert "Expected `int`, got `null`" in (job.error_detail or "")
    assert other.refresh().status == "succeeded"


NO_RESULTS = [
    ("x" * 70_000_000, "RESULT:TOO_LARGE"),
    (object(), "RESULT:NOT_JSON"),
    (float("nan"), "RESULT:NOT_JSON"),
    ("\ud800", "RESULT:NOT_JSON"),
    ({(1, 2): 3}, "RESULT:NOT_JSON"),
]


def test_a_result_that_cannot_be_stored_fails_the_job_at_once(app: Holdfast, define: Define) -> None:
    ids = one_each(define(lambda ctx: NO_RESULTS[ctx.job_id - 1][0]), NO_RESULTS)
    report = drain(app)
    jobs = [app.jobs.get(job_id) for job_id in ids]
    assert [job.error_code for job in jobs] == [code for _, code in NO_RESULTS]
    assert {(job.status, job.attempt, job.result) for job in jobs} == {("failed", 1, None)}
    assert report.failed == len(NO_RESULTS)


# --- outcomes -------------------------------------------------------------------------------------


def test_a_retry_waits_for_the_delay_of_the_policy(
    app: Holdfast, clock: FakeClock, define: Define, give: Any
) -> None:
    job = define(lambda ctx: give(Retry()), retry=[30, 60]).enqueue()
    for seconds in (30, 60):
        report = drain(app)
        job.refresh()
        assert (job.status, job.error_code) == ("scheduled", "RETRY:REQUESTED")
        assert due_in(app, job.id) == pytest.approx(seconds, abs=0.5)
        assert (report.retried, report.failed) == (1, 0)
        clock.advance(seconds + 1)
    assert outcomes(app, job.id) == ["retry_scheduled"] * 2


def test_a_retry_can_set_its_delay(app: Holdfast, clock: FakeClock, define: Define, give: Any) -> None:
    job = define(lambda ctx: give(Retry(after=7)), retry=1000).enqueue()
    drain(app)
    assert job.refresh().status == "scheduled"
    assert due_in(app, job.id) == pytest.approx(7, abs=0.5)


def test_a_retry_of_the_last_attempt_fails(app: Holdfast, define: Define, give: Any) -> None:
    job = define(lambda ctx: give(Retry(after=0)), max_attempts=3).enqueue()
    report = drain(app)
    job.refresh()
    assert (job.status, job.attempt, job.error_code) == ("failed", 3, "RETRY:REQUESTED")
    assert (report.retried, report.failed) == (2, 1)


def test_a_snooze_does_not_count_as_an_attempt(app: Holdfast, clock: FakeClock, define: Define, give: Any) -> None:
    seen: list[int] = []

    def wait_twice(ctx: Context) -> object:
        seen.append(ctx.attempt)
        return give(Snooze(60)) if len(seen) < 3 else "awake"

    job = define(wait_twice, max_attempts=1).enqueue()
    for _ in range(2):
        report = drain(app)
        assert job.refresh().status == "scheduled"
        assert due_in(app, job.id) == pytest.approx(60, abs=0.5)
        assert left(app, job.id) == 1
        assert (report.snoozed, report.failed) == (1, 0)
        clock.advance(61)
    drain(app)
    assert job.refresh().result == "awake"
    assert seen == [1, 2, 3], "each claim has its own number, since it is the fencing token"
    assert outcomes(app, job.id) == ["snoozed", "snoozed", "succeeded"]


def test_a_snooze_does_not_increase_the_backoff(app: Holdfast, clock: FakeClock, define: Define) -> None:
    asked: list[int] = []

    def policy(number: int) -> float:
        asked.append(number)
        return 0

    def snooze_before_each_failure(ctx: Context) -> object:
        return Snooze(0) if ctx.attempt % 2 else Retry()

    job = define(snooze_before_each_failure, retry=policy, max_attempts=3).enqueue()
    drain(app)
    assert job.refresh().status == "failed"
    assert asked == [1, 2, 3]


NO_DELAYS: list[Any] = [0, -5, float("nan"), float("inf"), 10**400, "7", None, 10**9, [], object()]


@pytest.mark.parametrize("kind", [Retry, Snooze])
def test_an_invalid_delay_does_not_lose_the_job(
    app: Holdfast, define: Define, kind: type[Retry] | type[Snooze]
) -> None:
    task = define(lambda ctx: kind(NO_DELAYS[ctx.job_id - 1]) if ctx.attempt == 1 else "done")
    ids = one_each(task, NO_DELAYS)
    drain(app)
    states = [app.jobs.get(job_id).status for job_id in ids]
    assert set(states) <= {"scheduled", "succeeded", "failed"}, states


def test_cancel_stores_its_reason(app: Holdfast, define: Define, give: Any) -> None:
    job = define(lambda ctx: give(Cancel("nobody wants it"))).enqueue()
    report = drain(app)
    job.refresh()
    assert (job.status, job.error_detail, job.error_code) == ("cancelled", "nobody wants it", None)
    assert (report.cancelled, report.failed) == (1, 0)


def test_fail_ends_the_job_even_if_attempts_are_left(app: Holdfast, define: Define, give: Any) -> None:
    job = define(lambda ctx: give(Fail("INVALID_INPUT:SCHEMA", "no such column")), max_attempts=5).enqueue()
    report = drain(app)
    job.refresh()
    assert (job.status, job.error_code, job.error_detail) == ("failed", "INVALID_INPUT:SCHEMA", "no such column")
    assert (job.attempt, report.failed) == (1, 1)


# --- exceptions -----------------------------------------------------------------------------------


def test_an_exception_is_retried_by_the_policy_until_the_last_attempt_fails(
    app: Holdfast, clock: FakeClock, define: Define
) -> None:
    def stumble(ctx: Context) -> None:
        raise ConnectionError("the line is dead")

    job = define(stumble, max_attempts=3, retry=[10, 20]).enqueue()
    for seconds in (10, 20):
        drain(app)
        assert job.refresh().status == "scheduled"
        assert due_in(app, job.id) == pytest.approx(seconds, abs=0.5)
        clock.advance(seconds - 1)
        drain(app)
        assert job.refresh().status == "scheduled", "too early"
        clock.advance(2)
    report = drain(app)
    job.refresh()
    assert (job.status, job.attempt, job.error_code) == ("failed", 3, "DEPENDENCY:CONNECTION")
    assert job.error_detail == "ConnectionError: the line is dead"
    assert report.failed == 1
    assert outcomes(app, job.id) == ["retry_scheduled", "retry_scheduled", "failed"]
    last = attempts(app, job.id)[-1]
    assert "stumble" in (app.jobs.traceback(last.detail["fingerprint"]) or "")


def test_a_job_error_has_its_own_code(app: Holdfast, define: Define) -> None:
    def refuse(ctx: Context) -> None:
        raise JobError("DEPENDENCY:STRIPE", "card declined")

    job = define(refuse, max_attempts=1).enqueue()
    drain(app)
    job.refresh()
    assert (job.status, job.error_code, job.error_detail) == ("failed", "DEPENDENCY:STRIPE", "card declined")


def test_an_exception_gets_the_error_code_that_the_app_registered(app: Holdfast, define: Define) -> None:
    class Throttled(Exception):
        pass

    def hurry(ctx: Context) -> None:
        raise Throttled("slow down")

    app.classify(Throttled, "DEPENDENCY:THROTTLED")
    job = define(hurry, max_attempts=1).enqueue()
    drain(app)
    assert job.refresh().error_code == "DEPENDENCY:THROTTLED"


class HostileText:
    def __str__(self) -> str:
        raise RuntimeError("no text for you")

    __repr__ = __str__


class HostileError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text for you")

    __repr__ = __str__


class NoStringError(Exception):
    def __str__(self) -> str:
        return 7  # type: ignore[return-value]


class ExitingError(Exception):
    def __str__(self) -> str:
        raise SystemExit(3)

    __repr__ = __str__


class HostileDetail(JobError):
    @property
    def detail(self) -> str:  # type: ignore[override]
        raise RuntimeError("no detail for you")

    @detail.setter
    def detail(self, value: str) -> None:
        pass


class Namelessness(type):
    def __getattribute__(cls, name: str) -> Any:
        if name in ("__name__", "__qualname__", "__mro__", "__module__"):
            raise RuntimeError("no name for you")
        return super().__getattribute__(name)


def nameless_error() -> BaseException:
    class NamelessError(Exception, metaclass=Namelessness):
        pass

    return NamelessError()


def error_without_a_class() -> BaseException:
    class ClasslessError(Exception):
        @property
        def __class__(self) -> Any:  # type: ignore[override]
            raise RuntimeError("no class for you")

    return ClasslessError()


def spoilt_fail() -> Fail:
    fail = Fail("SOME:CODE")
    fail.code = "not a code"
    return fail


MISDEEDS: list[Callable[[], BaseException]] = [
    HostileError,
    NoStringError,
    ExitingError,
    error_without_a_class,
    nameless_error,
    spoilt_fail,
    KeyboardInterrupt,
    SystemExit,
    GeneratorExit,
    StopIteration,
    StopAsyncIteration,
    RecursionError,
    MemoryError,
    lambda: HostileDetail("SOME:CODE"),
    lambda: JobError("SOME:CODE", HostileText()),  # type: ignore[arg-type]
    lambda: Cancel(HostileText()),  # type: ignore[arg-type]
    lambda: Fail("SOME:CODE", HostileText()),  # type: ignore[arg-type]
    lambda: ValueError("\ud800\0" * 1000),
    lambda: BaseExceptionGroup("many", [HostileError(), ValueError("x" * 100_000)]),
]


def test_any_exception_of_a_handler_fails_its_job_and_not_the_worker(app: Holdfast, define: Define) -> None:
    def misbehave(ctx: Context) -> None:
        assert ctx.job_id is not None
        raise MISDEEDS[ctx.job_id - 1]()

    ids = one_each(define(misbehave, max_attempts=1), MISDEEDS)

    @app.task
    def behave() -> str:
        return "well"

    good = behave.using(priority=-1).enqueue()
    report = drain(app, concurrency=2)
    jobs = [app.jobs.get(job_id) for job_id in ids]
    assert {job.status for job in jobs} <= {"failed", "cancelled"}, [(job.id, job.status) for job in jobs]
    assert all(len(job.error_detail or "") <= 500 for job in jobs)
    assert report.failed + report.cancelled == len(MISDEEDS)
    assert good.refresh().result == "well"


def test_a_retry_policy_that_raises_does_not_lose_the_job(app: Holdfast, clock: FakeClock, define: Define) -> None:
    def policy(number: int) -> float:
        raise ZeroDivisionError

    job = define(lambda ctx: Retry(), retry=policy).enqueue()
    drain(app)
    assert job.refresh().status == "scheduled"
    assert due_in(app, job.id) > 0


# --- what a worker cannot run ---------------------------------------------------------------------


def test_g10_a_task_that_this_worker_does_not_know_is_left(
    app: Holdfast, open_app: Callable[..., Holdfast], clock: FakeClock
) -> None:
    @app.task
    def known() -> str:
        return "here"

    other = open_app(clock=clock)

    @other.task
    def foreign() -> str:
        return "there"

    strangers = [foreign.enqueue() for _ in range(20)]
    mine = known.enqueue()
    drain(app)
    assert mine.refresh().result == "here"
    assert {(job.refresh().status, job.attempt) for job in strangers} == {("ready", 0)}
    drain(other)
    assert {job.refresh().result for job in strangers} == {"there"}


@pytest.mark.parametrize("kind", BUILT_IN_CODES, ids=lambda kind: kind.__name__)
def test_every_exception_is_retried_whatever_its_error_code(app: Holdfast, kind: type[BaseException]) -> None:
    """One rule: the code says what happened, and does not decide about a retry."""

    @app.task(max_attempts=2, retry=60)
    def fail() -> None:
        raise kind("x")

    job = fail.enqueue()
    drain(app)
    assert (job.refresh().status, job.error_code) == ("scheduled", BUILT_IN_CODES[kind])


UNREADABLE = ["no JSON", "[" * 100, "", '{"n": 1e999}', '{"n": 1']


def test_g10_a_payload_that_is_no_json_fails_alone_and_at_once(app: Holdfast, sql: Sql) -> None:
    @app.task
    def double(n: int) -> int:
        return 2 * n

    @app.task
    async def triple(n: int) -> int:
        return 3 * n

    for args in UNREADABLE:
        sql("INSERT INTO holdfast_jobs (task, args) VALUES ('double', ?), ('triple', ?)", (args, args))
    good = double.enqueue(21)
    drain(app)
    assert good.refresh().result == 42
    for (job_id,) in sql("SELECT id FROM holdfast_jobs WHERE id <> ?", (good.id,)):
        job = app.jobs.get(job_id)
        assert (job.status, job.attempt, job.error_code) == ("failed", 1, "INVALID_INPUT:PAYLOAD")


@dataclass
class Fussy:
    n: int

    def __post_init__(self) -> None:
        if self.n == 13:
            raise KeyError("thirteen")


def test_an_argument_type_that_raises_holds_up_only_its_own_job(app: Holdfast, sql: Sql) -> None:
    @app.task
    def use(fussy: Fussy) -> int:
        return fussy.n

    @app.task
    async def use_later(fussy: Fussy) -> int:
        return fussy.n

    sql("""INSERT INTO holdfast_jobs (task, args, max_attempts)
           VALUES ('use', '{"fussy": {"n": 13}}', 1), ('use_later', '{"fussy": {"n": 13}}', 1)""")
    good = use.enqueue(Fussy(1))
    drain(app, concurrency=2)
    assert good.refresh().result == 1
    assert app.jobs.count(status="ready") == 2
