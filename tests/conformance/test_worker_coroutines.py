"""The worker: coroutines that share an asyncio task until they suspend do not notice each other."""

import asyncio
from contextvars import ContextVar

from holdfast import Holdfast
from support.running_worker import PATIENCE_SECONDS, drain

shade: ContextVar[int] = ContextVar("shade", default=0)


def test_a_coroutine_stays_in_its_task_when_it_suspends(app: Holdfast) -> None:
    @app.task
    async def suspend(times: int) -> bool:
        first = asyncio.current_task()
        async with asyncio.timeout(PATIENCE_SECONDS):
            for _ in range(times):
                await asyncio.sleep(0)
        return asyncio.current_task() is first is not None

    ids = suspend.enqueue_many([{"times": number % 3} for number in range(30)])
    assert drain(app, concurrency=3).succeeded == len(ids)
    assert all(app.jobs.get(job_id).result is True for job_id in ids)


def test_coroutines_that_are_suspended_at_once_have_tasks_of_their_own(app: Holdfast) -> None:
    met: set[asyncio.Task[object] | None] = set()

    @app.task
    async def meet() -> int:
        met.add(asyncio.current_task())
        while len(met) < 3:
            await asyncio.sleep(0)
        return len(met)

    ids = meet.enqueue_many([{}] * 3)
    drain(app, concurrency=3)
    assert [app.jobs.get(job_id).result for job_id in ids] == [3, 3, 3]


def test_a_context_variable_is_kept_while_a_coroutine_is_suspended(app: Holdfast) -> None:
    @app.task
    async def paint(color: int) -> list[int]:
        before = shade.get()
        shade.set(color)
        await asyncio.sleep(0)
        child = asyncio.create_task(asyncio.sleep(0, shade.get()))
        return [before, shade.get(), await child]

    ids = paint.enqueue_many([{"color": color} for color in range(1, 9)])
    drain(app, concurrency=4)
    assert [app.jobs.get(job_id).result for job_id in ids] == [[0, color, color] for color in range(1, 9)]


def test_a_coroutine_that_cancels_its_own_task_does_not_cancel_the_next(app: Holdfast) -> None:
    @app.task(max_attempts=1)
    async def cancel_itself(number: int) -> int:
        if number % 2:
            await asyncio.sleep(0)
        else:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
        return number

    ids = cancel_itself.enqueue_many([{"number": number} for number in range(20)])
    assert drain(app, concurrency=20).succeeded == len(ids)
    assert [app.jobs.get(job_id).result for job_id in ids] == list(range(20))


def test_an_error_of_what_is_awaited_reaches_the_coroutine(app: Holdfast) -> None:
    @app.task
    async def wait_in_vain() -> str:
        future = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(future.set_exception, ConnectionError("no line"))
        try:
            await future
        except ConnectionError as error:
            await asyncio.sleep(0)
            return str(error)

    job = wait_in_vain.enqueue()
    drain(app)
    assert job.refresh().result == "no line"
