"""The alarm for a log that cannot be emptied: a reader that stays in one transaction keeps all that came after it."""

import logging
import os
import time
from pathlib import Path

from .checkpoint import LARGEST_LOG_BYTES, size_of
from .surroundings import Holders, command_of

log = logging.getLogger("holdfast.store")

ALARM_BYTES = 4 * LARGEST_LOG_BYTES
AGAIN_SECONDS = 60.0


class LogWatch:
    """Looks at what each checkpoint has achieved. Only the thread that leads the writer calls it."""

    def __init__(self, path: Path) -> None:
        self._path, self._log = path, Path(f"{path}-wal")
        self._holders: Holders | None = None
        self._quiet_until = 0.0

    def look(self, pages: int, moved: int) -> None:
        """pages: in the log; moved: of these, to the database. Those that a reader still needs are not."""
        size = size_of(self._log)
        if moved >= pages or size <= ALARM_BYTES:
            if self._holders is not None:
                log.info("%s can shrink again", self._log.name)
            self._holders = None
            return
        if self._holders is None:
            self._holders = Holders(self._path)
            return  # who is there at the next checkpoint still, is one that stays
        self._holders.look()
        if not self._holders.readers:
            self._holders = Holders(self._path)
        if time.monotonic() >= self._quiet_until:
            self._quiet_until = time.monotonic() + AGAIN_SECONDS
            log.warning(
                "%s has %s bytes and cannot shrink: a read transaction is open since it was smaller, %s. "
                "End it: a query whose rows were not all fetched, or a transaction that waits for something",
                self._log.name,
                f"{size:,}",
                in_words(self._holders.readers),
            )


def in_words(readers: list[int]) -> str:
    """Who it may be."""
    if not readers:
        return "in a process that the system does not name"
    return " or ".join(
        "in this very process" if pid == os.getpid() else f"in process {pid} ({command_of(pid) or 'unknown'})"
        for pid in readers
    )
