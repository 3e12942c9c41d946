"""Where a database cannot be: paths, URLs, prefixes and options that are refused before anything is written."""

import os
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.errors import CannotOpen, HoldfastError, InvalidInput, NotADatabase, StoreBusy
from support.refusals import told


def test_a_path_that_is_a_folder_is_refused(tmp_path: Path) -> None:
    with told(CannotOpen, "folder", "app.db"):
        Holdfast(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_missing_folder_is_named_and_not_made(tmp_path: Path) -> None:
    with told(CannotOpen, "missing", "create it"):
        Holdfast(tmp_path / "missing" / "app.db")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("text")
    with told(CannotOpen, "folder"):
        Holdfast(tmp_path / "file" / "app.db")


@pytest.mark.parametrize(
    "content",
    [
        b"no",
        b"hello, I am a text file\n",
        b"\0" * 4096,
        b"PK\x03\x04" + os.urandom(5000),
        b"SQLite format 2\0" + b"\0" * 5000,
        b"SQLite format 3\0" + b"\xff" * 5000,
    ],
)
def test_a_file_that_is_no_database_is_refused_and_left_alone(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "notes.txt"
    path.write_bytes(content)
    with told(NotADatabase, "notes.txt", "not an SQLite database"):
        Holdfast(path)
    assert path.read_bytes() == content
    assert [one.name for one in tmp_path.iterdir()] == ["notes.txt"]


def test_what_is_neither_file_nor_folder_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in ("/dev/null", tmp_path / "pipe"):
        with told(CannotOpen, "not a regular file"):
            Holdfast(path)


def test_a_link_that_leads_nowhere_is_not_called_read_only(tmp_path: Path) -> None:
    (tmp_path / "astray.db").symlink_to(tmp_path / "gone" / "app.db")
    (tmp_path / "round.db").symlink_to(tmp_path / "round.db")
    for name in ("astray.db", "round.db"):
        with pytest.raises(CannotOpen):
            Holdfast(tmp_path / name)


@pytest.mark.parametrize(
    "url",
    ["", ":memory:", "file:app.db", "file::memory:?cache=shared", "sqlite://", "sqlite:///", "sqlite:///:memory:"],
)
def test_a_database_without_a_file_is_refused(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with told(InvalidInput, "app.db"):
        Holdfast(url)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "url",
    [
        "postgresql+psycopg://ada:hunter2@db/app",
        "mysql://ada:hunter2@db/app",
        "redis://:hunter2@localhost/0",
        "sqlite+aiosqlite:///hunter2/app.db",
        "sqlite://ada:hunter2@app.db",
        "sqlite:///app.db?password=hunter2",
    ],
)
def test_a_url_of_another_kind_is_refused_and_its_password_kept(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidInput, match="SQLite") as caught:
        Holdfast(url)
    assert "hunter2" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("url", [5, b"app.db", 1.5, object(), ["app.db"], "a\0b.db", "\ud800.db", "x" * 300 + ".db"])
def test_what_names_no_file_at_all_is_refused(url: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises((InvalidInput, CannotOpen)) as caught:
        Holdfast(url)
    assert len(str(caught.value)) > 20
    assert list(tmp_path.iterdir()) == []


def test_no_name_at_all_says_how_to_give_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for setting in (None, ""):
        if setting is None:
            monkeypatch.delenv("HOLDFAST_URL", raising=False)
        else:
            monkeypatch.setenv("HOLDFAST_URL", setting)
        with told(InvalidInput, "HOLDFAST_URL", "Holdfast('app.db')"):
            Holdfast()


@pytest.mark.parametrize("name", ["a b.db", "ünïcode ☃.db", "semi;colon'quote\".db", "per%20cent?.db", "-dash"])
def test_a_strange_file_name_is_only_a_name(tmp_path: Path, name: str) -> None:
    with Holdfast(tmp_path / name) as app:
        app.queue("inbox").send("hello")
        assert app.queue("inbox").receive(wait=1) is not None
    assert [one.name for one in tmp_path.iterdir()] == [name]


def test_a_database_behind_a_link_works_as_any_other(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "app.db").symlink_to(tmp_path / "disk" / "real.db")
    Holdfast(tmp_path / "disk" / "real.db").close()
    with Holdfast(tmp_path / "app.db") as app:
        inbox = app.queue("inbox")
        assert len([inbox.send(n) for n in range(200)]) == 200
        assert len(inbox.receive_many(200, wait=1)) == 200
    assert {one.name for one in tmp_path.iterdir()} == {"disk", "app.db"}


@pytest.mark.parametrize(
    "prefix",
    [
        "",
        "Holdfast_",
        "1st_",
        "a-b",
        "a b",
        "a.b",
        "main.holdfast_",
        "x; DROP TABLE users; --",
        'x"',
        "x'",
        "x]",
        "{p}",
        "é_",
        "x\n",
        "x\0",
        "a" * 32,
        5,
        None,
        b"x_",
        ["x_"],
        "sqlite_",
        "sqlite_x_",
    ],
)
def test_a_bad_prefix_is_refused_and_no_file_is_made(tmp_path: Path, prefix: Any) -> None:
    with told(InvalidInput, "prefix", "underscores"):
        Holdfast(tmp_path / "app.db", prefix=prefix)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("prefix", ["a", "_", "select_", "a" * 31, "table", "order"])
def test_any_other_prefix_works_even_an_sql_word(tmp_path: Path, prefix: str) -> None:
    with Holdfast(tmp_path / "app.db", prefix=prefix) as app:
        app.queue("inbox").send("hello")
        message = app.queue("inbox").receive()
        assert message is not None and message.ack()
        assert [entry.name for entry in app.jobs.history(message.id)][-1] == "succeeded"


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"durability": "none"}, "full"),
        ({"durability": "FULL"}, "full"),
        ({"durability": None}, "normal"),
        ({"durability": ["full"]}, "normal"),
        ({"migrate": "no"}, "migrate"),
        ({"migrate": None}, "migrate"),
        ({"guard_connections": "no"}, "guard_connections"),
    ],
)
def test_a_bad_option_is_refused_and_no_file_is_made(tmp_path: Path, options: dict[str, Any], word: str) -> None:
    with told(InvalidInput, word):
        Holdfast(tmp_path / "app.db", **options)
    assert list(tmp_path.iterdir()) == []


def test_a_yes_or_no_that_is_neither_is_refused_by_a_queue(tmp_path: Path) -> None:
    with Holdfast(tmp_path / "app.db") as app, told(InvalidInput, "history"):
        app.queue("inbox", history="no")  # type: ignore[call-overload]


def test_a_folder_that_vanishes_is_told_and_not_a_bare_oserror(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    app = Holdfast(folder / "app.db")
    for file in folder.iterdir():
        file.unlink()
    folder.rmdir()
    with pytest.raises(HoldfastError):
        for _ in range(200):
            app.queue("inbox").send("into the void")
    app.close()


def test_a_log_that_somebody_deleted_is_told_and_not_a_bare_oserror(tmp_path: Path) -> None:
    """Removing the -wal file loses data; to say that a send failed when it did not would not help."""
    app = Holdfast(tmp_path / "app.db")
    (tmp_path / "app.db-wal").unlink()
    try:
        for _ in range(200):
            app.queue("inbox").send("hello")
    except OSError as error:
        pytest.fail(f"a bare {error!r}")
    except HoldfastError:
        pass
    app.close()


def test_a_database_locked_for_too_long_says_who_to_look_for(tmp_path: Path) -> None:
    app = Holdfast(tmp_path / "app.db", busy_timeout=0.02)
    other = sqlite3.connect(tmp_path / "app.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with told(StoreBusy, "lock", "long write transaction"):
        app.queue("inbox").send("hello")
    with told(StoreBusy, "lock"), app.transaction():
        pass
    other.execute("ROLLBACK")
    app.queue("inbox").send("hello")
    assert app.queue("inbox").stats().total == 1
    other.close()
    app.close()
