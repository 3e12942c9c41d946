"""Connections that end at a chosen moment: what was stored is told, or that it is unknown."""

import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import psycopg
import pytest

from holdfast import Holdfast
from holdfast.errors import ConnectionLost, OutcomeUnknown, StoreError
from holdfast.store.postgres import retries
from holdfast.store.postgres.pool import ServerClock
from holdfast.store.postgres.retries import Commit
from support.postgres_backend import ADVISORY_LOCKS, PostgresBackend
from support.postgres_proxy import Cut, Proxy, proxied
from support.running_worker import RunningWorker, comes_true, eventually


@pytest.fixture
def proxy(backend: PostgresBackend) -> Iterator[Proxy]:
    with proxied(backend.url) as one:
        yield one


@pytest.fixture
def far(backend: PostgresBackend, proxy: Proxy) -> Holdfast:
    """An app whose connections go through the proxy."""
    return open_through(backend, proxy, busy_timeout=2)


def open_through(backend: PostgresBackend, proxy: Proxy, busy_timeout: float, **options: str) -> Holdfast:
    app = Holdfast(proxy.url(**options), busy_timeout=busy_timeout)
    backend._opened.append(app)
    return app


def jobs(backend: PostgresBackend) -> int:
    ((count,),) = backend.sql("SELECT count(*) FROM holdfast_jobs")
    return int(count)


ENQUEUES: dict[str, Callable[[Holdfast], Any]] = {
    "send": lambda app: app.queue("inbox").send(1),
    "send with a key": lambda app: app.queue("inbox").send(1, key="k"),
    "send_many": lambda app: app.queue("inbox").send_many([1])[0],
}


@pytest.mark.parametrize(
    ("enqueue", "text"),
    [
        ("send", "INSERT"),  # one statement, without a COMMIT
        ("send with a key", "INSERT"),
        ("send with a key", "COMMIT"),
        ("send_many", "INSERT"),
        ("send_many", "COMMIT"),
    ],
)
@pytest.mark.parametrize("how", ["before", "after"])
def test_an_enqueue_whose_connection_is_cut_returns_the_one_job_that_there_is(
    backend: PostgresBackend, far: Holdfast, proxy: Proxy, enqueue: str, text: str, how: Cut
) -> None:
    proxy.cut_once(text, how)
    id = ENQUEUES[enqueue](far)
    assert proxy.cuts == 1
    assert backend.sql("SELECT id FROM holdfast_jobs") == [(id,)]


@pytest.mark.parametrize("how", ["before", "after"])
def test_without_asking_a_lost_commit_would_be_repeated_or_forgotten(
    backend: PostgresBackend, far: Holdfast, proxy: Proxy, how: Cut, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control: the answer decides."""
    monkeypatch.setattr(retries.CommitOutcomes, "took_place", lambda *_: how == "before")
    proxy.cut_once("COMMIT", how)
    far.queue("inbox").send_many([1])
    assert jobs(backend) == (0 if how == "before" else 2)


@pytest.mark.parametrize("how", ["before", "after"])
def test_without_its_event_an_enqueue_would_be_repeated_or_forgotten(
    backend: PostgresBackend, far: Holdfast, proxy: Proxy, how: Cut, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control: the event decides."""
    monkeypatch.setattr(retries.CommitOutcomes, "find_enqueued", lambda *_: 1 if how == "before" else None)
    proxy.cut_once("INSERT", how)
    far.queue("inbox").send(1)
    assert jobs(backend) == (0 if how == "before" else 2)


def test_an_enqueue_is_one_message_and_one_answer(far: Holdfast, proxy: Proxy) -> None:
    """Its commit is that of the statement."""
    inbox, sent = far.queue("inbox"), list[bytes]()
    inbox.send(1)
    proxy.cut = sent.append  # type: ignore[assignment]
    inbox.send(2)
    assert len([message for message in sent if b"INSERT" in message]) == 1
    assert not [message for message in sent if b"BEGIN" in message or b"COMMIT" in message]


def test_the_session_of_an_enqueue_without_an_answer_is_ended_before_its_event_is_looked_for(
    backend: PostgresBackend, app: Holdfast
) -> None:
    """What was sent may still be under way on a connection that this end believes to be lost."""
    database = app.store.database  # type: ignore[attr-defined]
    driver = database.sessions.connect(1.0)
    sent = retries.Sent(driver.pid, driver.begun, driver.event_bound, app.clock.now(), database.actor)
    assert database._outcomes.find_enqueued(sent, 5) is None
    with pytest.raises(psycopg.OperationalError):
        driver.execute("SELECT 1")


def test_an_enqueue_whose_session_is_still_at_work_is_unknown(backend: PostgresBackend, app: Holdfast) -> None:
    database = app.store.database  # type: ignore[attr-defined]
    driver = database.sessions.connect(1.0)
    driver.execute("BEGIN")
    sent = retries.Sent(driver.pid, driver.begun, driver.event_bound, app.clock.now(), database.actor)
    with pytest.raises(OutcomeUnknown, match="still at work"):
        database._outcomes.find_enqueued(sent, 0)
    driver.execute("ROLLBACK")
    driver.close()


def test_no_two_enqueues_of_a_process_have_the_same_time() -> None:
    clock = ServerClock()
    times = [clock.now() for _ in range(10_000)]
    assert len({*times}) == len(times)
    assert times == sorted(times)


@pytest.mark.parametrize("how", ["before", "after"])
def test_a_commit_of_a_server_that_stays_away_is_unknown(backend: PostgresBackend, proxy: Proxy, how: Cut) -> None:
    inbox = open_through(backend, proxy, busy_timeout=0.5).queue("inbox")
    proxy.cut_once("COMMIT", how)
    proxy.is_away = True
    with pytest.raises(OutcomeUnknown, match="again with the same key"):
        inbox.send(1, key="k")
    proxy.is_away = False
    assert inbox.send(1, key="k") == backend.sql("SELECT id FROM holdfast_jobs")[0][0]
    assert jobs(backend) == 1


def test_an_enqueue_waits_for_a_server_that_comes_back(backend: PostgresBackend, far: Holdfast, proxy: Proxy) -> None:
    proxy.is_away = True
    proxy.cut_all()
    threading.Timer(0.3, lambda: setattr(proxy, "is_away", False)).start()
    id = far.queue("inbox").send(1)
    assert backend.sql("SELECT id FROM holdfast_jobs") == [(id,)]


def test_a_server_that_is_away_for_too_long_is_a_typed_error(backend: PostgresBackend, proxy: Proxy) -> None:
    app = open_through(backend, proxy, busy_timeout=0.2, password="hunter2")
    proxy.is_away = True
    proxy.cut_all()
    inbox = app.queue("inbox")
    for call in (lambda: inbox.send(1), inbox.stats, inbox.receive):
        with pytest.raises(ConnectionLost) as caught:
            call()
        assert "hunter2" not in str(caught.value)
    with pytest.raises(ConnectionLost), app.transaction():
        pass
    assert jobs(backend) == 0


def test_reads_that_must_see_one_snapshot_are_a_typed_error(far: Holdfast, proxy: Proxy) -> None:
    """They cannot be repeated one by one."""
    far.queue("inbox").send(1)
    with pytest.raises(ConnectionLost), far.store.snapshot():
        far.jobs.count()
        proxy.cut_all()
        far.jobs.count()
    assert far.jobs.count() == 1


def test_a_single_statement_whose_answer_is_lost_is_unknown(
    backend: PostgresBackend, far: Holdfast, proxy: Proxy
) -> None:
    inbox = far.queue("inbox")
    inbox.send(1)
    message = inbox.receive()
    assert message is not None
    proxy.cut_once("UPDATE", "after")
    with pytest.raises(OutcomeUnknown):
        message.ack()
    assert backend.sql("SELECT status FROM holdfast_jobs") == [("succeeded",)]
    assert not message.ack(), "it is settled"


@pytest.mark.parametrize(("how", "stored"), [("before", 0), ("after", 1)])
def test_a_block_of_a_transaction_returns_only_if_it_was_committed(
    backend: PostgresBackend, far: Holdfast, proxy: Proxy, how: Cut, stored: int
) -> None:
    proxy.cut_once("COMMIT", how)
    caught: StoreError | None = None
    try:
        with far.transaction() as tx:
            far.queue("inbox").send(1, conn=tx)
    except ConnectionLost as error:
        caught = error
    assert (caught is None) == bool(stored)
    assert jobs(backend) == stored


def test_a_lost_connection_of_the_caller_says_that_nothing_was_stored(
    backend: PostgresBackend, app: Holdfast
) -> None:
    with closing(backend.connect()) as connection:
        connection.execute("SELECT 1")
        backend.sql(f"SELECT pg_terminate_backend({connection.info.backend_pid})")
        left = f"SELECT 1 FROM pg_stat_activity WHERE pid = {connection.info.backend_pid}"  # noqa: S608
        eventually(lambda: not backend.sql(left))
        with pytest.raises(ConnectionLost, match="nothing was stored"):
            app.queue("inbox").send(1, conn=connection)
    assert jobs(backend) == 0


def test_an_id_that_was_given_out_again_does_not_count_as_committed(backend: PostgresBackend, app: Holdfast) -> None:
    """After a crash or a failover, the id of a lost transaction can be another's."""
    outcomes = app.store.database._outcomes  # type: ignore[attr-defined]
    before, actor = app.clock.now(), app.store.database.actor  # type: ignore[attr-defined]
    app.queue("inbox").send(1)
    ((transaction,),) = backend.sql("SELECT (max(id) >> 20)::text FROM holdfast_events")
    here = app.store.database.with_driver(retries.incarnation_of)  # type: ignore[attr-defined]
    assert outcomes.took_place(Commit(transaction, here, before, actor), 0)
    with pytest.raises(OutcomeUnknown, match="crashed or was replaced"):
        outcomes.took_place(Commit(transaction, here + 1, before - 1, actor), 0)
    assert outcomes.took_place(Commit(transaction, here + 1, app.clock.now(), actor), 0), "it has left an event"
    with pytest.raises(OutcomeUnknown):  # another's
        outcomes.took_place(Commit(transaction, here + 1, app.clock.now(), "another"), 0)
    assert not outcomes.took_place(Commit(str(int(transaction) + 1_000_000), here + 1, before, actor), 0), (
        "from the future"
    )


def test_conflicts_and_full_servers_are_tried_again(backend: PostgresBackend) -> None:
    app = backend.open()
    backend.sql("CREATE TABLE tries (state text)")
    backend.sql("CREATE SEQUENCE user_tries")
    states = ("40001", "40P01", "53200", "53300", "57P03")
    for state in states:
        backend.sql(
            "CREATE OR REPLACE FUNCTION user_conflict() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
            f"IF nextval('user_tries') % 3 <> 0 THEN RAISE EXCEPTION 'no' USING ERRCODE = '{state}'; END IF; "
            "RETURN NEW; END $$"
        )
        backend.sql(
            "CREATE OR REPLACE TRIGGER user_conflict BEFORE INSERT ON holdfast_jobs FOR EACH ROW "
            "EXECUTE FUNCTION user_conflict()"
        )
        app.queue("inbox").send(state)
    backend.sql("DROP TRIGGER user_conflict ON holdfast_jobs")
    backend.sql("DROP SEQUENCE user_tries")
    assert jobs(backend) == len(states)


@pytest.mark.parametrize(
    ("state", "error"),
    [("53100", "DiskFull"), ("57014", "StoreBusy"), ("25006", "ReadOnlyDatabase"), ("55P03", "StoreBusy")],
)
def test_what_does_not_pass_by_itself_is_a_typed_error_at_once(
    backend: PostgresBackend, state: str, error: str
) -> None:
    app = backend.open()
    backend.create_trigger("refuse", "holdfast_jobs", f"RAISE EXCEPTION 'no' USING ERRCODE = '{state}'")
    with pytest.raises(StoreError) as caught:
        app.queue("inbox").send(1)
    assert type(caught.value).__name__ == error
    assert jobs(backend) == 0


# --- workers ---


def test_a_worker_gives_back_a_claim_whose_answer_was_lost(
    backend: PostgresBackend, far: Holdfast, proxy: Proxy
) -> None:
    """After it has connected again, it asks what it holds."""
    ran = threading.Event()
    far.task(name="job")(lambda: ran.set())
    lost: list[bytes] = []

    def cut_a_claim(message: bytes) -> Cut | None:
        if not lost and b"FOR UPDATE SKIP LOCKED" in message and b"UPDATE" in message:
            lost.append(message)
            return "after"
        return None

    with RunningWorker(far):
        proxy.cut = cut_a_claim
        backend.open().task(name="job")(lambda: None).enqueue()
        comes_true(ran, "the job runs")
        eventually(lambda: backend.sql("SELECT status FROM holdfast_jobs") == [("succeeded",)])
    assert lost, "no claim was cut"
    assert backend.sql("SELECT attempt - uncounted FROM holdfast_jobs") == [(1,)], "the lost claim does not count"


def test_a_worker_whose_connections_are_all_ended_keeps_its_job(backend: PostgresBackend) -> None:
    app, watcher = backend.open(), backend.open()
    begun, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        begun.set()
        comes_true(go_on)

    job = app.task(name="job")(hold).enqueue()
    watcher.task(name="other")(lambda: None)
    with RunningWorker(app), RunningWorker(watcher):
        comes_true(begun)
        listeners = backend.sql(f"SELECT count(*) FROM {ADVISORY_LOCKS} AND mode = 'ExclusiveLock'")  # noqa: S608
        for _ in range(5):
            before = app.store.database.listener._connected_at  # type: ignore[attr-defined]
            backend.sql(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE datname = current_database() AND application_name = 'holdfast'"
            )
            eventually(lambda: app.store.database.listener._connected_at > before)  # type: ignore[attr-defined]  # noqa: B023
        assert listeners[0][0] >= 2
        go_on.set()
        eventually(lambda: job.refresh().status == "succeeded")
    assert job.refresh().attempt == 1
    assert backend.sql("SELECT count(*) FROM holdfast_events WHERE event = 'recovered'") == [(0,)]
    assert backend.sql("SELECT DISTINCT ending FROM holdfast_workers") == [("stopped",)]


def test_psycopg_is_what_the_errors_come_from(backend: PostgresBackend, far: Holdfast, proxy: Proxy) -> None:
    """The cause is kept, for those who want to know more."""
    proxy.cut_once("INSERT", "before")
    proxy.is_away = True
    with pytest.raises(ConnectionLost) as caught, far.transaction() as tx:
        far.queue("inbox").send(1, conn=tx)
    assert isinstance(caught.value.__cause__, psycopg.Error)
