"""14.3: whatever user code does to the connection of a transaction, nothing of it reaches beyond its block."""

import gc
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session
from sqlalchemy.pool import StaticPool

from holdfast import Context, Holdfast
from holdfast.errors import StoreBusy, TransactionError
from support.running_worker import drain

Sql = Callable[..., list[Any]]


@pytest.fixture(autouse=True)
def orders(sql: Sql) -> None:
    sql("CREATE TABLE orders (id INTEGER PRIMARY KEY, item TEXT)")


def engine_settings(connection: sqlite3.Connection) -> list[Any]:
    names = ("wal_autocheckpoint", "query_only", "recursive_triggers", "cache_size", "locking_mode", "temp_store")
    return [connection.execute(f"PRAGMA {name}").fetchone()[0] for name in names]


def all_is_well(app: Holdfast) -> None:
    """Every kind of access works, several times: on the writer, on readers and in transactions."""
    inbox = app.queue("inbox")
    for n in range(3):
        inbox.send(n)
        with app.transaction() as tx:
            inbox.send(n, conn=tx)
            assert tx.execute("SELECT typeof('text'), lower('KELP')").fetchone() == ("text", "kelp")
        assert inbox.stats().ready == 2 * (n + 1)
        app.jobs.list()
    assert inbox.purge() == 6


def close(connection: sqlite3.Connection) -> None:
    connection.close()


def commit(connection: sqlite3.Connection) -> None:
    connection.commit()


def roll_back(connection: sqlite3.Connection) -> None:
    connection.rollback()


def use_as_context_manager(connection: sqlite3.Connection) -> None:
    with connection:
        connection.execute("INSERT INTO orders (item) VALUES ('kelp')")


def run_a_script(connection: sqlite3.Connection) -> None:
    connection.executescript("INSERT INTO orders (item) VALUES ('kelp'); COMMIT;")


def commit_by_cursor(connection: sqlite3.Connection) -> None:
    connection.cursor().execute("COMMIT")


def remove_the_authorizer(connection: sqlite3.Connection) -> None:
    connection.set_authorizer(None)


def change_the_isolation_level(connection: sqlite3.Connection) -> None:
    connection.isolation_level = None  # the sqlite3 module commits here


def attach(connection: sqlite3.Connection) -> None:
    connection.execute("ATTACH ':memory:' AS other")


ENDING = [
    close,
    commit,
    roll_back,
    use_as_context_manager,
    run_a_script,
    commit_by_cursor,
    remove_the_authorizer,
    change_the_isolation_level,
    attach,
]


@pytest.mark.parametrize("misuse", ENDING, ids=lambda one: one.__name__)
def test_what_would_end_the_transaction_raises_and_rolls_it_back(app: Holdfast, sql: Sql, misuse: Any) -> None:
    with pytest.raises((TransactionError, sqlite3.DatabaseError)), app.transaction() as tx:
        tx.execute("INSERT INTO orders (item) VALUES ('dulse')")
        misuse(tx.connection)
    assert sql("SELECT * FROM orders") == []
    all_is_well(app)


@pytest.mark.parametrize("misuse", [close, commit, roll_back, remove_the_authorizer], ids=lambda one: one.__name__)
def test_the_error_says_what_to_do(app: Holdfast, misuse: Any) -> None:
    told = r"not allowed inside app\.transaction\(\): it commits when the block ends"
    with pytest.raises(TransactionError, match=told), app.transaction() as tx:
        misuse(tx.connection)


@pytest.mark.parametrize("misuse", [close, roll_back], ids=lambda one: one.__name__)
def test_a_swallowed_close_or_rollback_fails_the_block(app: Holdfast, sql: Sql, misuse: Any) -> None:
    """A pool of connections swallows what close() raises, and the caller believes that the writes are undone."""
    told = r"nothing was stored.*ctx\.complete\(conn=session\)"
    with pytest.raises(TransactionError, match=told), app.transaction() as tx:
        tx.execute("INSERT INTO orders (item) VALUES ('kelp')")
        with pytest.raises(TransactionError):
            misuse(tx.connection)
    assert sql("SELECT * FROM orders") == []
    all_is_well(app)


def test_a_statement_that_the_engine_has_prepared_is_refused_as_well(app: Holdfast) -> None:
    for _ in range(3):  # on the same connection
        with app.transaction() as tx:
            tx.execute("INSERT INTO orders (item) VALUES ('kelp')")
            for statement in ("COMMIT", "ROLLBACK", "BEGIN IMMEDIATE"):
                with pytest.raises(TransactionError, match="not allowed"):
                    tx.execute(statement)


def set_factories(connection: sqlite3.Connection) -> None:
    connection.row_factory, connection.text_factory = sqlite3.Row, bytes


def set_isolation_level(connection: sqlite3.Connection) -> None:
    connection.isolation_level = "EXCLUSIVE"


def set_pragmas(connection: sqlite3.Connection) -> None:
    for pragma in ("wal_autocheckpoint = 1", "recursive_triggers = ON", "cache_size = 1", "busy_timeout = 60000"):
        connection.execute(f"PRAGMA {pragma}").fetchall()


def forbid_writing(connection: sqlite3.Connection) -> None:
    connection.execute("PRAGMA query_only = ON").fetchall()


def lock_exclusively(connection: sqlite3.Connection) -> None:
    connection.execute("PRAGMA locking_mode = EXCLUSIVE").fetchall()


def make_functions(connection: sqlite3.Connection) -> None:
    connection.create_function("lower", 1, lambda _: "replaced")
    connection.create_collation("NOCASE", lambda *_: 0)


def interrupt_everything(connection: sqlite3.Connection) -> None:
    connection.set_progress_handler(lambda: 1, 1)
    connection.set_trace_callback(lambda _: None)


def make_temporary_tables(connection: sqlite3.Connection) -> None:
    connection.execute("CREATE TEMP TABLE orders (other)")


def limit_statements(connection: sqlite3.Connection) -> None:
    connection.setlimit(sqlite3.SQLITE_LIMIT_SQL_LENGTH, 30)


LEAVING_STATE = [
    set_factories,
    set_isolation_level,
    set_pragmas,
    forbid_writing,
    lock_exclusively,
    make_functions,
    interrupt_everything,
    make_temporary_tables,
    limit_statements,
]


@pytest.mark.parametrize("change", LEAVING_STATE, ids=lambda one: one.__name__)
@pytest.mark.parametrize("way", ["connection", "cursor.connection"])
def test_what_is_set_on_the_connection_ends_with_the_block(app: Holdfast, sql: Sql, change: Any, way: str) -> None:
    with app.transaction() as tx:
        before = engine_settings(tx.connection)
    with app.transaction() as tx:
        tx.execute("INSERT INTO orders (item) VALUES ('kelp')")
        change(tx.connection if way == "connection" else tx.execute("SELECT 1").connection)
    assert sql("SELECT item FROM orders") == [("kelp",)]
    with app.transaction() as tx:
        assert tx.execute("SELECT lower('KELP'), item FROM orders").fetchall() == [("kelp", "kelp")]
        assert engine_settings(tx.connection) == before
    all_is_well(app)


@pytest.mark.parametrize(
    "statement", ["PRAGMA query_only = ON", "PRAGMA cache_size = 1", "CREATE TEMP TABLE orders (other)"]
)
def test_what_a_statement_sets_ends_with_the_block(app: Holdfast, statement: str) -> None:
    with app.transaction() as tx:
        tx.execute(statement).fetchall()
    with app.transaction() as tx:
        assert tx.execute("PRAGMA query_only").fetchone() == (0,)
        assert tx.execute("PRAGMA cache_size").fetchone() != (1,)
        assert tx.execute("SELECT count(id) FROM orders").fetchone() == (0,)
    all_is_well(app)


def test_a_transaction_without_such_changes_uses_the_same_connection_again(app: Holdfast) -> None:
    identities = set()
    for _ in range(3):
        with app.transaction() as tx:
            tx.execute("INSERT INTO orders (item) VALUES ('kelp')")
            identities.add(id(tx._own()))
    assert len(identities) == 1


def test_the_connection_cannot_be_used_after_the_block(app: Holdfast) -> None:
    with app.transaction() as tx:
        kept, cursor = tx.connection, tx.execute("SELECT 1 UNION SELECT 2")
    for use in (lambda: kept.execute("SELECT 1"), kept.commit, cursor.fetchone):
        with pytest.raises(sqlite3.ProgrammingError, match="closed"):
            use()
    kept.close()
    all_is_well(app)


def test_open_cursors_and_blobs_keep_no_snapshot_and_no_lock(app: Holdfast, sql: Sql) -> None:
    kept: list[Any] = []
    with app.transaction() as tx:
        tx.executemany("INSERT INTO orders (item) VALUES (?)", [("kelp",)] * 1000)
    with app.transaction() as tx:
        for of in (tx.connection.execute, tx.connection.cursor().execute, tx.execute):
            kept.append(of("SELECT * FROM orders"))
            kept.append(of("INSERT INTO orders (item) VALUES ('dulse'), ('nori') RETURNING id"))
            kept[-1].fetchone()
        kept.append(tx.connection.blobopen("orders", "item", 1))
    assert sql("SELECT count(*) FROM orders") == [(1006,)]
    app.queue("inbox").send("x")
    pages, moved = app.store.file.checkpoint()
    assert pages == moved, "no reader is in the way"
    del kept
    gc.collect()


def test_a_pool_of_sqlalchemy_on_the_connection_fails_only_its_own_block(app: Holdfast, sql: Sql) -> None:
    """What the first user did: the pool closed the connection, and every job of the process failed from then on."""

    @app.task(max_attempts=1)
    def book(ctx: Context) -> None:
        with ctx.complete() as tx:
            engine = create_engine("sqlite://", creator=lambda: tx.connection, poolclass=StaticPool)
            with Session(engine) as session:
                session.execute(text("INSERT INTO orders (item) VALUES ('kelp')"))
            engine.dispose()

    @app.task
    def other() -> str:
        return "done"

    job = book.enqueue()
    drain(app)
    assert (job.refresh().status, sql("SELECT * FROM orders")) == ("failed", [])
    assert job.error_detail is not None and "ctx.complete(conn=session)" in job.error_detail
    following = other.enqueue()
    drain(app)
    assert following.refresh().result == "done"
    all_is_well(app)


def test_a_transaction_that_could_not_begin_does_not_keep_the_file_open(tmp_path: Path) -> None:
    """The last connection deletes the log. The traceback of the error must not count as one."""
    path = tmp_path / "own.db"
    app = Holdfast(path, busy_timeout=0.01)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreBusy) as kept, app.transaction():
        pass
    other.execute("ROLLBACK")
    app.close()
    other.close()
    assert not Path(f"{path}-wal").exists()
    assert kept.value.__traceback__ is not None
