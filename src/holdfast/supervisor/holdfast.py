"""`Holdfast`: the app, and what runs its jobs."""

from __future__ import annotations

import os
from functools import cached_property
from typing import TYPE_CHECKING

from .. import validate
from ..app import App
from ..clock import SECOND
from ..errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection
    from multiprocessing.context import SpawnProcess

    from ..app.options import Seconds
    from ..observe import Observe
    from ..retention import Retention
    from ..upkeep.doctor.findings import Checkup
    from ..upkeep.prune_on_demand import PruneReport
    from ..upkeep.vacuum import VacuumReport
    from ..worker.prefetch import Queues
    from ..worker.worker import Worker


SHORTEST_LEASE_SECONDS = 1
POOL = "holdfast-pool"  # the name of its processes


class Holdfast(App):
    __doc__ = App.__doc__

    @cached_property
    def observe(self) -> Observe:
        """How it is doing: counts, rates, failures, workers, the log."""
        from ..observe import Observe

        return Observe(lambda: self.store, self.clock, self._rules)

    def check(
        self, *, deep: bool = False, repair: bool = False, actor: str | None = None, reason: str = ""
    ) -> Checkup:
        """Look the database over: its file, settings, tables, rows, jobs, workers and times. Reads only, and shortly.

        deep: look at every row and every page, however long that takes.
        repair: then mend what can be mended without losing anything, and look again.
        actor, reason: who repairs, and why, for the log.
        """
        from ..upkeep.doctor.doctor import Repair, check

        by = Repair(validate.actor(actor), validate.reason(reason))
        return check(
            self.store, deep=validate.flag(deep, "deep"), repair=by if validate.flag(repair, "repair") else None
        )

    @property
    def retention(self) -> Retention:
        """How long things are kept: as this program said, or the last one that did, or else by default."""
        found = self._rules()
        if found is None:
            raise InvalidInput(
                "the rules in this database were written by another version of Holdfast, which this one cannot read: "
                "pass retention=Retention(…)"
            )
        return found

    def _rules(self) -> Retention | None:
        from ..upkeep.prune_in_background import in_force

        return in_force(self.store, self._retention)

    def prune(
        self,
        *,
        dry_run: bool = False,
        retention: Retention | None = None,
        archive: str | os.PathLike[str] | None = None,
        actor: str | None = None,
        reason: str = "",
        hurry: bool = False,
        progress: Callable[[int], None] | None = None,
    ) -> PruneReport:
        """Delete what is older than the rules allow, now. Workers do it by themselves.

        retention: other rules, this once.
        archive: a file, *.jsonl.gz, to which jobs are written, and flushed, before they are deleted.
        hurry: without pauses in which others have the database.
        progress: called again and again with the number of jobs that are gone.
        """
        from ..retention import archive_path
        from ..upkeep.prune_on_demand import PruneOrder, prune

        order = PruneOrder(
            actor=validate.actor(actor),
            reason=validate.reason(reason),
            archive=archive_path(archive),
            dry_run=validate.flag(dry_run, "dry_run"),
            hurry=validate.flag(hurry, "hurry"),
        )
        rules = validate.retention(retention) or self.retention
        return prune(self.store, self.clock, rules, order, progress or (lambda _: None))

    def vacuum(
        self,
        *,
        full: bool = False,
        actor: str | None = None,
        reason: str = "",
        hurry: bool = False,
        progress: Callable[[int, int], None] | None = None,
    ) -> VacuumReport:
        """Give the space that pruning has freed back to the system, a little at a time.

        full: write the whole file anew, which makes it as small as it can be. Until that has ended nobody can write,
            so no worker may be at work; and it takes twice the room.
        hurry: without pauses in which others have the database.
        progress: called again and again with the pages that are done, and the pages in all.
        """
        from ..upkeep.vacuum import vacuum

        who, why = validate.actor(actor), validate.reason(reason)
        report = vacuum(
            self.store, validate.flag(full, "full"), validate.flag(hurry, "hurry"), progress or (lambda *_: None)
        )
        detail = {"full": report.full, "before": report.before_bytes, "after": report.after_bytes}
        self.store.file.note("vacuumed", who, detail | ({"reason": why} if why else {}))
        return report

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

        from ..retention import written
        from ..upkeep.prune_in_background import Caretaker
        from ..worker.prefetch import parse_queues
        from ..worker.scheduler import Scheduler
        from ..worker.worker import Worker, WorkerOptions, WorkerParts

        if current_process().name == POOL:
            raise InvalidInput(
                "this is a process of a worker's pool, which loads the program to find its tasks: start workers "
                "below if __name__ == '__main__':"
            )
        if not self.tasks:
            raise InvalidInput("this app has no tasks, so there is nothing to run: import the modules that have them")
        seconds = validate.duration(lease, "lease") / SECOND
        if seconds < SHORTEST_LEASE_SECONDS:
            raise InvalidInput(f"lease is at least {SHORTEST_LEASE_SECONDS} second, not {validate.shown(lease)}")
        options = WorkerOptions(
            queues=parse_queues(queues),
            concurrency=validate.integer(concurrency, "concurrency", 1, 10_000),
            pool=os.cpu_count() or 1 if pool is None else validate.integer(pool, "pool", 1, 1000),
            lease=seconds,
            grace=validate.duration(grace, "grace") / SECOND,
            until_idle=validate.flag(until_idle, "until_idle"),
            max_jobs=None if max_jobs is None else validate.integer(max_jobs, "max_jobs", 1, 2**31),
            max_memory=None if max_memory is None else validate.integer(max_memory, "max_memory", 1, 2**63 - 1),
        )
        parts = WorkerParts(
            store=self.store,
            clock=self.clock,
            handlers=self.tasks,
            errors=self.error_table,
            random=self.random,
            middleware=self._layers(),
            backing=self._context_backend,
            spawn=self._spawn,
            scheduler=Scheduler(self.store, self.clock, self.tasks, self.schedules.declared.values()),
            upkeep=Caretaker(self.store, self.clock),
            retention=None if self._retention is None else written(self._retention).decode(),
        )
        return Worker(parts, options)

    def _spawn(self) -> tuple[SpawnProcess, Connection]:
        """A process that can run this app's tasks. Spawned, not forked: it inherits no connection and no lock."""
        import multiprocessing

        from .child_process import main

        spawn = multiprocessing.get_context("spawn")
        ours, theirs = spawn.Pipe()
        places = {
            name: (task.function.__module__, name) for name, task in self.tasks.items() if task.kind == "process"
        }
        process = spawn.Process(target=main, args=(theirs, places), name=POOL, daemon=True)
        process.start()
        theirs.close()  # so that the end of the child is heard here
        return process, ours
