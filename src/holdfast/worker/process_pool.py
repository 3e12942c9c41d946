"""Handlers in processes of their own: for work that would hog the interpreter, and for what may crash or leak."""

import contextlib
import os
import threading
from collections.abc import Callable
from typing import Protocol

import msgspec
from msgspec import Struct

from ..clock import Clock
from ..failure import Failure, shorten
from ..model.job import Claimed, Settlement
from .attempt import Attempt
from .outcomes import OutcomeMapper
from .thread_pool import Runner

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class Ready(Struct, frozen=True, tag=True):
    """The child has started."""


class Unknown(Struct, frozen=True, tag=True):
    """The child cannot find the task, and says why."""

    detail: str


class Progress(Struct, frozen=True, tag=True):
    fraction: float | None
    text: str | None


class Completing(Struct, frozen=True, tag=True):
    """The attempt completes itself; or no more, and then it may have settled itself."""

    now: bool
    settlement: Settlement | None = None


class AttemptEnded(Struct, frozen=True, tag=True):
    settlement: Settlement


Word = Ready | Unknown | Progress | Completing | AttemptEnded
encode = msgspec.msgpack.encode
decode_word: Callable[[bytes], Word] = msgspec.msgpack.Decoder(Word).decode
decode_order = msgspec.msgpack.Decoder(Claimed).decode


class Pipe(Protocol):
    def send_bytes(self, data: bytes) -> None: ...

    def recv_bytes(self) -> bytes: ...

    def close(self) -> None: ...


class ChildProcess(Protocol):
    @property
    def pid(self) -> int | None: ...

    @property
    def exitcode(self) -> int | None: ...

    def kill(self) -> None: ...

    def join(self, timeout: float | None = None) -> None: ...


Spawn = Callable[[], tuple[ChildProcess, Pipe]]


class Child:
    """A process that runs one attempt at a time."""

    def __init__(self, process: ChildProcess, pipe: Pipe) -> None:
        self.process, self.pipe = process, pipe
        self.jobs = 0
        self.too_large = False

    def hear(self) -> Word:
        return decode_word(self.pipe.recv_bytes())

    def kill(self) -> None:
        self.process.kill()

    def retire(self) -> None:
        """It ends by itself when it hears nothing more."""
        with contextlib.suppress(OSError):
            self.pipe.close()

    def memory(self) -> int:
        """Bytes it has in memory, where the system tells."""
        try:
            with open(f"/proc/{self.process.pid}/statm", "rb") as file:  # noqa: PTH123  pathlib is slower
                return int(file.read().split()[1]) * _PAGE_BYTES
        except (OSError, IndexError, ValueError):
            return 0

    def last_words(self) -> str:
        self.process.join(1)
        code = self.process.exitcode
        if code is None:
            return "its process closed its pipe"
        return f"its process was killed by signal {-code}" if code < 0 else f"its process ended with code {code}"


class ProcessPool:
    """The processes of a worker: `execute` is what its pool's threads do, each with a child of its own."""

    def __init__(
        self, spawn: Spawn, outcome_mapper: OutcomeMapper, clock: Clock, max_jobs: int | None, max_memory: int | None
    ) -> None:
        self._spawn, self._outcome_mapper, self._clock = spawn, outcome_mapper, clock
        self._max_jobs, self._max_memory = max_jobs, max_memory
        self._living: set[Child] = set()
        self._lock = threading.Lock()
        self._closed = False

    def execute(self, runner: Runner, attempt: Attempt) -> Settlement:
        attempt.begin(self._clock)
        attempt.deadline = 0  # the time that a process needs to start is not the handler's
        try:
            child = self._child_of(runner)
        except Exception as error:  # noqa: BLE001  starting a process runs the program's own code, and may be refused
            ending = self._bury(runner).detail
            words = f"before it was ready, {ending}" if isinstance(error, EOFError) else repr(error)
            return self._outcome_mapper.retry(attempt, Failure("INTERNAL:PROCESS_START", shorten(words)))
        try:
            attempt.begin(self._clock)
            attempt.stop = child.kill
            if attempt.cancelled:  # meanwhile; somebody else has settled it
                raise EOFError
            child.pipe.send_bytes(encode(attempt.claimed))
            settlement = self._listen(child, attempt)
        except (EOFError, OSError):
            return self._outcome_mapper.retry(attempt, self._bury(runner))
        self._recycle(runner, child)
        return settlement

    def look_after_memory(self) -> None:
        """Kill what has outgrown its limit, before the system has to choose whom to kill."""
        if self._max_memory is not None:
            for child in list(self._living):
                if child.memory() > self._max_memory:
                    child.too_large = True
                    child.kill()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            for child in self._living:
                child.kill()

    def _child_of(self, runner: Runner) -> Child:
        if isinstance(runner.tool, Child):
            return runner.tool
        with self._lock:
            if self._closed:
                raise EOFError
            child = runner.tool = Child(*self._spawn())
            self._living.add(child)
        child.hear()  # that it is ready
        return child

    def _listen(self, child: Child, attempt: Attempt) -> Settlement:
        while True:
            match child.hear():
                case AttemptEnded(settlement):
                    return settlement
                case Completing(now, settlement):
                    attempt.completed = settlement
                    attempt.tell_completing(now)
                case Progress(fraction, text):
                    attempt.report_progress(fraction, text)
                case Unknown(detail):
                    return self._outcome_mapper.retry(attempt, Failure("INTERNAL:PROCESS_START", detail))

    def _recycle(self, runner: Runner, child: Child) -> None:
        child.jobs += 1
        worn = self._max_jobs is not None and child.jobs >= self._max_jobs
        if worn or (self._max_memory is not None and child.memory() > self._max_memory):
            self._forget(runner, child)
            child.retire()

    def _bury(self, runner: Runner) -> Failure:
        child = runner.tool
        if not isinstance(child, Child):
            return Failure("INTERNAL:PROCESS_DIED", "no process could be started for it")
        self._forget(runner, child)
        child.retire()
        if child.too_large:
            assert self._max_memory is not None
            return Failure("RESOURCE:MEMORY", f"its process had more than {self._max_memory} bytes and was killed")
        return Failure("INTERNAL:PROCESS_DIED", child.last_words())

    def _forget(self, runner: Runner, child: Child) -> None:
        runner.tool = None
        with self._lock:
            self._living.discard(child)
