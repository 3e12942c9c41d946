"""Large payloads in a table: none is deleted that a job refers to, although there is no single write lock."""

import threading
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from holdfast import Holdfast
from holdfast.store.postgres.store import TableBlobs
from support.blob_stores import LARGE, MemoryBlobs, collect, large
from support.postgres_backend import PostgresBackend
from support.running_worker import PATIENCE_SECONDS, drain, eventually

LEVELS = [
    psycopg.IsolationLevel.READ_COMMITTED,
    psycopg.IsolationLevel.REPEATABLE_READ,
    psycopg.IsolationLevel.SERIALIZABLE,
]


@pytest.fixture(params=["table", "store of the caller"])
def open_two(request: pytest.FixtureRequest, backend: PostgresBackend) -> Callable[[], Holdfast]:
    """Opens apps that share one blob store."""
    own = {} if request.param == "table" else {"blobs": MemoryBlobs()}
    return lambda: backend.open(**own)


def put_once(app: Holdfast) -> int:
    """Let a job have had this payload. Return its id; it is the only one that refers to it."""
    return app.queue("old").send(large())


@pytest.mark.parametrize("level", LEVELS, ids=lambda level: level.name.lower())
def test_what_an_open_transaction_refers_to_is_not_deleted(
    open_two: Callable[[], Holdfast], backend: PostgresBackend, level: psycopg.IsolationLevel
) -> None:
    app, collector = open_two(), open_two()
    old = put_once(app)
    with psycopg.connect(backend.url) as conn:
        conn.isolation_level = level
        new = app.queue("new").send(large(), conn=conn)
        collector.jobs.delete(old)
        assert collect(collector) == 0
    assert app.jobs.get(new).args == large()
    assert collect(collector) == 0, "now it is known that it is in use"
    app.jobs.delete(new)
    assert collect(collector) == 1


@pytest.mark.parametrize("level", LEVELS, ids=lambda level: level.name.lower())
def test_what_was_deleted_after_a_transaction_began_is_put_again(
    open_two: Callable[[], Holdfast], backend: PostgresBackend, level: psycopg.IsolationLevel
) -> None:
    app, collector = open_two(), open_two()
    old = put_once(app)
    with psycopg.connect(backend.url) as conn:
        conn.isolation_level = level
        conn.execute("SELECT 1 FROM holdfast_jobs")
        collector.jobs.delete(old)
        assert collect(collector) == 1
        new = app.queue("new").send(large(), conn=conn)
    assert app.jobs.get(new).args == large()


@pytest.mark.parametrize("level", LEVELS, ids=lambda level: level.name.lower())
def test_what_is_deleted_between_the_put_and_the_row_is_put_again(
    app: Holdfast, backend: PostgresBackend, monkeypatch: pytest.MonkeyPatch, level: psycopg.IsolationLevel
) -> None:
    collector = backend.open()
    old = put_once(app)
    with psycopg.connect(backend.url) as conn:
        conn.isolation_level = level
        conn.execute("SELECT 1 FROM holdfast_jobs")
        put, times = TableBlobs.put, list[int]()

        def put_then_lose(self: TableBlobs, name: str, data: bytes) -> None:
            put(self, name, data)
            times.append(1)
            if len(times) == 1:
                collector.jobs.delete(old)
                assert collect(collector) == 1

        monkeypatch.setattr(TableBlobs, "put", put_then_lose)
        new = app.queue("new").send(large(), conn=conn)
    assert app.jobs.get(new).args == large() and len(times) == 2


def test_plain_sql_cannot_delete_what_a_job_refers_to(app: Holdfast, backend: PostgresBackend) -> None:
    id = put_once(app)
    app.task(name="double")(lambda text: text + text)
    app.task(name="double")(lambda text: text + text).enqueue(large(letter="y"))
    drain(app)
    assert len(backend.blob_names()) == 3, "two payloads and a result"
    for name in backend.blob_names():
        with pytest.raises(psycopg.errors.ForeignKeyViolation, match=name):
            backend.sql("DELETE FROM holdfast_blobs WHERE name = ?", (name,))
    app.jobs.delete(id)
    with psycopg.connect(backend.url) as conn:
        assert conn.execute("DELETE FROM holdfast_blobs WHERE name = ANY (SELECT name FROM holdfast_unused_blobs)")
    assert len(backend.blob_names()) == 2


def test_concurrent_senders_and_collectors_lose_nothing(open_two: Callable[[], Holdfast]) -> None:
    """The same two contents over and over, each sent, received and deleted by several, while two collect."""
    app, collectors = open_two(), [open_two(), open_two()]
    trouble: list[object] = []
    stop = threading.Event()

    def keep_collecting(collector: Holdfast) -> None:
        while not stop.is_set():
            collect(collector)

    def send(letter: str) -> None:
        queue = app.queue(letter, history=False)
        try:
            for n in range(40):
                queue.send(large(LARGE + 10, "ab"[n % 2]))
                message = queue.receive()
                if message is None or not message.ack():
                    trouble.append([job.error_code for job in queue.dead_letters()])
        except Exception as error:  # noqa: BLE001  told below
            trouble.append(error)

    threads = [threading.Thread(target=send, args=(letter,)) for letter in "xyz"]
    background = [threading.Thread(target=keep_collecting, args=(one,)) for one in collectors]
    for thread in [*background, *threads]:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
    stop.set()
    for thread in background:
        thread.join(PATIENCE_SECONDS)
    assert trouble == []
    kept: Any = lambda: app.store.database.rows("SELECT name FROM holdfast_unused_blobs WHERE gone_at IS NULL")  # type: ignore[attr-defined]  # noqa: E731
    eventually(lambda: collect(app) >= 0 and kept() == [])
