"""The clock of the server, carried on by the monotonic clock of this process.

All processes on one database then agree about the time, whatever the clocks of their machines say. A step of the
server's clock is noticed when the process connects again.
"""

import time


class ServerClock:
    """Implements Clock. Leases are times of the server's clock, too: machines have no other clock in common."""

    def __init__(self) -> None:
        self._offset = time.time_ns() // 1000 - time.monotonic_ns() // 1000
        self._error: int | None = None  # how wrong the offset may be, in microseconds; None: not told yet

    def set(self, server_now: int, sent_ns: int, received_ns: int) -> None:
        """Set it to what the server told, unless an earlier answer agrees with this one and came faster.

        sent_ns, received_ns: on the monotonic clock.
        """
        offset, error = server_now - (sent_ns + received_ns) // 2000, (received_ns - sent_ns) // 2000
        if self._error is None or error < self._error or abs(offset - self._offset) > error + self._error:
            self._offset, self._error = offset, error

    def now(self) -> int:
        return self._offset + time.monotonic_ns() // 1000

    def boot_now(self) -> int:
        return self.now()

    def boot_id(self) -> str:
        return "server"
