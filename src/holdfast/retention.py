"""The retention policy: what a program declares, and which finished jobs have expired at a given time. Pure."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import force_setattr

from . import validate
from .errors import InvalidInput

FINISHED = ("succeeded", "failed", "cancelled")
Age = timedelta | float | None
Position = tuple[int, int]
"""`(finished_at, id)` of a finished job: pruning scans each status in this order."""
MAX_ID = 2**63 - 1
BEFORE_ALL: Position = (-1, 0)
AFTER_ALL: Position = (MAX_ID, MAX_ID)
"""Later than any job, also than one that finished while the clock was ahead."""
UNITS = (("d", 86_400), ("h", 3600), ("m", 60))


class Rule(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An exception for the jobs of a task, of a queue, or both. The first rule that matches a job decides.

    status: "succeeded", "failed", "cancelled", or a list of them; all three by default.
    age: delete jobs this long after they finished, in seconds or as a timedelta. None keeps them forever.
    newest: keep only this many of each status, the newest, whatever their age. None: no limit.
    """

    queue: str | None = None
    task: str | None = None
    status: str | Sequence[str] | None = None
    age: Age = None
    newest: int | None = None

    def __post_init__(self) -> None:
        if self.queue is None and self.task is None:
            raise InvalidInput(
                "a Rule needs a queue, a task or both; for all jobs use Retention(succeeded=…, failed=…, cancelled=…)"
            )
        for name in ("queue", "task"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, str) or not value):
                raise InvalidInput(f"{name} must be the name of a {name}, got {validate.shown(value)}")
        given = FINISHED if self.status is None else (self.status,) if isinstance(self.status, str) else self.status
        given = tuple(given) if isinstance(given, Iterable) else (given,)
        if not given or any(one not in FINISHED for one in given):
            raise InvalidInput(f"status must be {', '.join(FINISHED)} or several, got {validate.shown(self.status)}")
        force_setattr(self, "status", given)
        _set_age(self, "age")
        _check_number(self, "newest")

    def fits(self, status: str, queue: str, task: str | None) -> bool:
        """Return whether this rule applies to such a job."""
        return (
            status in (self.status or FINISHED)
            and (self.queue is None or self.queue == queue)
            and (self.task is None or self.task == task)
        )


class Retention(Struct, frozen=True, kw_only=True):
    """How long finished jobs and statistics are kept. Ages are seconds or a timedelta; None is forever.

    succeeded, failed, cancelled: jobs and messages after they finished, with their attempts and events.
    newest: of each of these statuses, keep only this many, the newest.
    rules: exceptions for queues and tasks.
    max_bytes: while the file contains more, delete the oldest finished jobs, whatever the other rules say.
    rollups: statistics per minute, for charts.
    failures: failure counts and tracebacks; kept at least as long as the jobs that failed.
    audit: events without a job: operator actions, pruning.
    archive: a file, *.jsonl.gz, to which jobs are written before they are deleted.
    automatic: workers prune in the background. False: only `holdfast prune` and `app.prune()` delete.
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
        for name in (*FINISHED, "rollups", "failures", "audit"):
            _set_age(self, name)
        _check_number(self, "newest")
        _check_number(self, "max_bytes")
        rules = tuple(self.rules) if isinstance(self.rules, Iterable) else (self.rules,)
        for one in rules:
            if not isinstance(one, Rule):
                raise InvalidInput(f"rules must be a list of Rule(…), got {validate.shown(one)}")
        force_setattr(self, "rules", rules)
        force_setattr(self, "archive", archive_path(self.archive))
        validate.flag(self.automatic, "automatic")

    def limits(self, status: str) -> list[Limit]:
        """Return the limits for a status, in order of precedence. The last one matches every job."""
        rules = (rule for rule in self.rules if status in (rule.status or FINISHED))
        limits = [Limit(rule.queue, rule.task, _microseconds(rule.age), rule.newest) for rule in rules]
        return [*limits, Limit(None, None, _microseconds(getattr(self, status)), self.newest)]

    def in_words(self) -> str:
        """Return one line: `succeeded 30d, failed 90d, cancelled 30d, at most 1,073,741,824 bytes`."""
        words = [f"{status} {_age_in_words(getattr(self, status))}" for status in FINISHED]
        if self.newest is not None:
            words.append(f"the newest {self.newest:,} of each status")
        words += map(_rule_in_words, self.rules)
        if self.max_bytes is not None:
            words.append(f"at most {self.max_bytes:,} bytes")
        return ", ".join(words)


class Limit(Struct, frozen=True):
    """The limits of one rule for one status. The age is in microseconds."""

    queue: str | None
    task: str | None
    age: int | None
    newest: int | None

    def fits(self, queue: str, task: str | None) -> bool:
        return (self.queue is None or self.queue == queue) and (self.task is None or self.task == task)


class Expiry:
    """The cutoffs at one point in time: jobs up to a cutoff have expired. It depends on status, queue and task."""

    def __init__(self, limits: dict[str, list[tuple[Limit, Position]]]) -> None:
        self._limits = limits
        self._cache: dict[tuple[str, str, str | None], Position] = {}

    def cutoff(self, status: str, queue: str, task: str | None) -> Position:
        """Return the position up to which such jobs have expired; BEFORE_ALL if none has."""
        key = (status, queue, task)
        position = self._cache.get(key)
        if position is None:
            found = (position for limit, position in self._limits.get(status, ()) if limit.fits(queue, task))
            position = self._cache[key] = next(found, BEFORE_ALL)
        return position

    def latest(self, status: str) -> Position:
        """Return the latest cutoff for a status: no job after it has expired."""
        return max((position for _, position in self._limits.get(status, ())), default=BEFORE_ALL)


def expiry(retention: Retention, now: int, surplus: dict[tuple[str, int], Position] | None = None) -> Expiry:
    """surplus: by status and index of a limit, the newest job beyond the number that the limit allows."""
    surplus = surplus or {}

    def cutoff(status: str, index: int, limit: Limit) -> Position:
        by_age = BEFORE_ALL if limit.age is None else (now - limit.age, MAX_ID)
        return max(by_age, surplus.get((status, index), BEFORE_ALL))

    return Expiry(
        {
            status: [(limit, cutoff(status, index, limit)) for index, limit in enumerate(retention.limits(status))]
            for status in FINISHED
        }
    )


def expire_all(until: Position) -> Expiry:
    """Every job that finished up to this position has expired: used while the file is too large."""
    return Expiry({status: [(Limit(None, None, None, None), until)] for status in FINISHED})


def matching_limit(limits: Sequence[Limit], queue: str, task: str | None) -> int:
    """Return the index of the limit that applies to such a job."""
    return next(index for index, limit in enumerate(limits) if limit.fits(queue, task))


def row_cutoffs(retention: Retention, now: int) -> dict[str, int]:
    """Return the time before which rows without a job have expired, by kind. Kinds kept forever are left out."""
    job_ages = [limit.age for status in FINISHED for limit in retention.limits(status)]
    # A failure and its traceback stay while there may be a job that refers to them.
    failure_ages = [_microseconds(retention.failures), *job_ages]
    failures = None if None in failure_ages else max(age for age in failure_ages if age is not None)
    ages = {
        "blobs": 0,
        "minutes": _microseconds(retention.rollups),
        "failures": failures,
        "tracebacks": failures,
        "audit": _microseconds(retention.audit),
        "batches": _microseconds(retention.succeeded),
    }
    return {kind: now - age for kind, age in ages.items() if age is not None}


# --- checks ---


def _microseconds(age: Age) -> int | None:
    return age // timedelta(microseconds=1) if isinstance(age, timedelta) else None


def _set_age(thing: Rule | Retention, name: str) -> None:
    value: Any = getattr(thing, name)
    if value is not None:
        force_setattr(thing, name, timedelta(microseconds=validate.duration(value, name)))


def _check_number(thing: Rule | Retention, name: str) -> None:
    value: Any = getattr(thing, name)
    if value is not None:
        validate.integer(value, name, 0, MAX_ID)


def archive_path(value: object) -> str | None:
    """Refuse an empty path: it comes from an unset variable, and jobs would be deleted without an archive."""
    if value is None:
        return None
    path = os.fspath(value) if isinstance(value, str | os.PathLike) else None
    if not isinstance(path, str) or not path:
        raise InvalidInput(f"archive must be the path of a file, such as jobs.jsonl.gz, got {validate.shown(value)}")
    return path


# --- in words ---


def _age_in_words(age: Age) -> str:
    if not isinstance(age, timedelta):
        return "forever"
    seconds = age.total_seconds()
    for unit, size in UNITS:
        if seconds and seconds % size == 0:
            return f"{seconds // size:.0f}{unit}"
    return f"{seconds:g}s"


def _rule_in_words(rule: Rule) -> str:
    name = " ".join(f"{name} {value}" for name, value in (("queue", rule.queue), ("task", rule.task)) if value)
    status = "" if rule.status in (None, FINISHED) else f" {'/'.join(rule.status or ())}"
    newest = "" if rule.newest is None else f" the newest {rule.newest:,}"
    age = "" if rule.age is None and newest else f" {_age_in_words(rule.age)}"
    return f"{name}{status}{age}{newest}"


def rule_in_words(retention: Retention, status: str, queue: str, task: str | None) -> str:
    """Return the rule that applies to such jobs."""
    for rule in retention.rules:
        if rule.fits(status, queue, task):
            return _rule_in_words(rule)
    newest = "" if retention.newest is None else f", the newest {retention.newest:,}"
    return f"{status} {_age_in_words(getattr(retention, status))}{newest}"


# --- in the database ---

to_json = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Retention).decode


def from_json(text: str) -> Retention | None:
    """Return the stored policy, or None if this version cannot read it."""
    try:
        return _decode(text)
    except (msgspec.MsgspecError, InvalidInput):
        return None
