"""The worker: middleware around handlers."""

from collections.abc import Iterator
from typing import Any

import pytest

from holdfast import Cancel, Context, Holdfast, Retry
from holdfast.errors import InvalidInput
from support.running_worker import drain

Log = list[str]


@pytest.fixture
def log(app: Holdfast) -> Log:
    """Add two layers of middleware that record what they see."""
    lines: Log = []

    def layer(name: str) -> None:
        @app.middleware
        def around(ctx: Context) -> Iterator[None]:
            lines.append(f"{name} before {ctx.task} {ctx.attempt}")
            try:
                result = yield
            except BaseException as error:
                lines.append(f"{name} saw {type(error).__name__}")
                raise
            lines.append(f"{name} after {result!r}")

    layer("outer")
    layer("inner")
    return lines


def test_the_first_middleware_is_the_outermost(app: Holdfast, define: Any, log: Log) -> None:
    job = define(lambda ctx: log.append("handler") or 42).enqueue()
    drain(app)
    assert job.refresh().result == 42
    assert log == ["outer before job 1", "inner before job 1", "handler", "inner after 42", "outer after 42"]


def test_middleware_sees_the_exception_of_the_handler(app: Holdfast, define: Any, log: Log) -> None:
    def stumble(ctx: Context) -> None:
        raise ConnectionError("no line")

    job = define(stumble, max_attempts=1).enqueue()
    drain(app)
    assert job.refresh().error_code == "DEPENDENCY:CONNECTION"
    assert log[2:] == ["inner saw ConnectionError", "outer saw ConnectionError"]


def test_middleware_sees_outcomes(app: Holdfast, define: Any, log: Log) -> None:
    def cancel(ctx: Context) -> None:
        raise Cancel("enough")

    define(lambda ctx: Retry(after=0) if len(log) < 3 else cancel(ctx)).enqueue()
    drain(app)
    assert log[2:4] == ["inner after Retry(after=0)", "outer after Retry(after=0)"]
    assert log[-2:] == ["inner saw Cancel", "outer saw Cancel"]


def test_middleware_that_raises_first_prevents_the_call_of_the_handler(app: Holdfast, define: Any, log: Log) -> None:
    @app.middleware
    def refuse(ctx: Context) -> Iterator[None]:
        raise PermissionError("not today")
        yield

    job = define(lambda ctx: log.append("handler"), max_attempts=1).enqueue()
    drain(app)
    assert job.refresh().error_code == "RESOURCE:PERMISSION"
    assert log[2:] == ["inner saw PermissionError", "outer saw PermissionError"]


def test_middleware_that_raises_after_the_handler_fails_the_job(app: Holdfast, define: Any, log: Log) -> None:
    @app.middleware
    def check(ctx: Context) -> Iterator[None]:
        result = yield
        raise ValueError(f"{result} is wrong")

    job = define(lambda ctx: 41, max_attempts=1).enqueue()
    drain(app)
    assert (job.refresh().status, job.error_detail) == ("failed", "ValueError: 41 is wrong")
    assert log[2:] == ["inner saw ValueError", "outer saw ValueError"]


def test_middleware_can_handle_or_replace_an_error(app: Holdfast, define: Any) -> None:
    @app.middleware
    def soothe(ctx: Context) -> Iterator[None]:
        try:
            yield
        except LookupError:
            pass
        except ValueError as error:
            raise Cancel("translated") from error

    errors: list[Exception] = [LookupError(), ValueError()]

    def stumble(ctx: Context) -> None:
        raise errors.pop(0)

    task = define(stumble, max_attempts=1)
    first = task.enqueue()
    drain(app)
    assert (first.refresh().status, first.result) == ("succeeded", None)
    second = task.enqueue()
    drain(app)
    assert (second.refresh().status, second.error_detail) == ("cancelled", "translated")


@pytest.mark.parametrize("fault", ["never yields", "yields twice"])
def test_middleware_that_does_not_yield_exactly_once_fails_the_job(app: Holdfast, define: Any, fault: str) -> None:
    @app.middleware
    def odd(ctx: Context) -> Iterator[None]:
        if fault == "yields twice":
            yield
            yield
        return
        yield

    job = define(lambda ctx: 1, max_attempts=1).enqueue()
    drain(app)
    assert (job.refresh().status, job.result) == ("failed", None)


def test_a_stop_iteration_of_a_handler_passes_through_middleware(app: Holdfast, log: Log) -> None:
    @app.task(max_attempts=1)
    def work() -> None:
        raise StopIteration("of its own")

    job = work.enqueue()
    drain(app)
    assert job.refresh().status == "failed"


def test_middleware_must_be_a_generator_function(app: Holdfast) -> None:
    with pytest.raises(InvalidInput, match="yield"):
        app.middleware(lambda ctx: None)
