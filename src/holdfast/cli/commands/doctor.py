"""`holdfast doctor`: what is wrong with the database, what it means, and the command that mends it."""

from typing import TYPE_CHECKING

import click

from ..errors import Exit
from ..options import AuditOptions, DatabaseOption, example, signed, takes_database
from ..output import Cell, document, json_option, lines, say, span

if TYPE_CHECKING:
    from ...upkeep.doctor.findings import Checkup, Finding


STYLES = {"ok": "green", "note": "cyan", "warning": "yellow", "error": "bold red"}
CODES = {"ok": Exit.DONE, "note": Exit.DONE, "warning": Exit.NOT_DONE, "error": Exit.DATABASE}


@click.command(
    epilog=example(
        "holdfast doctor --db app.db",
        "holdfast doctor --db app.db --deep --json",
        "holdfast doctor --db app.db --repair --reason 'a restored backup'",
    )
)
@click.option("--deep", is_flag=True, help="Look at every row and every page, however long it takes.")
@click.option("--repair", is_flag=True, help="Mend what can be mended without losing anything, and look again.")
@click.option("--verbose", "-v", is_flag=True, help="Say what is fine, too.")
@signed
@takes_database
@json_option
@click.pass_context
def doctor(
    ctx: click.Context,
    database: DatabaseOption,
    deep: bool,
    repair: bool,
    verbose: bool,
    signature: AuditOptions,
    as_json: bool,
) -> None:
    """Look the database over, and say what is wrong and what mends it.

    It writes nothing without --repair, and looks at a database that is damaged, locked, read-only or of another
    version as far as it can. Ends with 0 if there are notes at most, 1 with warnings, 3 with errors.
    """
    if not repair and (signature["actor"] is not None or signature["reason"]):
        raise click.UsageError("--actor and --reason go with --repair: nothing else is changed")
    found = _check(database, deep, repair, signature)
    if as_json:
        document(
            {
                "severity": found.severity,
                "summary": found.summary,
                "seconds": found.seconds,
                "repaired": found.repaired,
                "findings": found.findings,
            }
        )
    else:
        _print(found, verbose)
    ctx.exit(CODES[found.severity])


def _check(database: DatabaseOption, deep: bool, repair: bool, signature: AuditOptions) -> "Checkup":
    """Without an app the database is not opened to be used, so that its state does not matter."""
    place = database.place()
    if place is None:
        with database.open() as app:
            return app.check(deep=deep, repair=repair, **signature)
    from ...supervisor.offline_doctor import check_database

    url, prefix = place
    return check_database(url, prefix=prefix, deep=deep, repair=repair, **signature)


def _print(found: "Checkup", verbose: bool) -> None:
    for sentence in found.repaired:
        say(sentence)
    for finding in found.findings:
        if verbose or finding.severity != "ok":
            _print_one(finding)
    say(f"{found.summary} It took {span(round(found.seconds, 2))}.")


def _print_one(finding: "Finding") -> None:
    rows: list[list[Cell | str]] = [
        [Cell(finding.severity, STYLES[finding.severity]), Cell(finding.code, "bold")],
        [finding.meaning],
    ]
    if finding.mend:
        rows.append([f"Mend it: {finding.mend}"])
    rows.append([""])
    lines(rows, wrap=True)
