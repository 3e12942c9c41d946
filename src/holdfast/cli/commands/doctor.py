"""`holdfast doctor`: check the database for problems and suggest fixes."""

from typing import TYPE_CHECKING

import click

from ..errors import Exit
from ..options import AuditOptions, DatabaseOption, change_options, example
from ..output import Cell, document, lines, say, span

if TYPE_CHECKING:
    from ...upkeep.doctor.findings import Checkup, Finding


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


def _check(database: DatabaseOption, deep: bool, repair: bool, audit: AuditOptions) -> "Checkup":
    """Check the app's database, or with --db one that may be in any state and is not opened for use."""
    location = database.location()
    if location is None:
        with database.open() as app:
            return app.check(deep=deep, repair=repair, **audit)
    from ...supervisor.offline_doctor import check_database

    url, prefix = location
    return check_database(url, prefix=prefix, deep=deep, repair=repair, **audit)


def _print(checkup: "Checkup", verbose: bool) -> None:
    for sentence in checkup.repaired:
        say(sentence)
    for finding in checkup.findings:
        if verbose or finding.severity != "ok":
            _print_finding(finding)
    say(f"{checkup.summary} Took {span(round(checkup.seconds, 2))}.")


def _print_finding(finding: "Finding") -> None:
    rows: list[list[Cell | str]] = [
        [Cell(finding.severity, STYLES[finding.severity]), Cell(finding.code, "bold")],
        [finding.meaning],
    ]
    if finding.mend:
        rows.append([f"Fix: {finding.mend}"])
    rows.append([""])
    lines(rows, wrap=True)
