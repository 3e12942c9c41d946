"""Helpers for tests of programs that use Holdfast."""

from .assertions import assert_enqueued, enqueued, refute_enqueued
from .crash import CrashPoint, crash_at_every_point, crash_point
from .database import on_connection, on_temporary_database
from .drain import Drained, FakeClock, Ran, drain
from .inline import inline

__all__ = [
    "FakeClock",
    "inline",
    "drain",
    "Drained",
    "Ran",
    "assert_enqueued",
    "refute_enqueued",
    "enqueued",
    "on_temporary_database",
    "on_connection",
    "crash_at_every_point",
    "crash_point",
    "CrashPoint",
]
