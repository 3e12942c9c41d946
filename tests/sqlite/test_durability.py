"""How connections are set, and how the file is made: what G1 rests on and cannot be seen from outside."""

import os
import sqlite3
import stat
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast

FULL, NORMAL = 2, 1


def level_of_last_commit(app: Holdfast) -> int:
    writer = app.store.database._engine.writer  # type: ignore[attr-defined]
    ((level,),) = writer._connection.execute("PRAGMA synchronous").fetchall()
    return int(level)


ENQUEUES: dict[str, Callable[[Holdfast], Any]] = {
    "send": lambda app: app.queue("inbox").send("x"),
    "send with key": lambda app: app.queue("inbox").send("x", key="k"),
    "send_many": lambda app: app.queue("inbox").send_many(["x"]),
    "enqueue": lambda app: app.tasks["work"].enqueue(),
    "requeue": lambda app: app.queue("inbox").requeue(),
    "pause": lambda app: app.queue("inbox").pause(),
}


@pytest.fixture(params=ENQUEUES.values(), ids=ENQUEUES.keys())
def enqueue(request: pytest.FixtureRequest) -> Callable[[Holdfast], Any]:
    found: Callable[[Holdfast], Any] = request.param
    return found


def prepare(app: Holdfast) -> Holdfast:
    """One dead letter, a task, and a claim as the last thing done: which needs no flush."""
    app.task(name="work")(lambda: None)
    app.queue("inbox", max_attempts=1).send_many(["dead", "running"])
    message = app.queue("inbox").receive()
    assert message is not None and message.release()
    app.queue("inbox").receive()
    return app


def test_an_enqueue_is_flushed_to_the_disk(open_app: Callable[..., Holdfast], enqueue: Any) -> None:
    app = prepare(open_app())
    enqueue(app)
    assert level_of_last_commit(app) == FULL


def test_with_normal_durability_it_is_not(open_app: Callable[..., Holdfast], enqueue: Any) -> None:
    app = prepare(open_app(durability="normal"))
    enqueue(app)
    assert level_of_last_commit(app) == NORMAL


@pytest.mark.parametrize(("durability", "level"), [("full", FULL), ("normal", NORMAL)])
def test_a_transaction_is_flushed_like_an_enqueue(
    open_app: Callable[..., Holdfast], durability: str, level: int
) -> None:
    with open_app(durability=durability).transaction() as tx:
        assert tx.execute("PRAGMA synchronous").fetchall() == [(level,)]


@pytest.fixture
def connections(app: Holdfast, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[sqlite3.Connection]]:
    """Every connection the store has open after some use."""
    app.queue("inbox").send("x")
    app.jobs.list()
    app.store.file.checkpoint()
    app.queue("empty").receive(wait=0.01)
    yield app.store.database._engine._connections  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("pragma", "value"),
    [
        ("wal_autocheckpoint", 0),
        ("foreign_keys", 1),
        ("trusted_schema", 0),
        ("mmap_size", 0),
        ("journal_mode", "wal"),
        ("busy_timeout", 0),
    ],
)
def test_every_connection_is_set_as_it_must_be(
    connections: list[sqlite3.Connection], pragma: str, value: Any
) -> None:
    assert len(connections) >= 3
    assert {connection.execute(f"PRAGMA {pragma}").fetchall()[0] for connection in connections} == {(value,)}


def test_a_new_file_has_room_given_back_bit_by_bit(app: Holdfast, url: str) -> None:
    with closing(sqlite3.connect(url)) as connection:
        assert connection.execute("PRAGMA auto_vacuum").fetchall() == [(2,)]


def test_a_new_file_is_private_whatever_the_umask(url: str, open_app: Callable[..., Holdfast]) -> None:
    before = os.umask(0)
    try:
        open_app().queue("inbox").send("x")
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in Path(url).parent.iterdir()}
    assert set(modes.values()) == {0o600}, modes


def test_the_log_is_checkpointed_and_does_not_grow_for_ever(app: Holdfast, url: str) -> None:
    for _ in range(40):
        app.queue("inbox").send_many(["x" * 1000] * 500)
    assert Path(f"{url}-wal").stat().st_size < 16 * 1024 * 1024


@pytest.mark.parametrize("form", ["{path}", "sqlite:///{path}"])
def test_a_database_is_named_by_path_or_url(tmp_path: Path, form: str) -> None:
    path = tmp_path / "named.db"
    with Holdfast(form.format(path=path)) as app:
        app.queue("inbox").send("x")
    assert path.exists()


def test_a_relative_url_is_relative_to_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Holdfast("sqlite:///here.db").close()
    assert (tmp_path / "here.db").exists()


def test_the_environment_names_the_database_where_nobody_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_URL", str(tmp_path / "env.db"))
    Holdfast().close()
    assert (tmp_path / "env.db").exists()
