"""Times that cannot be: a clock that jumped, a unit that was mistaken, another start of the machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePath

from ...clock import SECOND
from ...model.diagnosis import Examination, Miscount, Some, Times
from ...model.worker import WorkerStatus
from ...text import listed, plural, short, span
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


SLACK = 60 * SECOND


def about_times(found: Examination) -> Iterator[Finding]:
    before = 0
    for finding in _all(found):
        before += 1
        yield finding
    if found.times is not None and not before:
        yield Finding("ok", "CLOCK", "No times that cannot be.")


def _all(found: Examination) -> Iterator[Finding]:
    times = found.times
    if times is None:
        return
    yield from _clock(found, times)
    yield from _ends(found, times)
    yield from _units(found, times)
    yield from _boot(found, times)


def _clock(found: Examination, times: Times) -> Iterator[Finding]:
    if times.created_ahead:
        some = times.created_ahead
        yield Finding(
            "warning",
            "CREATED_IN_FUTURE",
            f"{count_of(some, 'job')} ({ids_of(some)}) {agree(some.count, 'was', 'were')} made later than it is "
            "now: the clock of this machine was set back, or that of another one is wrong. What is scheduled may run "
            "late.",
            "timedatectl status",
            {"ids": some.ids},
        )
    ahead = [one for one in found.workers or () if one.record.heartbeat_at > found.now + SLACK]
    if ahead:
        most = max(one.record.heartbeat_at for one in ahead) - found.now
        yield Finding(
            "warning",
            "HEARTBEAT_IN_FUTURE",
            f"{_who(ahead)} said last that {agree(len(ahead), 'it lives', 'they live')} {span(most / SECOND)} "
            "from now: the clock was set back. Leases are not concerned, schedules are.",
            "timedatectl status",
            {"workers": [one.record.id for one in ahead]},
        )
    if times.steps_back:
        yield Finding(
            "note",
            "CLOCK_STEPPED_BACK",
            "In the log of late, time went back "
            f"{'once' if times.steps_back == 1 else plural(times.steps_back, 'time')}, by "
            f"{span(times.largest_step / SECOND)} at most: the clock was set, or two machines do not agree. Leases "
            "are not concerned; schedules and ages are.",
            "timedatectl status",
            {"steps": times.steps_back, "largest_seconds": times.largest_step / SECOND},
        )


def _ends(found: Examination, times: Times) -> Iterator[Finding]:
    if times.ended_ahead:
        some = times.ended_ahead
        yield Finding(
            "warning",
            "ENDED_IN_FUTURE",
            f"{count_of(some, 'job')} ({ids_of(some)}) {agree(some.count, 'has', 'have')} ended later than it is "
            "now: the clock was set back, or somebody changed rows by hand. They are kept for longer than the "
            "rules say. The repair lets them have ended now.",
            command(found, "doctor --repair"),
            {"ids": some.ids},
        )
    if times.ended_untimed:
        some = times.ended_untimed
        yield Finding(
            "warning",
            "ENDED_WITHOUT_TIME",
            f"{count_of(some, 'job')} ({ids_of(some)}) {agree(some.count, 'has', 'have')} ended without a "
            "finished_at: somebody changed the status by hand. They are never pruned. The repair lets them have "
            "ended now.",
            command(found, "doctor --repair"),
            {"ids": some.ids},
        )


def _units(found: Examination, times: Times) -> Iterator[Finding]:
    if times.wrong_unit:
        some = times.wrong_unit
        yield Finding(
            "warning",
            "TIMES_IN_WRONG_UNIT",
            f"{count_of(some, 'job')} ({ids_of(some)}) {agree(some.count, 'has', 'have')} a created_at or run_at "
            "before 2001: whoever inserts them by SQL writes seconds or milliseconds, and these are microseconds.",
            command(found, f"show {some.ids[0]}"),
            {"ids": some.ids},
        )
    if times.far_ahead:
        some = times.far_ahead
        yield Finding(
            "note",
            "FAR_IN_FUTURE",
            f"{count_of(some, 'job')} ({ids_of(some)}) {agree(some.count, 'is', 'are')} scheduled for more than "
            "ten years from now: was a unit mistaken?",
            command(found, f"run-now {some.ids[0]}"),
            {"ids": some.ids},
        )


def _boot(found: Examination, times: Times) -> Iterator[Finding]:
    if times.boot_id is None or times.boot_id == times.current_boot_id:
        return
    alive = [one for one in found.workers or () if one.presence in ("alive", "stopped")]
    if alive:
        yield Finding(
            "error",
            "ANOTHER_MACHINE",
            f"{_who(alive)} {agree(len(alive), 'uses', 'use')} the database since another start of the machine, "
            "or on another one. SQLite is for one machine: leases of one mean nothing on the other.",
            None,
            {"workers": [one.record.id for one in alive]},
        )
    else:
        yield Finding(
            "note",
            "NOT_OPENED_SINCE_BOOT",
            "Holdfast has not opened the database since the machine was started: whatever runs in it is taken back "
            "when it does.",
        )


def _who(workers: list[WorkerStatus]) -> str:
    return "A worker" if len(workers) == 1 else f"{len(workers)} workers"
