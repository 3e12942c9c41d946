"""Wake threads that wait for messages, jobs, chains and batches: one thread of the process looks for all that wait.

A commit may concern any of them, and most commits concern none. So the waiters do not ask the database themselves:
one of the waiting threads leads. It sleeps until any process commits or a job is due, asks with one query what has
happened, and wakes the waiters that it affects. If only coroutines wait, a thread of its own leads. See
docs/internals/wake-up.md.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from time import monotonic, sleep
from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from ..errors import HoldfastError

if TYPE_CHECKING:
    from .protocol import Store


Kind = Literal["queue", "job", "chain", "batch"]
Subject = tuple[Kind, str | int]
"""What is waited for: a message of the queue with this name, or the end of the job, chain or batch with this id."""

MAX_WAIT_SECONDS = 3600.0
OVERDUE_SECONDS = 0.05  # between attempts to move what is overdue
LONG_LOOK_SECONDS = 0.0005  # a look that takes longer is followed by a pause three times as long
LINGER_SECONDS = 10.0  # for which the thread that leads for coroutines outlives the last of them


class Awaited(Struct, frozen=True):
    """All that is waited for in a process."""

    queues: list[str]
    most: int  # messages of one queue that are wanted, at most
    jobs: list[int]
    chains: list[int]
    batches: list[int]


class Happened(Struct, frozen=True):
    """What a look at the database has found."""

    ended: list[tuple[Subject, int]]
    """The jobs, chains and batches that have ended or are gone; and queues, with the number of ready messages."""
    seconds_until_due: float
    """Until a scheduled job is due or a lease ends; not positive if one is overdue."""


class Waiter:
    """A thread or a coroutine that waits for a subject: it looks, waits, and looks again until it is there."""

    def __init__(self, waiters: Waiters, subject: Subject, limit: int) -> None:
        self._waiters, self.subject, self.limit = waiters, subject, limit
        self.wake: Callable[[], None] = lambda: None
        self.is_coroutine = self.woken = False

    def wait(self, seen: int, timeout: float) -> None:
        """Wait until the subject may be there. It may return early.

        seen: `store.commits_seen()` from before the caller looked.
        """
        event, waiters, deadline = threading.Event(), self._waiters, monotonic() + timeout
        self.wake, self.is_coroutine = event.set, False
        with waiters.registered(self, seen):
            while not self.woken and (left := deadline - monotonic()) > 0:
                if waiters.take_lead():
                    waiters.lead(lambda: self.woken, deadline, self)
                else:
                    event.wait(min(left, MAX_WAIT_SECONDS))
                    event.clear()

    async def wait_async(self, seen: int, timeout: float) -> None:
        """Do the same in a coroutine. No thread is held meanwhile."""
        import asyncio

        loop = asyncio.get_running_loop()
        woken: asyncio.Future[None] = loop.create_future()

        def end() -> None:
            if not woken.done():
                woken.set_result(None)

        def wake() -> None:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(end)

        self.wake, self.is_coroutine = wake, True
        with self._waiters.registered(self, seen):
            await asyncio.wait([woken], timeout=min(timeout, MAX_WAIT_SECONDS))

    def close(self, has_looked: bool) -> None:
        """Stop waiting. If it was woken and has not looked since, another one is woken in its place."""
        self._waiters.settle(self, has_looked)


class Waiters:
    """All that wait in this process for something in one database."""

    def __init__(self, store: Store, find: Callable[[Awaited], Happened]) -> None:
        """find: asks the database, with one query, what has happened of all that is awaited."""
        self._store, self.find = store, find
        self.forget()

    def forget(self) -> None:
        """Start without waiters, in a forked child: the threads of its parent are not there."""
        self._lock = threading.Lock()
        self._waiting: dict[Subject, dict[Waiter, None]] = {}  # not woken yet, in order
        self._threads: dict[Waiter, None] = {}
        self._coroutines = 0
        self._limits = 0  # of all in `_waiting`
        self._promised: dict[str | int, int] = {}  # by queue: limits of waiters that were woken and have not looked
        self._withheld: set[str | int] = (
            set()
        )  # queues with messages for which none was woken, since some are promised
        self._led = False  # whether a thread leads
        self._helper: threading.Thread | None = None
        self._helper_wanted = threading.Event()
        self._closed = False

    def __len__(self) -> int:
        with self._lock:
            return len(self._threads) + self._coroutines

    def waiter(self, subject: Subject, limit: int = 1) -> Waiter:
        """limit: how many messages of a queue the caller takes."""
        return Waiter(self, subject, limit)

    def close(self) -> None:
        """Wake all, and end the thread that leads for coroutines. Called after the database was closed."""
        with self._lock:
            self._closed = True
            helper = self._helper
            self._helper_wanted.set()
        self._wake_all()
        if helper is not None and helper is not threading.current_thread():
            helper.join()

    @contextmanager
    def registered(self, waiter: Waiter, seen: int) -> Iterator[None]:
        """In the block, wake the waiter when its subject is there."""
        self.settle(waiter, has_looked=True)
        with self._lock:
            self._waiting.setdefault(waiter.subject, {})[waiter] = None
            self._limits += waiter.limit
            if waiter.is_coroutine:
                self._coroutines += 1
                self._find_leader()
            else:
                self._threads[waiter] = None
        try:
            if self._store.commits_seen() != seen:  # the leader may have looked before this waiter was registered
                with self._lock:
                    self._wake_one(waiter)
            yield
        finally:
            with self._lock:
                self._drop(waiter)
                if waiter.is_coroutine:
                    self._coroutines -= 1
                else:
                    del self._threads[waiter]
                self._find_leader()  # this one may have been asked to lead

    def settle(self, waiter: Waiter, has_looked: bool) -> None:
        """Note that a waiter that was woken has looked, or will not look."""
        with self._lock:
            if not waiter.woken:
                return
            waiter.woken = False
            kind, queue = waiter.subject
            if kind != "queue":
                return
            self._promised[queue] -= waiter.limit
            if not self._promised[queue]:
                del self._promised[queue]
            looks_again = queue in self._withheld or not has_looked
            self._withheld.discard(queue)
        if looks_again:  # what was promised to this one may be there for another
            with suppress(HoldfastError):
                self._store.wake_waiters()

    def _drop(self, waiter: Waiter) -> None:
        others = self._waiting.get(waiter.subject, {})
        if waiter in others:
            del others[waiter]
            self._limits -= waiter.limit
            if not others:
                del self._waiting[waiter.subject]

    # --- leading ---

    def take_lead(self) -> bool:
        with self._lock:
            if self._led:
                return False
            self._led = True
            return True

    def lead(self, is_over: Callable[[], bool], deadline: float, own: Waiter | None = None) -> None:
        """Look and wake for all until it is over. own: the waiter of this thread."""
        store, failed = self._store, True
        try:
            while True:
                seen, began = store.commits_seen(), monotonic()
                due = self._look_and_wake()
                if is_over() or (left := deadline - monotonic()) <= 0:
                    break
                if (took := monotonic() - began) > LONG_LOOK_SECONDS:
                    sleep(3 * took)  # so that frequent commits do not keep this thread busy
                store.wait_for_commit(seen, min(left, due))
                if own is not None and self._wake_if_alone(own):
                    break
            failed = False
        finally:
            with self._lock:
                self._led = False
                self._find_leader()
            if failed:
                self._wake_all()

    def _find_leader(self) -> None:
        """If no thread leads, ask one to. The caller holds the lock."""
        if self._led or not self._waiting or self._closed:
            return
        if self._threads:
            next(reversed(self._threads)).wake()  # the last one stays longest
        elif self._helper is None:
            self._helper = threading.Thread(target=self._help, name="holdfast-waiters", daemon=True)
            self._helper.start()
        else:
            self._helper_wanted.set()

    def _help(self) -> None:
        """Lead for coroutines, as long as there are any, and some time longer."""
        while True:
            if self.take_lead():
                with suppress(HoldfastError):  # all were woken: they find out for themselves
                    self.lead(lambda: not self._coroutines, float("inf"))
            wanted = self._helper_wanted.wait(LINGER_SECONDS)
            with self._lock:
                self._helper_wanted.clear()
                if self._closed or not (wanted or self._coroutines):
                    self._helper = None
                    return

    def _look_and_wake(self) -> float:
        """Ask what has happened, and wake the waiters that it affects. Return how many seconds to wait at most."""
        with self._lock:
            awaited = self._awaited()
        happened = self.find(awaited)
        with self._lock:
            for subject, count in happened.ended:
                promised = self._promised.get(subject[1], 0)
                self._wake(subject, count - promised)
                if promised and subject in self._waiting:
                    self._withheld.add(subject[1])
            if happened.seconds_until_due > 0:
                return happened.seconds_until_due
            if not awaited.queues:
                return MAX_WAIT_SECONDS  # a worker moves what is overdue
            self._wake(("queue", awaited.queues[0]), 1)  # before it claims, it moves what is overdue
            return OVERDUE_SECONDS

    def _awaited(self) -> Awaited:
        ids: dict[Kind, list[int]] = {"job": [], "chain": [], "batch": []}
        queues: list[str] = []
        for kind, what in self._waiting:
            if isinstance(what, int):
                ids[kind].append(what)
            else:
                queues.append(what)
        most = self._limits + sum(self._promised.values())
        return Awaited(queues, most, ids["job"], ids["chain"], ids["batch"])

    def _wake(self, subject: Subject, count: int) -> None:
        """Wake all that wait for the subject; of a queue, as many as it has messages. The caller holds the lock."""
        for waiter in list(self._waiting.get(subject, ())):
            if count <= 0:
                break
            if subject[0] == "queue":
                count -= waiter.limit
            self._wake_one(waiter)

    def _wake_one(self, waiter: Waiter) -> None:
        if not waiter.woken:
            kind, what = waiter.subject
            if kind == "queue":
                self._promised[what] = self._promised.get(what, 0) + waiter.limit
            self._drop(waiter)
            waiter.woken = True
            waiter.wake()

    def _wake_if_alone(self, waiter: Waiter) -> bool:
        """If no others wait, let this one look itself, instead of looking for it."""
        with self._lock:
            if len(self._threads) == 1 and not self._coroutines and not self._promised:
                self._wake_one(waiter)
            return waiter.woken

    def _wake_all(self) -> None:
        with self._lock:
            for waiter in [one for waiters in self._waiting.values() for one in waiters]:
                self._wake_one(waiter)
