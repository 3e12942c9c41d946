"""What is in the file: whether it can be read, how it is set, whether the tables are those of this version."""

from __future__ import annotations

from collections.abc import Iterator

from ...failure import shorten
from ...model.diagnosis import Drift, Examination, Question, Settings, Unopened
from ...text import clean, listed, plural, size, span
from .checks_file import named
from .findings import Finding, agree, command, quoted_path, words

USUAL_PAGE = 1024
INCREMENTAL = 2
WASTE_BYTES = 64 * 1024 * 1024
MOST_NAMED = 8
_SKIPPED = {
    "slow": "took too long",
    "large": "takes long on a file of this size",
    "schema": "the tables are not as expected",
    "busy": "the database was locked",
    "damaged": "the file is damaged",
    "elsewhere": "kept by a blob store of the app's own: pass --app",
    "other": "SQLite refused",
}


def about_schema(found: Examination) -> Iterator[Finding]:
    if found.unopened is not None:
        yield _unopened(found, found.unopened)
        return
    if found.settings is not None:
        yield from _settings(found, found.settings)
    yield from _schema(found)
    yield from _integrity(found)
    yield from _skipped(found)


def _unopened(found: Examination, why: Unopened) -> Finding:
    path, openers = quoted_path(found), found.surroundings.openers
    if why.kind == "NotADatabase":
        return Finding(
            "error",
            "NOT_A_DATABASE",
            f"{found.surroundings.path} is not a database of SQLite's: choose another path, or move that file away.",
            f"file {path}",
        )
    if why.kind == "CorruptDatabase":
        return _corrupt(found, "SQLite cannot read its list of tables")
    if why.kind == "StoreBusy":
        who = f" {named(openers)} {agree(len(openers), 'has', 'have')} it open." if openers else ""
        return Finding(
            "error",
            "LOCKED",
            f"Another program keeps the database locked, so that it cannot even be read.{who} Holdfast waits for it, "
            "up to busy_timeout, and so do all others.",
            f"kill {openers[0].pid}" if len(openers) == 1 else f"fuser -v {path}",
            {"pids": [one.pid for one in openers]},
        )
    if why.kind == "UnsupportedSQLite":
        return Finding("error", "SQLITE_UNUSABLE", f"{why.message.rstrip('.')}.")
    return Finding("error", "CANNOT_READ", f"{why.message.rstrip('.')}.", f"ls -l {path}")


def _corrupt(found: Examination, how: str) -> Finding:
    path = found.surroundings.path
    return Finding(
        "error",
        "CORRUPT",
        f"The file is damaged: {how}. Stop what writes to it, keep a copy with its -wal file, and restore a backup, "
        "or recover what can be read.",
        f"cp {words(path)}* /a/safe/place/ && sqlite3 {words(path)} .recover | sqlite3 recovered.db",
        {"problems": found.integrity.problems if found.integrity else []},
    )


def _settings(found: Examination, settings: Settings) -> Iterator[Finding]:
    path = quoted_path(found)
    if settings.journal_mode not in (None, "wal"):
        yield Finding(
            "error",
            "JOURNAL_MODE",
            f"The journal mode is {settings.journal_mode}, and Holdfast needs WAL: somebody has changed it while no "
            "worker ran. Readers and writers wait for each other. Opening it with Holdfast sets it again.",
            f"sqlite3 {path} 'PRAGMA journal_mode = WAL'",
            {"journal_mode": settings.journal_mode},
        )
    else:
        yield Finding("ok", "JOURNAL_MODE", "The journal mode is WAL.")
    if settings.encoding != "UTF-8":
        yield Finding(
            "error",
            "ENCODING",
            f"Text is stored as {settings.encoding}, and Holdfast needs UTF-8: use another file.",
            "holdfast migrate --create --db another.db",
        )
    if not settings.foreign_keys:
        yield Finding(
            "error",
            "FOREIGN_KEYS_OFF",
            "This SQLite was built without foreign keys: what is deleted leaves its history behind. Use another "
            "Python.",
        )
    else:
        yield Finding("ok", "FOREIGN_KEYS", "Foreign keys are on for every connection of Holdfast's.")
    yield _auto_vacuum(found, settings)
    yield _page_size(settings)


def _auto_vacuum(found: Examination, settings: Settings) -> Finding:
    free = settings.free_pages * settings.page_size
    detail = {"auto_vacuum": settings.auto_vacuum, "free_bytes_in_file": free}
    if settings.auto_vacuum != INCREMENTAL:
        mode = "off" if settings.auto_vacuum == 0 else "full"
        return Finding(
            "note",
            "AUTO_VACUUM",
            f"auto_vacuum is {mode}, since the file was not made by Holdfast: it cannot be made smaller bit by bit, "
            "only as a whole, while nobody writes.",
            command(found, "vacuum --full"),
            detail,
        )
    if free > WASTE_BYTES and settings.free_pages * 2 > settings.pages:
        return Finding(
            "note",
            "FREE_PAGES",
            f"{size(free)} of the file are free. New jobs will fill them, or you can give them back to the disk.",
            command(found, "vacuum"),
            detail,
        )
    return Finding("ok", "AUTO_VACUUM", "The file can be made smaller bit by bit.", None, detail)


def _page_size(settings: Settings) -> Finding:
    detail = {"page_size": settings.page_size}
    if settings.page_size == USUAL_PAGE:
        return Finding("ok", "PAGE_SIZE", f"Pages have {settings.page_size} bytes.", None, detail)
    return Finding(
        "note",
        "PAGE_SIZE",
        f"Pages have {settings.page_size:,} bytes, since the file was not made by Holdfast. With {USUAL_PAGE:,} a "
        "single commit is about a third faster, and a large batch about a third slower. There is nothing to mend.",
        None,
        detail,
    )


def _schema(found: Examination) -> Iterator[Finding]:
    schema = found.schema
    if schema is None:
        return
    if schema.unreleased:
        yield Finding(
            "error",
            "SCHEMA_UNSUPPORTED",
            "The tables were made by a development version of Holdfast, before the first release, and cannot be "
            "migrated: move the file away and start with a new one, or use another --prefix.",
            None,
            {"migrations": schema.found},
        )
    elif schema.unknown:
        yield Finding(
            "error",
            "SCHEMA_TOO_NEW",
            f"A newer Holdfast has changed the tables ({listed(schema.unknown)}): this version cannot use them.",
            "pip install --upgrade holdfast",
            {"unknown": schema.unknown},
        )
    elif not schema.found:
        others = [clean(one) for one in schema.others]
        there = f" There are some that begin with {listed(others)}." if others else ""
        yield Finding(
            "error",
            "NO_TABLES",
            f"There are no tables of Holdfast's whose names begin with {found.prefix}: is it the right file, and the "
            f"right --prefix?{there}",
            f"holdfast doctor --db {quoted_path(found)} --prefix {words(others[0])}"
            if others
            else command(found, "migrate"),
            {"prefixes": others} if others else {},
        )
    elif schema.pending:
        total = len(schema.found) + len(schema.pending)
        yield Finding(
            "error",
            "SCHEMA_OUTDATED",
            f"The tables are those of an older Holdfast: {len(schema.found)} of {total} migrations were applied.",
            command(found, "migrate"),
            {"pending": schema.pending},
        )
    else:
        yield from _drift(found, schema.drift)


def _drift(found: Examination, drift: list[Drift]) -> Iterator[Finding]:
    missing = [one for one in drift if one.how == "missing"]
    tables = [one for one in missing if one.kind == "table"]
    parts = [one for one in missing if one.kind != "table"]
    if tables:
        yield Finding(
            "error",
            "TABLES_MISSING",
            f"{_named(tables)} {_is(tables)} missing, and with {_it(tables)} what was in {_it(tables)}: somebody has "
            "dropped what Holdfast needs. Restore a backup.",
            None,
            _names(tables),
        )
    if parts:
        yield Finding(
            "error",
            "SCHEMA_PARTS_MISSING",
            f"{_named(parts)} {_is(parts)} missing. Without an index claims walk over all jobs or keys are given out "
            "twice; without a trigger the history or the totals are not kept.",
            command(found, "doctor --repair"),
            _names(parts),
        )
    changed = [one for one in drift if one.how == "changed"]
    if changed:
        part = next((one for one in changed if one.kind != "table"), None)
        drop = "" if part is None else f"sqlite3 {quoted_path(found)} 'DROP {part.kind.upper()} {part.name}' && "
        yield Finding(
            "error",
            "SCHEMA_CHANGED",
            f"{_named(changed)} {_is(changed)} not as the migrations make {_it(changed)}: somebody has changed "
            f"{_it(changed)} by hand. A table must be changed back by hand; an index or a trigger is made again once "
            "it was dropped.",
            f"{drop}{command(found, 'doctor --repair')}" if drop else None,
            _names(changed),
        )
    yield from _extra(found, [one for one in drift if one.how == "extra"])
    if not drift:
        yield Finding("ok", "SCHEMA", "The tables, indexes and triggers are those of this version.")


def _extra(found: Examination, extra: list[Drift]) -> Iterator[Finding]:
    triggers = [one for one in extra if one.kind == "trigger"]
    others = [one for one in extra if one.kind != "trigger"]
    if triggers:
        yield Finding(
            "warning",
            "TRIGGERS_ADDED",
            f"{_named(triggers)} {_is(triggers)} not Holdfast's, and runs within its transactions: if it fails, so "
            "does the claim or the settling of a job.",
            f"sqlite3 {quoted_path(found)} 'DROP TRIGGER {triggers[0].name}'",
            _names(triggers),
        )
    if others:
        mine = [one for one in others if one.kind == "index"]
        yield Finding(
            "note",
            "SCHEMA_ADDED",
            f"{_named(others)} {_is(others)} not Holdfast's. An index costs time with every job that is written; a "
            "table does no harm.",
            f"sqlite3 {quoted_path(found)} 'DROP INDEX {mine[0].name}'" if mine else None,
            _names(others),
        )


def _integrity(found: Examination) -> Iterator[Finding]:
    checked = found.integrity
    if checked is None:
        return
    took = f"in {span(round(checked.seconds, 2))}"
    if checked.problems:
        lines = [line for problem in checked.problems for line in problem.splitlines() if not line.startswith("***")]
        yield _corrupt(found, shorten(clean(lines[0]), 200) if lines else "SQLite does not say how")
        return
    how = "every page and every index" if checked.thorough else "every page"
    yield Finding("ok", "INTEGRITY", f"SQLite finds {how} sound ({took}).", None, {"seconds": checked.seconds})


def _skipped(found: Examination) -> Iterator[Finding]:
    damaged = [one for one in found.unanswered if one.why == "damaged"]
    if damaged and (found.integrity is None or not found.integrity.problems):
        yield _corrupt(found, f"{shorten(clean(damaged[0].detail), 200)}, when looking at {_questions(damaged)}")
    if found.schema is not None and (found.schema.pending or found.schema.unknown):
        return  # that is why
    rest = [one for one in found.unanswered if one.why != "damaged"]
    if rest:
        because = {one.why: None for one in rest}
        slow = because.keys() <= {"slow", "large"}
        reasons = listed(
            [f"{_questions([one for one in rest if one.why == why])} ({_SKIPPED[why]})" for why in because]
        )
        yield Finding(
            "note",
            "NOT_CHECKED",
            f"Not looked at: {reasons}.",
            command(found, "doctor --deep") if slow else None,
            {"questions": {one.name: one.detail for one in rest}},
        )


def _questions(questions: list[Question]) -> str:
    return listed(list(dict.fromkeys(one.name for one in questions)))


def _named(parts: list[Drift]) -> str:
    names = [f"{one.kind} {clean(one.name)}" for one in parts[:MOST_NAMED]]
    more = [plural(len(parts) - MOST_NAMED, "other")] if len(parts) > MOST_NAMED else []
    text = listed([f"the {name}" for name in names] + more)
    return text[0].upper() + text[1:]


def _is(parts: list[Drift]) -> str:
    return "is" if len(parts) == 1 else "are"


def _it(parts: list[Drift]) -> str:
    return "it" if len(parts) == 1 else "them"


def _names(parts: list[Drift]) -> dict[str, list[str]]:
    return {"names": [one.name for one in parts]}
