"""Plain SQL as an interface: any program or trigger that can INSERT can enqueue, and edits are logged."""

import time
from collections.abc import Callable
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.clock import SECOND
from holdfast.model.job import Claimed
from holdfast.testing import FakeClock
from support.backend import Backend
from support.transitions import claim_tasks, recover, succeed

Claim = Callable[..., Claimed]
Events = Callable[[int], list[str]]
Sql = Callable[..., list[Any]]


@pytest.fixture
def clock() -> FakeClock:
    """It stands where SQL's own clock stands, or nearly."""
    return FakeClock(now=time.time_ns() // 1000)


def insert(sql: Sql, **columns: Any) -> int:
    names, places = ", ".join(columns), ", ".join("?" * len(columns))
    values = list(columns.values())
    ((id,),) = sql(f"INSERT INTO holdfast_jobs ({names}) VALUES ({places}) RETURNING id", values)  # noqa: S608
    return int(id)


# --- INSERT ---


def test_an_insert_of_task_and_args_is_a_complete_enqueue(app: Holdfast, sql: Sql, claim: Claim) -> None:
    @app.task
    def send_mail(to: str) -> None: ...

    id = insert(sql, task="send_mail", args='{"to": "ada"}')
    claimed = claim("send_mail")
    assert claimed.id == id
    assert send_mail.signature.decode(claimed.args) == ((), {"to": "ada"})
    assert succeed(app.store, claimed.lease) is True


def test_an_insert_has_its_event(app: Holdfast, sql: Sql) -> None:
    before = time.time()
    id = insert(sql, task="send_mail", args="{}")
    (entry,) = app.jobs.history(id)
    assert (entry.kind, entry.name, entry.actor) == ("event", "enqueued", "sql")
    assert before - 1 < entry.at.timestamp() < time.time() + 1


def test_an_insert_has_the_defaults_of_an_enqueue(app: Holdfast, sql: Sql) -> None:
    @app.task
    def work() -> None: ...

    inserted, enqueued = app.jobs.get(insert(sql, task="work")), app.jobs.get(work.enqueue().id)
    for name in ("queue", "status", "priority", "attempt", "max_attempts", "timeout", "key", "args", "tags"):
        assert getattr(inserted, name) == getattr(enqueued, name), name


def test_an_insert_has_the_time_of_now(app: Holdfast, sql: Sql) -> None:
    before = time.time()
    job = app.jobs.get(insert(sql, task="work"))
    assert before - 0.002 <= job.created_at.timestamp() <= time.time() + 0.002
    assert job.run_at == job.created_at


def test_an_insert_without_a_task_is_a_message(app: Holdfast, sql: Sql) -> None:
    id = insert(sql, queue="inbox", args='{"text": "hello"}')
    message = app.queue("inbox").receive()
    assert message is not None
    assert (message.id, message.body) == (id, {"text": "hello"})


def test_an_insert_may_set_what_an_enqueue_may_set(app: Holdfast, sql: Sql) -> None:
    id = insert(
        sql, task="work", queue="slow", priority=-2, max_attempts=9, timeout=5 * SECOND, key="k", tags='["a","b"]'
    )
    job = app.jobs.get(id)
    assert (job.queue, job.priority, job.max_attempts, job.timeout, job.key) == ("slow", -2, 9, 5.0, "k")
    assert [one.id for one in app.jobs.list(tag="b")] == [id]


def test_an_insert_for_the_future_waits_for_its_time(app: Holdfast, sql: Sql, clock: FakeClock) -> None:
    id = insert(sql, task="work", run_at=clock.now() + 3600 * SECOND)
    assert app.jobs.get(id).status == "scheduled"
    assert claim_tasks(app.store, None, ["work"], 1, 1, "worker-1") == []
    clock.advance(3600)
    assert [one.id for one in claim_tasks(app.store, None, ["work"], 1, 1, "worker-1")] == [id]


def test_an_insert_for_the_past_is_ready(app: Holdfast, sql: Sql, clock: FakeClock) -> None:
    assert app.jobs.get(insert(sql, task="work", run_at=clock.now() // 10)).status == "ready"


@pytest.mark.parametrize("unit", [1, 1000, 1_000_000_000], ids=["seconds", "milliseconds", "nanoseconds"])
@pytest.mark.parametrize(
    ("table", "column"), [("jobs", "expires_at"), ("schedules", "handled_at"), ("schedules", "next_at")]
)
def test_other_times_in_another_unit_are_refused_too(
    app: Holdfast, backend: Backend, unit: int, table: str, column: str
) -> None:
    moment = app.clock.now() // 1_000_000 * unit
    given = (
        "(name, cron, task, {0}) VALUES ('x', '@daily', 'work', ?)" if table == "schedules" else "({0}) VALUES (?)"
    )
    with pytest.raises(backend.IntegrityError, match=f"{column}_is_in_microseconds"):
        backend.sql(f"INSERT INTO holdfast_{table} {given.format(column)}", (moment,))


@pytest.mark.parametrize("unit", [1, 1000, 1_000_000_000], ids=["seconds", "milliseconds", "nanoseconds"])
def test_a_time_in_another_unit_is_refused(
    app: Holdfast, sql: Sql, clock: FakeClock, backend: Backend, unit: int
) -> None:
    with pytest.raises(backend.IntegrityError, match="run_at_is_in_microseconds"):
        insert(sql, task="work", run_at=clock.now() * unit // 1_000_000)
    assert app.jobs.list().items == []


def test_an_insert_stands_in_line_where_it_was_made(app: Holdfast, sql: Sql) -> None:
    inbox = app.queue("inbox")
    ids = [inbox.send("first"), insert(sql, queue="inbox", args='"second"'), inbox.send("third")]
    assert [message.id for message in inbox.receive_many(3)] == ids


def test_an_insert_with_a_key_that_lives_is_refused_by_the_database(sql: Sql) -> None:
    insert(sql, task="work", key="k")
    with pytest.raises(Exception, match=r"(?i)unique"):
        insert(sql, task="work", key="k")


def test_an_insert_with_a_key_that_lives_can_be_left_out(app: Holdfast, sql: Sql) -> None:
    first = insert(sql, task="work", key="k")
    sql("INSERT INTO holdfast_jobs (task, key) VALUES ('work', 'k') ON CONFLICT DO NOTHING")
    assert [job.id for job in app.jobs.list()] == [first]


def test_an_enqueue_finds_the_key_of_an_insert(app: Holdfast, sql: Sql) -> None:
    @app.task
    def work() -> None: ...

    id = insert(sql, task="work", key="k")
    job = work.using(key="k").enqueue()
    assert (job.id, job.deduplicated) == (id, True)


def test_an_insert_of_many_rows_enqueues_them_all(app: Holdfast, sql: Sql) -> None:
    sql("INSERT INTO holdfast_jobs (queue, args) VALUES ('inbox', '1'), ('inbox', '2'), ('inbox', '3')")
    assert [message.body for message in app.queue("inbox").receive_many(10)] == [1, 2, 3]
    assert sql("SELECT count(*) FROM holdfast_events WHERE event = 'enqueued'") == [(3,)]


def test_an_insert_with_a_state_that_is_none_is_refused_by_the_database(sql: Sql) -> None:
    with pytest.raises(Exception, match=r"(?i)check"):
        insert(sql, task="work", status="done")


def test_a_trigger_of_the_users_own_table_enqueues(app: Holdfast, backend: Backend, events: Events) -> None:
    backend.sql("CREATE TABLE orders (mail TEXT)")
    enqueue = """INSERT INTO holdfast_jobs (task, args) VALUES ('send_mail', '{"to":"' || NEW.mail || '"}')"""
    backend.create_trigger("greet", "orders", enqueue)
    backend.sql("INSERT INTO orders (mail) VALUES ('ada@example.org'), ('bob@example.org')")
    jobs = app.jobs.list(task="send_mail")
    assert [job.args for job in jobs] == [{"to": "bob@example.org"}, {"to": "ada@example.org"}]
    assert [events(job.id) for job in jobs] == [["enqueued"], ["enqueued"]]


def test_a_trigger_fires_within_app_transaction_too(app: Holdfast, backend: Backend, events: Events) -> None:
    backend.sql("CREATE TABLE orders (mail TEXT)")
    backend.create_trigger("ship", "orders", "INSERT INTO holdfast_jobs (task, args) VALUES ('ship', '{}')")
    with app.transaction() as tx:
        tx.execute("INSERT INTO orders DEFAULT VALUES")
    (job,) = app.jobs.list(task="ship")
    assert events(job.id) == ["enqueued"]


# --- UPDATE ---


@pytest.mark.parametrize("to", ["scheduled", "running", "succeeded", "failed", "cancelled", "blocked"])
def test_a_status_changed_by_hand_is_logged_as_edited(app: Holdfast, sql: Sql, to: str) -> None:
    id = app.queue("inbox").send("x")
    before = time.time()
    sql("UPDATE holdfast_jobs SET status = ? WHERE id = ?", (to, id))
    last = [entry for entry in app.jobs.history(id) if entry.kind == "event"][-1]
    assert (last.name, last.actor) == ("edited", "sql")
    assert (last.detail["from"], last.detail["to"]) == ("ready", to)
    assert before - 1 < last.at.timestamp() < time.time() + 1


@pytest.mark.parametrize("to", ["ready", "succeeded", "failed"])
def test_an_attempt_ended_by_hand_is_logged_as_edited(app: Holdfast, sql: Sql, to: str) -> None:
    id = app.queue("inbox").send("x")
    app.queue("inbox").receive()
    sql("UPDATE holdfast_jobs SET status = ? WHERE id = ?", (to, id))
    told = [(entry.kind, entry.name) for entry in app.jobs.history(id)][-2:]
    assert told == [("attempt", "edited"), ("event", "edited")]


def test_an_attempt_ended_by_hand_is_fenced(app: Holdfast, sql: Sql) -> None:
    app.queue("inbox").send("x")
    message = app.queue("inbox").receive()
    sql("UPDATE holdfast_jobs SET status = 'ready'")
    assert message is not None and message.ack() is False
    again = app.queue("inbox").receive()
    assert again is not None and again.attempt == 2


def test_a_second_attempt_begun_by_hand_is_logged_too(app: Holdfast, sql: Sql) -> None:
    id = app.queue("inbox").send("x")
    message = app.queue("inbox").receive()
    assert message is not None and message.release()
    sql("UPDATE holdfast_jobs SET status = 'running' WHERE id = ?", (id,))
    assert [entry.name for entry in app.jobs.history(id) if entry.kind == "event"][-1] == "edited"


def test_changing_something_else_by_hand_is_no_transition(app: Holdfast, sql: Sql, events: Events) -> None:
    id = app.queue("inbox").send("x")
    sql("UPDATE holdfast_jobs SET priority = 9, args = '2', status = status WHERE id = ?", (id,))
    assert events(id) == ["enqueued"]
    message = app.queue("inbox").receive()
    assert message is not None and message.body == 2


def test_after_an_edit_our_own_transitions_are_logged_as_before(app: Holdfast, sql: Sql, events: Events) -> None:
    id = app.queue("inbox").send("x")
    sql("UPDATE holdfast_jobs SET status = 'failed' WHERE id = ?", (id,))
    app.queue("inbox").requeue()
    message = app.queue("inbox").receive()
    assert message is not None and message.ack()
    assert events(id) == ["enqueued", "edited", "requeued", "claimed", "succeeded"]


def test_a_running_job_made_by_hand_does_not_stay_running_for_ever(app: Holdfast, sql: Sql, clock: FakeClock) -> None:
    """It has no lease, so nobody holds it."""
    id = app.queue("inbox").send("x")
    sql("UPDATE holdfast_jobs SET status = 'running', attempt = 1 WHERE id = ?", (id,))
    clock.advance(10**6)
    recover(app.store)
    assert app.jobs.get(id).status == "ready"


def test_a_job_ended_by_hand_gives_its_key_back(app: Holdfast, sql: Sql) -> None:
    id = app.queue("inbox").send("x", key="k")
    sql("UPDATE holdfast_jobs SET status = 'cancelled' WHERE id = ?", (id,))
    assert app.queue("inbox").send("y", key="k") != id
