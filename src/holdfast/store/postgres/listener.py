"""Wake-up and liveness: one connection of the process that listens, notifies and holds advisory locks.

A commit of this process wakes its own threads at once. Other processes are told by NOTIFY, after the commit, at most
every 10 ms, or every 100 ms if jobs have only ended, and only if one of them sleeps, because a notification
serialises the commits of the whole server. Commits of other programs notify by a trigger. A notification is a hint:
those who wait also look once a second.

Who sleeps holds a shared lock. It takes it before it looks for the last time, so no commit falls between the two.

Behind a pooler, and on a standby, there is nothing to listen to. Then the thread has no connection of its own, and
those who wait look once a second.
"""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql

from ...errors import StoreError
from ..statements import as_json
from .connection import abandon, incarnation_of, wait_readable
from .dialect import Driver, Handle
from .locks import FIRST_WITHOUT_LOCK, HEARTBEAT_BOUND

if TYPE_CHECKING:
    from .database import PostgresDatabase

NOTIFY_SECONDS = 0.01  # between two notifications of this process
SETTLED_SECONDS = 0.1  # the same if nothing was enqueued in between: a busy worker tells nothing that is urgent
DEATHS_SECONDS = 0.2  # between two looks for workers that died
POLLED_DEATHS_SECONDS = 5.0  # the same without a connection of its own: heartbeats decide
RECONNECT_SECONDS = 0.2
MAX_SLEEP_SECONDS = 30.0
AWAKE_SECONDS = 0.2  # after which a process in which nobody waits does not count as asleep any more
SLEEPERS = 3  # number of the lock
TOUCH_SECONDS = 0.2


class ListenerStatements:
    """What the listener asks of the database, on its own connection or, if it has none, on one of the pool."""

    def __init__(self, db: PostgresDatabase) -> None:
        self._db, self._sql, self.lock_class = db, db.sql, db.lock_class

    def connect_listener(self) -> Driver | None:
        return self._db.sessions.connect_listener()

    def notify(self, driver: Driver | None) -> None:
        values = {"class": self.lock_class, "sleepers": SLEEPERS, "channel": self._db.names.channel}
        self._row(driver, self._sql.notify, values)

    def count_dead_workers(self, driver: Driver | None) -> int:
        since = self._db.clock.now() - HEARTBEAT_BOUND
        values = {"class": self.lock_class, "first_without_lock": FIRST_WITHOUT_LOCK, "since": since}
        return int(self._row(driver, self._sql.count_dead_workers, values)[0])

    def touch_workers(self, numbers: list[int]) -> None:
        def touch(driver: Driver) -> None:
            values = {"now": self._db.clock.now(), "place": incarnation_of(driver), "slots": as_json(numbers)}
            Handle(driver).execute(self._sql.touch_workers, values)

        with self._db.hurried(TOUCH_SECONDS):  # the heartbeat comes anyway
            self._db.with_driver(touch)

    def _row(self, driver: Driver | None, statement: str, values: dict[str, Any]) -> Any:
        if driver is None:
            return self._db.with_driver(lambda own: Handle(own).execute(statement, values).fetchone())
        return Handle(driver).execute(statement, values).fetchone()


class Listener:
    def __init__(self, db: PostgresDatabase) -> None:
        self._statements, self._channel, self._class = ListenerStatements(db), db.names.channel, db.lock_class
        self.commits = 0
        self.deaths = 0
        self.watches_deaths = False
        self._cut_at = self._connected_at = -float("inf")
        self._changed = threading.Condition()
        self._using = threading.RLock()  # the connection
        self._driver: Driver | None = None
        self._held: set[int] = set()
        self._unlocked: set[int] = set()  # of these: not locked yet, since an old session still holds them
        self._thread: threading.Thread | None = None
        self._pipe: tuple[int, int] | None = None
        self._wants_notify = self._is_urgent = self._closed = False
        self._notified_at = 0.0
        self._waiting, self._waited_at = 0, 0.0  # threads that wait, and when the last one did
        self._sleeps = self._says_so = False  # whether one waits or did lately; whether the lock is held

    # --- waiting ---

    def wait(self, seen: int, timeout: float) -> None:
        self._start()
        with self._changed:
            self._waiting += 1
            if not self._sleeps:
                self._sleeps = True  # the thread takes the lock, and wakes: then this one looks once more
                self._poke()
            try:
                self._changed.wait_for(lambda: self.commits != seen or self._closed, timeout)
            finally:
                self._waiting -= 1
                self._waited_at = monotonic()

    def wake(self) -> None:
        """Wake the threads of this process."""
        with self._changed:
            self.commits += 1
            self._changed.notify_all()

    def committed(self, *, urgent: bool = True) -> None:
        """Wake all that wait, also in other processes. urgent: jobs may have been enqueued."""
        self.wake()
        self._start()
        if self._wants_notify and self._is_urgent >= urgent:
            return  # the thread knows, and waits until it may notify again
        self._is_urgent = self._is_urgent or urgent
        self._wants_notify = True
        self._poke()

    # --- locks ---

    def lock(self, number: int) -> bool:
        """Hold an advisory lock for as long as this process lives. Returns False if another one has it."""
        self._start()
        with self._using:
            driver = self._connected()
            if driver is None or not self._try(driver, number):
                return False
            self._held.add(number)
            return True

    def unlock(self, number: int) -> None:
        with self._using:
            if number in self._held:
                self._held.discard(number)
                self._unlocked.discard(number)
                if self._driver is not None and not self._driver.closed:
                    with suppress(psycopg.Error):
                        self._driver.execute("SELECT pg_advisory_unlock(%s::int, %s::int)", (self._class, number))

    def holds(self, number: int) -> bool:
        return number in self._held

    def was_cut(self, seconds: float) -> bool:
        """Return whether the connection was lost in the last seconds."""
        return monotonic() - self._cut_at < seconds

    def _try(self, driver: Driver, number: int) -> bool:
        statement = "SELECT pg_try_advisory_lock(%s::int, %s::int)"
        (locked,) = driver.execute(statement, (self._class, number)).fetchone() or (False,)
        return bool(locked)

    # --- the thread ---

    def _start(self) -> None:
        if self._thread is not None or self._closed:
            return
        with self._changed:
            if self._thread is None and not self._closed:
                self._pipe = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
                self._thread = threading.Thread(target=self._run, name="holdfast-listener", daemon=True)
                self._thread.start()

    def _poke(self) -> None:
        pipe = self._pipe
        if pipe is not None:
            with suppress(OSError):
                os.write(pipe[1], b".")

    def _connected(self) -> Driver | None:
        """Return the connection, or open it: it listens, and holds the locks. The caller holds `_using`."""
        driver = self._driver
        if driver is not None and not driver.closed and not driver.broken:
            return driver
        self._driver, self._says_so = None, False
        driver = self._statements.connect_listener()
        if driver is not None:
            try:
                driver.execute(sql.SQL("LISTEN {}").format(sql.Identifier(self._channel)))
                self._unlocked = {number for number in self._held if not self._try(driver, number)}
            except BaseException:
                driver.close()
                raise
            driver.add_notify_handler(self._told)
            self._driver, self._connected_at = driver, monotonic()
            self.wake()  # something may have happened before it listened
        return driver

    def _told(self, notification: psycopg.Notify) -> None:
        """Called for what arrives while a statement runs."""
        driver = self._driver
        if driver is None or notification.pid != driver.info.backend_pid:  # its own threads are awake already
            self.wake()

    def _run(self) -> None:
        next_look = 0.0
        while not self._closed:
            try:
                with self._using:
                    was_open, driver = self._driver is not None, self._connected()
                    if driver is not None:
                        self._lock_what_is_left(driver)
                        self._say_whether_somebody_sleeps(driver)
                if driver is not None and not was_open:
                    self._touch()
                with self._using:
                    self._notify(driver)
                    if self.watches_deaths and monotonic() >= next_look:
                        next_look = monotonic() + (POLLED_DEATHS_SECONDS if driver is None else DEATHS_SECONDS)
                        if self._statements.count_dead_workers(driver):
                            self.deaths += 1
                            self.wake()
                self._sleep(driver, next_look)
            except (psycopg.Error, StoreError, OSError, ValueError):
                self._reconnect_soon()

    def _reconnect_soon(self) -> None:
        """Connect again at once if a connection was cut that has worked, and otherwise after a while."""
        with self._using:
            if self._driver is not None:
                self._driver.close()
                self._driver, self._cut_at = None, monotonic()
                if monotonic() - self._connected_at > RECONNECT_SECONDS:
                    return
        if not self._closed:
            self._touch()  # perhaps the connections of the pool still work
            assert self._pipe is not None
            wait_readable([self._pipe[0]], RECONNECT_SECONDS)
            self._drain_pipe()

    def _touch(self) -> None:
        if self._held:
            with suppress(psycopg.Error, StoreError):
                self._statements.touch_workers(sorted(self._held))

    def _lock_what_is_left(self, driver: Driver) -> None:
        for number in list(self._unlocked):
            if self._try(driver, number):
                self._unlocked.discard(number)

    def _say_whether_somebody_sleeps(self, driver: Driver) -> None:
        """Hold the shared lock while somebody waits, and for a while after it."""
        with self._changed:
            if self._sleeps and not self._waiting and monotonic() - self._waited_at > AWAKE_SECONDS:
                self._sleeps = False
            sleeps = self._sleeps
        if sleeps and not self._says_so:
            driver.execute("SELECT pg_advisory_lock_shared(%s::int, %s::int)", (self._class, SLEEPERS))
            self._says_so = True
            self.wake()  # those who wait have looked before the lock was there
        elif self._says_so and not sleeps:
            driver.execute("SELECT pg_advisory_unlock_shared(%s::int, %s::int)", (self._class, SLEEPERS))
            self._says_so = False

    def _notify(self, driver: Driver | None) -> None:
        if self._wants_notify and monotonic() >= self._next_notification():
            self._wants_notify = self._is_urgent = False
            self._notified_at = monotonic()
            self._statements.notify(driver)

    def _next_notification(self) -> float:
        return self._notified_at + (NOTIFY_SECONDS if self._is_urgent else SETTLED_SECONDS)

    def _sleep(self, driver: Driver | None, next_look: float) -> None:
        assert self._pipe is not None
        seconds = MAX_SLEEP_SECONDS
        if self.watches_deaths:
            seconds = min(seconds, next_look - monotonic())
        if self._wants_notify:
            seconds = min(seconds, self._next_notification() - monotonic())
        if self._unlocked:
            seconds = min(seconds, RECONNECT_SECONDS)
        descriptors = [self._pipe[0]] if driver is None else [driver.fileno(), self._pipe[0]]
        readable = wait_readable(descriptors, seconds)
        self._drain_pipe()
        if readable and driver is not None:
            with self._using:
                driver.pgconn.consume_input()
                while (found := driver.pgconn.notifies()) is not None:
                    if found.be_pid != driver.pgconn.backend_pid:  # its own threads are awake already
                        self.wake()

    def _drain_pipe(self) -> None:
        assert self._pipe is not None
        with suppress(OSError):
            while os.read(self._pipe[0], 4096):
                pass

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._poke()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()
        with self._using:
            if self._driver is not None:
                self._driver.close()
        if self._pipe is not None:
            for end in self._pipe:
                os.close(end)
            self._pipe = None

    def abandon(self) -> None:
        """In a forked child: let go of the connection of the parent."""
        if self._driver is not None:
            abandon(self._driver)
        for end in self._pipe or ():
            with suppress(OSError):
                os.close(end)
