"""`on_temporary_database` uses an app of the program under test on a temporary database."""

import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast import Holdfast
from holdfast.clock import SystemClock
from holdfast.errors import InvalidInput
from holdfast.testing import FakeClock, assert_enqueued, drain, inline, on_temporary_database, refute_enqueued


@pytest.fixture
def app(open_app: Callable[..., Holdfast]) -> Holdfast:
    """The app of a program: on the real clock, with settings of its own."""
    return open_app(prefix="mine_")


def test_within_the_block_the_app_uses_another_database(app: Holdfast) -> None:
    task, inbox = app.task(name="work")(lambda: None), app.queue("inbox")
    task.enqueue()
    inbox.send("to the real one")
    with on_temporary_database(app) as same:
        assert same is app
        refute_enqueued(app)
        assert inbox.receive() is None
        task.enqueue()
        inbox.send("to the other one")
        assert drain(app).succeeded == 1
    assert app.jobs.count(status="ready") == 2
    assert inbox.stats().total == 1


def test_store_clock_and_random_are_restored_even_after_an_error(app: Holdfast) -> None:
    own = (app.store, app.clock, app.random)
    with pytest.raises(RuntimeError), on_temporary_database(app):
        assert isinstance(app.clock, FakeClock)
        assert app.store is not own[0] and app.random is not own[2]
        raise RuntimeError
    assert (app.store, app.clock, app.random) == own
    assert isinstance(app.clock, SystemClock)


def test_a_database_that_cannot_be_opened_leaves_the_app_unchanged(app: Holdfast, tmp_path: Path) -> None:
    own = (app.store, app.clock, app.random)
    with pytest.raises(Exception, match="folder"), on_temporary_database(app, tmp_path / "none" / "test.db"):
        pass
    assert (app.store, app.clock, app.random) == own


def test_the_folder_is_removed_afterwards(app: Holdfast) -> None:
    with on_temporary_database(app), app.transaction() as tx:
        file = Path(tx.execute("PRAGMA database_list").fetchone()[2])
        assert file.exists()
    assert not file.parent.exists()


def test_the_database_is_at_the_given_path_with_the_same_tables(app: Holdfast, tmp_path: Path) -> None:
    task = app.task(name="work")(lambda: None)
    conn = sqlite3.connect(tmp_path / "test.db", isolation_level="IMMEDIATE")
    with on_temporary_database(app, tmp_path / "test.db"):
        with conn:
            task.using(conn=conn).enqueue()
        assert_enqueued(task, count=1)
    assert conn.execute("SELECT count(*) FROM mine_jobs").fetchone() == (1,)
    conn.close()


def test_the_clock_can_be_given(app: Holdfast) -> None:
    clock = FakeClock(now=5)
    with on_temporary_database(app, clock=clock):
        assert app.clock is clock
        assert app.task(name="work")(lambda: None).enqueue().created_at.year == 1970


def test_random_numbers_are_the_same_every_time(app: Holdfast) -> None:
    @app.task
    def work() -> None:
        raise ValueError

    seen = []
    for _ in range(2):
        with on_temporary_database(app):
            job = work.enqueue()
            drain(app, seconds=0)
            seen.append(job.refresh().run_at)
    assert seen[0] == seen[1]


def test_an_app_with_migrate_false_gets_its_tables(open_app: Callable[..., Holdfast]) -> None:
    open_app().close()
    app = open_app(migrate=False)
    with on_temporary_database(app), inline(app):
        assert app.task(name="work")(lambda: 1).enqueue().result == 1


def test_declared_schedules_are_stored_at_the_start(app: Holdfast) -> None:
    @app.cron("0 * * * *")
    def tidy() -> None: ...

    clock = FakeClock()
    with on_temporary_database(app, clock=clock):
        clock.advance(3600)
        assert [one.task for one in drain(app)] == ["tidy"]
    assert app.schedules.list() == []


def test_blocks_may_be_nested_and_the_app_closed_within(app: Holdfast) -> None:
    task = app.task(name="work")(lambda: None)
    with on_temporary_database(app):
        task.enqueue()
        with on_temporary_database(app):
            refute_enqueued(task)
            app.close()
        assert_enqueued(task, count=1)
    task.enqueue()


def test_all_threads_see_it(app: Holdfast) -> None:
    task = app.task(name="work")(lambda: None)
    with on_temporary_database(app):
        thread = threading.Thread(target=task.enqueue)
        thread.start()
        thread.join()
        assert_enqueued(task, count=1)


def test_a_value_that_is_not_an_app_is_refused() -> None:
    with pytest.raises(InvalidInput, match="must be a Holdfast"), on_temporary_database(5):  # type: ignore[type-var]
        pass
