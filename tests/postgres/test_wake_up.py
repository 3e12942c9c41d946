"""NOTIFY is sent after the commit, and only if somebody sleeps; and a process has four connections at most."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager

import psycopg
import pytest

from holdfast import Context, Holdfast
from holdfast.errors import InvalidInput
from holdfast.store.postgres import listener
from support.backend import NEVER_SECONDS
from support.postgres_backend import ADVISORY_LOCKS, PostgresBackend
from support.running_worker import RunningWorker, eventually

CHANNEL = "public.holdfast_"


@contextmanager
def listening(backend: PostgresBackend) -> Iterator[psycopg.Connection[object]]:
    with psycopg.connect(backend.url, autocommit=True) as ear:
        ear.execute(f'LISTEN "{CHANNEL}"')
        yield ear


def heard(ear: "psycopg.Connection[object]") -> int:
    """How many notifications have come. A statement of its own brings what was sent before it."""
    ear.execute("SELECT 1")
    return len(list(ear.notifies(timeout=0)))


def sleepers(backend: PostgresBackend) -> int:
    where = f"objid = {listener.SLEEPERS} AND mode = 'ShareLock'"
    ((count,),) = backend.sql(f"SELECT count(*) FROM {ADVISORY_LOCKS} AND {where}")  # noqa: S608
    return int(count)


def is_notified(app: Holdfast) -> bool:
    return not app.store.database.listener._wants_notify  # type: ignore[attr-defined]


def test_no_notification_is_sent_while_nobody_sleeps(backend: PostgresBackend) -> None:
    app = backend.open()
    with listening(backend) as ear:
        for number in range(3):
            app.queue("inbox").send(number)
            eventually(lambda: is_notified(app))
        assert sleepers(backend) == 0 and heard(ear) == 0


def test_who_sleeps_in_another_process_is_notified(backend: PostgresBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "AWAKE_SECONDS", NEVER_SECONDS)  # it may find the message by itself
    app, other = backend.open(), backend.open()
    got = list[object]()
    consumer = threading.Thread(
        target=lambda: got.extend(one.body for one in other.queue("inbox").receive_many(1, wait=60))
    )
    with listening(backend) as ear:
        consumer.start()
        eventually(lambda: sleepers(backend) == 1)
        app.queue("inbox").send("hello")
        consumer.join()
        assert got == ["hello"]
        eventually(lambda: heard(ear) >= 1)


def test_no_message_is_missed_between_the_last_look_and_the_sleep(backend: PostgresBackend, no_polling: None) -> None:
    """Nothing but the notification wakes the consumer, which falls asleep after each message."""
    app, other = backend.open(), backend.open()
    inbox, outbox = other.queue("inbox"), app.queue("outbox")
    rounds = 60

    def answer() -> None:
        for _ in range(rounds):
            (message,) = inbox.receive_many(1, wait=300)
            assert message.ack()
            other.queue("outbox").send(message.body)

    answering = threading.Thread(target=answer)
    answering.start()
    for number in range(rounds):
        app.queue("inbox").send(number)
        (message,) = outbox.receive_many(1, wait=300)
        assert message.body == number and message.ack()
    answering.join()


def test_plain_sql_and_a_connection_of_the_caller_notify_with_their_commit(backend: PostgresBackend) -> None:
    app = backend.open()
    with listening(backend) as ear, closing(backend.connect()) as connection:
        app.queue("inbox").send(1, conn=connection)
        assert heard(ear) == 0
        connection.commit()
        assert heard(ear) == 1
        connection.execute("INSERT INTO holdfast_jobs (task, args) VALUES ('known', '{}')")
        connection.commit()
        assert heard(ear) == 1


def test_the_notification_of_the_caller_is_switched_off_by_an_option(backend: PostgresBackend) -> None:
    app = backend.open(notify=False)
    with listening(backend) as ear, closing(backend.connect()) as connection:
        app.queue("inbox").send(1, conn=connection)
        connection.commit()
        assert heard(ear) == 0
        connection.execute("INSERT INTO holdfast_jobs (task, args) VALUES ('known', '{}')")
        connection.commit()
        assert heard(ear) == 1, "only for its own calls"
        connection.execute("SET holdfast.notify = off")
        connection.execute("INSERT INTO holdfast_jobs (task, args) VALUES ('known', '{}')")
        connection.commit()
        assert heard(ear) == 0, "and plain SQL has a setting"


def test_the_option_is_for_postgresql_only(tmp_path: object) -> None:
    with pytest.raises(InvalidInput, match="for PostgreSQL only"):
        Holdfast(f"{tmp_path}/app.db", notify=False)


def test_a_process_has_four_connections_at_most(backend: PostgresBackend) -> None:
    app = backend.open()
    most, stop = 0, threading.Event()

    def count() -> None:
        nonlocal most
        with psycopg.connect(backend.url, autocommit=True) as watcher:
            while not stop.is_set():
                row = watcher.execute(
                    "SELECT count(*) FROM pg_stat_activity "
                    "WHERE application_name = 'holdfast' AND datname = current_database()"
                ).fetchone()
                assert row is not None
                most = max(most, row[0])

    @app.task
    def busy(ctx: Context) -> None:
        with ctx.complete() as tx:
            tx.execute("SELECT pg_sleep(0.001)")
            app.queue("inbox").send(1, conn=tx)

    def consume(number: int) -> None:
        for _ in range(4):
            for message in app.queue("inbox").receive_many(2, wait=0.2):
                message.ack()
            busy.enqueue()
            app.queue("inbox").stats()
            list(app.jobs.list(limit=5))

    watching = threading.Thread(target=count)
    watching.start()
    with RunningWorker(app, concurrency=8), ThreadPoolExecutor(12) as many:
        list(many.map(consume, range(12)))
        eventually(lambda: app.jobs.count(status="succeeded", task=busy.name) == 48)
    stop.set()
    watching.join()
    assert most == 4


def test_a_connection_that_was_half_open_is_locked_again_when_the_old_session_ends(backend: PostgresBackend) -> None:
    """The server has not noticed that it was cut, so the old session still holds the lock."""
    app = backend.open()
    database = app.store.database  # type: ignore[attr-defined]
    slot = database.locks.acquire()
    number = slot.number
    with psycopg.connect(backend.url, autocommit=True) as old:
        with database.listener._using:  # in the moment in which it has no connection
            database.listener._driver.close()
            eventually(
                lambda: (
                    old.execute("SELECT pg_try_advisory_lock(%s, %s)", (database.lock_class, number)).fetchone()
                    or (0,)
                )[0]
            )
        eventually(lambda: database.listener._unlocked == {number}, "it goes on without")
        assert not database.locks.is_free(slot)
    eventually(lambda: not database.listener._unlocked, "it has locked again")
    database.locks.release(slot)
