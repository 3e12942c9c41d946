"""Forks one child after the other, each of which works on the database as a process of its own, and may die of it.

A fork takes a few milliseconds, where to start Python and import everything takes hundreds. The zygote has no open
connection when it forks.

usage: zygote.py DATABASE LOG           then, line by line, what the child is to do; its exit code is the answer
"""

import gc
import logging
import os
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import msgspec
from traps import Trap, set_trap, watch_statements

sys.path.append(str(Path(__file__).parent.parent))

WATCHDOG_SECONDS = 300


class Order(msgspec.Struct):
    shapes: list[tuple[str, Trap | None]]  # to enqueue, before everything that is there is worked off
    trap: Trap | None = None  # to be set from the start


def in_child(work: Callable[[], None]) -> int:
    """Its exit code; negative is the signal that killed it."""
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    code = 1
    try:
        signal.alarm(WATCHDOG_SECONDS)
        work()
        code = 0
    except BaseException:  # noqa: BLE001  nothing may escape into the parent's loop
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def main(database: str, log: str) -> None:
    logging.disable()
    os.environ.update(VICTIM_DATABASE=database, VICTIM_LOG=log)
    watch_statements()
    from victim_tasks import prepare, work

    import holdfast.worker.worker  # noqa: F401  so that no child has to
    import support.any_speed  # noqa: F401

    def obey(order: Order) -> None:
        if order.trap is not None:
            set_trap(order.trap)
        work(order.shapes)

    prepare()
    gc.freeze()
    for line in sys.stdin:
        order = msgspec.json.decode(line, type=Order)
        print(in_child(lambda order=order: obey(order)), flush=True)


if __name__ == "__mp_main__":  # a process of a worker's pool, which is about to load the tasks
    watch_statements()
if __name__ == "__main__":
    main(*sys.argv[1:])
