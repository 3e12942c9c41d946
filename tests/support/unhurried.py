"""Worker processes of tests in which nothing depends on how fast the machine is. Import it before a worker runs."""

from holdfast.run import duties, lane
from holdfast.store.sqlite import alarm, reading

NEVER_SECONDS = 3600.0

duties.HOARDING_NS = round(NEVER_SECONDS * 1e9)  # what was taken and cannot begin yet is kept


def stop_polling() -> None:
    """Only a wake-up ends a wait."""
    alarm.LONGEST_NAP_SECONDS = reading.LONGEST_WAIT_SECONDS = NEVER_SECONDS
    lane.LONGEST_WAIT_SECONDS = duties.IDLE_SECONDS = NEVER_SECONDS
