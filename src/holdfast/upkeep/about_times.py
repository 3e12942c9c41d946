"""Times that cannot be: a clock that jumped, a unit that was mistaken, another start of the machine."""

from __future__ import annotations  # so that they cost nothing at import

from collections.abc import Iterator

from ..clock import SECOND
from ..store.circumstances import Attendance
from ..store.examination import Examination, Times
from ..wording import plural, span
from .findings import Finding, agree, command, count_of, ids_of

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


def _who(workers: list[Attendance]) -> str:
    return "A worker" if len(workers) == 1 else f"{len(workers)} workers"
