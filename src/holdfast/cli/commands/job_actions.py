"""`holdfast retry`, `cancel`, `run-now`, `complete` and `fail`: change the state of jobs."""

import functools
import sys
from collections.abc import Callable
from typing import Any, TypeVar, cast

import click

from ...app.jobs import Filters
from ...errors import InvalidPayload
from ...supervisor import Holdfast
from ..bulk import Action, BulkOptions, BulkRun, print_result
from ..options import (
    AuditOptions,
    DatabaseOption,
    audit_options,
    change_options,
    complete_retryable,
    complete_scheduled,
    complete_unfinished,
    delay_option,
    example,
    filter_options,
    job_id,
    read_options,
    yes_option,
)
from .send import parse

F = TypeVar("F", bound=Callable[..., Any])
UNFINISHED = ("blocked", "scheduled", "ready", "running")
RETRY = Action("retry", "retried", ("failed", "cancelled"), default_states=("failed",))
CANCEL = Action("cancel", "cancelled", UNFINISHED)
RUN_NOW = Action("run now", "made ready", ("scheduled",))


def bulk_command(complete: Any) -> Callable[[F], F]:
    """Add ids, filters, --actor, --reason, --yes, --dry-run and --json. complete: shell completion of the ids."""

    def decorate(command: F) -> F:
        @click.argument("ids", nargs=-1, metavar="[ID]…", type=job_id, shell_complete=complete)
        @filter_options
        @audit_options
        @yes_option
        @click.option("--dry-run", "-n", is_flag=True, help="Only print how many jobs would be changed.")
        @read_options
        @functools.wraps(command)
        def with_options(*args: Any, yes: bool, dry_run: bool, as_json: bool, **given: Any) -> Any:
            return command(*args, options=BulkOptions(yes, dry_run, as_json), **given)

        return cast(F, with_options)

    return decorate


@click.command(
    epilog=example(
        "holdfast retry 42 43 --db app.db",
        "holdfast retry --error-code DEPENDENCY:SMTP --since 2h --db app.db",
    )
)
@click.option("--attempts", type=int, default=1, show_default=True, metavar="N", help="Additional attempts per job.")
@delay_option
@bulk_command(complete_retryable)
def retry(
    database: DatabaseOption,
    ids: tuple[int, ...],
    filters: Filters,
    options: BulkOptions,
    attempts: int,
    delay: float,
    audit: AuditOptions,
) -> None:
    """Run failed or cancelled jobs again.

    Select jobs by ID or by filters. Filters select failed jobs; add --status cancelled for cancelled ones.
    """
    with database.open() as app:
        act = functools.partial(app.jobs.retry, attempts=attempts, delay=delay, **audit)
        BulkRun(app, RETRY, options).run(act, ids, filters)


@click.command(
    epilog=example(
        "holdfast cancel 42 --reason 'sent by hand' --db app.db",
        "holdfast cancel --queue mail --db app.db",
    )
)
@bulk_command(complete_unfinished)
def cancel(
    database: DatabaseOption, ids: tuple[int, ...], filters: Filters, options: BulkOptions, audit: AuditOptions
) -> None:
    """Cancel unfinished jobs. The outcome of an attempt that is running is discarded."""
    with database.open() as app:
        BulkRun(app, CANCEL, options).run(functools.partial(app.jobs.cancel, **audit), ids, filters)


@click.command("run-now", epilog=example("holdfast run-now 42 --db app.db"))
@bulk_command(complete_scheduled)
def run_now(
    database: DatabaseOption, ids: tuple[int, ...], filters: Filters, options: BulkOptions, audit: AuditOptions
) -> None:
    """Make scheduled jobs ready now."""
    with database.open() as app:
        BulkRun(app, RUN_NOW, options).run(functools.partial(app.jobs.run_now, **audit), ids, filters)


id_argument = click.argument("id", type=job_id, shell_complete=complete_unfinished)


@click.command(
    epilog=example(
        "holdfast complete 7 --db app.db",
        """holdfast complete 7 --result '{"approved": true}' --actor kim --db app.db""",
    )
)
@id_argument
@click.option("--result", metavar="JSON", help='The result of the job; "-" reads it from standard input.')
@change_options
def complete(database: DatabaseOption, id: int, result: str | None, audit: AuditOptions, as_json: bool) -> None:
    """Mark a job as succeeded.

    The job can be external (no worker runs it) or any other unfinished job. The outcome of an attempt that is running
    is discarded. Exits with 1 if the job was already finished.
    """
    value = None if result is None else _parse_result(result)
    with database.open() as app:
        _print_settled(app, id, app.jobs.complete(id, value, **audit), as_json)


@click.command(
    epilog=example(
        "holdfast fail 7 REJECTED:BUDGET --db app.db",
        "holdfast fail 7 REJECTED:BUDGET --detail 'too much' --actor kim --db app.db",
    )
)
@id_argument
@click.argument("code")
@click.option("--detail", default="", metavar="TEXT", help="Error detail, stored with the job.")
@change_options
def fail(database: DatabaseOption, id: int, code: str, detail: str, audit: AuditOptions, as_json: bool) -> None:
    """Mark a job as failed, with an error code.

    CODE is a category with an optional detail, such as REJECTED:BUDGET. The job can be external (no worker runs it)
    or any other unfinished job. It is not retried. Exits with 1 if the job was already finished.
    """
    with database.open() as app:
        _print_settled(app, id, app.jobs.fail(id, code, detail, **audit), as_json)


def _parse_result(text: str) -> object:
    try:
        return parse(sys.stdin.buffer.read() if text == "-" else text.encode("utf-8", "surrogateescape"))
    except InvalidPayload as error:
        raise type(error)(f"--result: {error}") from None


def _print_settled(app: Holdfast, id: int, done: bool, as_json: bool) -> None:
    status = app.jobs.get(id).status
    sentence = f"Job {id} {status}." if done else f"Job {id} is already {status}: nothing changed."
    print_result({"id": id, "status": status, "done": done}, sentence, done, as_json)
