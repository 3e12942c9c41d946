"""Child processes for tasks with `pool="process"`: CPU-bound ones, and ones that may crash or leak memory."""

import contextlib
import os
import threading
from collections.abc import Callable
from time import monotonic
from typing import Protocol

import msgspec
from msgspec import Struct

from ..clock import Clock
from ..failure import Failure, describe, shorten
from ..model.job import Claimed, Settlement
from .attempt import Attempt
from .outcomes import OutcomeMapper
from .thread_pool import PoolThread

STOP_SECONDS = 5.0  # for the stop hooks of a child
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def resident_bytes(pid: int | None = None) -> int | None:
    """Return the resident memory of a process, by default of this one; None if /proc does not show it."""
    try:
        with open(f"/proc/{pid or 'self'}/statm", "rb") as file:  # noqa: PTH123  pathlib is slower
            return int(file.read().split()[1]) * _PAGE_BYTES
    except (OSError, IndexError, ValueError):
        return None


class Ready(Struct, frozen=True, tag=True):
    """Sent by a child that has started."""


class TaskNotLoaded(Struct, frozen=True, tag=True):
    """Sent by a child that cannot import the task, or whose start hook raised. detail: the reason."""

    detail: str


class Progress(Struct, frozen=True, tag=True):
    """Sent by a child whose handler reports progress."""

    fraction: float | None
    text: str | None


class Completing(Struct, frozen=True, tag=True):
    """Sent by a child that enters (`now`) or leaves ctx.complete(). settlement: set if the block was committed."""

    now: bool
    settlement: Settlement | None = None


class AttemptFinished(Struct, frozen=True, tag=True):
    """Sent by a child whose handler has returned or raised."""

    settlement: Settlement


class StartAttempt(Struct, frozen=True):
    """Sent to a child. start_until_ns: on the boot clock, which all processes share."""

    claimed: Claimed
    start_until_ns: int


ChildMessage = Ready | TaskNotLoaded | Progress | Completing | AttemptFinished
encode = msgspec.msgpack.encode
decode_message: Callable[[bytes], ChildMessage] = msgspec.msgpack.Decoder(ChildMessage).decode
decode_start = msgspec.msgpack.Decoder(StartAttempt).decode


class Pipe(Protocol):
    """The used methods of multiprocessing.connection.Connection."""

    def send_bytes(self, data: bytes) -> None: ...

    def recv_bytes(self) -> bytes: ...

    def close(self) -> None: ...


class ChildProcess(Protocol):
    """The used methods of multiprocessing.Process."""

    @property
    def pid(self) -> int | None: ...

    @property
    def exitcode(self) -> int | None: ...

    def kill(self) -> None: ...

    def join(self, timeout: float | None = None) -> None: ...


Spawn = Callable[[], tuple[ChildProcess, Pipe]]


class Child:
    """A child process, which runs one attempt at a time."""

    def __init__(self, process: ChildProcess, pipe: Pipe) -> None:
        self.process, self.pipe = process, pipe
        self.jobs_run = 0
        self.exceeded_memory = False
        self.is_idle = False  # it has started, and runs nothing

    def receive(self) -> ChildMessage:
        return decode_message(self.pipe.recv_bytes())

    def kill(self) -> None:
        self.process.kill()

    def close(self) -> None:
        """Close the pipe, which makes the process exit."""
        with contextlib.suppress(OSError):
            self.pipe.close()

    def memory_bytes(self) -> int:
        """Return the resident memory of the process, or 0 if /proc does not show it."""
        return resident_bytes(self.process.pid) or 0

    def describe_exit(self) -> str:
        """Return how the process ended, as the detail of a failure."""
        self.process.join(1)
        code = self.process.exitcode
        if code is None:
            return "the child process closed its pipe"
        how = f"was killed by signal {-code}" if code < 0 else f"exited with code {code}"
        return f"the child process {how}"


class ProcessPool:
    """The child processes of a worker. Each of its process threads calls `execute`, and owns one child."""

    def __init__(
        self, spawn: Spawn, outcome_mapper: OutcomeMapper, clock: Clock, max_jobs: int | None, max_memory: int | None
    ) -> None:
        self._spawn, self._outcome_mapper, self._clock = spawn, outcome_mapper, clock
        self._max_jobs, self._max_memory = max_jobs, max_memory
        self._children: set[Child] = set()
        self._lock = threading.Lock()
        self._closed = False

    def execute(self, thread: PoolThread, attempt: Attempt) -> Settlement:
        """Run the attempt in the child of this thread, which is started if needed. Never raises."""
        attempt.start(self._clock)
        attempt.deadline_ns = 0  # the timeout does not include the start of the process
        try:
            child = self._get_child(thread)
        except Exception as error:  # noqa: BLE001  starting a process imports user code, and may fail
            exit_detail = self._remove_dead(thread).detail
            detail = f"before it was ready, {exit_detail}" if isinstance(error, EOFError) else describe(error)
            return self._outcome_mapper.retry(attempt, Failure("INTERNAL:PROCESS_START", shorten(detail)))
        try:
            attempt.start(self._clock)
            attempt.stop = child.kill
            if attempt.cancelled:  # in the meantime: it is settled, so do not run it
                raise EOFError
            child.is_idle = False
            # The child asks again whether the attempt may start: it may have to wait for a processor.
            child.pipe.send_bytes(encode(StartAttempt(attempt.claimed, attempt.start_until_ns)))
            settlement = self._receive_settlement(child, attempt)
            child.is_idle = True
        except (EOFError, OSError):
            return self._outcome_mapper.retry(attempt, self._remove_dead(thread))
        except Exception as error:  # noqa: BLE001  a message that cannot be encoded, or not be decoded
            child.kill()
            self._remove_dead(thread)
            return self._outcome_mapper.retry(attempt, Failure("INTERNAL:PROCESS_DIED", describe(error)))
        self._recycle(thread, child)
        return settlement

    def enforce_max_memory(self) -> None:
        """Kill children that use more memory than max_memory, before the system runs out of memory."""
        if self._max_memory is not None:
            for child in list(self._children):
                if child.memory_bytes() > self._max_memory:
                    child.exceeded_memory = True
                    child.kill()

    def close(self) -> None:
        """Start no more children, let idle ones exit, and kill the others."""
        with self._lock:
            self._closed = True
            children = list(self._children)
        for child in children:
            if child.is_idle:
                child.close()
            else:
                child.kill()
        until = monotonic() + STOP_SECONDS
        for child in children:
            child.process.join(max(0.0, until - monotonic()))
            child.kill()

    def _get_child(self, thread: PoolThread) -> Child:
        if isinstance(thread.resource, Child):
            return thread.resource
        with self._lock:
            if self._closed:
                raise EOFError
            child = thread.resource = Child(*self._spawn())
            self._children.add(child)
        message = child.receive()
        if isinstance(message, TaskNotLoaded):
            raise RuntimeError(message.detail)
        child.is_idle = True
        return child

    def _receive_settlement(self, child: Child, attempt: Attempt) -> Settlement:
        while True:
            match child.receive():
                case AttemptFinished(settlement):
                    return settlement
                case Completing(now, settlement):
                    attempt.completed = settlement
                    attempt.set_completing(now)
                case Progress(fraction, text):
                    attempt.report_progress(fraction, text)
                case TaskNotLoaded(detail):
                    return self._outcome_mapper.retry(attempt, Failure("INTERNAL:PROCESS_START", detail))

    def _recycle(self, thread: PoolThread, child: Child) -> None:
        """Replace the child after max_jobs jobs, or if it uses more than max_memory."""
        child.jobs_run += 1
        is_used_up = self._max_jobs is not None and child.jobs_run >= self._max_jobs
        if is_used_up or (self._max_memory is not None and child.memory_bytes() > self._max_memory):
            self._remove(thread, child)
            child.close()

    def _remove_dead(self, thread: PoolThread) -> Failure:
        """Remove the dead child of this thread. Returns why it died."""
        child = thread.resource
        if not isinstance(child, Child):
            return Failure("INTERNAL:PROCESS_DIED", "no child process could be started")
        self._remove(thread, child)
        child.close()
        if child.exceeded_memory:
            assert self._max_memory is not None
            return Failure(
                "RESOURCE:MEMORY",
                f"the child process was killed: it used more than max_memory, {self._max_memory} bytes",
            )
        return Failure("INTERNAL:PROCESS_DIED", child.describe_exit())

    def _remove(self, thread: PoolThread, child: Child) -> None:
        thread.resource = None
        with self._lock:
            self._children.discard(child)
