"""How long things are kept: what a program says, and what that means at a given moment. Pure."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from typing import Any

import msgspec
from msgspec import Struct

from .clock import SECOND
from .errors import InvalidInput
from .failure import shorten

ENDED = ("succeeded", "failed", "cancelled")
Age = timedelta | float | None
Mark = tuple[int, int]
"""When a job ended, and its id: all that ended are in one line, the oldest first."""
NOTHING: Mark = (-1, 0)
LAST_ID = 2**63 - 1
MAX_AGE = timedelta(days=100 * 365)


class Rule(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """For jobs of a task, of a queue, or both: of those rules that fit a job, the first decides.

    status: "succeeded", "failed", "cancelled", or several; by default all three.
    age: how long they are kept after their end, in seconds or as a timedelta; None: for ever.
    newest: so many of each status are kept, whatever their age allows; the older ones go. None: no limit.
    """

    queue: str | None = None
    task: str | None = None
    status: str | Sequence[str] | None = None
    age: Age = None
    newest: int | None = None

    def __post_init__(self) -> None:
        if self.queue is None and self.task is None:
            raise InvalidInput(
                "a Rule is for a queue, a task or both: for all jobs, pass succeeded=, failed=, cancelled="
            )
        for name in ("queue", "task"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, str) or not value):
                raise InvalidInput(f"{name} is the name of one, not {_shown(value)}")
        given = ENDED if self.status is None else (self.status,) if isinstance(self.status, str) else self.status
        given = tuple(given) if isinstance(given, Iterable) else (given,)
        for one in given or ["none of them"]:
            if one not in ENDED:
                raise InvalidInput(f"a rule is about what has ended, {', '.join(ENDED)}, not {_shown(one)}")
        msgspec.structs.force_setattr(self, "status", given)
        _set_age(self, "age")
        _check_number(self, "newest")

    def fits(self, status: str, queue: str, task: str | None) -> bool:
        return (
            status in (self.status or ENDED)
            and (self.queue is None or self.queue == queue)
            and (self.task is None or self.task == task)
        )


class Retention(Struct, frozen=True, kw_only=True):
    """How long things are kept. Ages are seconds or a timedelta, None is for ever.

    succeeded, failed, cancelled: jobs and messages after their end, with their attempts and events.
    newest: of each of these, so many are kept; the older ones go, whatever their age.
    rules: exceptions for queues and tasks.
    max_bytes: while the file holds more than this, what ended first goes first, whatever the rules say.
    rollups: what charts are drawn from, minute by minute.
    failures: what failed how often, with its tracebacks; at least for as long as the jobs that failed.
    audit: events that belong to no job: what operators did, what was pruned.
    archive: a file, *.jsonl.gz, to which jobs are written before they are deleted.
    automatic: workers do it by themselves. False: only `holdfast prune` and `app.prune()` do.
    """

    succeeded: Age = timedelta(days=30)
    failed: Age = timedelta(days=90)
    cancelled: Age = timedelta(days=30)
    newest: int | None = None
    rules: tuple[Rule, ...] = ()
    max_bytes: int | None = None
    rollups: Age = timedelta(days=400)
    failures: Age = timedelta(days=400)
    audit: Age = timedelta(days=365)
    archive: str | None = None
    automatic: bool = True

    def __post_init__(self) -> None:
        for name in (*ENDED, "rollups", "failures", "audit"):
            _set_age(self, name)
        _check_number(self, "newest")
        _check_number(self, "max_bytes")
        rules = tuple(self.rules) if isinstance(self.rules, Iterable) else (self.rules,)
        for one in rules:
            if not isinstance(one, Rule):
                raise InvalidInput(f"rules are made with Rule(…), and {_shown(one)} is none")
        msgspec.structs.force_setattr(self, "rules", rules)
        msgspec.structs.force_setattr(self, "archive", archive_path(self.archive))
        if not isinstance(self.automatic, bool):
            raise InvalidInput(f"automatic is True or False, not {_shown(self.automatic)}")

    def limits(self, status: str) -> Iterator[Limit]:
        """Of this status, in the order in which they are asked; the last one is for all."""
        for rule in self.rules:
            if status in (rule.status or ENDED):
                yield Limit(rule.queue, rule.task, _microseconds(rule.age), rule.newest)
        yield Limit(None, None, _microseconds(getattr(self, status)), self.newest)

    def counts_matter(self) -> bool:
        return any(limit.newest is not None for status in ENDED for limit in self.limits(status))

    def rollups_before(self, now: int) -> int | None:
        return _before(self.rollups, now)

    def audit_before(self, now: int) -> int | None:
        return _before(self.audit, now)

    def batches_before(self, now: int) -> int | None:
        """Of batches without any members."""
        return _before(self.succeeded, now)

    def failures_before(self, now: int) -> int | None:
        """None while there may be a job that leads there."""
        ages = [limit.age for status in ENDED for limit in self.limits(status)]
        known = [age for age in (_microseconds(self.failures), *ages) if age is not None]
        return None if len(known) <= len(ages) else now - max(known)

    def in_words(self) -> str:
        """In one line: `succeeded 30d, failed 90d, cancelled 30d, 2 rules, at most 1,073,741,824 bytes`."""
        words = [f"{status} {_age_in_words(getattr(self, status))}" for status in ENDED]
        if self.newest is not None:
            words.append(f"the newest {self.newest:,} of each status")
        for rule in self.rules:
            words.append(_rule_in_words(rule))
        if self.max_bytes is not None:
            words.append(f"at most {self.max_bytes:,} bytes")
        return ", ".join(words)


class Limit(Struct, frozen=True):
    """What a rule says of one status. Microseconds."""

    queue: str | None
    task: str | None
    age: int | None
    newest: int | None

    def fits(self, queue: str, task: str | None) -> bool:
        return (self.queue is None or self.queue == queue) and (self.task is None or self.task == task)


class Expiry:
    """Which jobs may go, at one moment: those that ended up to a mark, which depends on status, queue and task."""

    def __init__(self, limits: dict[str, list[tuple[Limit, Mark]]]) -> None:
        self._limits = limits
        self._known: dict[tuple[str, str, str | None], Mark] = {}

    def until(self, status: str, queue: str, task: str | None) -> Mark:
        """A job that ended at this mark or before may go; NOTHING if none may."""
        key = (status, queue, task)
        mark = self._known.get(key)
        if mark is None:
            found = (mark for limit, mark in self._limits.get(status, ()) if limit.fits(queue, task))
            mark = self._known[key] = next(found, NOTHING)
        return mark

    def latest(self, status: str) -> Mark:
        """No job of this status may go that ended later."""
        return max((mark for _, mark in self._limits.get(status, ())), default=NOTHING)


def expiry(retention: Retention, now: int, surplus: dict[tuple[str, int], Mark] | None = None) -> Expiry:
    """surplus: by status and the place of a limit, the newest of those that are too many."""
    marks = surplus or {}
    return Expiry(
        {
            status: [
                (limit, max(_mark_of_age(limit.age, now), marks.get((status, place), NOTHING)))
                for place, limit in enumerate(retention.limits(status))
            ]
            for status in ENDED
        }
    )


def of_any(until: Mark) -> Expiry:
    """Whatever has ended up to there: for when there is too much in the file."""
    return Expiry({status: [(Limit(None, None, None, None), until)] for status in ENDED})


def decider(limits: Sequence[Limit], queue: str, task: str | None) -> int:
    """Which of them is for this job: its place."""
    return next(place for place, limit in enumerate(limits) if limit.fits(queue, task))


# --- ages ---


def _mark_of_age(age: int | None, now: int) -> Mark:
    return NOTHING if age is None else (now - age, LAST_ID)


def _before(age: Age, now: int) -> int | None:
    microseconds = _microseconds(age)
    return None if microseconds is None else now - microseconds


def _microseconds(age: Age) -> int | None:
    return (
        age // timedelta(microseconds=1) if isinstance(age, timedelta) else None if age is None else int(age * SECOND)
    )


def _set_age(thing: Rule | Retention, name: str) -> None:
    value: Any = getattr(thing, name)
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, (int, float, timedelta)):
        raise InvalidInput(f"{name} is a number of seconds, a timedelta or None, not {_shown(value)}")
    if not isinstance(value, timedelta):
        if not 0 <= value <= MAX_AGE.total_seconds():
            raise InvalidInput(f"{name} is 0 seconds to 100 years, not {_shown(value)}")
        value = timedelta(seconds=value)
    if not timedelta() <= value <= MAX_AGE:
        raise InvalidInput(f"{name} is 0 seconds to 100 years, not {_shown(value)}")
    msgspec.structs.force_setattr(thing, name, value)


def _check_number(thing: Rule | Retention, name: str) -> None:
    value: Any = getattr(thing, name)
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**63:
        raise InvalidInput(f"{name} is a whole number, from 0, or None, not {_shown(value)}")


def archive_path(value: object) -> str | None:
    """An empty one is refused: it comes of a variable that is not set, and what it should have kept would be gone."""
    if value is None:
        return None
    path = os.fspath(value) if isinstance(value, str | os.PathLike) else None
    if not isinstance(path, str) or not path:
        raise InvalidInput(f"archive is the path of a file, such as jobs.jsonl.gz, not {_shown(value)}")
    return path


def _shown(value: Any) -> str:
    try:
        return shorten(repr(value), 100)
    except Exception:  # noqa: BLE001  the caller's own __repr__
        return f"a {type(value).__qualname__}"


def _age_in_words(age: Age) -> str:
    if not isinstance(age, timedelta):
        return "for ever"
    seconds = age.total_seconds()
    for unit, size in (("d", 86_400), ("h", 3600), ("m", 60)):
        if seconds and seconds % size == 0:
            return f"{seconds // size:.0f}{unit}"
    return f"{seconds:g}s"


def _rule_in_words(rule: Rule) -> str:
    what = " ".join(f"{name} {value}" for name, value in (("queue", rule.queue), ("task", rule.task)) if value)
    which = "" if rule.status in (None, ENDED) else f" {'/'.join(rule.status or ())}"
    newest = "" if rule.newest is None else f" the newest {rule.newest:,}"
    age = "" if rule.age is None and newest else f" {_age_in_words(rule.age)}"
    return f"{what}{which}{age}{newest}"


def rule_in_words(retention: Retention, status: str, queue: str, task: str | None) -> str:
    """The one that decides about such jobs."""
    for rule in retention.rules:
        if rule.fits(status, queue, task):
            return _rule_in_words(rule)
    newest = "" if retention.newest is None else f", the newest {retention.newest:,}"
    return f"{status} {_age_in_words(getattr(retention, status))}{newest}"


# --- in the database ---

written = msgspec.json.Encoder().encode
_read = msgspec.json.Decoder(Retention).decode


def read(text: str) -> Retention | None:
    """As it was stored; None if this version cannot read it."""
    try:
        return _read(text)
    except (msgspec.MsgspecError, InvalidInput):
        return None
