"""A store looks itself over, on a connection of its own for reading."""

import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import msgspec

from ...blobs import ListedBlobs
from ...clock import SECOND, Clock
from ...errors import HoldfastError, StoreBusy, StoreError
from ...model.diagnosis import (
    BlobReferences,
    Examination,
    Held,
    Integrity,
    Miscount,
    Pause,
    Question,
    Settings,
    Some,
    StuckReady,
    Times,
    Unopened,
    Vitals,
    Why,
)
from ...model.stats import WaitingJob
from ...model.worker import WorkerStatus
from ..blob_store import Vault
from ..statements import Statements, as_json
from ..statistics import StatisticsReader
from .database import Database
from .engine.connection import READ_TEXT, READER_CACHE_KIB, require_usable_sqlite
from .engine.errors import code_of, is_busy, translate
from .engine.file_users import Holders, has_companion, openers_of, survey
from .engine.files import blob_folder, database_path, require_file
from .migrate import Migrations
from .stats import EVERY, LONGEST_READY
from .workers import present_workers

T = TypeVar("T")
MOST = 1000  # that are counted of anything
NAMED = 10  # that are named
WINDOW = 20_000  # rows at either end of an index
NEWEST = 1000
MOST_BLOBS = 2000
SECONDS_EACH = 0.25  # for one question
LARGEST_CHECKED_BYTES = 64 * 1024 * 1024
STEPS_PER_LOOK = 10_000  # of SQLite's machine
GRACE = 10 * SECOND  # a sweep may come that late
SLACK = 60 * SECOND  # between the clocks of two machines
FAR = 10 * 365 * 86_400 * SECOND
FIRST_TIME = 1_000_000_000 * SECOND  # 2001: nobody made a job before
MOST_DUE = 1000  # jobs that are due and scheduled still; those of paused queues among them
TABLES = ("attempts", "events", "tags", "blockers")


class Look:
    """One look at the database, on a connection that nobody else uses meanwhile."""

    def __init__(
        self,
        connection: sqlite3.Connection,
        sql: Statements,
        path: Path,
        clock: Clock,
        kept: ListedBlobs | None = None,
    ) -> None:
        """kept: what keeps large payloads, if that can be asked."""
        self._connection, self._sql, self._path, self._clock, self._kept = connection, sql, path, clock, kept
        self._statistics = StatisticsReader(sql)
        self._deadline = float("inf")

    def examine(self, found: Examination, is_open: bool) -> None:
        """Fills in what can be known. is_open: whether the journal mode shows."""
        from .migrate import compare

        deep = found.deep
        window = -1 if deep else WINDOW
        with self._watched():
            found.settings = self._ask(found, "settings", lambda: self._settings(is_open))
            found.schema = self._ask(found, "schema", lambda: compare(self._connection, self._sql, found.prefix))
            self._look_at_rows(found, window)
            self._look_at_jobs(found, window)
            found.times = self._ask(found, "times", lambda: self._times(deep))
            found.blobs = self._ask(found, "large payloads", lambda: self._blobs(found))
            found.integrity = self._integrity(found)

    def vitals(self, since_minute: int, queues: Sequence[str] | None) -> Vitals:
        now = self._clock.now()
        paused = {name for name, is_paused in self._all("queues_ever_paused", {}) if is_paused}
        with self._in_one_transaction():
            counts = self._statistics.counts(self._connection)
            minutes = self._statistics.minutes(self._connection, since_minute)
        places = as_json([(one.queue, one.task or "") for one in counts if one.status == "ready"])
        ready = self._all("longest_ready", {"places": places, "limit": EVERY} | LONGEST_READY)
        due = self._all("longest_due", {"now": now, "limit": MOST_DUE})
        waiting = [
            WaitingJob(id, queue, task, since, status)
            for status, rows in (("ready", ready), ("scheduled", due))
            for id, queue, task, since in rows
        ]
        counted = [one for one in waiting if one.queue not in paused and (queues is None or one.queue in queues)]
        first = min(counted, key=lambda one: one.since, default=None)
        ended = Counter[str]()
        for one in minutes:
            if queues is None or one.queue in queues:
                ended[one.measure] += one.count
        return Vitals(now, first.since if first else None, first.id if first else None, ended, self._workers())

    # --- the questions ---

    def _look_at_rows(self, found: Examination, window: int) -> None:
        values = {"window": window, "most": MOST}
        found.orphans = self._ask(
            found, "orphaned rows", lambda: {table: self._some(f"orphaned_{table}", values) for table in TABLES}
        )
        found.rootless = self._ask(found, "chains", lambda: self._some("rootless_chains", values))
        found.batchless = self._ask(found, "batches", lambda: self._some("batchless_jobs", values))
        found.miscounts = self._ask(found, "counts", self._miscounts)
        if found.deep:
            found.broken_keys = self._ask(found, "foreign keys", self._broken_keys)

    def _look_at_jobs(self, found: Examination, window: int) -> None:
        now, boot_now = self._clock.now(), self._clock.boot_now()
        found.workers = self._ask(found, "workers", self._workers)
        dead = [one.record.id for one in found.workers or () if one.presence == "dead"]
        live = [one.record.id for one in found.workers or () if one.presence != "dead"]
        values = {"window": window, "most": MOST, "live": as_json(live), "dead": as_json(dead)}
        found.overdue = self._ask(
            found, "leases", lambda: self._some("overdue", values | {"before": boot_now - GRACE})
        )
        found.abandoned = self._ask(found, "leases", lambda: self._some("abandoned", values))
        found.unheld = self._ask(found, "blocked jobs", lambda: self._some("unheld", values))
        found.held = self._ask(found, "blocked jobs", lambda: self._held(values))
        found.endings = self._ask(found, "endings", lambda: int(self._all("endings_left", values)[0][0]))
        found.waiting = self._ask(found, "ready jobs", lambda: self._waiting(values))
        found.late = self._ask(found, "scheduled jobs", lambda: self._some("late", values | {"before": now - SLACK}))
        found.pauses = self._ask(
            found, "queues", lambda: [Pause(name, at, bool(ready)) for name, at, ready in self._all("pauses", values)]
        )

    def _settings(self, is_open: bool) -> Settings:
        self._connection.execute("PRAGMA foreign_keys = ON")
        return Settings(
            journal_mode=str(self._pragma("journal_mode")) if is_open else None,
            page_size=self._pragma("page_size"),
            pages=self._pragma("page_count"),
            free_pages=self._pragma("freelist_count"),
            auto_vacuum=self._pragma("auto_vacuum"),
            encoding=self._pragma("encoding"),
            foreign_keys=bool(self._pragma("foreign_keys")),
        )

    def _miscounts(self) -> list[Miscount]:
        with self._in_one_transaction():
            rows = self._statistics.recount(self._connection)
        return [Miscount(*row) for row in rows[:MOST]]

    @contextmanager
    def _in_one_transaction(self) -> Iterator[None]:
        begun = not self._connection.in_transaction
        if begun:
            self._connection.execute("BEGIN")
        try:
            yield
        finally:
            if begun and self._connection.in_transaction:
                self._connection.execute("ROLLBACK")

    def _broken_keys(self) -> list[tuple[str, int]]:
        """Rows of whatever table, the user's own too, that refer to nothing."""
        counts: dict[str, int] = {}
        for table, *_ in self._connection.execute("PRAGMA foreign_key_check").fetchmany(MOST):
            counts[table] = counts.get(table, 0) + 1
        return sorted(counts.items())

    def _workers(self) -> list[WorkerStatus]:
        return present_workers(self._connection, self._sql, self._path)

    def _held(self, values: dict[str, Any]) -> list[Held]:
        return [
            Held(id, policy, succeeded, failed, gone, tuple(msgspec.json.decode(ids)) if ids else ())
            for id, policy, succeeded, failed, gone, ids in self._all("held_by_ended", values)
        ]

    def _waiting(self, values: dict[str, Any]) -> list[StuckReady]:
        rows = self._all("waiting_pairs", values)
        return [StuckReady(queue, task, count, count >= MOST) for queue, task, count in rows]

    def _times(self, deep: bool) -> Times:
        now = self._clock.now()
        values = {"most": MOST, "newest": NEWEST, "slack": SLACK}
        stored = self._connection.execute(self._sql.get_meta, ("boot_id",)).fetchone()
        steps, largest = self._all("steps_back", values)[0]
        return Times(
            boot_id=None if stored is None else stored[0],
            current_boot_id=self._clock.boot_id(),
            created_ahead=self._some("created_ahead", values | {"after": now + SLACK}),
            far_ahead=self._some("far_ahead", values | {"after": now + FAR}),
            ended_ahead=self._some("ended_ahead", values | {"after": now + SLACK}),
            ended_untimed=self._some("ended_untimed", values | {"newest": -1 if deep else NEWEST}),
            wrong_unit=self._some("wrong_unit", values | {"before": FIRST_TIME}),
            steps_back=steps,
            largest_step=largest,
        )

    def _blobs(self, found: Examination) -> BlobReferences | None:
        from .blobs import look_at_blobs

        kept_by = self._connection.execute(self._sql.get_meta, ("blob_store",)).fetchone()
        if kept_by is None:
            return None
        if self._kept is None or kept_by[0] != type(self._kept).__qualname__:
            found.unanswered.append(Question("large payloads", "elsewhere", str(kept_by[0])))
            return None
        most = -1 if found.deep else MOST_BLOBS
        return look_at_blobs(self._connection, self._sql, self._kept, most, self._deadline)

    def _integrity(self, found: Examination) -> Integrity | None:
        size = found.surroundings.database_bytes + found.surroundings.log_bytes
        if not found.deep and size > LARGEST_CHECKED_BYTES:
            found.unanswered.append(Question("integrity", "large", str(size)))
            return None
        began = time.monotonic()
        check = "integrity_check" if found.deep else "quick_check"
        rows = self._ask(
            found, "integrity", lambda: self._connection.execute(f"PRAGMA {check}({NAMED})").fetchmany(NAMED)
        )
        if rows is None:
            return None
        problems = [str(row[0]) for row in rows if row[0] != "ok"]
        return Integrity(problems, found.deep, time.monotonic() - began)

    # --- how they are asked ---

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """A question that takes too long is ended."""
        self._connection.set_progress_handler(lambda: int(time.monotonic() > self._deadline), STEPS_PER_LOOK)
        try:
            yield
        finally:
            self._connection.set_progress_handler(None, 0)

    def _ask(self, found: Examination | None, name: str, question: Callable[[], T]) -> T | None:
        self._deadline = time.monotonic() + SECONDS_EACH if found is not None and not found.deep else float("inf")
        try:
            return question()
        except (sqlite3.Error, HoldfastError, msgspec.DecodeError) as error:
            if found is not None:
                found.unanswered.append(Question(name, _why(error), str(error)))
            return None

    def _some(self, statement: str, values: dict[str, Any]) -> Some:
        ids = [row[0] for row in self._all(statement, values)]
        return Some(len(ids), tuple(sorted(ids[:NAMED])), len(ids) >= MOST)

    def _all(self, statement: str, values: dict[str, Any]) -> list[Any]:
        return self._connection.execute(getattr(self._sql, statement), values).fetchall()

    def _pragma(self, name: str) -> Any:
        return self._connection.execute(f"PRAGMA {name}").fetchone()[0]


def _why(error: Exception) -> Why:
    if isinstance(error, sqlite3.Error):
        code = code_of(error)
        if code == sqlite3.SQLITE_INTERRUPT:
            return "slow"
        if is_busy(error):
            return "busy"
        if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            return "damaged"
        return "schema" if code == sqlite3.SQLITE_ERROR else "other"
    return "busy" if isinstance(error, StoreBusy) else "other"


def blank(path: Path, prefix: str, min_free_bytes: int, clock: Clock, deep: bool, holders: Holders) -> Examination:
    """An examination of which only what is around the file is known."""
    return Examination(
        prefix=prefix,
        now=clock.now(),
        sqlite_version=sqlite3.sqlite_version,
        sqlite_version_info=sqlite3.sqlite_version_info,
        surroundings=survey(path, blob_folder(path, prefix), min_free_bytes, holders),
        deep=deep,
        unanswered=[],
    )


BUSY_SECONDS = 2.0
NAP_SECONDS = 0.01


class Patient:
    def __init__(self, url: str, prefix: str, clock: Clock) -> None:
        self.path, self._prefix, self._clock = database_path(url), prefix, clock
        self._sql = Statements(Path(__file__).parent / "sql", prefix)

    def examine(self, min_free_bytes: int, deep: bool = False) -> Examination:
        from ..blob_store import FileBlobs

        found = blank(self.path, self._prefix, min_free_bytes, self._clock, deep, Holders(self.path))
        if found.surroundings.kind != "file" or found.surroundings.unsafe:
            return found
        try:
            files = FileBlobs(blob_folder(self.path, self._prefix))
            self._look(lambda look, is_open: look.examine(found, is_open), files)
        except StoreError as error:
            found.unopened = Unopened(type(error).__name__, str(error))
        return found

    def vitals(self, since_minute: int, queues: Sequence[str] | None = None) -> Vitals:
        require_file(self.path)
        return self._look(lambda look, _: look.vitals(since_minute, queues))

    def _look(self, use: Callable[[Look, bool], T], kept: ListedBlobs | None = None) -> T:
        require_usable_sqlite()
        # A connection that may not write would leave a log and its index behind, if there are none. Without them
        # nobody has the database open, and it can be read as a file that does not change.
        at_rest = not has_companion(self.path) and not openers_of(self.path)
        try:
            with closing(_open(self.path, at_rest)) as connection:
                try:
                    return use(Look(connection, self._sql, self.path, self._clock, kept), not at_rest)
                except sqlite3.OperationalError as error:
                    if code_of(error) == sqlite3.SQLITE_ERROR:  # a table is missing, most likely
                        Migrations(connection, self._prefix).require_current()
                    raise
        except sqlite3.Error as error:
            raise translate(error, self.path) from error


def _open(path: Path, at_rest: bool) -> sqlite3.Connection:
    uri = f"file:{quote(str(path))}?mode=ro{'&immutable=1' if at_rest else ''}"
    connection = sqlite3.connect(uri, uri=True, timeout=0, isolation_level=None, check_same_thread=False)
    connection.text_factory = READ_TEXT
    deadline = time.monotonic() + BUSY_SECONDS
    try:
        for pragma in ("trusted_schema = OFF", "mmap_size = 0", f"cache_size = -{READER_CACHE_KIB}"):
            connection.execute(f"PRAGMA {pragma}")
        while True:  # until it can be read at all
            try:
                connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchall()
                return connection
            except sqlite3.OperationalError as error:
                if not is_busy(error) or time.monotonic() > deadline:
                    raise
            time.sleep(NAP_SECONDS)
    except BaseException:
        connection.close()
        raise


class Examining:
    def __init__(self, db: Database, vault: Vault) -> None:
        self._db, self._sql, self._clock, self._vault = db, db.sql, db.clock, vault

    def examine(self, deep: bool = False) -> Examination:
        """What is not as it should be. Nothing is written. deep: all rows are looked at, however long it takes."""
        options = self._db.options
        holders = Holders(options.path)

        def work(connection: sqlite3.Connection) -> Examination:
            found = blank(options.path, options.prefix, options.min_free_bytes, self._clock, deep, holders)
            look = Look(connection, self._sql, options.path, self._clock, self._vault.listed)
            look.examine(found, is_open=True)
            return found

        return self._db.read(work)

    def vitals(self, since_minute: int, queues: Sequence[str] | None = None) -> Vitals:
        """What a health check asks: what waits longest, how attempts ended since a minute, and who is there."""
        return self._db.read(
            lambda connection: Look(connection, self._sql, self._db.options.path, self._clock).vitals(
                since_minute, queues
            )
        )
