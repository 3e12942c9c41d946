"""The file and what is around it: place, room, rights, and who has it open."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ...model.diagnosis import BlobFolder, Examination, Opener, Surroundings
from ...text import clean, listed, size
from .findings import Finding, agree, command, words

PRIVATE = 0o077  # what others must not have
LARGE_LOG_BYTES = 32 * 1024 * 1024  # a log that was started anew is cut to half of that
ENOUGH = 4  # times the reserve
MOST_NAMED = 5
FIXED_SQLITE = (3, 51, 3)
BACKPORTS = ((3, 44, 6), (3, 50, 7))
FIRST_AFFECTED = (3, 7, 0)


def about_file(found: Examination) -> Iterator[Finding]:
    there = found.surroundings
    yield from _place(found)
    yield from _file_system(there)
    if there.kind in ("file", "missing"):
        yield _space(there)
    yield from _replaced(there)
    if there.kind == "file":
        yield _rights(found)
        if there.blob_folder is not None:
            yield from _blob_place(there.blob_folder)
        yield _writable(there)
        yield _log(found)
        yield from _writers(there)
    yield from _sqlite(found)


def is_affected(version: tuple[int, ...]) -> bool:
    """By the bug that loses commits when one connection checkpoints while another starts the log anew."""
    fixed = any(version[:2] == one[:2] and version >= one for one in BACKPORTS)
    return FIRST_AFFECTED <= version < FIXED_SQLITE and not fixed


def _place(found: Examination) -> Iterator[Finding]:
    there = found.surroundings
    if there.kind == "missing":
        yield Finding(
            "error",
            "DATABASE_MISSING",
            f"There is no file {there.path}: check the path, or make a new database.",
            command(found, "migrate --create"),
        )
    elif there.kind != "file":
        what = {
            "no folder": f"The folder of {there.path} does not exist",
            "folder": f"{there.path} is a folder, and not a file",
            "unreachable": f"{there.path} cannot be reached: {there.trouble}",
        }.get(there.kind, f"{there.path} is not a regular file")
        folder = str(Path(there.path).parent)
        yield Finding("error", "NOT_A_FILE", f"{what}. Pass the path of a database.", f"ls -ld {words(folder)}")


def _file_system(there: Surroundings) -> Iterator[Finding]:
    if there.unsafe:
        yield Finding(
            "error",
            "UNSAFE_FILE_SYSTEM",
            f"The database is on {there.file_system}, where SQLite's locks do not hold: commits can be lost, and "
            "Holdfast refuses to open it. It was not looked at any further. Move it to a local disk, while nothing "
            "has it open.",
            f"sqlite3 {words(there.path)} \"VACUUM INTO '/a/local/disk/app.db'\"",
            {"file_system": there.file_system},
        )
    elif there.kind in ("file", "missing"):
        name = there.file_system or "unknown to this check"
        yield Finding("ok", "FILE_SYSTEM", f"The file system is {name}.", None, {"file_system": there.file_system})


def _space(there: Surroundings) -> Finding:
    free, reserve = there.free_bytes, there.min_free_bytes
    folder = str(Path(there.path).parent)
    detail = {"free_bytes": free, "min_free_bytes": reserve}
    if free < reserve:
        return Finding(
            "error",
            "DISK_FULL",
            f"{size(free)} are free below {folder}, less than the reserve of {size(reserve)} (min_free_bytes): "
            "nothing can be enqueued, so that what runs can still settle. Free some space.",
            f"df -h {words(folder)}",
            detail,
        )
    if free < ENOUGH * reserve + there.log_bytes:
        return Finding(
            "warning",
            "DISK_LOW",
            f"{size(free)} are free below {folder}. Below {size(reserve)} (min_free_bytes) nothing can be enqueued.",
            f"df -h {words(folder)}",
            detail,
        )
    return Finding("ok", "DISK_SPACE", f"{size(free)} are free.", None, detail)


def _replaced(there: Surroundings) -> Iterator[Finding]:
    gone = [one for one in there.openers if one.deleted]
    if gone:
        yield Finding(
            "error",
            "FILE_REPLACED",
            f"{named(gone)} {agree(len(gone), 'has', 'have')} a file open that was at {there.path} and was "
            "deleted or replaced since. Whatever is written there is lost when the process ends: restart it.",
            f"kill {' '.join(str(one.pid) for one in gone)}",
            {"pids": [one.pid for one in gone]},
        )


def _rights(found: Examination) -> Finding:
    there = found.surroundings
    place, blobs = Path(there.path).parent, there.blob_folder
    modes = {str(place / name): mode for name, mode in there.modes.items() if mode & PRIVATE}
    mends = [f"chmod 600 {words(*modes)}"] if modes else []
    made = "its files with mode 600"
    if blobs is not None and blobs.mode & PRIVATE:
        modes[blobs.path] = blobs.mode
        mends.append(f"chmod 700 {words(blobs.path)}")
        made += ", and the folder of large payloads with mode 700"
    if not modes:
        return Finding("ok", "FILE_PERMISSIONS", "Only its owner can read the file.")
    open_to_others = {Path(path).name: oct(mode) for path, mode in modes.items()}
    count = len(open_to_others)
    return Finding(
        "warning",
        "FILE_PERMISSIONS",
        f"{listed(list(open_to_others))} can be opened by more than {agree(count, 'its', 'their')} owner (mode "
        f"{listed(sorted({mode[2:] for mode in open_to_others.values()}))}), and with {agree(count, 'it', 'them')} "
        f"all payloads. Holdfast makes {made}. Where several users share the database, it is as it must be.",
        " && ".join(mends),
        {"modes": open_to_others},
    )


def _blob_place(blobs: BlobFolder) -> Iterator[Finding]:
    if blobs.link_to is not None:
        yield Finding(
            "note",
            "BLOBS_ELSEWHERE",
            f"{blobs.path} is a link: large payloads are kept elsewhere, in {blobs.link_to}. Whoever can write there "
            "can take them away, and a backup of the database needs that folder too.",
            f"ls -ld {words(blobs.path, blobs.link_to)}",
            {"folder": blobs.link_to},
        )
    if blobs.owner != blobs.owner_of_database:
        yield Finding(
            "warning",
            "BLOBS_OWNER",
            f"{blobs.path} is of user {blobs.owner}, and the database of user {blobs.owner_of_database}: that other "
            "user can open all large payloads, and take them away.",
            f"chown -R {blobs.owner_of_database} {words(blobs.path)}",
            {"owner": blobs.owner, "owner_of_database": blobs.owner_of_database},
        )


def _writable(there: Surroundings) -> Finding:
    if not there.not_writable:
        return Finding("ok", "WRITABLE", "The file and its folder can be written.")
    return Finding(
        "error",
        "READ_ONLY",
        f"This user cannot write {listed(there.not_writable)}. SQLite needs to write the file, its folder and its "
        "companions (-wal and -shm): Holdfast cannot open it. Check who owns them, and how the disk is mounted.",
        f"ls -ld {words(*there.not_writable)}",
        {"not_writable": there.not_writable},
    )


def _log(found: Examination) -> Finding:
    there = found.surroundings
    length = size(there.log_bytes)
    detail = {"log_bytes": there.log_bytes, "readers": [one.pid for one in there.openers if one.reads]}
    if there.log_bytes <= LARGE_LOG_BYTES:
        return Finding("ok", "WAL_SIZE", f"The write-ahead log has {length}.", None, detail)
    readers = [one for one in there.openers if one.reads]
    writers = [one for one in there.openers if one.writes]
    if readers:
        meaning = (
            f"{named(readers)} {agree(len(readers), 'is', 'are')} within a read transaction, which keeps the "
            "log from being started anew: look there for a cursor that was not read to its end, or a BEGIN without "
            "an end."
        )
        mend = f"kill {readers[0].pid}"
    elif writers:
        meaning = f"{named(writers)} has a write transaction open, which keeps it from being checkpointed."
        mend = f"kill {writers[0].pid}"
    elif there.openers:
        meaning = (
            f"{named(there.openers)} {agree(len(there.openers), 'has', 'have')} the database open, and "
            f"{agree(len(there.openers), 'keeps', 'none of them keeps')} a transaction open now: the next checkpoint "
            "makes it short again."
        )
        mend = command(found, "doctor --repair")
    else:
        meaning = "No other process has the database open, as far as this user can see: nobody makes it short again."
        mend = command(found, "doctor --repair")
    return Finding("warning", "WAL_LARGE", f"The write-ahead log has grown to {length}. {meaning}", mend, detail)


def _writers(there: Surroundings) -> Iterator[Finding]:
    writers = [one for one in there.openers if one.writes]
    if writers:
        yield Finding(
            "warning",
            "WRITE_LOCK_HELD",
            f"{named(writers)} has had a write transaction open for all the time that this looked. Meanwhile nobody "
            "else can write: nothing is enqueued, claimed or settled, and after busy_timeout they get StoreBusy. A "
            "transaction must not wait for anything.",
            f"kill {writers[0].pid}",
            {"pids": [one.pid for one in writers]},
        )


def _sqlite(found: Examination) -> Iterator[Finding]:
    version, affected = found.sqlite_version, is_affected(found.sqlite_version_info)
    if not affected:
        yield Finding("ok", "SQLITE_VERSION", f"SQLite {version} is free of the WAL-reset bug.")
        return
    yield Finding(
        "note",
        "WAL_RESET_RISK",
        f"SQLite {version} has the WAL-reset bug: two connections that checkpoint by themselves can lose commits, "
        "and no check finds it. Holdfast avoids it on its own connections and on those passed as conn=. Any other "
        "one must not checkpoint by itself, or be of SQLite 3.51.3 or newer (or 3.44.6, 3.50.7).",
        "execute PRAGMA wal_autocheckpoint = 0 on every other connection",
        {"sqlite_version": version},
    )
    others = _strangers(found)
    if others:
        without = [one for one in others if not one.has_holdfast]
        there = without or others
        seems = agree(len(there), "does not seem", "do not seem") if without else agree(len(there), "seems", "seem")
        yield Finding(
            "warning" if without else "note",
            "FOREIGN_CONNECTIONS",
            f"{named(there)} {agree(len(there), 'has', 'have')} the database open, "
            f"{agree(len(there), 'is', 'are')} no worker, and "
            f"{seems} to use Holdfast. "
            "A connection that is not Holdfast's own, and was never passed as conn=, checkpoints by itself, and with "
            f"SQLite {version} commits can be lost.",
            "execute PRAGMA wal_autocheckpoint = 0 on each such connection of that program",
            {"pids": [one.pid for one in there]},
        )


def _strangers(found: Examination) -> list[Opener]:
    from socket import gethostname

    here = gethostname()
    ours = {one.record.pid for one in found.workers or () if one.record.host == here and one.presence != "dead"}
    known = {*ours, found.surroundings.pid}
    return [one for one in found.surroundings.openers if not one.deleted and one.pid not in known]


def named(openers: list[Opener]) -> str:
    """`process 12 (python app.py)`."""
    names = [f"process {one.pid}" + (f" ({clean(one.command)})" if one.command else "") for one in openers]
    more = [f"{len(names) - MOST_NAMED} more"] if len(names) > MOST_NAMED else []
    text = listed(names[:MOST_NAMED] + more)
    return text[0].upper() + text[1:]
