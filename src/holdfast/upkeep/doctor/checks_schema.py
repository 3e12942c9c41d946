"""Checks of the schema: the version of the tables, and whether tables, indexes and triggers are complete."""

from __future__ import annotations

from collections.abc import Callable

from ...model.diagnosis import Diagnosis, SchemaDifference
from ...text import clean, listed
from .check import Case, Check, Found, first_of, found, part_names, quoted

MOST_PARTS = 8
SKIP_REASONS = {
    "slow": "took too long",
    "large": "takes long on a file of this size",
    "schema": "the tables are not as expected",
    "busy": "the database was locked",
    "damaged": "the file is damaged",
    "elsewhere": "stored by a blob store of the app: pass --app",
    "other": "the database refused",
}


def _schema(state: str) -> Callable[[Diagnosis], Found]:
    def find(diagnosis: Diagnosis) -> Found:
        schema = diagnosis.schema
        details = {"unreleased": {"migrations": schema.applied}, "too new": {"unknown": schema.unknown}}
        if schema.state != state:
            return None
        return found(
            details.get(state, {"pending": schema.pending}),
            unknown=listed(schema.unknown),
            applied=str(len(schema.applied)),
            total=str(len(schema.applied) + len(schema.pending)),
        )

    return find


def _no_tables(diagnosis: Diagnosis, elsewhere: bool) -> Found:
    others = [clean(prefix) for prefix in diagnosis.schema.other_prefixes]
    if diagnosis.schema.state != "absent" or bool(others) != elsewhere:
        return None
    return found({"prefixes": others}, prefixes=listed(others), other=quoted(others[0])) if others else True


def _different(how: str, chosen: Callable[[SchemaDifference], bool]) -> Callable[[Diagnosis], Found]:
    """Find the chosen parts of the schema that are missing, changed or extra."""

    def find(diagnosis: Diagnosis) -> Found:
        parts = [part for part in diagnosis.schema.differences if part.how == how and chosen(part)]
        if not parts:
            return None
        return found(
            {"names": [part.name for part in parts]},
            parts=first_of([f"{part.kind} {clean(part.name)}" for part in parts], MOST_PARTS),
            drop=_drop(parts[0], diagnosis),
        )

    return find


def _drop(part: SchemaDifference, diagnosis: Diagnosis) -> str:
    """Return the statement that drops a part of the schema."""
    if diagnosis.server is None:
        return f"DROP {part.kind.upper()} {clean(part.name)}"
    schema = diagnosis.server.schema
    if part.kind in ("trigger", "constraint", "column"):
        table, name = f"{schema}.{clean(part.table)}", clean(part.name.rpartition(".")[2])
        if part.kind == "trigger":
            return f"DROP TRIGGER {name} ON {table}"
        return f"ALTER TABLE {table} DROP {part.kind.upper()} {name}"
    return f"DROP {part.kind.upper()} {schema}.{clean(part.name)}"


def _holds_rows(part: SchemaDifference) -> bool:
    """Return whether a repair cannot create it again."""
    return part.kind in ("table", "column", "constraint")


def _not_checked(slow: bool) -> Callable[[Diagnosis], Found]:
    def find(diagnosis: Diagnosis) -> Found:
        if "schema" in diagnosis.examined and diagnosis.schema.state != "current":
            return None  # that is the reason, and another finding
        skipped = [one for one in diagnosis.skipped if one.reason != "damaged"]
        skipped = [one for one in skipped if (one.reason in ("slow", "large")) == slow]
        reasons = dict.fromkeys(one.reason for one in skipped)
        texts = [
            f"{part_names([one for one in skipped if one.reason == why])} ({SKIP_REASONS[why]})" for why in reasons
        ]
        return found({"questions": {one.name: one.detail for one in skipped}}, parts=listed(texts)) if texts else None

    return find


SCHEMA = ("schema",)

# A new check needs a query, a row here and a test: see check.py.
# fmt: off
CHECKS = (
    Check("Are the tables those of this version?", needs=SCHEMA, cases=(
        Case("SCHEMA_UNSUPPORTED", "error", _schema("unreleased"),
            "The tables were created by a development version of Holdfast, before the first release.",
            "They cannot be migrated: move the file away and start with a new one, or use another --prefix.",
            blocks_repair=True),
        Case("SCHEMA_TOO_NEW", "error", _schema("too new"),
            "A newer Holdfast has changed the tables ({unknown}).",
            "This version cannot use them.",
            "pip install --upgrade holdfast", blocks_repair=True),
        Case("NO_TABLES", "error", lambda d: _no_tables(d, elsewhere=True),
            "There are no Holdfast tables with the prefix {prefix}. There are tables with {prefixes}.",
            "Check the database and --prefix.",
            "holdfast doctor {elsewhere} --prefix {other}", blocks_repair=True),
        Case("NO_TABLES", "error", lambda d: _no_tables(d, elsewhere=False),
            "There are no Holdfast tables with the prefix {prefix}.",
            "Check the database and --prefix, or create the tables.",
            "holdfast migrate {database}", blocks_repair=True),
        Case("SCHEMA_OUTDATED", "error", _schema("outdated"),
            "The tables are those of an older Holdfast: {applied} of {total} migrations were applied.",
            fix="holdfast migrate {database}", blocks_repair=True),
    )),
    Check("Is the database in service?", needs=("moved",), cases=(
        Case("MOVED", "error", lambda d: found(place=clean(d.moved[0])) if d.moved[0] is not None else None,
            "This database was moved to {place}.",
            "It refuses every write. Use that one.", guide="guides/postgresql.md#moving", blocks_repair=True),
        Case("BEING_FILLED", "error", lambda d: found(place=clean(d.moved[1])) if d.moved[1] is not None else None,
            "This database is being filled from {place}, or that was interrupted.",
            "It takes no jobs until then: wait, or run the command again that moves it.",
            guide="guides/postgresql.md#moving", blocks_repair=True),
    )),
    Check("Are tables, indexes and triggers as the migrations create them?", needs=SCHEMA, cases=(
        Case("TABLES_MISSING", "error", _different("missing", _holds_rows),
            "Missing, with their rows: {parts}.",
            "Tables that Holdfast needs were dropped. Restore a backup.", blocks_repair=True),
        Case("SCHEMA_PARTS_MISSING", "error", _different("missing", lambda part: not _holds_rows(part)),
            "Missing: {parts}.",
            "Without an index, claims scan all jobs, or keys are not unique. Without a trigger, the history or "
            "the statistics are incomplete.",
            "holdfast doctor --repair {database}"),
        Case("SCHEMA_CHANGED", "error", _different("changed", lambda part: not _holds_rows(part)),
            "Changed by hand: {parts}.",
            "Drop it; the repair creates it again.",
            "{shell} '{drop}' && holdfast doctor --repair {database}"),
        Case("SCHEMA_CHANGED", "error", _different("changed", _holds_rows),
            "Changed by hand: {parts}.",
            "Change it back by hand."),
        Case("TRIGGERS_ADDED", "warning", _different("extra", lambda part: part.kind == "trigger"),
            "Not created by Holdfast: {parts}.",
            "It runs in Holdfast's transactions: if it fails, the claim or the settling of a job fails too.",
            "{shell} '{drop}'"),
        Case("SCHEMA_ADDED", "note", _different("extra", lambda part: part.kind == "index"),
            "Not created by Holdfast: {parts}.",
            "An index costs time with every job that is written.",
            "{shell} '{drop}'"),
        Case("SCHEMA_ADDED", "note", _different("extra", lambda part: part.kind not in ("index", "trigger")),
            "Not created by Holdfast: {parts}.",
            "It does no harm."),
        Case("SCHEMA", "ok", lambda d: d.schema.state == "current",
            "Tables, indexes and triggers are those of this version."),
    )),
    Check("Could everything be checked?", cases=(
        Case("NOT_CHECKED", "note", _not_checked(slow=True),
            "Not checked: {parts}.",
            "Check it at a quiet hour.",
            "holdfast doctor --deep {database}"),
        Case("NOT_CHECKED", "note", _not_checked(slow=False), "Not checked: {parts}."),
    )),
)
# fmt: on
