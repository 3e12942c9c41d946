"""Waiting for a job's end, and for messages: ended by a commit, whoever makes it, and never by polling."""

import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from holdfast import Holdfast, Message, Task
from holdfast.errors import JobFailed, JobNotFound, NoResult, StoreClosed, WaitTimeout
from holdfast.failure import Failure
from holdfast.model.job import Claimed
from holdfast.store.wake_up import Waiter
from support.backend import Backend
from support.running_worker import PATIENCE_SECONDS
from support.transitions import fail, succeed

Claim = Callable[..., Claimed]


@pytest.fixture
def app(open_app: Callable[..., Holdfast]) -> Holdfast:
    """Here on the real clock: it is the waiting that is tested."""
    return open_app()


@pytest.fixture
def work(app: Holdfast) -> Task[[], list[int]]:
    @app.task
    def work() -> list[int]: ...

    return work


@pytest.fixture
def waiting(monkeypatch: pytest.MonkeyPatch) -> "queue.Queue[None]":
    """Gets an item whenever a thread starts to wait."""
    begun: queue.Queue[None] = queue.Queue()
    wait = Waiter.wait

    def tell_and_wait(*args: Any) -> Any:
        begun.put(None)
        return wait(*args)

    monkeypatch.setattr(Waiter, "wait", tell_and_wait)
    return begun


Waiting = queue.Queue[None]


def in_thread(call: Callable[[], Any]) -> Callable[[], Any]:
    """Runs the call in a thread; the function it gives waits for the result, or for the exception."""
    done: list[Any] = []

    def run() -> None:
        try:
            done.append(call())
        except Exception as error:  # noqa: BLE001  shown by the test
            done.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()

    def result() -> Any:
        thread.join(PATIENCE_SECONDS)
        assert done, "it still waits"
        return done[0]

    return result


# --- job.wait ---


def test_wait_returns_the_result_in_its_type(app: Holdfast, work: Task[[], list[int]], claim: Claim) -> None:
    job = work.enqueue()
    succeed(app.store, claim().lease, "[1,2]")
    assert job.wait(timeout=0) == [1, 2]
    assert (job.status, job.result) == ("succeeded", [1, 2])


def test_wait_returns_none_only_if_the_annotation_allows_none(
    app: Holdfast, work: Task[[], list[int]], claim: Claim
) -> None:
    @app.task
    def maybe() -> list[int] | None: ...

    job = work.enqueue()
    succeed(app.store, claim().lease)
    with pytest.raises(NoResult, match="succeeded without a result, which work is annotated to have"):
        job.wait(timeout=0)
    other = maybe.enqueue()
    succeed(app.store, claim().lease)
    assert other.wait(timeout=0) is None


def test_wait_raises_what_became_of_a_failed_job(app: Holdfast, work: Task[[], list[int]], claim: Claim) -> None:
    job = work.enqueue()
    fail(app.store, claim().lease, Failure("DEPENDENCY:SMTP", "refused"))
    with pytest.raises(JobFailed, match="DEPENDENCY:SMTP: refused") as caught:
        job.wait(timeout=0)
    error = caught.value
    assert (error.job_id, error.status, error.code, error.detail) == (job.id, "failed", "DEPENDENCY:SMTP", "refused")


def test_wait_raises_for_a_cancelled_job(app: Holdfast, work: Task[[], list[int]]) -> None:
    job = work.enqueue()
    app.jobs.cancel(job.id, reason="ordered twice")
    with pytest.raises(JobFailed, match="cancelled: ordered twice"):
        job.wait(timeout=0)


@pytest.mark.parametrize("timeout", [0, 0.05])
def test_wait_raises_when_the_time_is_over_and_the_job_goes_on(work: Task[[], list[int]], timeout: float) -> None:
    job = work.enqueue()
    with pytest.raises(WaitTimeout, match=r"still ready \(app.jobs.explain\(1\) says why\)"):
        job.wait(timeout=timeout)
    assert job.refresh().status == "ready"


def test_wait_for_a_deleted_job_says_so(app: Holdfast, work: Task[[], list[int]]) -> None:
    job = work.enqueue()
    app.jobs.delete(job.id)
    with pytest.raises(JobNotFound):
        job.wait(timeout=0)


def test_wait_ends_when_another_thread_settles_the_job(
    no_polling: None, app: Holdfast, work: Task[[], list[int]], claim: Claim, waiting: Waiting
) -> None:
    job = work.enqueue()
    claimed = claim()
    result = in_thread(job.wait)
    waiting.get(timeout=PATIENCE_SECONDS)
    succeed(app.store, claimed.lease, "[7]")
    assert result() == [7]


def test_wait_ends_when_another_process_settles_the_job(
    no_polling: None,
    app: Holdfast,
    open_app: Callable[..., Holdfast],
    work: Task[[], list[int]],
    claim: Claim,
    waiting: Waiting,
) -> None:
    job = work.enqueue()
    claimed = claim()
    other = open_app(durability="normal")  # so that the wake-up does not come long before the commit
    result = in_thread(job.wait)
    waiting.get(timeout=PATIENCE_SECONDS)
    succeed(other.store, claimed.lease, "[7]")
    assert result() == [7]


def test_waiting_does_not_spin_while_something_is_overdue(
    app: Holdfast, work: Task[[], list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a worker nobody promotes the due job or recovers the ended lease: that is no reason to hurry."""
    app.queue("other").send("due", delay=0.001)
    app.queue("other").send("abandoned")
    app.queue("other").receive(visibility=0)
    looks, get = [], app.store.jobs.get
    monkeypatch.setattr(app.store.jobs, "get", lambda id: looks.append(id) or get(id))
    with pytest.raises(WaitTimeout):
        work.enqueue().wait(timeout=0.3)
    assert len(looks) < 50


# --- receive(wait=…) ---


def test_a_wait_for_nothing_ends_when_its_time_is_over(app: Holdfast) -> None:
    started = time.monotonic()
    assert app.queue("inbox").receive(wait=0.1) is None
    assert time.monotonic() - started >= 0.1


def test_a_wait_does_not_wait_where_there_is_a_message(app: Holdfast, waiting: Waiting) -> None:
    app.queue("inbox").send("here")
    assert app.queue("inbox").receive(wait=PATIENCE_SECONDS) is not None
    assert waiting.empty()


def ends_a_wait(app: Holdfast, waiting: Waiting, send: Callable[[], object], tries: int = 3) -> bool:
    """Whether what was sent ends a long poll that has begun."""
    for _ in range(tries):
        result = in_thread(lambda: app.queue("inbox").receive(wait=2 * PATIENCE_SECONDS))
        waiting.get(timeout=PATIENCE_SECONDS)
        send()
        assert isinstance(result(), Message)
        while not waiting.empty():
            waiting.get_nowait()
    return True


def test_a_wait_ends_with_a_send_by_a_thread(no_polling: None, app: Holdfast, waiting: Waiting) -> None:
    assert ends_a_wait(app, waiting, lambda: app.queue("inbox").send("hello"))


def test_a_wait_ends_with_a_commit_by_plain_sql(
    no_polling: None, app: Holdfast, backend: Backend, waiting: Waiting
) -> None:
    connection = backend.connect()

    def send() -> None:
        connection.execute("INSERT INTO holdfast_jobs (queue, args) VALUES ('inbox', '1')")
        connection.commit()

    assert ends_a_wait(app, waiting, send)
    connection.close()


def test_a_wait_ends_with_app_transaction(no_polling: None, app: Holdfast, waiting: Waiting) -> None:
    def send() -> None:
        with app.transaction() as tx:
            app.queue("inbox").send("hello", conn=tx)

    assert ends_a_wait(app, waiting, send)


SENDER = """
import sys
from holdfast import Holdfast
inbox = Holdfast(sys.argv[1], durability="normal").queue("inbox")
print("ready", flush=True)
for line in sys.stdin:
    inbox.send(line)
    print("sent", flush=True)
"""


@pytest.fixture
def sender(app: Holdfast, url: str) -> Iterator["subprocess.Popen[str]"]:
    """Another process, that sends a message for every line it reads."""
    command = [sys.executable, "-c", SENDER, url]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        yield process
        process.kill()


def test_a_wait_ends_with_a_send_by_another_process(
    no_polling: None, app: Holdfast, waiting: Waiting, sender: "subprocess.Popen[str]"
) -> None:
    def send() -> None:
        assert sender.stdin is not None and sender.stdout is not None
        sender.stdin.write("go\n")
        sender.stdin.flush()
        assert sender.stdout.readline() == "sent\n"

    assert ends_a_wait(app, waiting, send)


def test_a_wait_ends_when_a_delayed_message_falls_due(no_polling: None, app: Holdfast) -> None:
    app.queue("inbox").send("later", delay=0.2)
    message = in_thread(lambda: app.queue("inbox").receive(wait=2 * PATIENCE_SECONDS))()
    assert isinstance(message, Message) and message.body == "later"


def test_a_wait_ends_when_the_visibility_of_another_ends(no_polling: None, app: Holdfast) -> None:
    app.queue("inbox").send("abandoned")
    app.queue("inbox").receive(visibility=0.2)
    message = in_thread(lambda: app.queue("inbox").receive(wait=2 * PATIENCE_SECONDS))()
    assert isinstance(message, Message) and message.attempt == 2


def test_a_wait_ends_when_the_queue_is_resumed(
    no_polling: None, app: Holdfast, open_app: Callable[..., Holdfast], waiting: Waiting
) -> None:
    app.queue("inbox").send("paused")
    app.queue("inbox").pause()
    other = open_app(durability="normal")  # so that the wake-up does not come long before the commit
    assert ends_a_wait(app, waiting, lambda: other.queue("inbox").resume(), tries=1)


def test_several_waits_share_what_comes(app: Holdfast, waiting: Waiting) -> None:
    results = [in_thread(lambda: app.queue("inbox").receive(wait=2 * PATIENCE_SECONDS)) for _ in range(3)]
    for _ in results:
        waiting.get(timeout=PATIENCE_SECONDS)
    sent = app.queue("inbox").send_many(["a", "b", "c"])
    assert sorted(result().id for result in results) == sent


def test_closing_ends_a_wait_with_an_error(app: Holdfast, waiting: Waiting) -> None:
    result = in_thread(lambda: app.queue("inbox").receive(wait=2 * PATIENCE_SECONDS))
    waiting.get(timeout=PATIENCE_SECONDS)
    app.close()
    assert isinstance(result(), StoreClosed)
