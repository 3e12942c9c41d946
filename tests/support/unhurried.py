"""Worker processes of tests in which nothing depends on how fast the machine is. Import it before a worker runs."""

from holdfast.store.sqlite import read
from holdfast.store.sqlite.engine import watcher
from holdfast.worker import housekeeping, thread_pool

NEVER_SECONDS = 3600.0

housekeeping.HOARDING_NS = round(NEVER_SECONDS * 1e9)  # what was taken and cannot begin yet is kept


def stop_polling() -> None:
    """Only a wake-up ends a wait."""
    watcher.LONGEST_NAP_SECONDS = read.MAX_WAIT_SECONDS = NEVER_SECONDS
    thread_pool.LONGEST_WAIT_SECONDS = housekeeping.IDLE_SECONDS = NEVER_SECONDS
