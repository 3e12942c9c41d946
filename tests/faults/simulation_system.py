"""What Holdfast uses of the operating system, on a simulated machine: locks, threads, clocks, files, process ids."""

from __future__ import annotations

import asyncio
import importlib
import os
import pkgutil
import secrets
import sqlite3
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import holdfast
from holdfast.store import processes
from holdfast.store.sqlite.engine import self_wait, watcher, worker_locks
from holdfast.store.sqlite.engine.transaction import LentConnection
from holdfast.worker import worker as worker_module

from .simulation_machine import (
    SECOND_NS,
    Killed,
    Machine,
    Process,
    SimulatedConnection,
    SimulatedLentConnection,
    SimulatedThread,
)


@contextmanager
def running(machine: Machine) -> Iterator[None]:
    """Let all modules of Holdfast run on this machine."""
    Machine.now_running = machine
    _load_all()
    replaced = list(_replace(_replacements(machine)))
    registered = set(processes._owners)
    try:
        yield
    finally:
        # Killed processes leave their databases in use for ever: a real fork would wait for each of them.
        for owner in set(processes._owners) - registered:
            processes._owners.discard(owner)
        try:
            machine.end()
        finally:
            for module, name, value in replaced:
                setattr(module, name, value)
            Machine.now_running = None


class Lock:
    def __init__(self, machine: Machine) -> None:
        self._machine, self._locked = machine, False
        self._waiting: list[SimulatedThread] = []

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        machine = self._machine
        machine.pause()
        deadline = None if timeout < 0 else machine.now + round(timeout * SECOND_NS)
        while self._locked:
            if not blocking or (deadline is not None and machine.now >= deadline):
                return False
            me = machine.current
            self._waiting.append(me)
            try:
                machine.block(deadline)
            finally:
                self._waiting.remove(me)
        self._locked = True
        return True

    def release(self) -> None:
        if self._machine.current.process.is_dead:
            return
        if not self._locked:
            raise RuntimeError("release unlocked lock")
        self._locked = False
        if self._waiting:
            self._machine.wake(self._waiting[0])

    def locked(self) -> bool:
        return self._locked

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class Condition:
    def __init__(self, machine: Machine, lock: Lock | None = None) -> None:
        self._machine, self._lock = machine, lock or Lock(machine)
        self._waiting: list[SimulatedThread] = []
        self.acquire, self.release = self._lock.acquire, self._lock.release

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def wait(self, timeout: float | None = None) -> bool:
        machine, me = self._machine, self._machine.current
        self._waiting.append(me)
        self._lock.release()
        try:
            if me in self._waiting:
                machine.block(None if timeout is None else machine.now + round(timeout * SECOND_NS))
        finally:
            notified = me not in self._waiting
            if not notified:
                self._waiting.remove(me)
        self._lock.acquire()
        return notified

    def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
        deadline = None if timeout is None else self._machine.now + round(timeout * SECOND_NS)
        while not (result := predicate()):
            left = None if deadline is None else (deadline - self._machine.now) / SECOND_NS
            if left is not None and left <= 0:
                break
            self.wait(left)
        return result

    def notify(self, n: int = 1) -> None:
        for thread in self._waiting[:n]:
            self._waiting.remove(thread)
            self._machine.wake(thread)

    def notify_all(self) -> None:
        self.notify(len(self._waiting))


class Event:
    def __init__(self, machine: Machine) -> None:
        self._machine, self._changed, self._is_set = machine, Condition(machine), False

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        with self._changed:
            self._is_set = True
            self._changed.notify_all()

    def clear(self) -> None:
        self._is_set = False

    def wait(self, timeout: float | None = None) -> bool:
        with self._changed:
            return bool(self._changed.wait_for(lambda: self._is_set, timeout))


class Semaphore:
    def __init__(self, machine: Machine, value: int = 1) -> None:
        self._changed, self._value = Condition(machine), value

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> bool:
        with self._changed:
            if not self._changed.wait_for(lambda: self._value > 0, timeout if blocking else 0):
                return False
            self._value -= 1
            return True

    def release(self) -> None:
        with self._changed:
            self._value += 1
            self._changed.notify()


class Thread:
    def __init__(
        self,
        machine: Machine,
        target: Callable[..., object],
        args: tuple[Any, ...] = (),
        name: str = "thread",
        daemon: bool = True,
    ) -> None:
        self._machine, self._name, self._run = machine, name.removeprefix("holdfast-"), lambda: target(*args)

    def start(self) -> None:
        self._thread = self._machine.spawn(self._machine.current.process, self._name, self._run)
        self._machine.pause()

    def join(self, timeout: float | None = None) -> None:
        deadline = None if timeout is None else self._machine.now + round(timeout * SECOND_NS)
        while not self._thread.is_done and (deadline is None or self._machine.now < deadline):
            self._machine.sleep(0.01)


class EventLoop(asyncio.BaseEventLoop):
    """An event loop that waits on the machine. Its threads, for `asyncio.to_thread`, are simulated as well."""

    def __init__(self, machine: Machine) -> None:
        super().__init__()
        self._machine, self._process, self._selector = machine, machine.current.process, self
        self._is_woken = False
        self._waiting: SimulatedThread | None = None
        self.set_exception_handler(self._on_error)

    def run_forever(self) -> None:
        try:
            super().run_forever()
        finally:
            if self._process.is_dead:  # end its coroutines here, and not when they are collected
                for task in asyncio.all_tasks(self):
                    task._log_destroy_pending = False  # type: ignore[attr-defined]
                    with suppress(Killed, RuntimeError):
                        task.get_coro().close()  # type: ignore[union-attr]

    def time(self) -> float:
        return self._machine.now / SECOND_NS

    def select(self, timeout: float | None) -> list[Any]:
        machine = self._machine
        machine.pause()
        if not self._is_woken and (timeout is None or timeout > 0):
            self._waiting = machine.current
            try:
                machine.block(None if timeout is None else machine.now + round(timeout * SECOND_NS) + 1)
            finally:
                self._waiting = None
        self._is_woken = False
        return []

    def run_in_executor(self, _: Any, call: Callable[..., Any], *args: Any) -> Any:
        future = self.create_future()

        def settle(method: Callable[[Any], None], value: Any) -> None:
            if not future.done():
                method(value)

        def run() -> None:
            try:
                result = call(*args)
            except Exception as error:  # noqa: BLE001  raised where it is awaited
                self.call_soon_threadsafe(settle, future.set_exception, error)
            else:
                self.call_soon_threadsafe(settle, future.set_result, result)

        self._machine.spawn(self._process, "to_thread", run)
        return future

    def _write_to_self(self) -> None:
        self._is_woken = True
        if self._waiting is not None:
            self._machine.wake(self._waiting)

    def _process_events(self, event_list: list[Any]) -> None:
        pass

    def _on_error(self, _: Any, context: dict[str, Any]) -> None:
        if not self._process.is_dead:
            self._machine.fail(f"{self._process.name}: {context['message']}", context.get("exception"))


class WakeUp:
    """Stands for worker.worker.WakeUp, which is a pair of sockets."""

    def __init__(self, machine: Machine) -> None:
        self._machine, self._is_notified = machine, False
        self._waiting: SimulatedThread | None = None

    def notify(self) -> None:
        self._is_notified = True
        if self._waiting is not None:
            self._machine.wake(self._waiting)

    def wait(self, seconds: float) -> None:
        if not self._is_notified:
            self._waiting = self._machine.current
            try:
                self._machine.sleep(seconds)
            finally:
                self._waiting = None
        self._is_notified = False

    def close(self) -> None:
        pass


class FileMonitor:
    """Stands for inotify on the files of the database."""

    def __init__(self, machine: Machine) -> None:
        self._machine, self._process = machine, machine.current.process
        self._process.monitors.append(self)
        self._is_reported = self._is_lock_file_closed = False
        self._waiting: SimulatedThread | None = None

    def watch(self, wal: Path, lock_files: list[Path]) -> None:
        pass

    def report(self, lock_file_closed: bool) -> None:
        self._is_reported = True
        self._is_lock_file_closed |= lock_file_closed
        self._wake()

    def sleep(self, timeout: float) -> bool:
        if not self._is_reported:
            self._waiting = self._machine.current
            try:
                self._machine.sleep(min(timeout, watcher.MAX_SLEEP_SECONDS))
            finally:
                self._waiting = None
        return self._is_reported

    def drain(self) -> bool:
        closed = self._is_lock_file_closed
        self._is_reported = self._is_lock_file_closed = False
        return closed

    def interrupt(self) -> None:
        self._is_reported = True
        self._wake()

    def close(self) -> None:
        if self in self._process.monitors:
            self._process.monitors.remove(self)

    def _wake(self) -> None:
        if self._waiting is not None:
            self._machine.wake(self._waiting)


class LockFile:
    """Stands for the byte-range locks of the kernel, as one process sees them."""

    def __init__(self, machine: Machine, process: Process) -> None:
        self._machine, self._process = machine, process

    def acquire(self) -> processes.Slot:
        self._machine.pause()
        slot = self._machine.random.getrandbits(60)
        self._process.slots.add(slot)
        return processes.Slot(slot, 1)

    def release(self, slot: processes.Slot) -> None:
        self._process.slots.discard(slot.number)
        self._machine.report_change(lock_file_closed=True)

    def is_free(self, slot: processes.Slot) -> bool:
        self._machine.pause()
        return slot.number < 0 or not self._machine.holds(slot.number)

    def is_current(self, slot: processes.Slot) -> bool:
        return True

    def move_to_current_file(self, slot: processes.Slot) -> processes.Slot:
        return slot


class _Wrapped:
    """A module with some of its names replaced."""

    def __init__(self, module: Any, **replaced: Any) -> None:
        self.__dict__ |= {"_module": module} | replaced

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


def _replacements(machine: Machine) -> list[tuple[Any, Any]]:
    """Return what the modules of Holdfast use, and what they use instead."""

    def monotonic_ns() -> int:
        machine.pause(2_000)
        return machine.now

    def sleep(seconds: float) -> None:
        # A retry of BUSY sleeps for a millisecond. Longer, so that a stopped writer does not cost thousands of steps.
        machine.sleep(max(seconds, machine.random.uniform(0.001, 0.1)))

    def token_hex(size: int) -> str:
        token = f"{machine.random.getrandbits(8 * size):0{2 * size}x}"
        machine.tokens[token] = machine.current.process
        return token

    def connect(database: Any, *args: Any, **kwargs: Any) -> sqlite3.Connection:
        if database == ":memory:":
            return sqlite3.connect(database, *args, **kwargs)
        machine.pause()
        factory = SimulatedLentConnection if kwargs.get("factory") is LentConnection else SimulatedConnection
        return sqlite3.connect(database, *args, **kwargs | {"factory": factory})

    def lock_file(database: Path) -> LockFile:
        return LockFile(machine, machine.current.process)

    def is_stopped(pid: int) -> bool:
        return any(process.pid == pid and process.is_stopped for process in machine.processes)

    def monotonic() -> float:
        return monotonic_ns() / 1e9

    def get_ident() -> int:
        return id(machine.current)

    def lock() -> Lock:
        return Lock(machine)

    fake_threading = SimpleNamespace(
        Lock=lock,
        Condition=lambda lock=None: Condition(machine, lock),
        Event=lambda: Event(machine),
        Semaphore=lambda value=1: Semaphore(machine, value),
        Thread=lambda **kwargs: Thread(machine, **kwargs),
        local=threading.local,
        get_ident=get_ident,
        current_thread=lambda: machine.current,
        main_thread=lambda: None,
    )
    clocks: dict[str, Callable[..., Any]] = {
        "monotonic": monotonic,
        "monotonic_ns": monotonic_ns,
        "perf_counter": monotonic,
        "perf_counter_ns": monotonic_ns,
        "time": lambda: machine.wall_now() / 1e6,
        "time_ns": lambda: machine.wall_now() * 1000,
        "clock_gettime": lambda _: machine.boot_now() / 1e6,
        "clock_gettime_ns": lambda _: machine.boot_now() * 1000,
        "sleep": sleep,
    }
    return [
        (asyncio, _Wrapped(asyncio, new_event_loop=lambda: EventLoop(machine))),
        (threading, fake_threading),
        (threading.Lock, lock),
        (threading.get_ident, get_ident),
        (time, _Wrapped(time, **clocks)),
        *((getattr(time, name), replacement) for name, replacement in clocks.items()),
        (secrets, SimpleNamespace(token_hex=token_hex)),
        (sqlite3, _Wrapped(sqlite3, connect=connect)),
        (os, _Wrapped(os, getpid=lambda: machine.current.process.pid)),
        (worker_module.WakeUp, lambda: WakeUp(machine)),
        (watcher.FileMonitor, lambda: FileMonitor(machine)),
        (worker_locks.lock_file, lock_file),
        (processes.is_stopped, is_stopped),
        # These read /proc/locks, where all simulated processes are one.
        (self_wait.self_wait, lambda path: None),
        (self_wait.is_held_by_this_process, lambda path: False),
    ]


@cache
def _load_all() -> None:
    """Import every module that can run on the machine: one that is imported later would use the real clock."""
    for module in pkgutil.walk_packages(holdfast.__path__, "holdfast."):
        if module.name.split(".")[1] not in ("cli", "contrib", "testing", "web", "__main__"):
            importlib.import_module(module.name)


_uses: dict[int, list[tuple[Any, str, Any]]] = {}


def _replace(replacements: list[tuple[Any, Any]]) -> Iterator[tuple[Any, str, Any]]:
    """Replace these objects in the globals of all modules of Holdfast, by whatever name they are known there."""
    by_id = {id(original): replacement for original, replacement in replacements}
    if (loaded := len(sys.modules)) not in _uses:  # to look through all of them takes a tenth of a run
        _uses[loaded] = [
            (module, name, value)
            for module_name, module in list(sys.modules.items())
            if module_name.startswith("holdfast.") and not module_name.startswith("holdfast.testing")
            for name, value in vars(module).items()
            if id(value) in by_id
        ]
    for module, name, value in _uses[loaded]:
        setattr(module, name, by_id[id(value)])
        yield module, name, value
