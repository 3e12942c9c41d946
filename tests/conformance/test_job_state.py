"""`ctx.state`: what an attempt saves for the next one."""

from typing import Any

import pytest

from holdfast import Context, Holdfast, Retry, Snooze
from holdfast.errors import InvalidPayload, LeaseLost, PayloadTooLarge
from holdfast.testing import FakeClock
from support.running_worker import drain


def test_state_that_is_saved_survives_retries_and_snoozes(app: Holdfast, define: Any) -> None:
    seen: list[Any] = []

    def work(ctx: Context) -> Any:
        seen.append(dict(ctx.state))
        ctx.state["done"] = ctx.state.get("done", 0) + 1
        ctx.save_state()
        ctx.state["done"] = 99  # not saved
        if ctx.attempt == 1:
            raise ConnectionError("no line")
        return Snooze(0) if ctx.attempt == 2 else "done"

    job = define(work, retry=0).enqueue()
    drain(app)
    assert seen == [{}, {"done": 1}, {"done": 2}]
    assert job.refresh().state == {"done": 3}


def test_state_survives_a_crash_of_the_worker(app: Holdfast, define: Any, claim: Any, clock: FakeClock) -> None:
    seen: list[Any] = []

    def work(ctx: Context) -> Any:
        seen.append(ctx.state)
        ctx.save_state({"page": ctx.attempt})

    job = define(work).enqueue()
    app.store.jobs.save_state(claim(lease=60).lease, '{"page": 7}')
    clock.advance(61)
    drain(app)
    assert seen == [{"page": 7}]
    assert job.refresh().state == {"page": 2}


def test_an_attempt_that_lost_its_lease_saves_nothing(app: Holdfast, define: Any) -> None:
    lost: list[BaseException] = []

    def work(ctx: Context) -> None:
        ctx.save_state({"mine": True})
        app.jobs.cancel(ctx.job_id)
        try:
            ctx.save_state({"mine": False})
        except LeaseLost as error:
            lost.append(error)

    job = define(work).enqueue()
    drain(app)
    assert len(lost) == 1
    assert job.refresh().state == {"mine": True}


def test_state_is_bounded_and_must_be_a_json_object(app: Holdfast, define: Any) -> None:
    refused: list[str] = []

    def work(ctx: Context) -> None:
        for wrong in ({"x": "y" * 65_536}, {"x": object()}, [1, 2]):
            with pytest.raises((PayloadTooLarge, InvalidPayload)) as raised:
                ctx.save_state(wrong)  # type: ignore[arg-type]
            refused.append(str(raised.value))

    job = define(work).enqueue()
    drain(app)
    assert refused[0].startswith("state must have at most 65,536 bytes of JSON, got 65,5")
    assert refused[2] == "state must be a dict, got list"
    assert job.refresh().state is None


def test_a_direct_call_has_a_state_that_is_not_stored(app: Holdfast) -> None:
    @app.task
    def work(ctx: Context) -> Any:
        ctx.state["a"] = 1
        ctx.save_state()
        return dict(ctx.state)

    assert work() == {"a": 1}


def test_a_job_that_an_operator_retries_keeps_its_state(app: Holdfast, define: Any) -> None:
    def work(ctx: Context) -> Any:
        ctx.save_state({"tries": ctx.state.get("tries", 0) + 1})
        raise ValueError("no")

    job = define(work, max_attempts=1).enqueue()
    drain(app)
    app.jobs.retry(job.id, attempts=1)
    drain(app)
    assert job.refresh().state == {"tries": 2}


def test_a_coroutine_saves_without_blocking_its_loop(app: Holdfast) -> None:
    @app.task(retry=0)
    async def work(ctx: Context) -> Any:
        page = ctx.state.get("page", 0)
        await ctx.asave_state({"page": page + 1})
        return Retry(after=0) if page < 2 else page

    job = work.enqueue()
    drain(app)
    assert job.refresh().result == 2


def test_the_stored_state_of_a_job_is_private(app: Holdfast, define: Any) -> None:
    job = define(lambda ctx: ctx.save_state({"token": "secret"})).enqueue()
    drain(app)
    assert "secret" not in repr(app.store.jobs.get(job.id))
