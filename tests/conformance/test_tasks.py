"""Tasks: calling them, enqueueing them one by one and in bulk, and the options of an enqueue."""

import asyncio
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any, NoReturn
from zoneinfo import ZoneInfo

import pytest

from holdfast import Context, Fail, Holdfast, Then
from holdfast.errors import InvalidArguments, InvalidInput, InvalidTask
from holdfast.testing import FakeClock, drain
from support.backend import Backend
from support.running_worker import comes_true
from support.transitions import claim_tasks


def test_a_call_runs_the_function_here_and_stores_nothing(app: Holdfast) -> None:
    @app.task
    def add(first: int, second: int = 2) -> int:
        return first + second

    assert add(1) == 3
    assert add(1, second=5) == 6
    assert len(app.jobs.list()) == 0


def test_a_call_of_an_async_task_gives_a_coroutine(app: Holdfast) -> None:
    @app.task
    async def add(first: int, second: int) -> int:
        return first + second

    assert asyncio.run(add(1, 2)) == 3


def test_a_call_fills_in_the_context_without_a_job(app: Holdfast) -> None:
    @app.task(queue="rows")
    def import_row(ctx: Context, row: int) -> tuple[int, int | None, str, str]:
        return row, ctx.job_id, ctx.task, ctx.queue

    assert import_row(7) == (7, None, "import_row", "rows")


def test_enqueue_stores_a_job(app: Holdfast) -> None:
    @app.task
    def send_mail(to: str, subject: str) -> None: ...

    job = send_mail.enqueue("ada@example.org", subject="hi")
    stored = app.jobs.get(job.id)
    assert (stored.task, stored.queue, stored.status, stored.attempt) == ("send_mail", "default", "ready", 0)
    assert stored.args == {"to": "ada@example.org", "subject": "hi"}


def test_what_enqueue_returns_is_what_is_stored(app: Holdfast) -> None:
    @app.task(queue="mail", priority=3, max_attempts=7, timeout=30)
    def send_mail(to: str) -> None: ...

    job = send_mail.using(delay=60, key="k", tags=["a", "b"]).enqueue("ada")
    assert app.store.jobs.get(job.id) == job._record


def test_arguments_are_stored_as_readable_json(app: Holdfast, sql: Callable[..., list[Any]]) -> None:
    @app.task
    def greet(to: str, times: int = 1) -> None: ...

    greet.enqueue("Žofie 🪸")
    assert sql("SELECT args FROM holdfast_jobs") == [('{"to":"Žofie 🪸"}',)]


def test_an_async_task_is_enqueued_like_any_other(app: Holdfast) -> None:
    @app.task
    async def fetch(address: str) -> None: ...

    assert app.jobs.get(fetch.enqueue("x").id).args == {"address": "x"}


def test_the_context_is_no_part_of_the_payload(app: Holdfast) -> None:
    @app.task
    def import_row(ctx: Context, row: int) -> None: ...

    assert app.jobs.get(import_row.enqueue(7).id).args == {"row": 7}


def test_the_context_is_found_by_its_annotation_wherever_it_stands(app: Holdfast) -> None:
    @app.task
    def import_row(row: int, *, where: Context) -> int | None:
        return where.job_id

    assert app.jobs.get(import_row.enqueue(7).id).args == {"row": 7}  # type: ignore[call-arg]
    assert import_row(7) is None  # type: ignore[call-arg]


def test_a_task_may_return_anything_or_an_outcome_or_never(app: Holdfast) -> None:
    @app.task
    def anything(value: object, more: dict[str, object] | None = None, rest: object = None) -> object:
        return {"value": value, "more": more}

    @app.task
    def value_or_then(last: bool) -> str | Then:
        return "done" if last else Then(value_or_then, True)

    @app.task
    def never() -> NoReturn:
        raise Fail("INVALID_INPUT:ALWAYS")

    jobs = anything.enqueue(1, {"a": [2]}), value_or_then.enqueue(False), never.enqueue()
    drain(app)
    assert jobs[0].wait() == {"value": 1, "more": {"a": [2]}}
    assert (jobs[1].refresh().result, jobs[1].wait_chain()) == (None, "done")
    assert (jobs[2].refresh().status, jobs[2].error_code) == ("failed", "INVALID_INPUT:ALWAYS")


def test_using_can_lift_the_timeout_of_the_task(app: Holdfast) -> None:
    @app.task(timeout=30)
    def slow() -> None: ...

    assert (slow.enqueue().timeout, slow.using(timeout=None).enqueue().timeout) == (30, None)


def test_a_task_is_named_after_its_function_or_as_told(app: Holdfast) -> None:
    @app.task(name="mail.send")
    def send() -> None: ...

    @app.task
    def tidy() -> None: ...

    assert (send.enqueue().task, tidy.enqueue().task) == ("mail.send", "tidy")


def test_two_functions_cannot_share_a_name(app: Holdfast) -> None:
    @app.task(name="same")
    def one() -> None: ...

    with pytest.raises(InvalidTask, match="taken"):

        @app.task(name="same")
        def two() -> None: ...


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        ((), {}),
        (("a",), {}),
        (("a", 1, 2), {}),
        (("a",), {"to": "b", "count": 1}),
        (("a", 1), {"unknown": 1}),
        ((1, 1), {}),
        (("a", "1"), {}),
        (("a", True), {}),
        (("a", None), {}),
    ],
)
def test_arguments_that_do_not_fit_are_refused_and_nothing_is_stored(app: Holdfast, args: Any, kwargs: Any) -> None:
    @app.task
    def send_mail(to: str, count: int) -> None: ...

    with pytest.raises(InvalidArguments, match="send_mail"):
        send_mail.enqueue(*args, **kwargs)
    assert len(app.jobs.list()) == 0


# --- using ---


def test_using_sets_everything_for_one_enqueue(app: Holdfast) -> None:
    @app.task
    def work(x: int) -> None: ...

    at = datetime(2030, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
    bound = work.using(
        queue="slow", priority=-3, run_at=at, key="k", max_attempts=9, timeout=timedelta(minutes=2), tags=["b", "a"]
    )
    job = app.jobs.get(bound.enqueue(1).id)
    assert (job.queue, job.priority, job.run_at, job.key) == ("slow", -3, at, "k")
    assert (job.max_attempts, job.timeout, job.status) == (9, 120.0, "scheduled")
    assert job.tags == ("b", "a")


def test_using_leaves_the_task_as_it_was(app: Holdfast) -> None:
    @app.task
    def work() -> None: ...

    work.using(queue="slow", priority=5).enqueue()
    job = work.enqueue()
    assert (job.queue, job.priority) == ("default", 0)


def test_using_upon_using_leaves_the_first_as_it_was(app: Holdfast) -> None:
    @app.task
    def work() -> None: ...

    slow = work.using(queue="slow")
    urgent = slow.using(priority=5)
    assert (slow.enqueue().priority, urgent.enqueue().queue, urgent.enqueue().priority) == (0, "slow", 5)


def test_a_delay_is_seconds_or_a_timedelta(app: Holdfast, clock: FakeClock) -> None:
    @app.task
    def work() -> None: ...

    seconds, delta = work.using(delay=90).enqueue(), work.using(delay=timedelta(seconds=90)).enqueue()
    assert seconds.run_at == delta.run_at == seconds.created_at + timedelta(seconds=90)
    assert claim_tasks(app.store, None, ["work"], 2, 1, "worker-1") == []
    clock.advance(90)
    assert len(claim_tasks(app.store, None, ["work"], 2, 1, "worker-1")) == 2


def test_a_run_at_in_another_time_zone_is_the_same_moment(app: Holdfast) -> None:
    @app.task
    def work() -> None: ...

    at = datetime(2030, 7, 1, 12, 0, tzinfo=ZoneInfo("Europe/Zurich"))
    assert work.using(run_at=at).enqueue().refresh().run_at == datetime(2030, 7, 1, 10, 0, tzinfo=UTC)


def test_a_run_at_in_the_past_is_ready_now(app: Holdfast) -> None:
    @app.task
    def work() -> None: ...

    assert work.using(run_at=datetime(2001, 1, 1, tzinfo=UTC)).enqueue().refresh().status == "ready"


def test_delay_and_run_at_together_are_refused(app: Holdfast) -> None:
    @app.task
    def work() -> None: ...

    with pytest.raises(InvalidInput, match="both say when"):
        work.using(delay=1).using(run_at=datetime(2030, 1, 1, tzinfo=UTC))


# --- many ---


def test_enqueue_many_stores_one_job_per_mapping_in_order(app: Holdfast) -> None:
    @app.task
    def send_mail(to: str, subject: str = "hi") -> None: ...

    ids = send_mail.enqueue_many([{"to": "a"}, {"to": "b", "subject": "yo"}])
    assert [app.jobs.get(id).args for id in ids] == [{"to": "a"}, {"to": "b", "subject": "yo"}]


def test_enqueue_many_takes_the_options_of_using(app: Holdfast) -> None:
    @app.task
    def work(x: int) -> None: ...

    (id,) = work.using(queue="slow", priority=2, delay=60, tags="bulk", max_attempts=9).enqueue_many([{"x": 1}])
    job = app.jobs.get(id)
    assert (job.queue, job.priority, job.status, job.tags, job.max_attempts) == ("slow", 2, "scheduled", ("bulk",), 9)


@pytest.mark.parametrize("place", [0, 7, 2345])
def test_one_wrong_mapping_and_none_is_enqueued(app: Holdfast, place: int) -> None:
    @app.task
    def work(x: int) -> None: ...

    calls: list[dict[str, Any]] = [{"x": 1}] * place + [{"x": "one"}] + [{"x": 2}]
    with pytest.raises(InvalidArguments):
        work.enqueue_many(calls)
    assert len(app.jobs.list()) == 0


@pytest.mark.parametrize(("count", "size"), [(10_000, 2_000), (100, 1_000_000)])
def test_enqueue_many_needs_little_memory(app: Holdfast, count: int, size: int) -> None:
    @app.task
    def work(number: int, text: str) -> None: ...

    def calls() -> Iterator[dict[str, Any]]:
        for number in range(count):
            yield {"number": number, "text": "x" * size}

    tracemalloc.start()
    try:
        ids = work.enqueue_many(calls())
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(ids) == count
    assert peak < 20_000_000, f"{peak:,} bytes for {count * size:,} bytes of payloads"


# --- asyncio ---


def test_aenqueue_stores_a_job(app: Holdfast) -> None:
    @app.task
    def work(x: int) -> None: ...

    async def main() -> list[int]:
        return [(await work.aenqueue(1)).id, (await work.using(priority=1).aenqueue(x=2)).id]

    assert [app.jobs.get(id).args for id in asyncio.run(main())] == [{"x": 1}, {"x": 2}]


def test_aenqueue_leaves_the_loop_free_while_it_commits(app: Holdfast) -> None:
    @app.task
    def work() -> None: ...

    async def main() -> None:
        with app.transaction():  # so that the enqueue has to wait
            enqueueing = asyncio.create_task(work.aenqueue())
            await asyncio.sleep(0)
            assert not enqueueing.done()
        await enqueueing

    asyncio.run(main())
    assert len(app.jobs.list()) == 1


@pytest.mark.parametrize("cancellations", [1, 2])
def test_a_cancelled_aenqueue_raises_only_after_its_commit(
    app: Holdfast, monkeypatch: pytest.MonkeyPatch, cancellations: int
) -> None:
    @app.task
    def work() -> None: ...

    writing, go_on = threading.Event(), threading.Event()
    insert = app.store.jobs.insert

    def tell_and_insert(*args: Any, **kwargs: Any) -> Any:
        writing.set()
        comes_true(go_on)
        return insert(*args, **kwargs)

    monkeypatch.setattr(app.store.jobs, "insert", tell_and_insert)

    async def main() -> int:
        enqueueing = asyncio.create_task(work.aenqueue())
        await asyncio.to_thread(writing.wait)
        for _ in range(cancellations):
            enqueueing.cancel()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        early = enqueueing.done()
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await enqueueing
        assert not early, "CancelledError came before the commit was done"
        return len(app.jobs.list())

    assert asyncio.run(main()) == 1


def test_aenqueue_refuses_a_connection(app: Holdfast, backend: Backend) -> None:
    @app.task
    def work() -> None: ...

    connection = backend.connect()
    with pytest.raises(InvalidInput, match="thread"):
        asyncio.run(work.using(conn=connection).aenqueue())
    connection.close()


# --- chance ---


def test_chance_is_injected(open_app: Callable[..., Holdfast]) -> None:
    first, second, other = (open_app(random=Random(seed)) for seed in (1, 1, 2))
    assert first.store.actor == second.store.actor != other.store.actor
