"""Moving a database to another one, on either store: everything arrives, and an interruption changes nothing."""

import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
from click.testing import CliRunner

from holdfast import Context, Fail, Holdfast, Retry
from holdfast.cli import main as command_line
from holdfast.errors import CannotMove, DatabaseMoved
from holdfast.store.move import NOT_MOVED, TABLES, Copier
from holdfast.testing import FakeClock
from support.backend import SqliteBackend
from support.postgres_backend import PostgresBackend, admin
from support.running_worker import RunningWorker, drain

LARGE = "x" * 100_000


class Places:
    """A source and an empty destination."""

    def __init__(self, kinds: tuple[str, str], folder: Path, url: str) -> None:
        self.kinds, self._folder, self._url = kinds, folder, url
        self._opened: list[Holdfast] = []

    def arguments(self, which: int) -> dict[str, Any]:
        if self.kinds[which] == "sqlite":
            return {"url": str(self._folder / f"{which}.db")}
        return {"url": self._url, "schema": f"place{which}"}

    def open(self, which: int, **options: Any) -> Holdfast:
        self._opened.append(Holdfast(**self.arguments(which), busy_timeout=60, **options))
        return self._opened[-1]

    def close(self) -> None:
        for app in self._opened:
            app.close()
        admin().execute("DROP SCHEMA IF EXISTS place0 CASCADE")
        admin().execute("DROP SCHEMA IF EXISTS place1 CASCADE")


BOTH_WAYS = [("sqlite", "postgres"), ("postgres", "sqlite")]


@pytest.fixture(params=BOTH_WAYS, ids="-".join)
def places(request: pytest.FixtureRequest, tmp_path: Path, template: Callable[..., str]) -> Iterator[Places]:
    one = Places(request.param, tmp_path, template(PostgresBackend))
    yield one
    one.close()


def fill(app: Holdfast, clock: FakeClock) -> None:
    """Jobs in every state, and everything else that can be in a database."""

    @app.task(name="work", max_attempts=2)
    def work(ctx: Context, how: str = "well") -> Any:
        if how == "badly":
            raise ValueError("broken")
        return Retry(after=3600) if how == "later" else Fail("NO") if how == "never" else how

    work.using(key="done", tags=["a", "b"]).enqueue()
    for how in ("badly", "never", "later", LARGE):
        work.enqueue(how)
    drain(app)
    first = work.using(delay=3600, key="held").enqueue()
    work.using(after=first).enqueue()
    work.using(priority=5).enqueue("waits")
    with app.batch(on_done=work) as batch:
        batch.add(work, "member") if hasattr(batch, "add") else None
        work.using(delay=60).enqueue()
    app.jobs.cancel(work.enqueue("cancelled").id)
    app.schedules.add("tidy", "*/5 * * * *", "work")
    app.queue("paused").pause()
    inbox = app.queue("inbox")
    inbox.send_many([{"n": number} for number in range(20)])
    taken = inbox.receive()
    assert taken is not None and taken.ack()
    inbox.receive(visibility=3600)
    app.jobs.delete(work.using(delay=60).enqueue().id)
    clock.advance(61)


def contents(app: Holdfast) -> dict[str, list[Any]]:
    """All rows that are moved, without what belongs to processes."""
    side, found = app.store.side, {}
    for table in TABLES:
        with_columns = app.store.side.database.read(lambda on, name=table.name: side.moving.columns(on, name))
        names = sorted(set(with_columns) - ({"slot", "inode", "place"} if table.name == "batches" else set()))
        rows = side.database.rows(f"SELECT {', '.join(names)} FROM {side.database.tables}{table.name}")  # noqa: S608
        kept = [row for row in rows if table.name != "meta" or row[names.index("name")] not in NOT_MOVED]
        found[table.name] = sorted((tuple(row) for row in kept), key=repr)
    return found


def answers(app: Holdfast) -> Any:
    jobs = app.jobs.list(limit=100)
    return (
        [(job.id, job.status, job.attempt, job.key, job.tags, job.error_code) for job in jobs],
        [[(one.at, one.attempt) for one in app.jobs.history(job.id)] for job in jobs],
        app.observe.snapshot().queues if hasattr(app.observe.snapshot(), "queues") else None,
        [(one.name, one.paused, one.ready) for one in app.queues()],
    )


def test_everything_arrives(places: Places, clock: FakeClock) -> None:
    source, destination = places.open(0, clock=clock), places.open(1, clock=clock)
    fill(source, clock)
    source.store.jobs.sweep()
    cursor = source.observe.last_events(5)[0].id
    newest = max(job.id for job in source.jobs.list(limit=100))
    report = source.move(destination, wait=0, actor="kim", reason="grown")
    assert report.rows["jobs"] == len(source.jobs.list(limit=100)) > 20
    assert contents(source) == contents(destination)
    assert answers(source) == answers(destination)
    assert {job.status for job in destination.jobs.list(limit=100)} >= {
        "succeeded", "failed", "cancelled", "scheduled", "blocked", "ready",
    }  # fmt: skip
    large = [job for job in destination.jobs.list(status="succeeded", limit=100) if job.result == LARGE]
    assert len(large) == 1, "its payload and its result are large"
    followed = [one.id for one in destination.observe.events(after=cursor)]
    assert followed == [one.id for one in source.observe.events(after=cursor)] and followed
    sent = destination.queue("inbox").send("new")
    assert sent > newest, "ids go on"
    assert [one.job_id for one in destination.observe.events(after=followed[-1])] == [sent]
    (moved,) = [one for one in destination.observe.last_events(100) if one.event == "moved"]
    assert (moved.actor, moved.detail) == ("kim", {"to": report.destination, "reason": "grown"})
    checkup = destination.check()
    assert not [one for one in checkup.findings if one.severity == "error" and one.code != "FLUSH_OFF"]


def test_what_is_left_runs_at_the_destination(places: Places, clock: FakeClock) -> None:
    source = places.open(0, clock=clock)
    fill(source, clock)
    source.move(destination := places.open(1, clock=clock), wait=0)
    destination.task(name="work")(lambda how="well": how)
    clock.advance(7200)
    drain(destination)
    assert not destination.jobs.list(status=["ready", "running", "scheduled", "blocked"], task="work", limit=100)


def test_the_source_refuses_writes_and_names_the_place(places: Places) -> None:
    source, destination = places.open(0), places.open(1)
    source.queue("inbox").send_many([1, 2])
    source.move(destination, wait=0)
    place = destination.store.side.moving.place
    for refused in (
        lambda: source.queue("inbox").send(3),
        lambda: source.queue("inbox").send(3, key="k"),
        lambda: source.queue("inbox").receive(),
        lambda: source.queue("inbox").pause(),
        lambda: source.jobs.cancel(1),
    ):
        with pytest.raises(DatabaseMoved, match="was moved to") as caught:
            refused()
        assert place in str(caught.value)
    with pytest.raises(DatabaseMoved, match="was moved to"):
        source.move(destination)
    kind = {"sqlite": SqliteBackend, "postgres": PostgresBackend}[places.kinds[0]]
    table = f"{source.store.side.database.tables}jobs"
    with pytest.raises(kind.DatabaseError, match="was moved to"):
        plain_sql(places, f"INSERT INTO {table} (task) VALUES ('work')")  # noqa: S608
    assert source.queue("inbox").stats().ready == 2, "it can be read"
    one = source.check().of("MOVED")
    assert one is not None and place in one.meaning and source.check().of("TRIGGERS_ADDED") is None


def plain_sql(places: Places, statement: str) -> None:
    url = places.arguments(0)["url"]
    connection: Any = psycopg.connect(url) if places.kinds[0] == "postgres" else sqlite3.connect(url)
    try:
        connection.execute(statement)
    finally:
        connection.close()


def test_a_destination_with_jobs_is_refused(places: Places) -> None:
    source, destination = places.open(0), places.open(1)
    destination.queue("inbox").send(1)
    with pytest.raises(CannotMove, match="has jobs already"):
        source.move(destination)
    with pytest.raises(CannotMove, match="are the same database"):
        source.move(source)
    assert source.queue("inbox").send(2)


def test_a_dry_run_changes_nothing(places: Places) -> None:
    source, destination = places.open(0), places.open(1)
    source.queue("inbox").send_many(range(5))
    report = source.move(destination, dry_run=True)
    assert report.dry_run and report.rows == {"jobs": 5, "events": 5}
    assert source.queue("inbox").send(1) and destination.queue("inbox").send(1)


def test_a_destination_that_is_being_filled_takes_no_jobs(places: Places) -> None:
    source, destination = places.open(0), places.open(1)
    source.queue("inbox").send(1)

    def interrupt(now: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        source.move(destination, progress=interrupt)
    with pytest.raises(DatabaseMoved, match="is being filled from"):
        destination.queue("inbox").send(1)
    assert destination.check().of("BEING_FILLED") is not None
    assert source.queue("inbox").send(2)
    source.move(destination, wait=0)
    assert destination.queue("inbox").stats().ready == 2


KILLED = """
import os, signal, sys
from holdfast import Holdfast
import holdfast.store.move as move
move.CHUNK = 5
source, destination = (Holdfast(**one, busy_timeout=60) for one in {arguments!r})
left = {left}
def count(now):
    global left
    left -= 1
    if left < 0:
        os.kill(os.getpid(), signal.SIGKILL)
source.move(destination, wait=0, progress=count)
"""


def test_a_killed_move_leaves_the_source_in_service_and_goes_on(places: Places, clock: FakeClock) -> None:
    source = places.open(0, clock=clock)
    fill(source, clock)
    inbox, last = source.queue("inbox"), 0
    for left in (0, 3, 9, 20, 45):
        code = KILLED.format(arguments=[places.arguments(0), places.arguments(1)], left=left)
        ended = subprocess.run([sys.executable, "-c", code], capture_output=True)
        assert ended.returncode == -signal.SIGKILL, ended.stderr.decode()
        last = inbox.send({"n": f"after the kill at {left}"}, key="same")
        message = inbox.receive(visibility=3600)
        assert message is not None and message.ack(), "the source is in service"
    destination = places.open(1, clock=clock)
    source.move(destination, wait=0)
    assert contents(source) == contents(destination) and answers(source) == answers(destination)
    assert destination.queue("inbox").send("again", key="same") == last


def test_a_move_that_was_killed_before_its_last_step_is_ended(
    places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, destination = places.open(0), places.open(1)
    source.queue("inbox").send(1)
    with monkeypatch.context() as patch:
        patch.setattr("holdfast.store.move.Side.end_filling", lambda _: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            source.move(destination, wait=0)
    for app in (source, destination):
        with pytest.raises(DatabaseMoved):
            app.queue("inbox").send(2)
    source.move(destination)
    assert destination.queue("inbox").send(2)


def test_work_goes_on_while_the_history_is_copied(
    places: Places, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.store.move.CHUNK", 3)
    source, destination = places.open(0, clock=clock), places.open(1, clock=clock)
    fill(source, clock)
    inbox, acked = source.queue("inbox"), list[int]()

    def work(now: Any) -> None:
        if now.stage == "history":
            inbox.send({"n": now.done}, key="one at a time")
            message = inbox.receive()
            assert message is not None and message.ack()
            acked.append(message.id)

    source.move(destination, wait=0, progress=work)
    assert contents(source) == contents(destination) and len(acked) > 2
    assert {destination.jobs.get(id).status for id in acked} == {"succeeded"}


def test_rows_that_do_not_arrive_leave_the_source_in_service(places: Places, monkeypatch: pytest.MonkeyPatch) -> None:
    source, destination = places.open(0), places.open(1)
    source.queue("inbox").send_many(range(3))
    write = Copier._write

    def lose_one(self: Any, connection: Any, table: Any, rows: list[Any], there: list[Any]) -> None:
        write(self, connection, table, rows[:-1] if table.name == "events" else rows, there)

    with monkeypatch.context() as patch:
        patch.setattr(Copier, "_write", lose_one)
        with pytest.raises(CannotMove, match="events differs after copying"):
            source.move(destination, wait=0)
    assert source.queue("inbox").send(3)
    source.move(destination, wait=0)
    assert destination.queue("inbox").stats().ready == 4


def test_a_destination_that_changes_meanwhile_leaves_the_source_in_service(places: Places) -> None:
    source, destination = places.open(0), places.open(1)
    source.queue("inbox").send(1)
    database: Any = destination.store.database  # type: ignore[attr-defined]

    def interfere(now: Any) -> None:
        if now.stage == "comparing":
            database.change(f"INSERT INTO {database.tables}tags (job_id, tag) VALUES (?, ?)", (1, "red"))  # noqa: S608

    with pytest.raises(CannotMove, match="tags differs after copying"):
        source.move(destination, wait=0, progress=interfere)
    assert source.queue("inbox").send(2)
    source.move(destination, wait=0)


def test_workers_are_asked_to_stop(places: Places) -> None:
    source, destination = places.open(0), places.open(1)
    done = source.task(name="work")(lambda: "done").enqueue()
    with RunningWorker(source) as running:
        assert done.wait(60) == "done"
        source.move(destination)
        assert running.report() is not None
    assert destination.jobs.get(done.id).result == "done" and not destination.jobs.list(status="running")


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_a_move_to_the_same_kind(kind: str, tmp_path: Path, template: Callable[..., str], clock: FakeClock) -> None:
    places = Places((kind, kind), tmp_path, template(PostgresBackend))
    try:
        source, destination = places.open(0, clock=clock), places.open(1, clock=clock)
        fill(source, clock)
        source.move(destination, wait=0)
        assert contents(source) == contents(destination) and answers(source) == answers(destination)
    finally:
        places.close()


def test_no_table_is_forgotten(tmp_path: Path) -> None:
    """The others are about processes, or made anew by the destination. Large payloads are copied apart."""
    apart = {"workers", "upkeep", "migrations", "unused_blobs", "job_events"}
    Holdfast(tmp_path / "app.db").close()
    with closing(sqlite3.connect(tmp_path / "app.db")) as connection:
        names = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND name LIKE 'holdfast_%'")
        tables = {name.removeprefix("holdfast_") for (name,) in names.fetchall()}
    assert tables == apart | {table.name for table in TABLES}


def test_a_move_shows_and_stores_no_password(tmp_path: Path, template: Callable[..., str]) -> None:
    places = Places(
        ("sqlite", "postgres"), tmp_path, template(PostgresBackend).replace("password=", "password=hunter2")
    )
    try:
        source = places.open(0)
        source.queue("inbox").send(1)
        destination = places.arguments(1)["url"]
        assert "hunter2" in destination
        given = ["move", places.arguments(0)["url"], destination, "--schema", "place1"]
        said = [CliRunner().invoke(command_line, given).output for _ in range(2)]  # the second is refused
        with closing(sqlite3.connect(tmp_path / "0.db")) as connection:
            said += connection.iterdump()
        with psycopg.connect(destination) as there:
            said += [str(row) for row in there.execute("SELECT * FROM place1.holdfast_meta").fetchall()]
        with pytest.raises(DatabaseMoved) as caught:
            source.queue("inbox").send(2)
        said += [str(caught.value), str(source.check())]
        assert "was moved to postgresql://" in said[1] and "hunter2" not in "\n".join(said)
    finally:
        places.close()
