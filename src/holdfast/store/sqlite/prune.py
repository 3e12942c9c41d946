"""Pruning on SQLite: other processes see by a kernel lock whether the process of a run is alive."""

from typing import Any

from .presence import Slot
from .workers import Workers


class SlotLock:
    """The lock of a worker of this process, or, where it has none, one of its own for each run."""

    def __init__(self, workers: Workers) -> None:
        self._workers = workers
        self.slots: dict[str, Slot] = {}  # of runs whose process has no worker

    def take(self, token: str) -> dict[str, Any]:
        slot = next(iter(self._workers.slots.values()), None)
        if slot is None:
            slot = self.slots[token] = self._workers.lock_file_here().hold()
        return {"slot": slot.number, "inode": slot.inode}

    def is_held(self, number: int, inode: int) -> bool:
        file, slot = self._workers.lock_file_here(), Slot(number, inode)
        return not file.is_free(slot) and file.is_current(slot)

    def release(self, token: str) -> None:
        slot = self.slots.pop(token, None)
        if slot is not None:
            self._workers.lock_file_here().let_go(slot)
