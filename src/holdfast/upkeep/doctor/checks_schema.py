"""Checks of what is in the file: whether SQLite can read it, its settings, and the tables."""

from __future__ import annotations

from collections.abc import Callable

from ...errors import CorruptDatabase, NotADatabase, StoreBusy, StoreError, UnsupportedSQLite
from ...failure import shorten
from ...model.diagnosis import Diagnosis, SchemaDifference, SkippedPart
from ...text import clean, listed, size, span
from .check import Case, Check, Evidence, Found, always, first_of, found, quoted
from .checks_file import processes

DEFAULT_PAGE_SIZE = 1024
INCREMENTAL = 2
WASTED_BYTES = 64 * 1024 * 1024
MOST_PARTS = 8
LONGEST_PROBLEM = 200
SKIP_REASONS = {
    "slow": "took too long",
    "large": "takes long on a file of this size",
    "schema": "the tables are not as expected",
    "busy": "the database was locked",
    "damaged": "the file is damaged",
    "elsewhere": "stored by a blob store of the app: pass --app",
    "other": "the database refused",
}
WITH_OWN_CASE = (NotADatabase, CorruptDatabase, StoreBusy, UnsupportedSQLite)


def _cannot_open(kind: type[StoreError]) -> Callable[[Diagnosis], Found]:
    def find(diagnosis: Diagnosis) -> Found:
        error, users = diagnosis.open_error, diagnosis.file.users
        if not isinstance(error, kind) or (kind is StoreError and isinstance(error, WITH_OWN_CASE)):
            return None
        if kind is not StoreBusy:
            return found(message=str(error).rstrip("."))
        return found(
            {"pids": [user.pid for user in users]},
            processes=processes(users) or "no process that this user can see",
            kill_or_fuser=f"kill {users[0].pid}" if len(users) == 1 else f"fuser -v {quoted(diagnosis.file.path)}",
        )

    return find


def _damage(diagnosis: Diagnosis) -> Evidence | None:
    problems, damaged = diagnosis.integrity, [one for one in diagnosis.skipped if one.reason == "damaged"]
    if isinstance(diagnosis.open_error, CorruptDatabase):
        problem = "SQLite cannot read its list of tables"
    elif problems:
        lines = [line for text in problems for line in text.splitlines() if not line.startswith("***")]
        problem = shorten(clean(lines[0]), LONGEST_PROBLEM) if lines else "SQLite does not say where"
    elif damaged:
        problem = f"{shorten(clean(damaged[0].detail), LONGEST_PROBLEM)}, while reading {_parts(damaged)}"
    else:
        return None
    return found({"problems": problems}, problem=problem)


def _integrity(diagnosis: Diagnosis) -> Evidence | None:
    seconds = diagnosis.integrity_seconds
    if "integrity" not in diagnosis.examined:
        return None
    pages = "every page and every index" if diagnosis.deep else "every page"
    return found({"seconds": seconds}, pages=pages, seconds=span(round(seconds, 2)))


def _journal_mode(diagnosis: Diagnosis) -> Evidence | None:
    mode = diagnosis.settings.journal_mode
    return None if mode in (None, "wal") else found({"journal_mode": mode}, mode=mode)


def _encoding(diagnosis: Diagnosis) -> Evidence | None:
    encoding = diagnosis.settings.encoding
    return None if encoding == "UTF-8" else found(encoding=encoding)


def _space_in_file(diagnosis: Diagnosis, state: str) -> Evidence | None:
    settings = diagnosis.settings
    free, mode = settings.free_pages * settings.page_size, settings.auto_vacuum
    wasted = free > WASTED_BYTES and settings.free_pages * 2 > settings.pages
    if state != ("mode" if mode != INCREMENTAL else "wasted" if wasted else "fine"):
        return None
    detail = {"auto_vacuum": mode, "free_bytes_in_file": free}
    return found(detail, mode="full" if mode else "off", free=size(free))


def _page_size(diagnosis: Diagnosis, default: bool) -> Evidence | None:
    page_size = diagnosis.settings.page_size
    is_default = page_size == DEFAULT_PAGE_SIZE
    return found({"page_size": page_size}, size=f"{page_size:,}") if is_default == default else None


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
        texts = [f"{_parts([one for one in skipped if one.reason == why])} ({SKIP_REASONS[why]})" for why in reasons]
        return found({"questions": {one.name: one.detail for one in skipped}}, parts=listed(texts)) if texts else None

    return find


def _parts(skipped: list[SkippedPart]) -> str:
    return listed([one.name.replace("_", " ") for one in skipped])


SETTINGS, SCHEMA = ("settings",), ("schema",)

# A new check needs a query, a row here and a test: see check.py.
# fmt: off
FILE_CHECKS = (
    Check("Can SQLite read the file?", cases=(
        Case("NOT_A_DATABASE", "error", _cannot_open(NotADatabase),
            "{path} is not an SQLite database.",
            "Choose another path, or move that file away.",
            "file {file}"),
        Case("CORRUPT", "error", _damage,
            "The file is damaged: {problem}.",
            "Stop all processes that write to it, keep a copy with its -wal file, and restore a backup, or "
            "recover what can be read.",
            "cp {file}* /a/safe/place/ && sqlite3 {file} .recover | sqlite3 recovered.db",
            guide="guides/operating.md#a-backup-was-restored", blocks_repair=True),
        Case("LOCKED", "error", _cannot_open(StoreBusy),
            "The database is locked, and cannot even be read. It is open in {processes}.",
            "Holdfast, and every other program, waits for the lock for up to busy_timeout.",
            "{kill_or_fuser}"),
        Case("SQLITE_UNUSABLE", "error", _cannot_open(UnsupportedSQLite), "{message}."),
        Case("CANNOT_READ", "error", _cannot_open(StoreError),
            "{message}.",
            fix="ls -l {file}"),
        Case("INTEGRITY", "ok", _integrity, "SQLite checked {pages} and found no damage ({seconds})."),
    )),
    Check("Is the database in WAL mode?", needs=SETTINGS, cases=(
        Case("JOURNAL_MODE", "error", _journal_mode,
            "The journal mode is {mode}; Holdfast needs WAL.",
            "The mode was changed while no worker was running. Readers and writers wait for each other. Opening "
            "the database with Holdfast sets WAL mode again.",
            "sqlite3 {file} 'PRAGMA journal_mode = WAL'"),
        Case("JOURNAL_MODE", "ok", always, "The journal mode is WAL."),
    )),
    Check("Is text stored as UTF-8?", needs=SETTINGS, cases=(
        Case("ENCODING", "error", _encoding,
            "Text is stored as {encoding}; Holdfast needs UTF-8.",
            "Use another file.",
            "holdfast migrate --create --db another.db"),
    )),
    Check("Does this SQLite enforce foreign keys?", needs=SETTINGS, cases=(
        Case("FOREIGN_KEYS_OFF", "error", lambda d: not d.settings.foreign_keys,
            "This SQLite was built without foreign keys.",
            "Deleted jobs leave orphaned rows behind. Use another Python."),
        Case("FOREIGN_KEYS", "ok", always, "Foreign keys are on for every connection of Holdfast."),
    )),
    Check("Can the file be made smaller?", needs=SETTINGS, cases=(
        Case("AUTO_VACUUM", "note", lambda d: _space_in_file(d, "mode"),
            "auto_vacuum is {mode}, because the file was not created by Holdfast.",
            "The file cannot be made smaller in steps, only as a whole, while no other process writes.",
            "holdfast vacuum --full {database}", guide="guides/retention.md#space"),
        Case("FREE_PAGES", "note", lambda d: _space_in_file(d, "wasted"),
            "{free} of the file are free.",
            "New jobs will fill them, or you can return them to the system.",
            "holdfast vacuum {database}", guide="guides/retention.md#space"),
        Case("AUTO_VACUUM", "ok", lambda d: _space_in_file(d, "fine"), "The file can be made smaller in steps."),
    )),
    Check("Has the file Holdfast's page size?", needs=SETTINGS, cases=(
        Case("PAGE_SIZE", "note", lambda d: _page_size(d, default=False),
            "Pages have {size} bytes, because the file was not created by Holdfast.",
            "With 1,024 a single commit is about a third faster, and a large batch about a third slower. There is "
            "nothing to fix."),
        Case("PAGE_SIZE", "ok", lambda d: _page_size(d, default=True), "Pages have {size} bytes."),
    )),
)

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
