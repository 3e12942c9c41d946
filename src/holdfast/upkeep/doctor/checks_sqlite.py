"""Checks of an SQLite file: place, disk, permissions, processes that use it, damage, settings, SQLite version."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from socket import gethostname

from ...errors import CorruptDatabase, NotADatabase, StoreBusy, StoreError, UnsupportedSQLite
from ...failure import shorten
from ...model.diagnosis import Diagnosis, FileUser
from ...text import clean, listed, size, span
from .check import Case, Check, Evidence, Found, always, first_of, found, part_names, quoted

OTHER_USERS = 0o077  # the bits of a mode that give rights to users other than the owner
LARGE_LOG_BYTES = 32 * 1024 * 1024  # twice the size to which SQLite truncates it
LOW_SPACE_FACTOR = 4  # times min_free_bytes
MOST_PROCESSES = 5
FIXED_SQLITE = (3, 51, 3)
BACKPORTS = ((3, 44, 6), (3, 50, 7))
FIRST_AFFECTED = (3, 7, 0)
DEFAULT_PAGE_SIZE = 1024
INCREMENTAL = 2
WASTED_BYTES = 64 * 1024 * 1024
LONGEST_PROBLEM = 200
WITH_OWN_CASE = (NotADatabase, CorruptDatabase, StoreBusy, UnsupportedSQLite)
NOT_A_FILE = {
    "no folder": "its folder does not exist",
    "folder": "it is a folder",
    "other": "it is not a regular file",
    "unreachable": "it cannot be reached",
}


def has_wal_reset_bug(version: tuple[int, ...]) -> bool:
    """Return whether this SQLite can lose commits when one connection checkpoints while another resets the log."""
    fixed = any(version[:2] == backport[:2] and version >= backport for backport in BACKPORTS)
    return FIRST_AFFECTED <= version < FIXED_SQLITE and not fixed


def processes(users: list[FileUser]) -> str:
    """Return `process 12 (python app.py) and process 13 (…)`."""
    names = [f"process {user.pid}" + (f" ({clean(user.command)})" if user.command else "") for user in users]
    return first_of(names, MOST_PROCESSES)


def _open_in(chosen: Callable[[FileUser], bool]) -> Callable[[Diagnosis], Found]:
    return lambda diagnosis: _from_processes([user for user in diagnosis.file.users if chosen(user)])


def _from_processes(users: list[FileUser]) -> Evidence | None:
    pids = [user.pid for user in users]
    return found({"pids": pids}, processes=processes(users), pids=" ".join(map(str, pids))) if pids else None


def _not_a_file(diagnosis: Diagnosis) -> Evidence | None:
    file = diagnosis.file
    if file.kind in ("file", "missing"):
        return None
    return found(reason=NOT_A_FILE[file.kind] + (f" ({file.error})" if file.error else ""))


def _file_system(diagnosis: Diagnosis, unsafe: bool) -> Evidence | None:
    file = diagnosis.file
    if file.unsafe != unsafe or (not unsafe and file.kind not in ("file", "missing")):
        return None
    return found({"file_system": file.file_system}, file_system=file.file_system or "unknown")


def _space(diagnosis: Diagnosis, state: str) -> Evidence | None:
    file = diagnosis.file
    free, reserve = file.free_bytes, file.min_free_bytes
    low = free < LOW_SPACE_FACTOR * reserve + file.log_bytes
    if file.kind not in ("file", "missing") or state != ("full" if free < reserve else "low" if low else "enough"):
        return None
    return found({"free_bytes": free, "min_free_bytes": reserve}, free=size(free), reserve=size(reserve))


def _open_to_others(diagnosis: Diagnosis) -> Evidence | None:
    folder, blobs = Path(diagnosis.file.path).parent, diagnosis.file.blob_folder
    modes = {str(folder / name): mode for name, mode in diagnosis.file.modes.items() if mode & OTHER_USERS}
    fixes = [f"chmod 600 {quoted(*modes)}"] if modes else []
    if blobs is not None and blobs.mode & OTHER_USERS:
        modes[blobs.path] = blobs.mode
        fixes.append(f"chmod 700 {quoted(blobs.path)}")
    if not modes:
        return None
    return found(
        {"modes": {Path(path).name: oct(mode) for path, mode in modes.items()}},
        files=listed([f"{Path(path).name} (mode {mode:o})" for path, mode in modes.items()]),
        chmod_commands=" && ".join(fixes),
    )


def _blobs_elsewhere(diagnosis: Diagnosis) -> Evidence | None:
    blobs = diagnosis.file.blob_folder
    if blobs is None or blobs.link_target is None:
        return None
    links = quoted(blobs.path, blobs.link_target)
    return found({"folder": blobs.link_target}, blobs=clean(blobs.path), target=clean(blobs.link_target), links=links)


def _blobs_owner(diagnosis: Diagnosis) -> Evidence | None:
    blobs = diagnosis.file.blob_folder
    if blobs is None or blobs.owner == blobs.database_owner:
        return None
    detail = {"owner": blobs.owner, "owner_of_database": blobs.database_owner}
    owners = {"owner": str(blobs.owner), "database_owner": str(blobs.database_owner)}
    return found(detail, blobs=quoted(blobs.path), **owners)


def _not_writable(diagnosis: Diagnosis) -> Evidence | None:
    files = diagnosis.file.not_writable
    return found({"not_writable": files}, files=listed(files), quoted_files=quoted(*files)) if files else None


def _log_size(diagnosis: Diagnosis, state: str) -> Evidence | None:
    file = diagnosis.file
    readers = [user for user in file.users if user.reads]
    writers = [user for user in file.users if user.writes]
    is_large = file.log_bytes > LARGE_LOG_BYTES
    now = "small" if not is_large else "read" if readers else "written" if writers else "idle"
    if file.kind != "file" or now != state:
        return None
    blocking = readers or writers or file.users
    return found(
        {"log_bytes": file.log_bytes, "readers": [user.pid for user in readers]},
        size=size(file.log_bytes),
        processes=processes(blocking) or "no other process that this user can see",
        pid=str(blocking[0].pid) if blocking else "",
    )


def _affected_version(diagnosis: Diagnosis) -> Evidence | None:
    if not has_wal_reset_bug(diagnosis.sqlite_version_info):
        return None
    return found({"sqlite_version": diagnosis.sqlite_version})


def _foreign_connections(diagnosis: Diagnosis, with_holdfast: bool) -> Evidence | None:
    """Find processes that are not workers. Those that seem to use Holdfast count only if there are no others."""
    if not has_wal_reset_bug(diagnosis.sqlite_version_info):
        return None
    host = gethostname()
    workers = {one.record.pid for one in diagnosis.workers if one.record.host == host and one.state != "lost"}
    ours = {*workers, diagnosis.file.pid}
    foreign = [user for user in diagnosis.file.users if not user.deleted and user.pid not in ours]
    without = [user for user in foreign if not user.has_holdfast]
    return _from_processes([] if with_holdfast and without else foreign if with_holdfast else without)


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
        problem = f"{shorten(clean(damaged[0].detail), LONGEST_PROBLEM)}, while reading {part_names(damaged)}"
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


def _is_file(diagnosis: Diagnosis) -> bool:
    return diagnosis.file.kind == "file"


SETTINGS = ("settings",)
LOG_GROWN = "The write-ahead log has grown to {size}."
LOG_GUIDE = "guides/operating.md#the-log-grows"
CHECKPOINTS = "A connection that is not Holdfast's own, and was not passed as conn=, runs checkpoints by itself, and"

# A new check needs a query, a row here and a test: see check.py.
# fmt: off
CHECKS = (
    Check("Is there a database file at the path?", cases=(
        Case("DATABASE_MISSING", "error", lambda d: d.file.kind == "missing",
            "There is no file {path}.",
            "Check the path, or create a new database.",
            "holdfast migrate --create {database}"),
        Case("NOT_A_FILE", "error", _not_a_file,
            "{path} is not a database file: {reason}.",
            "Pass the path of a database file.",
            "ls -ld {folder}"),
    )),
    Check("Do SQLite's locks work on the file system?", cases=(
        Case("UNSAFE_FILE_SYSTEM", "error", lambda d: _file_system(d, unsafe=True),
            "The database is on {file_system}, where SQLite's locks do not work.",
            "Commits can be lost, and Holdfast refuses to open it; no other check was made. Stop all processes "
            "that use the database, and move it to a local disk.",
            "sqlite3 {file} \"VACUUM INTO '/a/local/disk/app.db'\""),
        Case("FILE_SYSTEM", "ok", lambda d: _file_system(d, unsafe=False), "The file system is {file_system}."),
    )),
    Check("Is there enough free disk space?", cases=(
        Case("DISK_FULL", "error", lambda d: _space(d, "full"),
            "{free} free in {folder}, less than the reserve of {reserve} (min_free_bytes).",
            "Nothing can be enqueued, so that running jobs can still settle. Free some space.",
            "df -h {folder}", guide="guides/operating.md#the-disk-is-full", blocks_repair=True),
        Case("DISK_LOW", "warning", lambda d: _space(d, "low"),
            "{free} free in {folder}.",
            "Below {reserve} (min_free_bytes) nothing can be enqueued.",
            "df -h {folder}", guide="guides/operating.md#the-disk-is-full"),
        Case("DISK_SPACE", "ok", lambda d: _space(d, "enough"), "{free} free in {folder}."),
    )),
    Check("Can the disk flush?", cases=(
        Case("FLUSH_FAILED", "error", lambda d: d.file.unflushed,
            "The disk could not flush the log, and it was not written again since.",
            "Nothing that must be on disk is accepted. Check the disk and the system log. Every program that opens "
            "the database, and every write, writes the log again; nothing needs to be restarted.",
            "dmesg | tail", guide="guides/durability.md#when-a-flush-fails", blocks_repair=True),
    )),
    Check("Does every process use the file that is at the path now?", cases=(
        Case("FILE_REPLACED", "error", _open_in(lambda user: user.deleted),
            "A deleted or replaced file is still open in {processes}.",
            "It was at {path} before. What is written to it is lost when the process ends: restart the process.",
            "kill {pids}"),
    )),
    Check("Can only the owner read the files?", cases=(
        Case("FILE_PERMISSIONS", "warning", _open_to_others,
            "Other users can open {files}.",
            "The files contain all payloads. Holdfast creates its files with mode 600, and the folder of large "
            "payloads with mode 700. Ignore this if several users share the database on purpose.",
            "{chmod_commands}"),
        Case("FILE_PERMISSIONS", "ok", _is_file, "Only the owner can read the files."),
    )),
    Check("Is the folder of large payloads beside the database, with the same owner?", cases=(
        Case("BLOBS_ELSEWHERE", "note", _blobs_elsewhere,
            "Large payloads are stored elsewhere: {blobs} is a link to {target}.",
            "Users who can write there can delete them, and a backup of the database needs that folder too.",
            "ls -ld {links}", guide="guides/large-payloads.md"),
        Case("BLOBS_OWNER", "warning", _blobs_owner,
            "{blobs} belongs to user {owner}, and the database to user {database_owner}.",
            "That user can read and delete all large payloads.",
            "chown -R {database_owner} {blobs}", guide="guides/large-payloads.md"),
    )),
    Check("Can this user write the database?", cases=(
        Case("READ_ONLY", "error", _not_writable,
            "This user cannot write {files}.",
            "SQLite must be able to write the database, its folder, and its -wal and -shm files: Holdfast cannot "
            "open it. Check their owners, and how the disk is mounted.",
            "ls -ld {quoted_files}", blocks_repair=True),
        Case("WRITABLE", "ok", _is_file, "This user can write the file and its folder."),
    )),
    Check("Is the write-ahead log small?", cases=(
        Case("WAL_LARGE", "warning", lambda d: _log_size(d, "read"),
            LOG_GROWN,
            "It cannot be reset while a read transaction is open in {processes}. Look there for a cursor that was "
            "not read to its end, or a BEGIN without a COMMIT.",
            "kill {pid}", guide=LOG_GUIDE),
        Case("WAL_LARGE", "warning", lambda d: _log_size(d, "written"),
            LOG_GROWN,
            "It cannot be reset while a write transaction is open in {processes}.",
            "kill {pid}", guide=LOG_GUIDE),
        Case("WAL_LARGE", "warning", lambda d: _log_size(d, "idle"),
            LOG_GROWN,
            "It is open in {processes}, without a long transaction: the next checkpoint resets it.",
            "holdfast doctor --repair {database}", guide=LOG_GUIDE),
        Case("WAL_SIZE", "ok", lambda d: _log_size(d, "small"), "The write-ahead log has {size}."),
    )),
    Check("Does a process keep the write lock?", cases=(
        Case("WRITE_LOCK_HELD", "warning", _open_in(lambda user: user.writes),
            "A write transaction stays open in {processes}.",
            "No other process can write: nothing is enqueued, claimed or settled, and after busy_timeout they get "
            "StoreBusy. A transaction must not wait for anything.",
            "kill {pids}", guide="guides/operating.md#the-database-is-busy"),
    )),
    Check("Is this SQLite free of the WAL-reset bug?", cases=(
        Case("WAL_RESET_RISK", "note", _affected_version,
            "SQLite {sqlite_version} has the WAL-reset bug.",
            "Two connections that run checkpoints by themselves can lose commits, and no check finds that. "
            "Holdfast avoids it on its own connections and on those passed as conn=. Other connections must not "
            "run checkpoints, or need SQLite 3.51.3 or newer (or 3.44.6, 3.50.7).",
            "execute PRAGMA wal_autocheckpoint = 0 on every other connection",
            guide="guides/durability.md#other-connections-to-the-same-file"),
        Case("FOREIGN_CONNECTIONS", "warning", lambda d: _foreign_connections(d, with_holdfast=False),
            "The database is open in {processes}, which is not a worker and does not seem to use Holdfast.",
            CHECKPOINTS + " SQLite {sqlite_version} can then lose commits.",
            "execute PRAGMA wal_autocheckpoint = 0 on each such connection of that program"),
        Case("FOREIGN_CONNECTIONS", "note", lambda d: _foreign_connections(d, with_holdfast=True),
            "The database is open in {processes}, which is not a worker and seems to use Holdfast.",
            CHECKPOINTS + " SQLite {sqlite_version} can then lose commits.",
            "execute PRAGMA wal_autocheckpoint = 0 on each such connection of that program"),
        Case("SQLITE_VERSION", "ok", always, "SQLite {sqlite_version} does not have the WAL-reset bug."),
    )),
)

SETTINGS_CHECKS = (
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
# fmt: on
