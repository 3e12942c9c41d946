"""Sleeping until somebody rings: another thread, or a signal handler."""

import contextlib
import select
import socket


class Doorbell:
    """A pair of sockets, since a signal handler may write to one at any moment, and must not take a lock.

    Sockets rather than a pipe: a closed one knows that it is closed. The bare number of a closed descriptor may by
    then be that of a file, and ringing would write to it.
    """

    def __init__(self) -> None:
        self._hear, self._ring = socket.socketpair()
        self._hear.setblocking(False)
        self._ring.setblocking(False)
        self._poll = select.poll()
        self._poll.register(self._hear, select.POLLIN)

    def ring(self) -> None:
        with contextlib.suppress(OSError):  # it rings already, or nobody is there any more
            self._ring.send(b".")

    def wait(self, seconds: float) -> None:
        if self._poll.poll(max(0.0, seconds) * 1000):
            with contextlib.suppress(BlockingIOError):
                self._hear.recv(4096)

    def close(self) -> None:
        self._hear.close()
        self._ring.close()
