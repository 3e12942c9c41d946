"""The guarantees G1 to G8 and G10 of the design, each by name. G9 and G11 are in test_guarantees_of_the_disk.py."""

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.clock import SECOND
from holdfast.failure import Failure
from holdfast.model.job import Claimed, Lease
from holdfast.store.protocol import Store
from holdfast.testing import FakeClock
from support.transitions import claim_tasks, extend, fail, promote, recover, release, retry, snooze, stop, succeed

Sql = Callable[..., list[Any]]
HOUR, TEN_YEARS = 3600, 10 * 365 * 24 * 3600
FAILURE = Failure("DEPENDENCY:X", "broke")


def run_and_die(url: str, action: str, seconds: float = 0) -> str:
    """Another process does something, says what came of it, and in the next instant is killed with SIGKILL."""
    script = f"""
import os, signal, sys
from holdfast import Holdfast
from holdfast.testing import FakeClock
clock = FakeClock()
clock.advance({seconds})
app = Holdfast(sys.argv[1], clock=clock)
inbox = app.queue("inbox", max_attempts=2)
@app.task
def work(x: int) -> None: ...
{action}
os.write(1, repr(said).encode())
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", script, url], capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    return done.stdout


# --- G1: if enqueue or send returned, the job survives ---


@pytest.mark.parametrize(
    "action",
    [
        "said = [inbox.send('x')]",
        "said = inbox.send_many(range(1500))",
        "said = [work.enqueue(1).id]",
        "said = [work.using(key='k', delay=5).enqueue(1).id]",
        "said = work.enqueue_many([{'x': 1}] * 3)",
        "with app.transaction() as tx: said = [inbox.send('x', conn=tx)]",
    ],
)
def test_g1_what_was_stored_survives_kill_9(url: str, open_app: Callable[..., Holdfast], action: str) -> None:
    said = json.loads(run_and_die(url, action))
    assert said
    assert all(open_app().store.jobs.get(id) is not None for id in said[:: max(1, len(said) // 5)])


def test_g1_a_transaction_that_was_cut_off_left_nothing(url: str, open_app: Callable[..., Holdfast]) -> None:
    run_and_die(url, "block = app.transaction(); tx = block.__enter__(); said = inbox.send('x', conn=tx)")
    assert len(open_app().jobs.list()) == 0


# --- G2: if it raised, doing it again with the same key yields exactly one job ---


@pytest.mark.parametrize("stored", [True, False])
def test_g2_after_an_error_the_same_key_yields_exactly_one_job(
    app: Holdfast, monkeypatch: pytest.MonkeyPatch, stored: bool
) -> None:
    @app.task
    def work() -> None: ...

    insert = app.store.jobs.insert

    def break_off(*args: Any, **kwargs: Any) -> Any:
        if stored:
            insert(*args, **kwargs)
        raise ConnectionError("the line went dead")

    monkeypatch.setattr(app.store.jobs, "insert", break_off)
    for enqueue in (work.using(key="k").enqueue, lambda: app.queue("inbox").send("x", key="k")):
        with pytest.raises(ConnectionError):
            enqueue()
    monkeypatch.undo()
    job = work.using(key="k").enqueue()
    app.queue("inbox").send("x", key="k")
    assert job.deduplicated is stored
    assert len(app.jobs.list()) == 2


# --- G3: every job reaches one terminal state; none stays running without a live owner ---


def test_g3_every_job_reaches_one_terminal_state(app: Holdfast, clock: FakeClock) -> None:
    def settle(store: Store, one: Claimed) -> None:
        match one.task:
            case "succeeds":
                succeed(store, one.lease)
            case "gives up":
                fail(store, one.lease, FAILURE)
            case "always fails":
                retry(store, one.lease, 5 * SECOND, FAILURE)
            case "snoozes" if one.attempt < 4:
                snooze(store, one.lease, 5 * SECOND)
            case "snoozes":
                stop(store, one.lease, "enough")
            case "is given back":
                release(store, one.lease, 0)
            case "kills its worker":
                pass

    names = ["succeeds", "gives up", "always fails", "snoozes", "is given back", "kills its worker"]
    for name in names:
        app.task(name=name, max_attempts=3)(lambda: None).enqueue()
    for _ in range(20):
        for one in claim_tasks(app.store, None, names, 10, 10 * SECOND, "worker-1"):
            settle(app.store, one)
        clock.advance(5)
    ends = {job.task: job.status for job in app.jobs.list()}
    assert ends == dict.fromkeys(names, "failed") | {"succeeds": "succeeded", "snoozes": "cancelled"}


def test_g3_none_stays_running_for_longer_than_its_lease_and_one_sweep(app: Holdfast, clock: FakeClock) -> None:
    app.queue("a").send("abandoned")
    app.queue("a").receive(visibility=10)
    clock.advance(10)
    app.queue("b").receive()  # any claim sweeps
    assert app.queue("a").stats().running == 0


# --- G4: the attempt is the fencing token ---

WRITES: dict[str, Callable[[Store, Lease], bool]] = {
    "succeed": lambda store, lease: succeed(store, lease, "1"),
    "retry": lambda store, lease: retry(store, lease, SECOND, Failure("INTERNAL:X", "late", "f00d", "Traceback")),
    "fail": lambda store, lease: fail(store, lease, Failure("INTERNAL:X", "late", "f00d", "Traceback")),
    "stop": lambda store, lease: stop(store, lease, "late"),
    "snooze": lambda store, lease: snooze(store, lease, SECOND),
    "release": lambda store, lease: release(store, lease, 0),
    "release later": lambda store, lease: release(store, lease, SECOND),
    "extend": lambda store, lease: extend(store, lease, 99 * SECOND),
}


@pytest.fixture(params=WRITES.values(), ids=WRITES.keys())
def write(request: pytest.FixtureRequest) -> Callable[[Store, Lease], bool]:
    found: Callable[[Store, Lease], bool] = request.param
    return found


Write = Callable[[Store, Lease], bool]


def everything(sql: Sql) -> list[Any]:
    tables = ("jobs", "attempts", "events", "tracebacks")
    return [sorted(sql(f"SELECT * FROM holdfast_{table}"), key=repr) for table in tables]  # noqa: S608


@pytest.mark.parametrize("attempts", [2, 3])
@pytest.mark.parametrize("message", [True, False])
def test_g4_a_write_of_an_older_attempt_changes_nothing_and_says_so(
    app: Holdfast, clock: FakeClock, sql: Sql, write: Write, message: bool, attempts: int
) -> None:
    """Also where the newer attempt is the last one, for which a retry or a release means failure."""

    def claim() -> Lease:
        if message:
            return app.store.jobs.claim_messages("inbox", 1, 10 * SECOND, "w")[0].lease
        return claim_tasks(app.store, None, ["work"], 1, 10 * SECOND, "w")[0].lease

    if message:
        app.queue("inbox", max_attempts=attempts).send("x")
    else:
        app.task(name="work", max_attempts=attempts)(lambda: None).enqueue()
    old = claim()
    clock.advance(10)
    new = claim()
    assert (old.attempt, new.attempt) == (1, 2)
    before = everything(sql)
    assert write(app.store, old) is False
    assert everything(sql) == before
    assert write(app.store, new) is True


def test_g4_a_write_after_the_lease_was_given_back_changes_nothing(
    app: Holdfast, clock: FakeClock, sql: Sql, write: Write
) -> None:
    app.queue("inbox").send("x")
    (claimed,) = app.store.jobs.claim_messages("inbox", 1, 10 * SECOND, "w")
    clock.advance(10)
    recover(app.store)
    before = everything(sql)
    assert write(app.store, claimed.lease) is False
    assert everything(sql) == before


def test_g4_the_rescuer_obeys_the_fence_too(app: Holdfast, clock: FakeClock, sql: Sql) -> None:
    app.queue("inbox").send("x")
    (claimed,) = app.store.jobs.claim_messages("inbox", 1, 10 * SECOND, "w")
    clock.advance(10)
    succeed(app.store, claimed.lease)
    before = everything(sql)
    assert recover(app.store) == 0
    assert everything(sql) == before


# --- G5: a terminal state is final, but for an operator, and that is logged ---


@pytest.mark.parametrize("end", ["succeeded", "failed", "cancelled"])
def test_g5_a_terminal_state_is_final(app: Holdfast, clock: FakeClock, sql: Sql, end: str, write: Write) -> None:
    app.queue("inbox").send("x")
    (claimed,) = app.store.jobs.claim_messages("inbox", 1, 10 * SECOND, "w")
    {"succeeded": WRITES["succeed"], "failed": WRITES["fail"], "cancelled": WRITES["stop"]}[end](
        app.store, claimed.lease
    )
    before = everything(sql)
    for attempt in (1, 2):
        assert write(app.store, Lease(claimed.id, attempt)) is False
    clock.advance(TEN_YEARS)
    assert promote(app.store) == recover(app.store) == 0
    assert app.queue("inbox").receive() is None
    assert everything(sql) == before


@pytest.mark.parametrize("end", ["failed", "cancelled"])
def test_g5_only_an_operator_leaves_it_and_that_is_in_the_log(app: Holdfast, end: str) -> None:
    id = app.queue("inbox").send("x")
    (claimed,) = app.store.jobs.claim_messages("inbox", 1, 10 * SECOND, "w")
    (WRITES["fail"] if end == "failed" else WRITES["stop"])(app.store, claimed.lease)
    app.jobs.retry(id, actor="ada")
    last = app.jobs.history(id)[-1]
    assert (last.name, last.actor, last.detail) == ("requeued", "ada", {"from": end, "to": "ready"})


# --- G6: running is at least once ---


def test_g6_what_was_not_acknowledged_is_delivered_again(app: Holdfast, clock: FakeClock, url: str) -> None:
    sent = app.queue("inbox", max_attempts=2).send("x")
    said = run_and_die(url, "m = inbox.receive(); said = (m.id, m.attempt)")
    assert said == repr((sent, 1))
    clock.advance(31)
    message = app.queue("inbox").receive()
    assert message is not None
    assert (message.id, message.attempt) == (sent, 2)


# --- G7: attempt never exceeds max_attempts ---


def test_g7_a_message_that_kills_its_process_ends_failed(app: Holdfast, clock: FakeClock, url: str) -> None:
    sent = app.queue("inbox", max_attempts=2).send("poison")
    for attempt in (1, 2):
        assert run_and_die(url, "said = inbox.receive().attempt", 31.0 * (attempt - 1)) == repr(attempt)
        clock.advance(31)
    assert app.queue("inbox").receive() is None
    job = app.jobs.get(sent)
    assert (job.status, job.attempt, job.max_attempts) == ("failed", 2, 2)


@pytest.mark.parametrize("ends", ["crash", "release", "retry"])
@pytest.mark.parametrize("limit", [1, 3])
def test_g7_there_are_as_many_attempts_as_allowed(app: Holdfast, clock: FakeClock, ends: str, limit: int) -> None:
    id = app.queue("inbox", max_attempts=limit).send("x")
    for _ in range(limit + 3):
        for claimed in app.store.jobs.claim_messages("inbox", 1, 10 * SECOND, "w"):
            if ends != "crash":
                WRITES[ends](app.store, claimed.lease)
        clock.advance(10)
    job = app.jobs.get(id)
    assert (job.status, job.attempt) == ("failed", limit)


def test_g7_not_even_by_hand(app: Holdfast, sql: Sql) -> None:
    app.queue("inbox", max_attempts=3).send("x")
    with pytest.raises(Exception, match=r"(?i)check"):
        sql("UPDATE holdfast_jobs SET attempt = 4")


# --- G8: wall-clock jumps neither expire nor extend a lease ---


@pytest.mark.parametrize("jump", [HOUR, -HOUR, TEN_YEARS, -TEN_YEARS])
def test_g8_a_jump_of_the_wall_clock_does_not_touch_a_lease(app: Holdfast, clock: FakeClock, jump: int) -> None:
    inbox = app.queue("inbox")
    inbox.send("x")
    message = inbox.receive(visibility=30)
    clock.step(jump)
    clock.advance(29.9)
    assert inbox.receive() is None
    assert message is not None and message.extend(30) is True
    clock.step(-2 * jump)
    clock.advance(29.9)
    assert inbox.receive() is None
    clock.advance(0.1)
    again = inbox.receive()
    assert again is not None and again.attempt == 2


def test_g8_a_restart_of_the_program_ends_no_lease(
    app: Holdfast, clock: FakeClock, open_app: Callable[..., Holdfast]
) -> None:
    app.queue("inbox").send("x")
    app.queue("inbox").receive(visibility=10_000)
    app.close()
    assert open_app(clock=clock).queue("inbox").receive() is None


# --- G10: a worker that lacks the code leaves the job; what can't be decoded fails alone ---


def test_g10_a_worker_that_lacks_the_code_leaves_the_job(app: Holdfast, clock: FakeClock) -> None:
    job = app.task(name="new feature")(lambda: None).enqueue()
    for _ in range(3):
        assert claim_tasks(app.store, None, ["old feature"], 10, SECOND, "old worker") == []
        clock.advance(HOUR)
    assert (job.refresh().status, job.attempt) == ("ready", 0)
    assert len(claim_tasks(app.store, None, ["new feature"], 10, SECOND, "new worker")) == 1


def test_g10_a_payload_that_cannot_be_decoded_fails_that_job_alone(app: Holdfast, sql: Sql) -> None:
    first, second = app.queue("inbox").send_many([1, 2])
    sql("UPDATE holdfast_jobs SET args = '{broken' WHERE id = ?", (first,))
    assert [message.id for message in app.queue("inbox").receive_many(10)] == [second]
    assert app.jobs.get(first).error_code == "INVALID_INPUT:UNDECODABLE"
