"""Many receivers in one process that wait: the processor time they take while another process commits."""

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from holdfast import Holdfast, Queue

from .measure import Action, Effort, Figure, at_most, seconds
from .workers import cpu_seconds
from .workload import BODY

RECEIVERS = (1, 1_000, 2_000)
QUEUES = 20
COMMITS_PER_SECOND = 100
DURATION_SECONDS = 10
NOTES = f"""\
- **Waiting:** a process with so many threads, or coroutines, in `receive(wait=…)` on {QUEUES} queues. Another process
  commits {COMMITS_PER_SECOND} messages a second to a queue that none of them waits for. Processor time is user and
  system time of the waiting process, which the kernel counts in steps of 10 ms.
"""


def figures(folder: Path, effort: Effort) -> Iterator[Figure]:
    duration = effort.of(DURATION_SECONDS, least=2)
    for kind in ("threads", "coroutines"):
        for number in RECEIVERS:
            with _waiting_process(folder / f"{kind}-{number}.db", kind, number) as (path, pid):
                idle, busy = _share(pid, partial(time.sleep, duration)), _share(pid, partial(_commit, path, duration))
            name = f"{number:,} waiting {kind if number > 1 else kind[:-1]}: processor time"
            yield Figure(
                f"{name} beside commits", f"{busy:.1f} %", f"idle {idle:.1f} %", busy, None, at_most(15, "%")
            )


def _share(pid: int, action: Action) -> float:
    before = cpu_seconds(pid)
    lasted = seconds(action)
    return (cpu_seconds(pid) - before) / lasted * 100


def _commit(path: Path, duration: int) -> None:
    with Holdfast(path, durability="normal") as app:
        end, next_at = time.monotonic() + duration, time.monotonic()
        while next_at < end:
            app.queue("elsewhere").send(BODY)
            next_at += 1 / COMMITS_PER_SECOND
            time.sleep(max(0.0, next_at - time.monotonic()))


@contextmanager
def _waiting_process(path: Path, kind: str, number: int) -> Iterator[tuple[Path, int]]:
    command = [sys.executable, "-m", "benchmarks.waiting", str(path), kind, str(number)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "waiting\n"
        time.sleep(1)
        yield path, process.pid
        process.kill()


def _main(path: str, kind: str, number: int) -> None:
    """Wait until this process is killed."""
    app = Holdfast(path)
    queues = [app.queue(f"inbox {n % QUEUES}") for n in range(number)]
    if kind == "coroutines":
        asyncio.run(_wait_in_coroutines(app, queues))
    threading.stack_size(256 * 1024)
    for queue in queues:
        threading.Thread(target=partial(queue.receive, wait=3600), daemon=True).start()
    while len(app.store.waiters) < number:
        time.sleep(0.01)
    print("waiting", flush=True)
    sys.stdin.read()


async def _wait_in_coroutines(app: Holdfast, queues: list[Queue[Any]]) -> None:
    waiting = [asyncio.ensure_future(queue.areceive(wait=3600)) for queue in queues]
    while len(app.store.waiters) < len(waiting):
        await asyncio.sleep(0.01)
    print("waiting", flush=True)
    await asyncio.gather(*waiting)


if __name__ == "__main__":
    _main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
