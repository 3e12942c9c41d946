"""Calls that must wait for a lock of somebody else."""

import threading
from collections.abc import Callable
from typing import Any

from support.backend import WriteLock
from support.running_worker import PATIENCE_SECONDS

LOOK_SECONDS = 0.05
"""How long a call is given to return too early. On a slow machine it may not have begun by then, which passes."""


def result_after(lock: WriteLock, call: Callable[[], Any]) -> Any:
    """Make the call while the lock is held, release the lock, and return what the call returned or raised."""
    outcome: list[Any] = []

    def run() -> None:
        try:
            outcome.append(call())
        except Exception as error:  # noqa: BLE001  shown by the test
            outcome.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(LOOK_SECONDS)
    early = list(outcome)
    lock.release()
    thread.join(PATIENCE_SECONDS)
    assert outcome, "it still waits"
    assert early == [], "it did not wait"
    return outcome[0]
