"""Which workers there are, and which of them are alive. Creates nothing, not even the lock file."""

import sqlite3
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from ...model import WorkerLimits, WorkerRecord
from ..circumstances import Attendance
from ..statements import Statements
from .presence import Slot, presence

MOST_RUNNING = 20_000

Taken = Mapping[str, list[tuple[str, str | None, int]]]


def all_workers(connection: sqlite3.Connection, sql: Statements, path: Path) -> list[Attendance]:
    """Those that are present and the last ones that were, with what they have claimed. The newest first."""
    taken = defaultdict[str, list[Any]](list)
    for worker, *place in connection.execute(sql.claimed_by_workers, {"most": MOST_RUNNING}).fetchall():
        taken[worker].append(tuple(place))
    return _attendance(connection, sql, path, taken)


def present_workers(connection: sqlite3.Connection, sql: Statements, path: Path) -> list[Attendance]:
    """Those that have not ended, for the doctor, which does not ask what they have claimed."""
    return [one for one in _attendance(connection, sql, path, {}) if one.presence != "ended"]


def _attendance(connection: sqlite3.Connection, sql: Statements, path: Path, taken: Taken) -> list[Attendance]:
    found = []
    for number, inode, *row in connection.execute(sql.workers).fetchall():
        worker = _as_worker(*row)
        has_ended = worker.ended_at is not None
        state = "ended" if has_ended else presence(path, Slot(number, inode), worker.pid, worker.host)
        found.append(Attendance(worker, state, taken.get(worker.id, [])))
    return found


def _as_worker(id: str, pid: int, host: str, queues: str | None, tasks: str, *rest: Any) -> WorkerRecord:
    *plain, limits = rest
    plain.append(WorkerLimits() if limits is None else msgspec.json.decode(limits, type=WorkerLimits))
    return WorkerRecord(id, pid, host, _texts(queues), _texts(tasks) or (), *plain)


def _texts(stored: str | None) -> tuple[str, ...] | None:
    return None if stored is None else tuple(msgspec.json.decode(stored, type=list[str]))
