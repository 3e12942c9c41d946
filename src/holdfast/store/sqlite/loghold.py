"""The alarm for a log that cannot be emptied: a reader that stays in one transaction keeps all that came after it."""

import logging
import os
import time
from pathlib import Path

from ..pruned import LogHold
from .checkpoint import LARGEST_LOG_BYTES, size_of
from .surroundings import READ_LOCKS, command_of, locks_on

log = logging.getLogger("holdfast.store")

ALARM_BYTES = 4 * LARGEST_LOG_BYTES
AGAIN_SECONDS = 60.0


class LogWatch:
    """Looks at what each checkpoint has achieved. Only the thread that leads the writer calls it."""

    def __init__(self, path: Path) -> None:
        self._path, self._log = path, Path(f"{path}-wal")
        self.hold: LogHold | None = None
        self._readers: set[int] = set()
        self._quiet_until = 0.0

    def look(self, pages: int, moved: int) -> None:
        """pages: in the log; moved: of these, to the database. Those that a reader still needs are not."""
        size = size_of(self._log)
        if moved >= pages or size <= ALARM_BYTES:
            if self.hold is not None:
                log.info("%s can shrink again", self._log.name)
            self.hold, self._readers = None, set()
            return
        now = {pid for pid, held in locks_on(self._path).items() if not held.isdisjoint(READ_LOCKS)}
        # Those that were there the last time as well: others read for a moment only.
        self._readers = now & self._readers or now
        since = time.time_ns() // 1000 if self.hold is None else self.hold.since
        self.hold = LogHold(size, since, tuple((pid, command_of(pid)) for pid in sorted(self._readers)))
        if time.monotonic() >= self._quiet_until:
            self._quiet_until = time.monotonic() + AGAIN_SECONDS
            log.warning(
                "%s has %s bytes and cannot shrink: a read transaction is open since it was smaller, %s. "
                "End it: a query whose rows were not all fetched, or a transaction that waits for something",
                self._log.name,
                f"{size:,}",
                in_words(self.hold),
            )


def in_words(hold: LogHold) -> str:
    """Who it may be."""
    if not hold.readers:
        return "in a process that the system does not name"
    named = [
        "in this very process" if pid == os.getpid() else f"in process {pid} ({command or 'unknown'})"
        for pid, command in hold.readers
    ]
    return " or ".join(named)
