"""`holdfast migrate`: update the tables to this version of Holdfast."""

import click

from ... import validate
from ...errors import DatabaseMissing, SchemaOutdated
from ..options import AuditOptions, DatabaseOption, change_options, example
from ..output import document, say


@click.command(epilog=example("holdfast migrate --db app.db", "holdfast migrate --db new.db --create"))
@click.option("--create", is_flag=True, help="Create the database if it does not exist.")
@change_options
def migrate(database: DatabaseOption, create: bool, audit: AuditOptions, as_json: bool) -> None:
    """Update the tables of a database to this version of Holdfast.

    Run it after an upgrade, before the new programs start. Other commands never change tables. It is safe to run
    twice, and in several places at once.
    """
    migrated = _migrate(database, create, audit)
    if as_json:
        document({"migrated": migrated})
    else:
        say("Tables updated." if migrated else "The tables are already up to date.")


def _migrate(database: DatabaseOption, create: bool, audit: AuditOptions) -> bool:
    actor, reason = validate.actor(audit["actor"]), validate.reason(audit["reason"])
    created = False
    try:
        database.open().close()
        return False
    except DatabaseMissing:
        if not create:
            raise
        created = True
    except SchemaOutdated:
        pass
    with database.open(migrate=True) as app:
        app.store.file.log_event("migrated", actor, {"created": created} | ({"reason": reason} if reason else {}))
    return True
