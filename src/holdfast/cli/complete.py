"""What the shell offers when Tab is pressed: names and ids from the database, or nothing, but never an error."""

from __future__ import annotations  # so that they cost nothing at import

from collections.abc import Callable, Iterable
from contextlib import redirect_stderr
from io import StringIO
from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem

from .database import Database
from .text import clean

if TYPE_CHECKING:
    from ..process import Holdfast

BUSY_SECONDS = 0.5
NEWEST = 200

Completer = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]
Found = Iterable[tuple[str, str]]  # what is offered, and a word about it


def from_database(find: Callable[[Holdfast], Found]) -> Completer:
    def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        del param
        try:
            database = Database(ctx)
            if database.url is None:  # an app would have to be imported, and may print
                return []
            with redirect_stderr(StringIO()), database.open(busy_timeout=BUSY_SECONDS) as app:
                found = dict(find(app))
        except Exception:  # noqa: BLE001  a message in the middle of a command line helps nobody
            return []
        return [
            CompletionItem(value, help=clean(about))
            for value, about in found.items()
            if value.startswith(incomplete) and value.isprintable()
        ]

    return complete


def _queues(app: Holdfast) -> Found:
    return ((queue.name, f"{queue.ready} ready") for queue in app.queues())


def _tasks(app: Holdfast) -> Found:
    """Those of the newest jobs: a look at all of them would take too long."""
    return ((job.task, "") for job in app.jobs.list(limit=NEWEST) if job.task is not None)


def _jobs(*statuses: str) -> Callable[[Holdfast], Found]:
    def find(app: Holdfast) -> Found:
        filters = {"status": statuses} if statuses else {}
        page = app.jobs.list(limit=NEWEST, **filters)  # type: ignore[arg-type]
        return ((str(job.id), f"{job.task or 'message'} on {job.queue}: {job.status}") for job in page)

    return find


def _schedules(app: Holdfast) -> Found:
    return ((schedule.name, f"{schedule.cron} {schedule.task}") for schedule in app.schedules.list())


complete_schedules = from_database(_schedules)
complete_queues = from_database(_queues)
complete_tasks = from_database(_tasks)
complete_jobs = from_database(_jobs())
complete_ended = from_database(_jobs("failed", "cancelled"))
complete_unfinished = from_database(_jobs("blocked", "scheduled", "ready", "running"))
complete_scheduled = from_database(_jobs("scheduled"))
