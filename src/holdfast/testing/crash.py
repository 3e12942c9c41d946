"""Crash a scenario at every point, restart, and check what is left."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from shutil import copyfile
from tempfile import TemporaryDirectory
from threading import Lock
from types import FrameType
from typing import Any

from msgspec import Struct

from .. import validate
from ..app import App
from ..errors import InvalidInput
from ..store.protocol import StatementKind
from .database import on_database
from .drain import FakeClock, drain

DATABASE_FILES = ("", "-wal", "-shm", "-workers")
STANDARD_LIBRARY = os.path.dirname(os.__file__)  # noqa: PTH120
MAX_SHOWN = 70


class CrashPoint(Struct, frozen=True):
    """A point of a scenario at which it was crashed."""

    number: int
    what: str
    """What would have happened next, such as `before COMMIT`, or the name given to `crash_point`."""
    where: str
    """The line of the program that was being run, such as `shop.py:31 in pay`."""

    def __str__(self) -> str:
        return f"point {self.number}, {self.what} ({self.where})"


class _Crash(BaseException):
    """Unwinds the scenario. A process that has crashed can do nothing more to the database."""


class _Crasher:
    """Counts points while the scenario runs, and crashes at one of them. Implements StatementObserver."""

    def __init__(self, crash_at: int | None) -> None:
        self._crash_at = crash_at
        self._lock = Lock()  # a handler may run in another thread
        self.points: list[CrashPoint] = []
        self.crashed: CrashPoint | None = None
        self.is_armed = False
        self._was_in_drain = False  # at the last point

    def before_statement(self, connection: Any, statement: str, kind: StatementKind) -> None:  # noqa: ARG002
        if kind != "setting" or self.crashed is not None:
            self.pass_point(f"before {_shorten(statement.partition(' -- ')[0])}", is_write=kind == "write")

    def after_commit(self, connection: Any) -> None:  # noqa: ARG002
        self.pass_point("after the commit")

    def pass_point(self, what: str, is_write: bool = True) -> None:
        with self._lock:
            if not self.is_armed:
                return
            if self.crashed is not None:  # code that unwinds has no effect on the database
                raise _Crash
            where, is_in_drain = _user_line()
            # Between two reads of `drain` itself nothing happens.
            if is_write or not (is_in_drain and self._was_in_drain):
                self.points.append(CrashPoint(len(self.points) + 1, what, where))
            self._was_in_drain = is_in_drain
            if len(self.points) == self._crash_at:
                self.crashed = self.points[-1]
                raise _Crash


_crasher: _Crasher | None = None


def crash_point(name: str) -> None:
    """Let `crash_at_every_point` crash here as well. Does nothing otherwise.

    Call it in the stand-ins of your tests, around an effect outside of the database.
    """
    if _crasher is not None:
        _crasher.pass_point(validate.name(name, "name of a crash point"))


def crash_at_every_point(
    app: App,
    scenario: Callable[[], object],
    check: Callable[[], object],
    *,
    setup: Callable[[], object] = lambda: None,
    recover: Callable[[], object] | None = None,
    path: str | os.PathLike[str] | None = None,
    only: int | None = None,
    limit: int = 1000,
) -> list[CrashPoint]:
    """Run the scenario once for each of its points, crash it there, restart, and call `check`. Returns the points.

    A point is before each SQL statement of Holdfast and of your transactions, after each commit, and at each
    `crash_point`. The first round runs without a crash and counts them. Each round has a new database and a new
    FakeClock; the crash is one of the machine: open transactions are rolled back, the leases of running jobs end.

    scenario: usually `lambda: drain(app)`. It must do the same in each round.
    check: raises if something is wrong. The crash point is added to its exception as a note.
    setup: called at the start of each round, without crashes: creates tables, enqueues jobs, empties lists.
    recover: called after the restart; by default `drain(app)`, which runs what is left.
    path: the database, for tests with a connection of their own; by default in a temporary folder.
    only: crash only at the point with this number.
    limit: the maximum number of points. Each costs about as much as a test of its own.
    """
    if not isinstance(app, App):
        raise InvalidInput(f"crash_at_every_point: app must be a Holdfast, got {validate.shown(app)}")
    limit = validate.integer(limit, "limit", 1, 2**31)
    with TemporaryDirectory(prefix="holdfast-") as folder:
        rounds = _Rounds(app, scenario, check, setup, recover or (lambda: drain(app)), Path(folder), path)
        points = rounds.run(None).points
        if len(points) > limit:
            raise InvalidInput(f"the scenario has {len(points)} points, more than limit={limit}: test a smaller one")
        if only is not None and validate.integer(only, "only", 1, 2**31) > len(points):
            raise InvalidInput(f"only must be at most {len(points)}, the number of points, got {only}")
        for point in points if only is None else [points[only - 1]]:
            if rounds.run(point.number).crashed is None:
                raise InvalidInput(
                    f"the scenario reached {point} in its first run and not again: it must do the same each time"
                )
    return points


class _Rounds:
    def __init__(
        self,
        app: App,
        scenario: Callable[[], object],
        check: Callable[[], object],
        setup: Callable[[], object],
        recover: Callable[[], object],
        folder: Path,
        path: str | os.PathLike[str] | None,
    ) -> None:
        self._app, self._scenario, self._check = app, scenario, check
        self._setup, self._recover = setup, recover
        self._path = folder / "test.db" if path is None else Path(path)
        self._empty = folder / "empty.db"
        with on_database(app, self._empty, FakeClock()):
            pass  # creates the tables once, to copy for each round

    def run(self, crash_at: int | None) -> _Crasher:
        """Run one round: set up, run, crash, restart, recover, check."""
        crasher, clock = _Crasher(crash_at), FakeClock()
        for suffix in DATABASE_FILES:
            Path(f"{self._path}{suffix}").unlink(missing_ok=True)
        copyfile(self._empty, self._path)
        with on_database(self._app, self._path, clock, crasher):
            self._setup()
            with _armed(crasher):
                self._scenario()
            if crasher.crashed is None:
                self._verify(crasher)
                return crasher
        clock.reboot("boot-2")
        with on_database(self._app, self._path, clock):
            self._verify(crasher)
        return crasher

    def _verify(self, crasher: _Crasher) -> None:
        try:
            if crasher.crashed is not None:
                self._recover()
            self._check()
        except BaseException as error:
            if crasher.crashed is not None:
                number = crasher.crashed.number
                error.add_note(f"After a crash at {crasher.crashed}. Replay it with only={number}.")
            raise


@contextmanager
def _armed(crasher: _Crasher) -> Iterator[None]:
    global _crasher
    before, _crasher = _crasher, crasher
    crasher.is_armed = True
    try:
        with suppress(_Crash):
            yield
    except BaseException:
        if crasher.crashed is None:  # otherwise an error of code that was being unwound
            raise
    finally:
        crasher.is_armed, _crasher = False, before


def _user_line() -> tuple[str, bool]:
    """Return the innermost line that is not Holdfast's or Python's own, and whether `drain` is what it called."""
    frame, is_in_drain = sys._getframe(2), False
    while frame.f_back is not None and _is_internal(frame):
        is_in_drain |= frame.f_code is drain.__code__
        frame = frame.f_back
    name = os.path.basename(frame.f_code.co_filename)  # noqa: PTH119  pathlib is slow
    return f"{name}:{frame.f_lineno} in {frame.f_code.co_name}", is_in_drain


def _is_internal(frame: FrameType) -> bool:
    module, file = frame.f_globals.get("__name__", ""), frame.f_code.co_filename
    is_standard = file.startswith((STANDARD_LIBRARY, "<")) and "site-packages" not in file
    return is_standard or module.partition(".")[0] == __name__.partition(".")[0]


def _shorten(statement: str) -> str:
    text = " ".join(statement.split())
    return text if len(text) <= MAX_SHOWN else f"{text[: MAX_SHOWN - 1]}…"
