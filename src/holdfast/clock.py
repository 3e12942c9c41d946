"""A wall clock for schedules and a boot clock for leases, both in microseconds."""

import sys
import time
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any, Protocol, TypeVar

from msgspec import Struct

T = TypeVar("T", bound=Struct)

SECOND = 1_000_000
"""Microseconds in a second: all stored times are integer microseconds."""
_BOOT_CLOCK: int | None = getattr(time, "CLOCK_BOOTTIME", None)


class Clock(Protocol):
    def now(self) -> int:
        """Return the wall clock: microseconds since 1970 UTC. It may jump."""
        ...

    def boot_now(self) -> int:
        """Return the microseconds since this machine booted, sleep included. Never jumps."""
        ...

    def boot_id(self) -> str:
        """Return an id that changes with every boot of the machine, and never otherwise."""
        ...


def boot_ns() -> int:
    """Return the nanoseconds since this machine booted, sleep included: for the time that is left of a lease."""
    return time.monotonic_ns() if _BOOT_CLOCK is None else time.clock_gettime_ns(_BOOT_CLOCK)


class SystemClock:
    def now(self) -> int:
        return time.time_ns() // 1000

    def boot_now(self) -> int:
        return boot_ns() // 1000

    def boot_id(self) -> str:
        return _read_boot_id()


@cache
def _read_boot_id() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:  # noqa: PTH123  pathlib is slow to import
            return file.read().strip()
    except OSError:
        # On other systems, the minute in which the machine booted serves as the id.
        return _macos_boot_id() or f"started-{round((time.time() - time.monotonic()) / 60)}"


def _macos_boot_id() -> str | None:
    if sys.platform != "darwin":
        return None
    import ctypes

    value, size = ctypes.create_string_buffer(64), ctypes.c_size_t(64)
    failed = ctypes.CDLL(None).sysctlbyname(b"kern.bootsessionuuid", value, ctypes.byref(size), None, 0)
    return None if failed else value.value.decode()


EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def as_datetime(microseconds: int) -> datetime:
    try:
        return EPOCH + timedelta(microseconds=microseconds)
    except OverflowError:  # stored by hand, outside the calendar
        return datetime.max.replace(tzinfo=UTC) if microseconds > 0 else datetime.min.replace(tzinfo=UTC)


def with_times(kind: type[T], record: Struct, **fields: Any) -> T:
    """Make a result of a stored record: the same fields, with times as datetimes, and the given ones."""
    for name in kind.__struct_fields__:
        if name not in fields:
            value = getattr(record, name)
            is_time = name == "at" or name.endswith(("_at", "_seen"))
            fields[name] = as_datetime(value) if is_time and value is not None else value
    return kind(**fields)


def with_datetimes(detail: dict[str, Any]) -> dict[str, Any]:
    """Return the detail of an event with its timestamps, the numbers named `…_at`, as datetimes."""
    return {
        name: as_datetime(value) if name.endswith("_at") and type(value) is int else value
        for name, value in detail.items()
    }


def as_microseconds(moment: datetime) -> int:
    """Convert an aware datetime to microseconds since 1970 UTC."""
    return (moment - EPOCH) // timedelta(microseconds=1)
