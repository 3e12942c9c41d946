"""`Holdfast`: the app, and what runs its jobs."""

from __future__ import annotations  # so that they cost nothing at import

import os
from typing import TYPE_CHECKING

from ..app import App, checks
from ..clock import SECOND
from ..errors import InvalidInput

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from multiprocessing.context import SpawnProcess

    from ..app.task import Seconds
    from ..run.queues import Queues
    from ..run.worker import Worker

SHORTEST_LEASE_SECONDS = 1
POOL = "holdfast-pool"  # the name of its processes


class Holdfast(App):
    __doc__ = App.__doc__

    def worker(
        self,
        queues: Queues | None = None,
        concurrency: int = 10,
        *,
        pool: int | None = None,
        lease: Seconds = 60,
        grace: Seconds = 30,
        until_idle: bool = False,
        max_jobs: int | None = None,
        max_memory: int | None = None,
    ) -> Worker:
        """A worker for this app's tasks; `run()` runs it in this thread until it is told to stop.

        queues: all of them, or "mail=4,default" (in this order, of mail at most 4 at a time), "mail*3,default" (by
            weight), or a list or dict of such.
        concurrency: how many jobs run at a time, in threads and as coroutines.
        pool: how many processes for tasks with pool="process"; by default one per core.
        lease: seconds after which a worker that was stopped, and does not say that it goes on, loses its jobs.
        grace: seconds that running jobs have to finish when the worker is told to stop.
        until_idle: stop when nothing is ready or running.
        max_jobs, max_memory: replace a process of the pool after so many jobs, or when it has more bytes in memory.
        """
        from multiprocessing import current_process

        from ..run.parts import Parts, WorkerOptions
        from ..run.queues import parse_queues
        from ..run.scheduler import Scheduler
        from ..run.worker import Worker

        if current_process().name == POOL:
            raise InvalidInput(
                "this is a process of a worker's pool, which loads the program to find its tasks: start workers "
                "below if __name__ == '__main__':"
            )
        if not self.tasks:
            raise InvalidInput("this app has no tasks, so there is nothing to run: import the modules that have them")
        seconds = checks.duration(lease, "lease") / SECOND
        if seconds < SHORTEST_LEASE_SECONDS:
            raise InvalidInput(f"lease is at least {SHORTEST_LEASE_SECONDS} second, not {checks.shown(lease)}")
        options = WorkerOptions(
            queues=parse_queues(queues),
            concurrency=checks.integer(concurrency, "concurrency", 1, 10_000),
            pool=os.cpu_count() or 1 if pool is None else checks.integer(pool, "pool", 1, 1000),
            lease=seconds,
            grace=checks.duration(grace, "grace") / SECOND,
            until_idle=checks.flag(until_idle, "until_idle"),
            max_jobs=None if max_jobs is None else checks.integer(max_jobs, "max_jobs", 1, 2**31),
            max_memory=None if max_memory is None else checks.integer(max_memory, "max_memory", 1, 2**63 - 1),
        )
        parts = Parts(
            store=self.store,
            clock=self.clock,
            handlers=self.tasks,
            errors=self.error_table,
            random=self.random,
            middleware=self.middlewares,
            backing=self.backing,
            spawn=self._spawn,
            scheduler=Scheduler(self.store, self.clock, self.tasks, self.schedules.declared.values()),
        )
        return Worker(parts, options)

    def _spawn(self) -> tuple[SpawnProcess, Connection]:
        """A process that can run this app's tasks. Spawned, not forked: it inherits no connection and no lock."""
        import multiprocessing

        from .child import main

        spawn = multiprocessing.get_context("spawn")
        ours, theirs = spawn.Pipe()
        places = {
            name: (task.function.__module__, name) for name, task in self.tasks.items() if task.kind == "process"
        }
        process = spawn.Process(target=main, args=(theirs, places), name=POOL, daemon=True)
        process.start()
        theirs.close()  # so that the end of the child is heard here
        return process, ours
