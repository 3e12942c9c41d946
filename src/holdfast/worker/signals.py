"""SIGTERM, SIGINT and SIGHUP, for as long as a worker runs in the main thread."""

import contextlib
import select
import signal
import socket
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any


class WakeUp:
    """A pair of sockets, since a signal handler may write to one at any moment, and must not take a lock.

    Sockets rather than a pipe: a closed one knows that it is closed. The bare number of a closed descriptor may by
    then be that of a file, and ringing would write to it.
    """

    def __init__(self) -> None:
        self._receiver, self._sender = socket.socketpair()
        self._receiver.setblocking(False)
        self._sender.setblocking(False)
        self._poll = select.poll()
        self._poll.register(self._receiver, select.POLLIN)

    def notify(self) -> None:
        with contextlib.suppress(OSError):  # it rings already, or nobody is there any more
            self._sender.send(b".")

    def wait(self, seconds: float) -> None:
        if self._poll.poll(max(0.0, seconds) * 1000):
            with contextlib.suppress(BlockingIOError):
                self._receiver.recv(4096)

    def close(self) -> None:
        self._receiver.close()
        self._sender.close()


STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class StopSignals:
    """Calls `stop` for each of them, and puts back what was there before. In other threads it does nothing."""

    def __init__(self, stop: Callable[[], None]) -> None:
        self._stop = stop
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> None:
        if threading.current_thread() is threading.main_thread():
            for number in STOP_SIGNALS:
                if number == signal.SIGHUP and signal.getsignal(number) == signal.SIG_IGN:
                    continue  # as nohup wants it
                self._before[number] = signal.signal(number, self._hear)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _hear(self, _number: int, _frame: FrameType | None) -> None:
        self._stop()  # sets a flag and writes to a pipe, no more
