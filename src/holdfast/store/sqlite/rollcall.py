"""Which workers are there, for those who only look: nothing is made, not even the lock file."""

import socket
import sqlite3
from pathlib import Path
from typing import Any, Literal

import msgspec

from ...model import WorkerLimits, WorkerRecord
from ..examination import Attendance
from ..statements import Statements
from .presence import Slot, is_stopped, lock_file, lock_path

Presence = Literal["alive", "stopped", "dead", "unknown"]


def attendance(connection: sqlite3.Connection, sql: Statements, path: Path) -> list[Attendance]:
    """Those that have not said that they ended, by the lock that each holds."""
    here, found = socket.gethostname(), []
    for number, inode, *row in connection.execute(sql.present_in_full).fetchall():
        worker = as_worker(*row)
        presence = _presence(path, Slot(number, inode))
        if presence == "alive" and worker.host == here and is_stopped(worker.pid):
            presence = "stopped"
        found.append(Attendance(worker, presence))
    return found


def _presence(path: Path, slot: Slot) -> Presence:
    if not lock_path(path).exists():
        return "unknown"
    file = lock_file(path)
    if file.is_free(slot):
        return "dead"
    return "alive" if file.is_current(slot) else "unknown"


def as_worker(id: str, pid: int, host: str, queues: str | None, tasks: str, *rest: Any) -> WorkerRecord:
    *plain, limits = rest
    plain.append(WorkerLimits() if limits is None else msgspec.json.decode(limits, type=WorkerLimits))
    return WorkerRecord(id, pid, host, _texts(queues), _texts(tasks) or (), *plain)


def _texts(stored: str | None) -> tuple[str, ...] | None:
    return None if stored is None else tuple(msgspec.json.decode(stored, type=list[str]))
