"""The history of a job: its events and attempts as one timeline, written by the database itself."""

from collections.abc import Callable
from typing import Any

import pytest

from holdfast import Holdfast, Task
from holdfast.errors import JobNotFound
from holdfast.failure import Failure
from holdfast.model.job import Claimed
from holdfast.testing import FakeClock
from support.transitions import extend, fail, recover, release, retry, snooze, stop, succeed

Claim = Callable[..., Claimed]
Events = Callable[[int], list[str]]
Sql = Callable[..., list[Any]]


@pytest.fixture
def work(app: Holdfast) -> Task[[], None]:
    @app.task(max_attempts=3)
    def work() -> None: ...

    return work


def test_a_timeline_tells_events_and_attempts_in_order(
    app: Holdfast, work: Task[[], None], claim: Claim, clock: FakeClock
) -> None:
    job = work.enqueue()
    clock.advance(1)
    retry(app.store, claim(worker="w1").lease, 5_000_000, Failure("DEPENDENCY:SMTP", "refused"))
    clock.advance(5)
    claimed = claim(worker="w2")
    clock.advance(2)
    succeed(app.store, claimed.lease)
    seconds = [(entry.at - job.created_at).total_seconds() for entry in app.jobs.history(job.id)]
    told = [(entry.kind, entry.name, entry.attempt) for entry in app.jobs.history(job.id)]
    assert list(zip(seconds, told, strict=True)) == [
        (0, ("event", "enqueued", 0)),
        (1, ("event", "claimed", 1)),
        (1, ("attempt", "retry_scheduled", 1)),
        (1, ("event", "retry_scheduled", 1)),
        (6, ("event", "promoted", 1)),
        (6, ("event", "claimed", 2)),
        (6, ("attempt", "succeeded", 2)),
        (8, ("event", "succeeded", 2)),
    ]


def test_a_timeline_tells_who(app: Holdfast, work: Task[[], None], claim: Claim) -> None:
    job = work.enqueue()
    succeed(app.store, claim(worker="w1").lease)
    told = [(entry.name, entry.actor) for entry in app.jobs.history(job.id) if entry.kind == "event"]
    assert told == [("enqueued", app.store.actor), ("claimed", "w1"), ("succeeded", "w1")]


def test_an_attempt_tells_why_it_failed_and_how_long_it_took(
    app: Holdfast, work: Task[[], None], claim: Claim, clock: FakeClock
) -> None:
    job = work.enqueue()
    claimed = claim(worker="w1")
    clock.advance(3)
    fail(app.store, claimed.lease, Failure("DEPENDENCY:SMTP", "refused", "f00d", "Traceback …"))
    (attempt,) = [entry for entry in app.jobs.history(job.id) if entry.kind == "attempt"]
    assert (attempt.name, attempt.actor) == ("failed", "w1")
    assert (attempt.detail["finished_at"] - attempt.at).total_seconds() == 3
    assert {name: attempt.detail[name] for name in ("error_code", "error_detail", "fingerprint")} == {
        "error_code": "DEPENDENCY:SMTP",
        "error_detail": "refused",
        "fingerprint": "f00d",
    }
    assert app.jobs.traceback("f00d") == "Traceback …"


def test_an_attempt_under_way_is_running(app: Holdfast, work: Task[[], None], claim: Claim) -> None:
    job = work.enqueue()
    claim()
    (attempt,) = [entry for entry in app.jobs.history(job.id) if entry.kind == "attempt"]
    assert (attempt.name, attempt.attempt, "finished_at" in attempt.detail) == ("running", 1, False)


def test_an_error_of_an_earlier_attempt_is_not_told_of_a_later_one(
    app: Holdfast, work: Task[[], None], claim: Claim
) -> None:
    job = work.enqueue()
    retry(app.store, claim().lease, 0, Failure("DEPENDENCY:SMTP", "refused"))
    succeed(app.store, claim().lease)
    second = [entry for entry in app.jobs.history(job.id) if entry.kind == "attempt"][1]
    assert (second.name, "error_code" in second.detail) == ("succeeded", False)
    assert app.jobs.get(job.id).error_code is None


def test_the_details_of_an_event_say_from_where_to_where(app: Holdfast, work: Task[[], None], claim: Claim) -> None:
    job = work.enqueue()
    retry(app.store, claim().lease, 5_000_000, Failure("DEPENDENCY:SMTP", "refused"))
    last = app.jobs.history(job.id)[-1]
    assert (last.detail["from"], last.detail["to"]) == ("running", "scheduled")
    assert last.detail["error_code"] == "DEPENDENCY:SMTP"
    assert last.detail["run_at"] == app.jobs.get(job.id).run_at


def test_moments_of_an_event_are_datetimes_in_the_log_as_in_the_history(
    app: Holdfast, work: Task[[], None], claim: Claim
) -> None:
    job = work.enqueue()
    retry(app.store, claim().lease, 5_000_000, Failure("DEPENDENCY:SMTP", "refused"))
    (event,) = app.observe.last_events(1, job.id)
    assert event.detail == app.jobs.history(job.id)[-1].detail
    assert event.detail["run_at"] == app.jobs.get(job.id).run_at


def test_what_somebody_wrote_into_a_detail_by_hand_is_no_moment(
    app: Holdfast, work: Task[[], None], sql: Sql
) -> None:
    job = work.enqueue()
    statement = "INSERT INTO holdfast_events (job_id, at, event, detail) VALUES (?, 1, 'noted', ?)"
    sql(statement, (job.id, '{"run_at": "soon", "seen_at": true}'))
    assert app.jobs.history(job.id)[-1].detail == {"run_at": "soon", "seen_at": True}
    assert app.observe.last_events(1)[0].detail == {"run_at": "soon", "seen_at": True}


def test_the_history_of_no_job_is_an_error(app: Holdfast) -> None:
    with pytest.raises(JobNotFound):
        app.jobs.history(77)


def test_a_message_has_a_history_too(app: Holdfast, clock: FakeClock, events: Events) -> None:
    inbox = app.queue("inbox", max_attempts=2)
    id = inbox.send("x", delay=5)
    clock.advance(5)
    message = inbox.receive()
    assert message is not None and message.release()
    inbox.receive()
    clock.advance(60)
    inbox.receive()
    assert events(id) == ["enqueued", "promoted", "claimed", "released", "claimed", "failed"]


@pytest.mark.parametrize(
    ("settle", "expected"),
    [
        (lambda store, lease: succeed(store, lease), "succeeded"),
        (lambda store, lease: retry(store, lease, 0, Failure("INTERNAL:X")), "retry_scheduled"),
        (lambda store, lease: fail(store, lease, Failure("INTERNAL:X")), "failed"),
        (lambda store, lease: stop(store, lease, "gone"), "cancelled"),
        (lambda store, lease: snooze(store, lease, 0), "snoozed"),
        (lambda store, lease: release(store, lease, 0), "released"),
    ],
)
def test_each_transition_is_exactly_one_event_and_ends_its_attempt(
    app: Holdfast, work: Task[[], None], claim: Claim, settle: Any, expected: str
) -> None:
    job = work.enqueue()
    assert settle(app.store, claim().lease) is True
    told = [(entry.kind, entry.name) for entry in app.store.jobs.history(job.id)]
    assert told == [
        ("event", "enqueued"),
        ("event", "claimed"),
        ("attempt", expected),
        ("event", expected),
    ]


def test_extending_a_lease_is_no_transition(
    app: Holdfast, work: Task[[], None], claim: Claim, events: Events
) -> None:
    job = work.enqueue()
    extend(app.store, claim().lease, 60_000_000)
    assert events(job.id) == ["enqueued", "claimed"]


def test_a_recovered_attempt_is_one_event_and_says_why(
    app: Holdfast, work: Task[[], None], claim: Claim, clock: FakeClock
) -> None:
    job = work.enqueue()
    claim(lease=10)
    clock.advance(10)
    recover(app.store)
    event, attempt = app.jobs.history(job.id)[-1], app.jobs.history(job.id)[-2]
    assert (event.name, attempt.name) == ("recovered", "recovered")
    assert event.detail["error_code"] == attempt.detail["error_code"] == "TIMEOUT:LEASE"


def test_jobs_enqueued_together_each_have_their_event(app: Holdfast, work: Task[[], None], sql: Sql) -> None:
    ids = work.enqueue_many([{}] * 3)
    assert sql("SELECT job_id, event FROM holdfast_events ORDER BY id") == [(id, "enqueued") for id in ids]


# --- the log as a whole ---


def test_the_log_can_be_followed_by_its_ids(app: Holdfast, work: Task[[], None], claim: Claim, sql: Sql) -> None:
    job = work.enqueue()
    ((seen,),) = sql("SELECT max(id) FROM holdfast_events")
    succeed(app.store, claim().lease)
    newer = sql("SELECT job_id, event FROM holdfast_events WHERE id > ? ORDER BY id", (seen,))
    assert newer == [(job.id, "claimed"), (job.id, "succeeded")]


@pytest.mark.parametrize("how", ["delete", "purge", "plain SQL", "plain SQL, all at once"])
def test_the_id_of_an_event_never_comes_back(app: Holdfast, sql: Sql, how: str) -> None:
    inbox = app.queue("inbox")
    first, second = inbox.send("a"), inbox.send("b")
    ((seen,),) = sql("SELECT max(id) FROM holdfast_events")
    if how == "delete":
        app.jobs.delete(second)
        app.jobs.delete(first)
    elif how == "purge":
        inbox.purge()
    elif how == "plain SQL":
        sql("DELETE FROM holdfast_events WHERE id = (SELECT max(id) FROM holdfast_events)")
    else:
        sql("DELETE FROM holdfast_events")
    third = inbox.send("c")
    followed = sql("SELECT job_id FROM holdfast_events WHERE id > ? AND event = 'enqueued'", (seen,))
    assert followed == [(third,)]


def test_the_id_of_an_event_does_not_come_back_with_the_next_process(
    open_app: Callable[..., Holdfast], app: Holdfast, sql: Sql
) -> None:
    id = app.queue("inbox").send("a")
    ((seen,),) = sql("SELECT max(id) FROM holdfast_events")
    app.jobs.delete(id)
    app.close()
    open_app().queue("inbox").send("b")
    assert sql("SELECT count(*) FROM holdfast_events WHERE id > ? AND event = 'enqueued'", (seen,)) == [(1,)]


def test_a_full_traceback_is_kept_once_per_fingerprint(
    app: Holdfast, work: Task[[], None], claim: Claim, sql: Sql
) -> None:
    work.enqueue_many([{}] * 3)
    for number in range(3):
        fail(app.store, claim().lease, Failure("INTERNAL:X", f"no. {number}", "f00d", f"Traceback {number}"))
    assert sql("SELECT fingerprint, traceback FROM holdfast_tracebacks") == [("f00d", "Traceback 0")]
    assert [(one.fingerprint, one.count) for one in app.observe.failures()] == [("f00d", 3)]


def test_another_fingerprint_is_another_traceback(app: Holdfast, work: Task[[], None], claim: Claim) -> None:
    work.enqueue_many([{}] * 2)
    fail(app.store, claim().lease, Failure("INTERNAL:X", "", "aaaa", "Traceback A"))
    retry(app.store, claim().lease, 0, Failure("INTERNAL:X", "", "bbbb", "Traceback B"))
    assert [app.jobs.traceback(one) for one in ("aaaa", "bbbb", "cccc")] == ["Traceback A", "Traceback B", None]
