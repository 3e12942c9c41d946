"""`holdfast retry`, `cancel` and `run-now`: by ids, or by filters after a question."""

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

import click

from ..app.jobs import Filters
from .complete import complete_ended, complete_scheduled, complete_unfinished
from .database import Database, takes_database
from .deeds import Action, Consent, operate
from .options import Signature, duration, example, job_id, signed, takes_filters
from .output import json_option

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
    database: Database,
    ids: tuple[int, ...],
    filters: Filters,
    consent: Consent,
    attempts: int,
    delay: float,
    signature: Signature,
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
    database: Database, ids: tuple[int, ...], filters: Filters, consent: Consent, signature: Signature
) -> None:
    """Cancel jobs that have not ended. What a running attempt does after that is not recorded."""
    with database.open() as app:
        act = functools.partial(app.jobs.cancel, **signature)
        operate(app, CANCEL, act, ids, filters, consent)


@click.command("run-now", epilog=example("holdfast run-now 42 --db app.db"))
@takes_jobs(complete_scheduled)
def run_now(
    database: Database, ids: tuple[int, ...], filters: Filters, consent: Consent, signature: Signature
) -> None:
    """Make scheduled jobs ready, without waiting for their time."""
    with database.open() as app:
        operate(app, RUN_NOW, functools.partial(app.jobs.run_now, **signature), ids, filters, consent)
