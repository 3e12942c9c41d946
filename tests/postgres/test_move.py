"""Moving a database to another one, on either store: everything arrives, and an interruption changes nothing."""

import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
from click.testing import CliRunner

from holdfast import Context, Fail, Holdfast, Retry
from holdfast.cli import main as command_line
from holdfast.errors import CannotMove, DatabaseMoved, StoreBusy, StoreError
from holdfast.store.move import CHUNK, NOT_MOVED, TABLES, Copier
from holdfast.testing import FakeClock
from support.backend import SqliteBackend
from support.postgres_backend import PostgresBackend, admin
from support.postgres_server import CRASHES, start_server, stop_server
from support.running_worker import RunningWorker, drain, eventually

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
    source.task(name="work")(lambda: None)
    source.queue("inbox").send_many([1, 2])
    source.move(destination, wait=0)
    place = destination.store.side.moving.place
    for refused in (
        lambda: source.queue("inbox").send(3),
        lambda: source.queue("inbox").send(3, key="k"),
        lambda: source.queue("inbox").receive(),
        lambda: source.queue("inbox").pause(),
        lambda: source.queue("inbox").purge(),
        lambda: source.jobs.cancel(1),
        lambda: source.jobs.delete(1),
        lambda: source.worker().run(),
    ):
        with pytest.raises(DatabaseMoved, match="was moved to") as caught:
            refused()
        assert place in str(caught.value)
    with pytest.raises(DatabaseMoved, match="was moved to"):
        source.move(destination)
    kind = {"sqlite": SqliteBackend, "postgres": PostgresBackend}[places.kinds[0]]
    table = f"{source.store.side.database.tables}jobs"
    for statement in (f"INSERT INTO {table} (task) VALUES ('work')", f"DELETE FROM {table}"):  # noqa: S608
        with pytest.raises(kind.DatabaseError, match="was moved to"):
            plain_sql(places, statement)
    assert source.queue("inbox").stats().ready == 2, "it can be read"
    one = source.check().of("MOVED")
    assert one is not None and place in one.meaning and source.check().of("TRIGGERS_ADDED") is None


def plain_sql(places: Places, statement: str) -> None:
    url = places.arguments(0)["url"]
    in_schema = {"options": "-c search_path=place0"}
    connection: Any = psycopg.connect(url, **in_schema) if places.kinds[0] == "postgres" else sqlite3.connect(url)  # type: ignore[arg-type]
    with closing(connection):
        connection.execute(statement)
        connection.commit()


def test_a_destination_with_jobs_is_refused(places: Places) -> None:
    source, destination = places.open(0), places.open(1)
    destination.queue("inbox").send(1)
    with pytest.raises(CannotMove, match="has jobs already"):
        source.move(destination)
    with pytest.raises(CannotMove, match="are the same database"):
        source.move(source)
    assert source.queue("inbox").send(2)


def interrupt(now: Any) -> None:
    raise KeyboardInterrupt


def test_a_destination_that_is_not_free_is_refused(places: Places, tmp_path: Path) -> None:
    source, destination = places.open(0), places.open(1)
    with closing(Holdfast(tmp_path / "third.db")) as third:
        for app in (source, third):
            app.queue("inbox").send(1)
        with pytest.raises(KeyboardInterrupt):
            third.move(destination, progress=interrupt)
        for dry_run in (False, True):
            with pytest.raises(CannotMove, match=r"is being filled from .*third\.db.*choose an empty database"):
                source.move(destination, dry_run=dry_run)
        third.move(destination, wait=0)
        for dry_run in (False, True):
            with pytest.raises(CannotMove, match=r"was itself moved to .*choose an empty database"):
                source.move(third, dry_run=dry_run)
        assert source.queue("inbox").send(2)


AHEAD = "UPDATE holdfast_events SET id = 1125899906842624"
TO_POSTGRES = pytest.mark.parametrize("places", [("sqlite", "postgres"), ("postgres", "postgres")], indirect=True)


@TO_POSTGRES
def test_a_log_that_is_ahead_of_the_server_is_refused(places: Places) -> None:
    source, destination = places.open(0), places.open(1)
    source.queue("inbox").send(1)
    plain_sql(places, AHEAD)
    for dry_run in (True, False):
        with pytest.raises(CannotMove, match="choose a server that has run more transactions"):
            source.move(destination, dry_run=dry_run)
    assert source.queue("inbox").send(2) and destination.queue("inbox").send(1)


@TO_POSTGRES
def test_a_log_that_runs_ahead_of_the_server_meanwhile_leaves_the_source_in_service(places: Places) -> None:
    source, destination = places.open(0), places.open(1)
    source.queue("inbox").send(1)

    def run_ahead(now: Any) -> None:
        if now.stage == "running":
            plain_sql(places, AHEAD)

    with pytest.raises(CannotMove, match="choose a server that has run more transactions"):
        source.move(destination, wait=0, progress=run_ahead)
    assert source.queue("inbox").send(2)


@pytest.mark.parametrize("places", [("sqlite", "postgres"), ("sqlite", "sqlite")], indirect=True)
@pytest.mark.parametrize(("text", "told"), [("x'22ff22'", "not UTF-8 .*xff"), ("x'220022'", "NUL")])
def test_a_text_that_would_not_arrive_as_it_is_leaves_the_source_in_service(
    places: Places, text: str, told: str
) -> None:
    source, destination = places.open(0), places.open(1)
    inbox = source.queue("inbox")
    id = inbox.send(1)
    plain_sql(places, f"UPDATE holdfast_jobs SET args = CAST({text} AS text)")  # noqa: S608
    if told == "NUL" and places.kinds[1] == "sqlite":
        source.move(destination, wait=0)
        assert contents(source) == contents(destination)
        return
    with pytest.raises(StoreError, match=told):
        source.move(destination, wait=0)
    last = inbox.send("well")
    source.jobs.delete(id)
    source.move(destination, wait=0)
    assert [job.id for job in destination.jobs.list()] == [last]


def enqueue_elsewhere(places: Places) -> Any:
    """Return the connection of another program that has enqueued a message and not committed it."""
    url = places.arguments(0)["url"]
    connection: Any
    if places.kinds[0] == "postgres":
        connection = psycopg.connect(url, options="-c search_path=place0")
    else:
        connection = sqlite3.connect(url, check_same_thread=False)
    connection.execute("INSERT INTO holdfast_jobs (queue) VALUES ('inbox')")
    return connection


def test_an_open_transaction_of_others_ends_the_move_and_not_the_service(places: Places) -> None:
    destination = places.open(1)
    with closing(Holdfast(**places.arguments(0), busy_timeout=0.3)) as source, ThreadPoolExecutor(1) as elsewhere:
        source.queue("inbox").send(1)
        other = elsewhere.submit(enqueue_elsewhere, places).result()
        with pytest.raises(StoreBusy, match="write lock"):
            source.move(destination, wait=0)
        other.commit()
        other.close()
        assert source.queue("inbox").send(2)
        source.move(destination, wait=0)
        assert destination.queue("inbox").stats().ready == 3


@pytest.mark.parametrize("places", [("postgres", "sqlite")], indirect=True)
def test_a_move_does_not_deadlock_with_a_transaction_of_the_caller(places: Places) -> None:
    """It has written to one table, and the move waits for it. Then it writes to the others."""
    waiting = "SELECT 1 FROM pg_locks WHERE NOT granted AND mode = 'ShareRowExclusiveLock'"
    tables = [table.name for table in TABLES]
    source, destination = places.open(0), places.open(1)
    for first in ("jobs", "workers", "meta"):
        with psycopg.connect(places.arguments(0)["url"]) as connection, ThreadPoolExecutor(1) as pool:
            connection.execute(f"DELETE FROM place0.holdfast_{first} WHERE false")  # noqa: S608
            held = pool.submit(source.store.side.database.run_in_this_thread, source.store.side.moving.lock)
            eventually(lambda: admin().execute(waiting).fetchall(), "the move waits")
            for table in tables:
                connection.execute(f"DELETE FROM place0.holdfast_{table} WHERE false")  # noqa: S608
            connection.execute("INSERT INTO place0.holdfast_jobs (queue) VALUES ('inbox')")
            connection.commit()
            held.result()
    assert source.move(destination, wait=0).rows["jobs"] == 3


def test_a_move_is_few_transactions(places: Places, clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of the source; of the destination one for each chunk that differs, and a handful."""
    source, destination = places.open(0, clock=clock), places.open(1, clock=clock)
    fill(source, clock)
    source.queue("many").send_many(range(3000))
    written = Counter[str]()
    for name, app in (("source", source), ("destination", destination)):
        database: Any = app.store.database  # type: ignore[attr-defined]
        for method in ("run", "run_in_this_thread"):
            original = getattr(database, method)

            def counted(*given: Any, name: str = name, run: Any = original, **options: Any) -> Any:
                written[name] += 1
                return run(*given, **options)

            monkeypatch.setattr(database, method, counted)
    source.move(destination, wait=0)
    chunks = sum(-(-len(rows) // CHUNK) for rows in contents(destination).values())
    assert written["source"] == 1
    assert chunks < written["destination"] < chunks + 15


def test_a_dry_run_changes_nothing(places: Places) -> None:
    source, destination = places.open(0), places.open(1)
    source.queue("inbox").send_many(range(5))
    report = source.move(destination, dry_run=True)
    assert report.dry_run and report.rows == {"jobs": 5, "events": 5}
    assert source.queue("inbox").send(1) and destination.queue("inbox").send(1)


def test_a_destination_that_is_being_filled_takes_no_jobs(places: Places) -> None:
    source, destination = places.open(0), places.open(1)
    source.queue("inbox").send(1)

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


@pytest.mark.parametrize("stage", ["rest", "comparing"])
def test_a_server_that_crashes_in_the_last_step_leaves_the_source_in_service(tmp_path: Path, stage: str) -> None:
    server = start_server(CRASHES)
    try:
        with Holdfast(server.url, busy_timeout=60) as source, Holdfast(tmp_path / "app.db") as destination:
            source.queue("inbox").send_many(range(10))
            crashes = iter([1])

            def crash(now: Any) -> None:
                if now.stage == stage and next(crashes, None):
                    server.stop(signal.SIGQUIT)
                    server.start()

            with pytest.raises(StoreError):
                source.move(destination, wait=0, progress=crash)
            assert source.queue("inbox").send("in service")
            with pytest.raises(DatabaseMoved, match="is being filled from"):
                destination.queue("inbox").send("too early")
            assert source.move(destination, wait=0).rows["jobs"] == destination.queue("inbox").stats().ready == 11
    finally:
        stop_server(server)


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
    apart = {"workers", "upkeep", "migrations", "unused_blobs", "event_blocks"}
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
