"""Stop signals (SIGTERM, SIGINT, SIGHUP), and a wake-up that a signal handler can use."""

import contextlib
import select
import signal
import socket
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any


class WakeUp:
    """A socket pair that interrupts a wait. Unlike a lock, it is safe to use in a signal handler.

    Sockets and not a pipe: sending on a closed socket raises, while the number of a closed pipe may already belong to
    another file.
    """

    def __init__(self) -> None:
        self._receiver, self._sender = socket.socketpair()
        self._receiver.setblocking(False)
        self._sender.setblocking(False)
        self._poll = select.poll()
        self._poll.register(self._receiver, select.POLLIN)

    def notify(self) -> None:
        with contextlib.suppress(OSError):  # the buffer is full, so it is notified already; or closed
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
    """A context in which these signals call `stop`. Does nothing outside of the main thread."""

    def __init__(self, stop: Callable[[], None]) -> None:
        self._stop = stop
        self._previous: dict[signal.Signals, Any] = {}

    def __enter__(self) -> None:
        if threading.current_thread() is threading.main_thread():
            for number in STOP_SIGNALS:
                if number == signal.SIGHUP and signal.getsignal(number) == signal.SIG_IGN:
                    continue  # started by nohup
                self._previous[number] = signal.signal(number, self._on_signal)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        self._stop()  # only sets a flag and writes to a socket
