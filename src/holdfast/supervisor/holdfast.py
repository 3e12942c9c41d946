"""`Holdfast`: the app with its workers, upkeep and observation."""

from __future__ import annotations

import os
from functools import cached_property
from typing import TYPE_CHECKING, Any

from .. import validate
from ..app import App
from ..clock import SECOND
from ..errors import InvalidInput

if TYPE_CHECKING:
    import re
    from collections.abc import Callable, Iterable
    from multiprocessing.connection import Connection
    from multiprocessing.context import SpawnProcess

    from starlette.applications import Starlette

    from ..app.options import Seconds
    from ..observe import Observe
    from ..retention import Retention
    from ..upkeep.doctor.check import Checkup
    from ..upkeep.move import MoveProgress, MoveReport
    from ..upkeep.prune import PruneReport
    from ..upkeep.vacuum import VacuumReport
    from ..web.auth import Authenticator, Users
    from ..worker.dispatcher import Queues
    from ..worker.worker import Worker


SHORTEST_LEASE_SECONDS = 1
POOL = "holdfast-pool"  # the name of pool processes


class Holdfast(App):
    __doc__ = App.__doc__

    _reference: str | None = None  # what `holdfast worker` was given; its pool processes load it as well

    @cached_property
    def observe(self) -> Observe:
        """Statistics: counts, rates, failures, workers, the event log."""
        from ..observe import Observe

        return Observe(lambda: self.store, self.clock, self._rules)

    def check(
        self, *, deep: bool = False, repair: bool = False, actor: str | None = None, reason: str = ""
    ) -> Checkup:
        """Check the database for problems: its file, settings, tables, rows, jobs, workers and clocks. Only reads.

        deep: check every row and every page, which may take long.
        repair: then repair what can be repaired without losing data, and check again.
        actor, reason: who repairs and why, for the event log.
        """
        from ..upkeep.doctor.doctor import Repair, check

        by = Repair(validate.actor(actor), validate.reason(reason))
        return check(
            self.store, deep=validate.flag(deep, "deep"), repair=by if validate.flag(repair, "repair") else None
        )

    @property
    def retention(self) -> Retention:
        """The retention policy: this program's, or the last one that a worker stored, or the default."""
        found = self._rules()
        if found is None:
            raise InvalidInput(
                "the retention policy in this database was written by another version of Holdfast, and this one "
                "cannot read it: pass retention=Retention(…)"
            )
        return found

    def _rules(self) -> Retention | None:
        from ..upkeep.prune import effective_retention

        return effective_retention(self.store, self._retention)

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
        """Delete now what the retention policy no longer keeps. Workers also do so in the background.

        retention: another policy, for this run only.
        archive: a file, *.jsonl.gz, to which jobs are written and flushed before they are deleted.
        hurry: do not pause between batches for other users of the database.
        progress: called regularly with the number of deleted jobs.
        """
        from ..retention import archive_path
        from ..upkeep.prune import prune

        who, why, path = validate.actor(actor), validate.reason(reason), archive_path(archive)
        options = {"dry_run": validate.flag(dry_run, "dry_run"), "hurry": validate.flag(hurry, "hurry")}
        rules = validate.retention(retention) or self.retention
        tell = progress or (lambda _: None)
        return prune(self.store, self.clock, rules, actor=who, reason=why, archive=path, progress=tell, **options)

    def vacuum(
        self,
        *,
        full: bool = False,
        actor: str | None = None,
        reason: str = "",
        hurry: bool = False,
        seconds: Seconds | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> VacuumReport:
        """Return the space that pruning has freed to the file system, in small steps. On PostgreSQL: run VACUUM.

        full: rewrite the whole file, which makes it as small as possible. No other process can write meanwhile, so
            stop the workers first; and it needs as much free disk space again.
        hurry: do not pause between steps for other users of the database.
        seconds: stop after about this long, even if there is more to return. A full vacuum cannot stop.
        progress: called regularly with the number of pages done and the total.
        """
        from ..upkeep.vacuum import vacuum

        checked_actor, checked_reason = validate.actor(actor), validate.reason(reason)
        if seconds is not None and full:
            raise InvalidInput("seconds does not work with full: a full vacuum cannot stop half-way")
        limit = None if seconds is None else validate.duration(seconds, "seconds") / SECOND
        tell = progress or (lambda *_: None)
        report = vacuum(self.store, validate.flag(full, "full"), validate.flag(hurry, "hurry"), tell, limit)
        detail: dict[str, Any] = {"full": report.full, "before": report.before_bytes, "after": report.after_bytes}
        if checked_reason:
            detail["reason"] = checked_reason
        self.store.file.log_event("vacuumed", checked_actor, detail)
        return report

    def move(
        self,
        destination: str | os.PathLike[str] | Holdfast,
        *,
        dry_run: bool = False,
        wait: Seconds = 30,
        actor: str | None = None,
        reason: str = "",
        progress: Callable[[MoveProgress], None] | None = None,
    ) -> MoveReport:
        """Carry all jobs, with their ids and history, to another database, on either store.

        Workers are asked to stop. While the last part is copied, writes here wait; afterwards each write raises
        DatabaseMoved, which names the destination. An interrupted move changes nothing here: call it again.

        destination: an empty database, by its path or URL, or a Holdfast that has it open.
        dry_run: only look whether it can be moved.
        wait: seconds that running jobs have to end. Those that still run are given back, uncounted.
        progress: called between any two chunks.
        """
        from ..upkeep.move import move

        tell = progress or (lambda _: None)
        signed = validate.actor(actor), validate.reason(reason)
        seconds = validate.duration(wait, "wait") / SECOND
        is_dry = validate.flag(dry_run, "dry_run")
        if isinstance(destination, Holdfast):
            return move(self.store, destination.store, dry_run=is_dry, wait=seconds, signed=signed, tell=tell)
        with Holdfast(destination, migrate=not is_dry) as there:
            return move(self.store, there.store, dry_run=is_dry, wait=seconds, signed=signed, tell=tell)

    def web(
        self,
        *,
        auth: Authenticator | Users | None = None,
        hosts: Iterable[str] | None = None,
        hide_args: bool = False,
        redact: Iterable[str | re.Pattern[str]] = (),
        read_only: bool = False,
        max_body: int = 1024 * 1024,
    ) -> Starlette:
        """Return the web page and the HTTP API as an ASGI application, to mount in FastAPI, Starlette or Django.

        auth: a `holdfast.web.Users` file, or a function that is given the request and returns an identity or None.
            Without it, everyone who can connect is an admin, and only requests to a loopback name are answered.
        hosts: the host names that requests may name.
        hide_args: viewers see no arguments and results. redact: patterns of names whose values are hidden.
        read_only: refuse all changes, for all users.
        max_body: the largest request body in bytes.
        """
        try:
            from ..web import make_app
        except ModuleNotFoundError as error:
            raise InvalidInput(f"the web page needs {error.name}: pip install 'holdfast[web]'") from None

        return make_app(
            self,
            auth=auth,
            hosts=hosts,
            hide_args=validate.flag(hide_args, "hide_args"),
            redact=redact,
            read_only=validate.flag(read_only, "read_only"),
            max_body=max_body,
        )

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
        """Return a worker for this app's tasks. `run()` runs it in the calling thread until it is stopped.

        queues: all queues by default; or "mail=4,default" (in this order, at most 4 jobs of mail at a time),
            "mail*3,default" (by weight), or a list or dict of these.
        concurrency: how many jobs run at a time, in threads and as coroutines.
        pool: the number of processes for tasks with pool="process"; by default one per core.
        lease: seconds without a renewal after which a worker loses its jobs.
        grace: seconds that running jobs have to finish when the worker is stopped.
        until_idle: stop when no job is ready or running.
        max_jobs, max_memory: replace a pool process after this many jobs, or when it uses more bytes of memory.
        """
        from multiprocessing import current_process

        from ..retention import to_json
        from ..upkeep.prune import BackgroundPruner
        from ..worker.dispatcher import parse_queues
        from ..worker.housekeeping import FailureReporter
        from ..worker.scheduler import Scheduler
        from ..worker.worker import Worker, WorkerOptions, WorkerParts

        if current_process().name == POOL:
            raise InvalidInput(
                "a pool process cannot start a worker, and it imports this module to find its tasks: start workers "
                "below if __name__ == '__main__':"
            )
        if not self.tasks:
            raise InvalidInput(
                "this app has no tasks, so there is nothing to run: import the modules that define them"
            )
        seconds = validate.duration(lease, "lease") / SECOND
        if seconds < SHORTEST_LEASE_SECONDS:
            raise InvalidInput(f"lease must be at least {SHORTEST_LEASE_SECONDS} second, got {validate.shown(lease)}")
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
            upkeep=BackgroundPruner(self.store, self.clock),
            operate=self.operations.do_some,
            reporter=FailureReporter(self.store, self.failure_hooks()),
            hooks=self._hooks,
            payload_timeout=self.payload_timeout,
            retention=None if self._retention is None else to_json(self._retention).decode(),
        )
        return Worker(parts, options)

    def _spawn(self) -> tuple[SpawnProcess, Connection]:
        """Start a pool process for this app's tasks. Spawned, not forked: it inherits no connection and no lock."""
        import multiprocessing

        from .child_process import main

        spawn = multiprocessing.get_context("spawn")
        ours, theirs = spawn.Pipe()
        locations = {
            name: (task.function.__module__, name) for name, task in self.tasks.items() if task.kind == "process"
        }
        process = spawn.Process(target=main, args=(theirs, locations, self._reference), name=POOL, daemon=True)
        process.start()
        theirs.close()  # so that this end sees when the child exits
        return process, ours
