"""Processes of tests in which nothing depends on how fast the machine is. Import it before anything else runs."""

from types import ModuleType

from holdfast.store import read
from holdfast.store.sqlite import diagnose
from holdfast.store.sqlite.engine import watcher
from holdfast.worker import housekeeping, thread_pool
from support.slow_commits import recheck_for_minutes

NEVER_SECONDS = 3600.0


def set_constant(module: ModuleType, name: str, value: float) -> None:
    """Set a constant that exists: a renamed one must not go unnoticed."""
    assert hasattr(module, name), f"{module.__name__} has no {name}"
    setattr(module, name, value)


def stop_polling() -> None:
    """Only a wake-up ends a wait."""
    recheck_for_minutes(setattr)
    set_constant(watcher, "MAX_SLEEP_SECONDS", NEVER_SECONDS)
    set_constant(read, "MAX_WAIT_SECONDS", NEVER_SECONDS)
    set_constant(thread_pool, "MAX_WAIT_SECONDS", NEVER_SECONDS)
    set_constant(housekeeping, "IDLE_SECONDS", NEVER_SECONDS)


set_constant(housekeeping, "MAX_UNSTARTED_NS", round(NEVER_SECONDS * 1e9))  # a claimed job that cannot start is kept
set_constant(diagnose, "SECONDS_PER_QUERY", NEVER_SECONDS)  # the doctor does not interrupt a slow query
