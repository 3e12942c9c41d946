"""`holdfast retry`, `cancel` and `run-now`: by ids, or by filters after a question."""

import functools
import sys
from collections.abc import Callable
from typing import Any, TypeVar, cast

import click

from ...app.jobs import Filters
from ...errors import InvalidPayload
from ...supervisor import Holdfast
from ..bulk import Action, Consent, end, operate
from ..options import (
    AuditOptions,
    DatabaseOption,
    complete_ended,
    complete_scheduled,
    complete_unfinished,
    duration,
    example,
    job_id,
    signed,
    takes_database,
    takes_filters,
)
from ..output import json_option
from .send import parse

F = TypeVar("F", bound=Callable[..., Any])
UNFINISHED = ("blocked", "scheduled", "ready", "running")
RETRY = Action("retry", "retried", ("failed", "cancelled"), unless_said=("failed",))
CANCEL = Action("cancel", "cancelled", UNFINISHED)
RUN_NOW = Action("run now", "made ready", ("scheduled",))


def takes_jobs(complete: Any) -> Callable[[F], F]:
    """Ids or filters, and the options with which to ask, to try and to sign."""

    def decorate(command: F) -> F:
        @click.argument("ids", nargs=-1, metavar="[ID]…", type=job_id, shell_complete=complete)
        @takes_filters
        @signed
        @click.option("--yes", "-y", is_flag=True, help="Do not ask.")
        @click.option("--dry-run", "-n", is_flag=True, help="Only say how many it would be.")
        @takes_database
        @json_option
        @functools.wraps(command)
        def with_jobs(*args: Any, yes: bool, dry_run: bool, as_json: bool, **given: Any) -> Any:
            return command(*args, consent=Consent(yes, dry_run, as_json), **given)

        return cast(F, with_jobs)

    return decorate


@click.command(
    epilog=example(
        "holdfast retry 42 43 --db app.db",
        "holdfast retry --error-code DEPENDENCY:SMTP --since 2h --db app.db",
    )
)
@click.option("--attempts", type=int, default=1, show_default=True, metavar="N", help="How many more it gets.")
@click.option("--delay", type=duration, default="0s", metavar="DURATION", help="Not before 10s, 5m, 1h, … from now.")
@takes_jobs(complete_ended)
def retry(
    database: DatabaseOption,
    ids: tuple[int, ...],
    filters: Filters,
    consent: Consent,
    attempts: int,
    delay: float,
    signature: AuditOptions,
) -> None:
    """Run failed or cancelled jobs again.

    Name them by ID, or by filters: then all failed ones that fit. Add --status cancelled for those.
    """
    with database.open() as app:
        act = functools.partial(app.jobs.retry, attempts=attempts, delay=delay, **signature)
        operate(app, RETRY, act, ids, filters, consent)


@click.command(
    epilog=example(
        "holdfast cancel 42 --reason 'sent by hand' --db app.db",
        "holdfast cancel --queue mail --db app.db",
    )
)
@takes_jobs(complete_unfinished)
def cancel(
    database: DatabaseOption, ids: tuple[int, ...], filters: Filters, consent: Consent, signature: AuditOptions
) -> None:
    """Cancel jobs that have not ended. What a running attempt does after that is not recorded."""
    with database.open() as app:
        act = functools.partial(app.jobs.cancel, **signature)
        operate(app, CANCEL, act, ids, filters, consent)


@click.command("run-now", epilog=example("holdfast run-now 42 --db app.db"))
@takes_jobs(complete_scheduled)
def run_now(
    database: DatabaseOption, ids: tuple[int, ...], filters: Filters, consent: Consent, signature: AuditOptions
) -> None:
    """Make scheduled jobs ready, without waiting for their time."""
    with database.open() as app:
        operate(app, RUN_NOW, functools.partial(app.jobs.run_now, **signature), ids, filters, consent)


id_argument = click.argument("id", type=job_id, shell_complete=complete_unfinished)


@click.command(
    epilog=example(
        "holdfast complete 7 --db app.db",
        """holdfast complete 7 --result '{"approved": true}' --actor kim --db app.db""",
    )
)
@id_argument
@click.option("--result", metavar="JSON", help='What it results in; "-" reads it from standard input.')
@signed
@takes_database
@json_option
def complete(database: DatabaseOption, id: int, result: str | None, signature: AuditOptions, as_json: bool) -> None:
    """End a job as succeeded, from outside.

    An external one, which waits for somebody, or any other that has not ended. What a running attempt does after
    that is not recorded.
    """
    value = None if result is None else _parsed(result)
    with database.open() as app:
        done = app.jobs.complete(id, value, **signature)
        _say(app, id, done, as_json)


@click.command(
    epilog=example(
        "holdfast fail 7 REJECTED:BUDGET --db app.db",
        "holdfast fail 7 REJECTED:BUDGET --detail 'too much' --actor kim --db app.db",
    )
)
@id_argument
@click.argument("code")
@click.option("--detail", default="", metavar="TEXT", help="Kept with the job.")
@signed
@takes_database
@json_option
def fail(database: DatabaseOption, id: int, code: str, detail: str, signature: AuditOptions, as_json: bool) -> None:
    """End a job as failed, from outside.

    With an error code such as REJECTED:BUDGET, however many attempts it has left. It can be an external job, which
    waits for somebody, or any other that has not ended.
    """
    with database.open() as app:
        done = app.jobs.fail(id, code, detail, **signature)
        _say(app, id, done, as_json)


def _parsed(text: str) -> object:
    try:
        return parse(sys.stdin.buffer.read() if text == "-" else text.encode("utf-8", "surrogateescape"))
    except InvalidPayload as error:
        raise type(error)(f"--result: {error}") from None


def _say(app: Holdfast, id: int, done: bool, as_json: bool) -> None:
    status = app.jobs.get(id).status
    sentence = f"Job {id} has {status}." if done else f"Job {id} had ended already, as {status}: nothing has changed."
    end({"id": id, "status": status, "done": done}, sentence, done, as_json)
