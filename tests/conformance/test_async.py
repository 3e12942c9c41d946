"""The methods for coroutines: what they do, that a wait holds no thread, and that a cancellation loses nothing."""

import asyncio
import inspect
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from random import Random
from typing import Any

import pytest

from holdfast import Batch, Chain, Holdfast, Job, Message, Queue, Then
from holdfast.app.jobs import Jobs
from holdfast.app.schedules import Schedules
from holdfast.app.task import BoundTask, Task
from holdfast.app.workflows import Batches, Chains
from holdfast.errors import InvalidInput, JobFailed, StoreClosed, TransactionError, WaitTimeout
from support.running_worker import PATIENCE_SECONDS, RunningWorker
from support.transitions import succeed

LONG = 2 * PATIENCE_SECONDS
Claim = Callable[..., Any]


@pytest.fixture
def app(open_app: Callable[..., Holdfast]) -> Holdfast:
    """Here on the real clock: it is the waiting that is tested."""
    return open_app()


def run(main: Coroutine[Any, Any, Any], threads: int = 4) -> Any:
    """Run the coroutine on a loop with so many threads."""

    async def limited() -> Any:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(threads))
        return await asyncio.wait_for(main, LONG)

    return asyncio.run(limited())


async def waiters(app: Holdfast, number: int) -> None:
    """Until so many wait."""
    while len(app.store.waiters) < number:
        await asyncio.sleep(0.001)


# --- the same as without a ---

WAITS = {"receive", "receive_many", "wait", "wait_chain"}  # have their own
TWINLESS = {
    Message: {"ack_with"},
    Job: {"failure"},
    Batch: {"seal"},
    Task: {
        "s",
        "using",
        "bind",
        "continuation",
        "check_early",
        "check_result",
        "go_on_with",
        "enqueue_encoded",
        "retries",
    },
    BoundTask: {"s", "using", "encode", "enqueue_encoded", "behind", "continuation", "new_job"},
    Schedules: {"timing", "declare", "forget"},
}
CLASSES = [Message, Queue, Job, Jobs, Chain, Chains, Batch, Batches, Schedules, Task, BoundTask]


@pytest.mark.parametrize("kind", CLASSES)
def test_every_method_that_uses_the_database_has_a_twin_for_coroutines(kind: type) -> None:
    methods = {name for name, value in vars(kind).items() if inspect.isfunction(value) and not name.startswith("_")}
    plain = {name for name in methods if not inspect.iscoroutinefunction(vars(kind)[name])}
    assert {name for name in plain - WAITS - TWINLESS.get(kind, set()) if f"a{name}" not in methods} == set()


def test_messages_in_coroutines(app: Holdfast) -> None:
    async def main() -> None:
        inbox = app.queue("inbox")
        first = await inbox.asend({"n": 1}, priority=1)
        assert await inbox.asend_many([{"n": 2}, {"n": 3}]) == [first + 1, first + 2]
        message = await inbox.areceive()
        assert message is not None and message.body == {"n": 1}
        assert await message.aextend(60) and await message.aack() and not await message.aack()
        second, third = await inbox.areceive_many(10)
        assert await second.arelease() and await third.afail("REJECTED")
        assert [letter.id for letter in await inbox.adead_letters()] == [third.id]
        assert (await inbox.astats()).ready == 1
        assert await inbox.areceive(visibility=60, wait=0.1) is not None
        assert await inbox.areceive(wait=0.01) is None

    run(main())


def test_jobs_in_coroutines(app: Holdfast) -> None:
    @app.task
    def work(n: int) -> int:
        return n

    async def main() -> None:
        job = await work.aenqueue(1)
        more = await work.aenqueue_many([{"n": 2}, {"n": 3}])
        assert (await app.jobs.aget(job.id)).args == {"n": 1}
        assert {found.id for found in await app.jobs.alist(task="work")} == {job.id, *more}
        assert await app.jobs.acount(status="ready") == 3
        assert await app.jobs.acancel(job.id, reason="twice") is True
        assert await app.jobs.aretry(status="cancelled") == 1
        assert (await job.arefresh()).status == "ready"
        assert [entry.name for entry in await app.jobs.ahistory(job.id)] == ["enqueued", "cancelled", "requeued"]
        assert "ready" in str(await app.jobs.aexplain(job.id))

    run(main())


def test_results_chains_and_batches_are_awaited(live: Holdfast) -> None:
    @live.task
    def last(n: int) -> int:
        return n * 2

    @live.task
    def first(n: int) -> Then:
        return Then(last, n)

    @live.task
    def stumble() -> None:
        raise ValueError("no")

    async def main() -> None:
        assert await (await last.aenqueue(2)).await_result(LONG) == 4
        job = await first.aenqueue(3)
        assert await job.await_chain(LONG) == 6
        assert await (await live.chains.aget(job.id)).await_result() == 6
        with live.batch() as batch:
            last.using(batch=batch).enqueue(1)
        assert (await batch.await_done(LONG)).succeeded == 1
        with pytest.raises(JobFailed):
            await (await stumble.using(max_attempts=1).aenqueue()).await_result(LONG)

    with RunningWorker(live):
        run(main())


def test_an_awaited_result_can_time_out(app: Holdfast) -> None:
    @app.task
    def work() -> int: ...

    async def main() -> None:
        with pytest.raises(WaitTimeout, match=r"after 0.05 seconds, job 1 is still ready"):
            await (await work.aenqueue()).await_result(timeout=0.05)

    run(main())


def test_conn_is_refused_since_the_call_runs_in_another_thread(app: Holdfast) -> None:
    async def main() -> None:
        with app.transaction() as tx:
            with pytest.raises(InvalidInput, match="asend runs in another thread"):
                await app.queue("inbox").asend("x", conn=tx)
            with pytest.raises(TransactionError, match=r"open app\.transaction"):
                await app.queue("inbox").asend("x")
            with pytest.raises(TransactionError, match=r"open app\.transaction"):
                await app.queue("inbox").areceive()

    run(main())


# --- waiting ---


def test_waiting_holds_no_thread(no_polling: None, app: Holdfast, claim: Claim) -> None:
    """With a single thread for the loop, a wait that held it would keep all others from going on."""

    @app.task
    def work() -> int: ...

    async def main() -> None:
        inbox, job = app.queue("inbox"), work.enqueue()
        receiving = [asyncio.ensure_future(inbox.areceive(wait=LONG)) for _ in range(50)]
        awaiting = [asyncio.ensure_future(job.await_result(LONG)) for _ in range(50)]
        await waiters(app, 100)
        before = threading.active_count()
        await inbox.asend_many(range(50))
        assert sorted(message.body for message in await asyncio.gather(*receiving) if message) == list(range(50))
        await asyncio.to_thread(lambda: succeed(app.store, claim().lease, "7"))
        assert set(await asyncio.gather(*awaiting)) == {7}
        assert threading.active_count() <= before

    run(main(), threads=1)


def test_a_wait_ends_with_a_commit_by_another_program(
    no_polling: None, app: Holdfast, open_app: Callable[..., Holdfast]
) -> None:
    other = open_app(durability="normal")

    async def main() -> None:
        for n in range(3):
            receiving = asyncio.ensure_future(app.queue("inbox").areceive(wait=LONG))
            await waiters(app, 1)
            other.queue("inbox").send(n)
            message = await receiving
            assert message is not None and message.body == n

    run(main())


def test_threads_and_coroutines_wait_together(no_polling: None, app: Holdfast) -> None:
    """The waiter that leads leaves, and another takes over."""
    inbox = app.queue("inbox")

    async def main() -> None:
        for kinds in ("ct", "tc", "ctc", "tct"):
            receiving: list[asyncio.Task[Any]] = []
            for kind in kinds:
                if kind == "c":
                    receiving.append(asyncio.ensure_future(inbox.areceive(wait=LONG)))
                else:
                    receiving.append(asyncio.ensure_future(asyncio.to_thread(inbox.receive, wait=LONG)))
                await waiters(app, len(receiving))
            for _ in kinds:
                inbox.send("x")
                done, waiting = await asyncio.wait(receiving, return_when=asyncio.FIRST_COMPLETED)
                assert [one.result().ack() for one in done] == [True]
                receiving = list(waiting)

    run(main())


def test_closing_ends_the_waits_of_coroutines(app: Holdfast) -> None:
    async def main() -> None:
        receiving = [asyncio.ensure_future(app.queue("inbox").areceive(wait=LONG)) for _ in range(5)]
        await waiters(app, 5)
        await asyncio.to_thread(app.close)
        found = await asyncio.gather(*receiving, return_exceptions=True)
        assert [type(one) for one in found] == [StoreClosed] * 5

    run(main())
    assert not [thread for thread in threading.enumerate() if thread.name == "holdfast-waiters"]


# --- cancelling ---


def test_a_cancelled_wait_is_forgotten(app: Holdfast) -> None:
    async def main() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await app.queue("inbox").areceive(wait=LONG)
        assert len(app.store.waiters) == 0

    run(main())


@pytest.mark.parametrize("history", [True, False])
def test_a_message_that_a_cancelled_receive_has_claimed_is_given_back(
    app: Holdfast, monkeypatch: pytest.MonkeyPatch, history: bool
) -> None:
    inbox = app.queue("inbox", max_attempts=1, history=history)
    inbox.send("precious")
    claimed, go_on, claim = threading.Event(), threading.Event(), app.store.jobs.claim_messages

    def claim_slowly(*args: Any) -> Any:
        found = claim(*args)
        claimed.set()
        go_on.wait(PATIENCE_SECONDS)
        return found

    async def main() -> None:
        receiving = asyncio.ensure_future(inbox.areceive(wait=LONG))
        await asyncio.to_thread(claimed.wait, PATIENCE_SECONDS)
        receiving.cancel()
        await asyncio.sleep(0)
        receiving.cancel()  # impatiently
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await receiving

    with monkeypatch.context() as patch:
        patch.setattr(app.store.jobs, "claim_messages", claim_slowly)
        run(main())
    message = inbox.receive()
    assert message is not None and message.body == "precious", "given back, and the delivery did not count"
    assert message.ack()


def test_a_receive_that_is_cancelled_when_it_was_woken_leaves_the_message_to_another(
    no_polling: None, app: Holdfast, open_app: Callable[..., Holdfast], monkeypatch: pytest.MonkeyPatch
) -> None:
    other = open_app(durability="normal")  # its commit is noticed once

    async def main() -> None:
        first, second = (asyncio.ensure_future(app.queue("inbox").areceive(wait=LONG)) for _ in range(2))
        await waiters(app, 2)
        woken, find, wait = threading.Event(), app.store.waiters.find, app.store.wait_for_commit
        found: list[Any] = []

        def find_and_note(awaited: Any) -> Any:
            happened = find(awaited)
            found.extend(happened.ended)
            return happened

        def tell_and_wait(*args: Any, **options: Any) -> Any:
            if found:
                woken.set()
            return wait(*args, **options)

        monkeypatch.setattr(app.store.waiters, "find", find_and_note)
        monkeypatch.setattr(app.store, "wait_for_commit", tell_and_wait)
        other.queue("inbox").send("x")
        woken.wait(PATIENCE_SECONDS)  # blocks the loop: the first was woken and does not know it yet
        first.cancel()
        message = await second
        assert message is not None and message.body == "x"
        assert first.cancelled()

    run(main())


def test_a_send_that_is_cancelled_is_waited_for(app: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go_on, insert = threading.Event(), threading.Event(), app.store.jobs.insert

    def insert_slowly(*args: Any) -> Any:
        begun.set()
        go_on.wait(PATIENCE_SECONDS)
        return insert(*args)

    monkeypatch.setattr(app.store.jobs, "insert", insert_slowly)

    async def main() -> None:
        sending = asyncio.ensure_future(app.queue("inbox").asend("x"))
        await asyncio.to_thread(begun.wait, PATIENCE_SECONDS)
        sending.cancel()
        asyncio.get_running_loop().call_later(0.05, go_on.set)
        with pytest.raises(asyncio.CancelledError):
            await sending
        assert app.queue("inbox").stats().ready == 1, "it is known what became of it"

    run(main())


def test_the_end_of_the_event_loop_loses_no_message(app: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    """asyncio.run cancels all tasks: the one that receives and whatever it started."""
    inbox, claim = app.queue("inbox"), app.store.jobs.claim_messages
    claimed, go_on = threading.Event(), threading.Event()

    def claim_slowly(*args: Any) -> Any:
        found = claim(*args)
        claimed.set()
        go_on.wait(0.2)
        return found

    async def main() -> None:
        receiving = asyncio.ensure_future(inbox.areceive(wait=LONG))
        await asyncio.to_thread(claimed.wait, PATIENCE_SECONDS)
        assert not receiving.done()

    inbox.send("precious")
    with monkeypatch.context() as patch:
        patch.setattr(app.store.jobs, "claim_messages", claim_slowly)
        asyncio.run(main())
    assert inbox.receive() is not None


def test_every_message_is_received_while_receivers_come_and_go(no_polling: None, app: Holdfast) -> None:
    """Threads and coroutines wait for a moment, are cancelled, or wait for long: no message is forgotten."""
    inbox, chance, received = app.queue("inbox", visibility=3600), Random(7), set[int]()
    expected: set[int] = set()
    over = threading.Event()

    def consume() -> None:
        while not over.is_set():
            message = inbox.receive(wait=chance.choice([0.001, 0.01, LONG]))
            if message is not None and message.ack():
                received.add(message.id)

    async def aconsume() -> None:
        while not over.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(chance.choice([0.0005, 0.002, 0.01, LONG])):
                    message = await inbox.areceive(wait=LONG)
                if message is not None and await message.aack():
                    received.add(message.id)

    async def main() -> None:
        threads = [asyncio.ensure_future(asyncio.to_thread(consume)) for _ in range(4)]
        coroutines = [asyncio.ensure_future(aconsume()) for _ in range(12)]
        for _ in range(60):
            expected.update(await inbox.asend_many(range(chance.choice([1, 2, 5]))))
            await asyncio.sleep(chance.choice([0, 0.001, 0.005]))
        while received != expected:
            await asyncio.sleep(0.005)
        over.set()
        for one in coroutines:
            one.cancel()
        await inbox.asend_many(range(4))  # for the threads that wait
        await asyncio.gather(*threads, *coroutines, return_exceptions=True)

    run(main(), threads=8)


def test_a_message_of_a_cancelled_receive_is_given_back_although_all_threads_are_busy(app: Holdfast) -> None:
    """The threads of the loop may wait for that very message."""
    inbox, claimed, go_on = app.queue("inbox"), threading.Event(), threading.Event()
    claim = inbox._claim

    def claim_and_wait(*args: Any) -> Any:
        found = claim(*args)
        claimed.set()
        go_on.wait(PATIENCE_SECONDS)
        return found

    inbox._claim = claim_and_wait  # type: ignore[method-assign]
    inbox.send("x")

    async def main() -> bool:
        loop = asyncio.get_running_loop()
        receiving = asyncio.ensure_future(inbox.areceive(wait=LONG))
        while not claimed.is_set():
            await asyncio.sleep(0)
        busy = loop.run_in_executor(None, lambda: app.queue("inbox").receive(wait=10))  # takes the only thread next
        receiving.cancel()
        await asyncio.sleep(0)
        go_on.set()
        with suppress(asyncio.CancelledError):
            await receiving
        return await busy is not None

    assert run(main(), threads=1)
