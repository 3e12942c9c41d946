"""Rows that do not fit together: left over, without what they belong to, or counted wrongly."""

from __future__ import annotations  # so that they cost nothing at import

from collections.abc import Iterator
from pathlib import PurePath

from ..store.examination import Examination, Miscount, Some
from ..wording import listed, plural, short
from .findings import Finding, agree, command, count_of, ids_of, words

MOST_NAMED = 3
LOST = "RESOURCE:BLOB_MISSING"


def about_rows(found: Examination) -> Iterator[Finding]:
    yield from _orphans(found)
    yield from _chains(found)
    yield from _batches(found)
    yield from _keys(found)
    yield from _blobs(found)
    if found.miscounts is not None:
        yield _counts(found, found.miscounts)


def _orphans(found: Examination) -> Iterator[Finding]:
    if found.orphans is None:
        return
    some = {table: one for table, one in found.orphans.items() if one}
    if not some:
        yield Finding("ok", "ORPHANED_ROWS", "No history, tags or blockers of jobs that are gone.")
        return
    parts = [f"{table} of {count_of(one, 'job')}" for table, one in some.items()]
    yield Finding(
        "warning",
        "ORPHANED_ROWS",
        f"There are {listed(parts)} that {'is' if all(one.count == 1 for one in some.values()) else 'are'} gone: "
        f"somebody deleted from {found.prefix}jobs with foreign keys off, which is SQLite's default. They take up "
        "room, and nothing else. The repair deletes them.",
        command(found, "doctor --repair"),
        {table: {"jobs": one.count, "ids": one.ids} for table, one in some.items()},
    )


def _chains(found: Examination) -> Iterator[Finding]:
    if found.rootless:
        some = found.rootless
        yield Finding(
            "warning",
            "CHAINS_WITHOUT_ROOT",
            f"{count_of(some, 'chain')} (of {agree(some.count, 'job', 'jobs')} {ids_of(some)}) "
            f"{agree(some.count, 'has', 'have')} lost the first job: somebody deleted it by hand. What is left runs, "
            "but nobody can wait for the whole. Delete it when it has ended.",
            command(found, f"delete {some.ids[0]} --chain"),
            {"ids": some.ids},
        )


def _batches(found: Examination) -> Iterator[Finding]:
    if found.batchless:
        some = found.batchless
        yield Finding(
            "warning",
            "MEMBERS_WITHOUT_BATCH",
            f"There are members of {some.count:,} {agree(some.count, 'batch', 'batches')} ({ids_of(some)}) that "
            f"{agree(some.count, 'is', 'are')} gone: somebody deleted {agree(some.count, 'it', 'them')} by hand. "
            "They run, and nothing is enqueued when all have ended.",
            None,
            {"batches": some.ids},
        )


def _keys(found: Examination) -> Iterator[Finding]:
    if found.broken_keys:
        parts = [f"{plural(count, 'row')} of {short(table)}" for table, count in found.broken_keys]
        yield Finding(
            "warning",
            "FOREIGN_KEYS_BROKEN",
            f"{listed(parts)} {agree(len(parts), 'refers', 'refer')} to rows that are not there: somebody "
            "deleted those with foreign keys off. Of Holdfast's own tables the repair deletes them.",
            command(found, "doctor --repair"),
            {"tables": dict(found.broken_keys)},
        )


def _blobs(found: Examination) -> Iterator[Finding]:
    if found.blobs is None:
        return
    missing, orphaned, folder = found.blobs.missing, found.blobs.orphaned, found.blobs.folder
    if missing:
        ids = list(dict.fromkeys(one.job_id for one in missing))
        some = Some(len(ids), tuple(ids[:10]))
        yield Finding(
            "error",
            "BLOBS_MISSING",
            f"{len(missing):,} large {agree(len(missing), 'payload or result', 'payloads or results')} "
            f"{agree(len(missing), 'is', 'are')} missing from {'the blob store' if folder is None else folder} (of "
            f"{agree(len(ids), 'job', 'jobs')} {ids_of(some)}). A job without its payload fails with "
            f"{LOST} when it is run, and no other. Put {agree(len(missing), 'it', 'them')} back from a backup, where "
            "those that are too many do no harm; then retry what has failed.",
            _brought_back(folder, command(found, f"retry --error-code {LOST}")),
            {"blobs": [[one.job_id, one.what, one.name] for one in missing[:100]]},
        )
    if orphaned:
        yield Finding(
            "note",
            "BLOBS_ORPHANED",
            f"{plural(orphaned, 'file')} beside the database {agree(orphaned, 'is', 'are')} of no job: a crash "
            "left them, or a backup brought them back. Workers delete them by and by.",
            command(found, "doctor --repair"),
            {"files": orphaned},
        )
    if not missing and not orphaned:
        yield Finding("ok", "BLOBS", "Every large payload and result is there.")


def _brought_back(folder: str | None, retry: str) -> str:
    """Their names are those of their content: what is there already is the same."""
    if folder is None:
        return retry
    return f"cp -au {words(f'/a/backup/{PurePath(folder).name}/.', folder)} && {retry}"


def _counts(found: Examination, wrong: list[Miscount]) -> Finding:
    if not wrong:
        return Finding("ok", "COUNTS", "The statistics count as many jobs as there are.")
    named = [
        f"{one.status} {short(one.task) or 'messages'} in {short(one.queue)}: {one.counted:,} instead of {one.real:,}"
        for one in wrong[:MOST_NAMED]
    ]
    more = [f"{len(wrong) - MOST_NAMED} more"] if len(wrong) > MOST_NAMED else []
    return Finding(
        "warning",
        "COUNTS_WRONG",
        f"{plural(len(wrong), 'count')} of jobs {agree(len(wrong), 'is', 'are')} wrong: {listed(named + more, ';')}. "
        "Only counts and charts are affected, jobs are not. `--repair` counts the jobs again.",
        command(found, "doctor --repair"),
        {"counts": [[one.queue, one.task, one.status, one.counted, one.real] for one in wrong]},
    )
