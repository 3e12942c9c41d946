"""A simulated machine: processes, threads, clocks and a disk, in one thread at a time, decided by a seed.

Holdfast runs on it unchanged: simulation_system.py replaces what its modules use of the operating system. Every SQL
statement, lock and look at a clock is a point where the machine may go on with another thread, kill or stop a
process, or set a clock. Simulated threads are real ones that pass a baton: exactly one runs. So a seed decides
everything, and the same seed does the same again.

What is real: SQLite on a real file, all of Holdfast's code. What is not: time, and the order in which things happen.
"""

from __future__ import annotations

import _thread
import sqlite3
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any, Protocol

from holdfast.store.sqlite.engine.connection import ObservedConnection
from holdfast.store.sqlite.engine.transaction import LentConnection

SECOND_NS = 1_000_000_000
START_NS = 1_000 * SECOND_NS
TraceLine = tuple[int, int, str, str]  # step, time, who, what
LATE_REPORTS = 0.1  # chance that a report of a change to the file comes only with the next one


class Killed(BaseException):
    """Unwinds the threads of a process that was killed. Nothing that they do while they unwind has an effect."""


class Monitor(Protocol):
    """Is told about changes to the files of the database."""

    def report(self, lock_file_closed: bool) -> None: ...


class Process:
    """A simulated process: its threads, connections and locks. All of them end with it."""

    def __init__(self, machine: Machine, name: str, pid: int) -> None:
        self.machine, self.name, self.pid = machine, name, pid
        self.is_dead, self.died_at = False, 0
        self.stopped_until = 0
        self.threads: list[SimulatedThread] = []
        self.connections: list[SimulatedConnection] = []
        self.slots: set[int] = set()
        self.monitors: list[Monitor] = []
        self.worker: Any = None

    @property
    def is_stopped(self) -> bool:
        return self.stopped_until > self.machine.now

    def was_stopped_since(self, moment: int) -> bool:
        return self.stopped_until > moment


class SimulatedThread:
    def __init__(self, process: Process, name: str, target: Callable[[], object]) -> None:
        self.process, self.full_name, self._target = process, f"{process.name}/{name}", target
        self.baton = _thread.allocate_lock()
        self.baton.acquire()
        self.is_blocked = self.has_started = self.is_done = False
        self.wake_at: int | None = None  # nanoseconds of the machine; None: until it is woken

    def can_run(self, now: int) -> bool:
        if self.process.stopped_until > now:
            return False
        return not self.is_blocked or (self.wake_at is not None and self.wake_at <= now)

    def may_run_at(self) -> int | None:
        if self.is_blocked and self.wake_at is None:
            return None
        return max(self.wake_at or 0 if self.is_blocked else 0, self.process.stopped_until)

    def run(self) -> None:
        machine = self.process.machine
        try:
            self._target()
        except Killed:
            pass
        except BaseException as error:  # noqa: BLE001  reported as a violation
            if not self.process.is_dead:
                machine.fail(f"{self.full_name} raised {error!r}", error)
        machine.thread_ended(self)


class Machine:
    """One machine, from its first boot until `end()`."""

    now_running: Machine | None = None
    # Negative controls
    commits_at_kill = False
    forgets = 0.0  # chance that a commit rolls back

    def __init__(self, seed: int, switchiness: float) -> None:
        self.random, self.switchiness = Random(seed), switchiness
        self.now = START_NS  # monotonic
        self.suspended = 0  # nanoseconds that the boot clock has more
        self.wall_offset = 1_700_000_000 * SECOND_NS
        self.boot = 1
        self.steps = 0
        self.trace: list[TraceLine] = []
        self.counts: Counter[str] = Counter()
        self.violation: tuple[str, BaseException | None] | None = None
        self.processes: list[Process] = []
        self.tokens: dict[str, Process] = {}
        self._pids = 1000
        self._threads: list[SimulatedThread] = []
        self._has_dying = False
        self.director = Process(self, "director", 1)
        self.current = SimulatedThread(self.director, "main", lambda: None)
        self.current.has_started = True
        self._main = self.current
        self._threads.append(self.current)
        self.names: dict[str, str] = {}  # of SQL statements
        # Set by the world
        self.on_step: Callable[[Process], None] = lambda _: None
        self.on_commit: Callable[[SimulatedConnection], None] = lambda _: None
        self.before_commit: Callable[[SimulatedConnection], None] = lambda _: None
        self.committed: Callable[[SimulatedConnection], None] = lambda _: None

    # --- processes ---

    def start(self, name: str, target: Callable[[Process], object]) -> Process:
        self._pids += 1
        process = Process(self, name, self._pids)
        self.processes.append(process)

        def run() -> None:
            target(process)
            self.log(process.name, "ends")
            self.kill(process, quietly=True)

        self.spawn(process, "main", run)
        return process

    def spawn(self, process: Process, name: str, target: Callable[[], object]) -> SimulatedThread:
        thread = SimulatedThread(process, name, target)
        process.threads.append(thread)
        self._threads.append(thread)
        return thread

    def kill(self, process: Process, quietly: bool = False) -> None:
        """End a process at once, as SIGKILL does: no code of it runs again, SQLite rolls its transactions back."""
        if process.is_dead:
            return
        process.is_dead = self._has_dying = True
        process.died_at = self.now
        process.stopped_until = 0
        if not quietly:
            self.log(process.name, "is killed")
        if process in self.processes:
            self.processes.remove(process)
        for connection in process.connections:
            if connection.in_transaction and not quietly:
                self.counts["killed inside a transaction"] += 1
            sqlite3.Connection.set_authorizer(connection, None)
            end = sqlite3.Connection.commit if self.commits_at_kill else sqlite3.Connection.rollback
            end(connection)  # here, since closing it would wait for cursors that the threads still have
            sqlite3.Connection.close(connection)
        process.connections.clear()
        if process.slots:
            process.slots.clear()
            self.report_change(lock_file_closed=True)

    def stop(self, process: Process, seconds: float) -> None:
        """Stop all threads of a process, as SIGSTOP does. Its locks and its transaction stay."""
        process.stopped_until = self.now + round(seconds * SECOND_NS)
        self.log(process.name, f"is stopped for {seconds:.3f} s")

    def holds(self, slot: int) -> bool:
        return any(slot in process.slots for process in self.processes)

    def process_of(self, actor: str | None) -> Process | None:
        """Return the process that a worker id or the actor of a store belongs to."""
        if actor is None:
            return None
        if actor in self.tokens:
            return self.tokens[actor]
        pid = actor.partition("-")[0]
        return next((one for one in self.processes if str(one.pid) == pid), None)

    # --- clocks ---

    def boot_now(self) -> int:
        return (self.now + self.suspended) // 1000

    def wall_now(self) -> int:
        return (self.now + self.suspended + self.wall_offset) // 1000

    def reboot(self) -> None:
        for process in list(self.processes):
            self.kill(process)
        self.boot += 1
        self.wall_offset += self.now + self.suspended
        self.suspended = -self.now + 5 * SECOND_NS  # the boot clock starts again
        self.wall_offset -= 5 * SECOND_NS
        self.log("machine", f"boots for the {self.boot}. time")

    # --- threads ---

    def pause(self, most_ns: int = 20_000) -> None:
        """Let a little time pass, and perhaps let other threads run, or something go wrong."""
        me = self.current
        process = me.process
        if process.is_dead:
            raise Killed
        chance = self.random.random()
        self.now += 200 + int(chance * most_ns)
        self.steps += 1
        if process is not self.director:
            self.on_step(process)
            if process.is_dead:
                raise Killed
        if process.stopped_until > self.now or chance < self.switchiness or self.violation is not None:
            self._switch(me)

    def block(self, until: int | None) -> None:
        """Let other threads run until this one is woken, or until that time."""
        me = self.current
        if me.process.is_dead:
            raise Killed
        me.is_blocked, me.wake_at = True, until
        self._switch(me)
        me.is_blocked = False

    def sleep(self, seconds: float) -> None:
        self.block(self.now + max(0, round(seconds * SECOND_NS)))

    def wake(self, thread: SimulatedThread) -> None:
        thread.is_blocked = False

    def _switch(self, me: SimulatedThread) -> None:
        following = self._pick()
        if following is not me:
            self._resume(following)
            me.baton.acquire()
        if me.process.is_dead:
            raise Killed
        if me is self._main and self.violation is not None:
            raise Killed

    def _resume(self, thread: SimulatedThread) -> None:
        self.current = thread
        if thread.has_started:
            thread.baton.release()
        else:
            thread.has_started = True
            _thread.start_new_thread(thread.run, ())

    def thread_ended(self, thread: SimulatedThread) -> None:
        thread.is_done = True
        self._threads.remove(thread)
        self._resume(self._pick())

    def _pick(self) -> SimulatedThread:
        if self._has_dying:  # these unwind first; a thread that never started has nothing to unwind
            self._threads = [one for one in self._threads if one.has_started or not one.process.is_dead]
            for thread in self._threads:
                if thread.process.is_dead:
                    return thread
            self._has_dying = False
        if self.violation is not None:
            return self._main
        while True:
            now = self.now
            able = [thread for thread in self._threads if thread.can_run(now)]
            if able:
                return able[int(self.random.random() * len(able))] if len(able) > 1 else able[0]
            times = [moment for thread in self._threads if (moment := thread.may_run_at()) is not None]
            if not times:
                self.fail("every thread waits for another: a deadlock", None)
                return self._main
            self.now = max(now, min(times))

    def fail(self, what: str, error: BaseException | None) -> None:
        """Record the first violation, and end everything."""
        if self.violation is None:
            self.violation = what, error
            self.log("VIOLATION", what)
        for process in list(self.processes):
            self.kill(process, quietly=True)

    def end(self) -> None:
        """Kill what is left, and let its threads unwind. For the director."""
        for process in list(self.processes):
            self.kill(process, quietly=True)
        while len(self._threads) > 1:
            following = self._pick()
            if following is self._main:
                break
            self._resume(following)
            self._main.baton.acquire()

    # --- the disk ---

    def before_statement(self, connection: SimulatedConnection, statement: str, kind: str) -> None:
        self.pause()
        self.log(self.current.full_name, self.names.get(statement) or " ".join(statement.split()[:4]))
        if not connection.in_transaction:
            connection.began = self.now
        if statement.startswith("COMMIT"):
            self.before_commit(connection)

    def after_commit(self, connection: SimulatedConnection) -> None:
        self.on_commit(connection)
        self.report_change()
        self.committed(connection)

    def report_change(self, lock_file_closed: bool = False) -> None:
        """Report a change to the file monitors of all processes, as inotify does; sometimes late."""
        for process in self.processes:
            for monitor in process.monitors:
                if lock_file_closed or self.random.random() >= LATE_REPORTS:
                    monitor.report(lock_file_closed)

    def log(self, who: str, what: str) -> None:
        self.trace.append((self.steps, self.now, who, what))


class SimulatedClock:
    """The clock that is passed to `Holdfast(clock=…)`."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def now(self) -> int:
        return self._machine.wall_now()

    def boot_now(self) -> int:
        return self._machine.boot_now()

    def boot_id(self) -> str:
        return f"boot-{self._machine.boot}"


# --- SQLite: the real one, with a point where anything may happen before each statement and around each commit ---


class SimulatedConnection(ObservedConnection):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        assert Machine.now_running is not None
        self.observer = self.machine = Machine.now_running
        self.process = self.machine.current.process
        self.process.connections.append(self)
        self.began = 0  # when its transaction began
        # SQLite's own clock, in defaults and triggers.
        self.create_function("julianday", 1, lambda _: self.machine.wall_now() / 86_400e6 + 2_440_587.5)

    def execute(self, sql: str, values: Any = (), /) -> sqlite3.Cursor:
        if sql == "PRAGMA trusted_schema = OFF":
            sql = "PRAGMA trusted_schema = ON"  # for julianday
        elif sql.startswith("COMMIT") and self.machine.random.random() < self.machine.forgets:
            sql = "ROLLBACK"
        try:
            return super().execute(sql, values)
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY:
                self.machine.counts["busy"] += 1
            raise

    def close(self) -> None:
        if self in self.process.connections:
            super().close()
            self.process.connections.remove(self)


class SimulatedLentConnection(SimulatedConnection, LentConnection):
    """The connection of `app.transaction()`."""
