"""Commits that become visible long after the file monitor has reported them: on a slow disk, or a loaded machine."""

from collections.abc import Callable

from holdfast.store.sqlite.engine import watcher

USUAL = watcher.RECHECK_SECONDS


def recheck_for_minutes(patch: Callable[[object, str, object], None]) -> None:
    """Let a report of a change be followed by checks for minutes, and nothing else.

    A process writes to the WAL first, and the commit is visible later: after a flush, or when the process gets a
    processor again. Before the first report there are only the usual checks, so a missing report is noticed.
    """
    begin = watcher.FileMonitor.__init__

    def begin_as_usual(self: watcher.FileMonitor) -> None:
        begin(self)
        self._delays = list(USUAL)

    patch(watcher.FileMonitor, "__init__", begin_as_usual)
    patch(watcher, "RECHECK_SECONDS", USUAL + (0.08,) * 4000)
