"""Sleeping until somebody rings: another thread, or a signal handler."""

import contextlib
import os
import select


class Doorbell:
    """A pipe, since a signal handler may write to one at any moment, and must not take a lock."""

    def __init__(self) -> None:
        self._hear, self._ring = os.pipe()
        os.set_blocking(self._hear, False)
        os.set_blocking(self._ring, False)
        self._poll = select.poll()
        self._poll.register(self._hear, select.POLLIN)

    def ring(self) -> None:
        with contextlib.suppress(BlockingIOError, OSError):  # it rings already, or nobody is there any more
            os.write(self._ring, b".")

    def wait(self, seconds: float) -> None:
        if self._poll.poll(max(0.0, seconds) * 1000):
            with contextlib.suppress(BlockingIOError):
                os.read(self._hear, 4096)

    def close(self) -> None:
        os.close(self._hear)
        os.close(self._ring)
