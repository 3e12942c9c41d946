"""Wake-up and liveness: one connection of the process that listens, notifies and holds advisory locks.

A commit of this process wakes its own threads at once. Other processes are told by NOTIFY, after the commit and at
most every 10 ms, or every 100 ms if jobs have only ended, because a notification serialises the commits of the whole
server. Commits of other programs notify by a trigger. A notification is a hint: those who wait also look once a
second.
"""

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from time import monotonic
from typing import Any

import psycopg
from psycopg import sql

from ...errors import StoreError
from .connection import Driver, wait_readable

NOTIFY_SECONDS = 0.01  # between two notifications of this process
SETTLED_SECONDS = 0.1  # the same if nothing was enqueued in between: a busy worker tells nothing that is urgent
DEATHS_SECONDS = 0.3  # between two looks for workers that died
RECONNECT_SECONDS = 0.2
MAX_SLEEP_SECONDS = 30.0


class Listener:
    def __init__(
        self, connect: Callable[[], Driver], channel: str, lock_class: int, count_dead: Callable[[Driver], int]
    ) -> None:
        """count_dead: returns how many workers on record hold no lock."""
        self._connect, self._channel, self._class, self._count_dead = connect, channel, lock_class, count_dead
        self.commits = 0
        self.deaths = 0
        self.watches_deaths = False
        self._changed = threading.Condition()
        self._using = threading.RLock()  # the connection
        self._driver: Driver | None = None
        self._held: set[int] = set()
        self._thread: threading.Thread | None = None
        self._pipe: tuple[int, int] | None = None
        self._wants_notify = self._is_urgent = self._closed = False
        self._notified_at = 0.0

    # --- waiting ---

    def wait(self, seen: int, timeout: float) -> None:
        self._start()
        with self._changed:
            self._changed.wait_for(lambda: self.commits != seen or self._closed, timeout)

    def wake(self) -> None:
        """Wake the threads of this process."""
        with self._changed:
            self.commits += 1
            self._changed.notify_all()

    def committed(self, *, urgent: bool = True) -> None:
        """Wake all that wait, also in other processes. urgent: jobs may have been enqueued."""
        self.wake()
        self._start()
        self._is_urgent = self._is_urgent or urgent
        self._wants_notify = True
        self._poke()

    # --- locks ---

    def lock(self, number: int) -> None:
        """Hold an advisory lock for as long as this process lives."""
        self._start()
        with self._using:
            self._held.add(number)
            self._connected().execute("SELECT pg_advisory_lock(%s::int, %s::int)", (self._class, number))

    def unlock(self, number: int) -> None:
        with self._using:
            if number in self._held:
                self._held.discard(number)
                if self._driver is not None and not self._driver.closed:
                    with suppress(psycopg.Error):
                        self._driver.execute("SELECT pg_advisory_unlock(%s::int, %s::int)", (self._class, number))

    def holds(self, number: int) -> bool:
        return number in self._held

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

    def _connected(self) -> Driver:
        """Return the connection, or open it: it listens, and holds the locks. The caller holds `_using`."""
        driver = self._driver
        if driver is None or driver.closed or driver.broken:
            driver = self._connect()
            driver.add_notify_handler(self._told)
            driver.execute(sql.SQL("LISTEN {}").format(sql.Identifier(self._channel)))
            for number in self._held:
                driver.execute("SELECT pg_advisory_lock(%s::int, %s::int)", (self._class, number))
            self._driver = driver
            self.wake()  # something may have happened before it listened
        return driver

    def _told(self, notification: Any) -> None:
        driver = self._driver
        if driver is None or notification.pid != driver.info.backend_pid:  # its own threads are awake already
            self.wake()

    def _run(self) -> None:
        assert self._pipe is not None
        next_look = 0.0
        while not self._closed:
            try:
                with self._using:
                    driver = self._connected()
                    self._notify(driver)
                    if self.watches_deaths and monotonic() >= next_look:
                        next_look = monotonic() + DEATHS_SECONDS
                        if self._count_dead(driver):
                            self.deaths += 1
                            self.wake()
                self._sleep(driver, next_look)
            except (psycopg.Error, StoreError, OSError, ValueError):
                with self._using:
                    if self._driver is not None:
                        self._driver.close()
                        self._driver = None
                if not self._closed:
                    wait_readable([self._pipe[0]], RECONNECT_SECONDS)
                    self._drain_pipe()

    def _notify(self, driver: Driver) -> None:
        if self._wants_notify and monotonic() >= self._next_notification():
            self._wants_notify = self._is_urgent = False
            self._notified_at = monotonic()
            driver.execute("SELECT pg_notify(%s, '')", (self._channel,))

    def _next_notification(self) -> float:
        return self._notified_at + (NOTIFY_SECONDS if self._is_urgent else SETTLED_SECONDS)

    def _sleep(self, driver: Driver, next_look: float) -> None:
        assert self._pipe is not None
        seconds = MAX_SLEEP_SECONDS
        if self.watches_deaths:
            seconds = min(seconds, next_look - monotonic())
        if self._wants_notify:
            seconds = min(seconds, self._next_notification() - monotonic())
        readable = wait_readable([driver.fileno(), self._pipe[0]], seconds)
        self._drain_pipe()
        if readable:
            with self._using:
                driver.pgconn.consume_input()
                while (found := driver.pgconn.notifies()) is not None:
                    if found.be_pid != driver.pgconn.backend_pid:
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
