"""`holdfast migrate`: bring the tables up to date."""

import click

from ... import validate
from ...errors import DatabaseMissing, SchemaOutdated
from ..options import AuditOptions, DatabaseOption, example, signed, takes_database
from ..output import document, json_option, say


@click.command(epilog=example("holdfast migrate --db app.db", "holdfast migrate --db new.db --create"))
@click.option("--create", is_flag=True, help="Make the database if there is none.")
@signed
@takes_database
@json_option
def migrate(database: DatabaseOption, create: bool, signature: AuditOptions, as_json: bool) -> None:
    """Bring the tables of a database up to date.

    Other commands change no tables: they tell you to run this one. It is safe to run twice, or at the same time
    in several places.
    """
    migrated = _migrate(database, create, signature)
    if as_json:
        document({"migrated": migrated})
    else:
        say("The tables are up to date now." if migrated else "The tables were up to date already.")


def _migrate(database: DatabaseOption, create: bool, signature: AuditOptions) -> bool:
    who, why = validate.actor(signature["actor"]), validate.reason(signature["reason"])
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
        app.store.file.log_event("migrated", who, {"created": created} | ({"reason": why} if why else {}))
    return True
