"""`holdfast doctor`: check the database and suggest fixes. `holdfast health`: the short check for scripts.

Without --app, they open the database themselves: it may be damaged, locked or outdated, and nothing is created or
migrated.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from ... import validate
from ...clock import Clock, SystemClock
from ...errors import StoreError
from ..main import Exit
from ..options import (
    AuditOptions,
    DatabaseOption,
    change_options,
    duration,
    example,
    queue_option,
    read_options,
    share,
)
from ..output import Cell, document, lines, say, span

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...model.diagnosis import HealthMetrics
    from ...upkeep.doctor.check import Checkup, Finding


STYLES = {"ok": "green", "note": "cyan", "warning": "yellow", "error": "bold red"}
EXIT_CODES = {"ok": Exit.DONE, "note": Exit.DONE, "warning": Exit.NOT_DONE, "error": Exit.DATABASE}


@click.command(
    epilog=example(
        "holdfast doctor --db app.db",
        "holdfast doctor --db app.db --deep --json",
        "holdfast doctor --db app.db --repair --reason 'a restored backup'",
    )
)
@click.option("--deep", is_flag=True, help="Check every row and every page. This can take long.")
@click.option("--repair", is_flag=True, help="Fix what can be fixed without losing data, then check again.")
@click.option("--verbose", "-v", is_flag=True, help="Also list the checks that passed.")
@change_options
@click.pass_context
def doctor(
    ctx: click.Context,
    database: DatabaseOption,
    deep: bool,
    repair: bool,
    verbose: bool,
    audit: AuditOptions,
    as_json: bool,
) -> None:
    """Check the database for problems and suggest fixes.

    The most severe problems come first. Writes nothing without --repair. With --db, it also checks a database that is
    damaged, locked, read-only or of another version. Exits with 0 if there are only notes, 1 with warnings, 3 with
    errors.
    """
    if not repair and (audit["actor"] is not None or audit["reason"]):
        raise click.UsageError("--actor and --reason require --repair: without it, nothing is changed")
    checkup = _check(database, deep, repair, audit)
    if as_json:
        document(checkup)
    else:
        _print(checkup, verbose)
    ctx.exit(EXIT_CODES[checkup.severity])


def _check(database: DatabaseOption, deep: bool, repair: bool, audit: AuditOptions) -> Checkup:
    """Check the app's database, or with --db one that may be in any state and is not opened for use."""
    location = database.location()
    if location is None:
        with database.open() as app:
            return app.check(deep=deep, repair=repair, **audit)

    return check_database(
        location.url, prefix=location.prefix, schema=location.schema, deep=deep, repair=repair, **audit
    )


def _print(checkup: Checkup, verbose: bool) -> None:
    for sentence in checkup.repaired:
        say(sentence)
    for finding in checkup.findings:
        if verbose or finding.severity != "ok":
            _print_finding(finding)
    say(f"{checkup.summary} Took {span(round(checkup.seconds, 2))}.")


def _print_finding(finding: Finding) -> None:
    rows: list[list[Cell | str]] = [
        [Cell(finding.severity, STYLES[finding.severity]), Cell(finding.code, "bold")],
        [finding.meaning],
    ]
    if finding.fix:
        rows.append([f"Fix: {finding.fix}"])
    rows.append([""])
    lines(rows, wrap=True)


@click.command(
    epilog=example(
        "holdfast health --db app.db",
        "holdfast health --db app.db -q mail --max-oldest-ready 60s --min-workers 2",
        "HEALTHCHECK CMD holdfast health --db /data/app.db --here",
    )
)
@click.option(
    "--max-oldest-ready", type=duration, default="5m", show_default=True, metavar="DURATION",
    help="Unhealthy if a job has been ready for longer.",
)  # fmt: skip
@click.option(
    "--max-failure-rate", type=share, default="0.5", show_default=True, metavar="SHARE",
    help="Unhealthy if a larger share of attempts failed, from 0 to 1; 1 disables the check.",
)  # fmt: skip
@click.option(
    "--min-attempts", type=click.IntRange(min=1), default=10, show_default=True, metavar="N",
    help="Ignore the failure rate below N attempts.",
)  # fmt: skip
@click.option(
    "--window", type=duration, default="5m", show_default=True, metavar="DURATION",
    help="The period for the failure rate, in whole minutes.",
)  # fmt: skip
@click.option(
    "--min-workers", type=click.IntRange(min=0), default=1, show_default=True, metavar="N",
    help="Unhealthy if fewer workers are alive. Suspended workers do not count.",
)  # fmt: skip
@click.option("--here", is_flag=True, help="Count only workers on this host, such as in this container.")
@queue_option("Check only this queue. Can be repeated.")
@read_options
@click.pass_context
def health(
    ctx: click.Context,
    /,
    database: DatabaseOption,
    window: float,
    here: bool,
    queue: tuple[str, ...],
    as_json: bool,
    **limits: Any,
) -> None:
    """Check whether the queues are healthy, and print one line.

    Exits with 0 if healthy, 1 if not, 3 if the database cannot be read. It is fast and writes nothing. Jobs of paused
    queues are ignored.
    """
    import socket

    from ...upkeep.doctor.doctor import Limits, assess

    metrics = _metrics(database, window, list(queue) or None)
    result = assess(metrics, Limits(**limits, host=socket.gethostname() if here else None))
    if as_json:
        document(result)
    else:
        say(result.summary)
    ctx.exit(Exit.DONE if result.healthy else Exit.NOT_DONE)


def _metrics(database: DatabaseOption, window: float, queues: list[str] | None) -> HealthMetrics:
    from ...upkeep.doctor.doctor import since_minute

    location = database.location()
    if location is None:
        with database.open() as app:
            return app.store.file.health_metrics(since_minute(app.clock.now(), window), queues)
    return read_health_metrics(
        location.url, prefix=location.prefix, schema=location.schema, window=window, queues=queues
    )


def check_database(
    url: str,
    *,
    prefix: str,
    schema: str | None = None,
    deep: bool = False,
    repair: bool = False,
    actor: str | None = None,
    reason: str = "",
    clock: Clock | None = None,
) -> Checkup:
    """Do what `app.check()` does. A repair opens the database as an app does."""
    from ...store.open import inspect_database
    from ...upkeep.doctor.check import Checkup, most_severe_first
    from ...upkeep.doctor.doctor import diagnose, not_repaired, refuse_repair

    began, schema = time.monotonic(), None if schema is None else validate.schema(schema)
    view = inspect_database(url, prefix=validate.prefix(prefix), schema=schema, clock=clock)
    findings = diagnose(view.diagnose(deep))
    if not repair:
        return Checkup(findings, [], time.monotonic() - began)
    from ...supervisor.holdfast import Holdfast

    refusal = refuse_repair(findings)
    if refusal is None:
        try:
            with Holdfast(url, prefix=prefix, schema=schema, migrate=False, clock=clock) as app:
                return app.check(deep=deep, repair=True, actor=actor, reason=reason)
        except StoreError as error:
            refusal = not_repaired(str(error).rstrip("."))
    return Checkup(most_severe_first([*findings, refusal]), [], time.monotonic() - began)


def read_health_metrics(
    url: str,
    *,
    prefix: str,
    window: float,
    schema: str | None = None,
    queues: Sequence[str] | None = None,
    clock: Clock | None = None,
) -> HealthMetrics:
    """Return what a health check needs, of the last `window` seconds."""
    from ...store.open import inspect_database
    from ...upkeep.doctor.doctor import since_minute

    schema = None if schema is None else validate.schema(schema)
    database = inspect_database(url, prefix=validate.prefix(prefix), schema=schema, clock=clock)
    return database.health_metrics(since_minute((clock or SystemClock()).now(), window), queues)
