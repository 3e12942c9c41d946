"""Kinds of values on the command line, and the options that several commands share."""

from __future__ import annotations  # so that they cost nothing at import

import functools
import re
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar, cast

import click

from ..app.checks import MAX_SECONDS
from ..model import Status
from .complete import complete_queues, complete_tasks

if TYPE_CHECKING:
    from ..app.jobs import Filters

F = TypeVar("F", bound=Callable[..., Any])

STATUSES = [status.value for status in Status]

_STATUS_HELP = f"{', '.join(STATUSES)}. This and the next five can be repeated: any of the values will do."

_SECONDS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_PART = re.compile(r"(\d{1,12}(?:\.\d+)?)(ms|s|m|h|d|w)")
_NUMBER = re.compile(r"\d{1,12}(\.\d+)?")
_JOB_ID = re.compile(r"[1-9][0-9]{0,17}")
_CURSOR = re.compile(r"(older|newer)-[0-9]{1,19}")
_SIZE = re.compile(r"(\d{1,15})([KMGT]?)(?:i?B)?", re.IGNORECASE)


def duration(text: str) -> float:
    """`90`, `90s`, `5m`, `1h30m`: as seconds."""
    seconds = _seconds(text.strip())
    if seconds is None:
        raise click.BadParameter(f"{text!r} is not a duration: write seconds, or 500ms, 10s, 5m, 2h, 1d, 1h30m")
    if seconds > MAX_SECONDS:
        raise click.BadParameter(f"{text!r} is longer than 100 years")
    return seconds


def _seconds(text: str) -> float | None:
    if _NUMBER.fullmatch(text):
        return float(text)
    parts = _PART.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        return None
    return sum(float(number) * _SECONDS[unit] for number, unit in parts)


def size(text: str) -> int:
    """`512M`, `2G`, or a number of bytes."""
    match = _SIZE.fullmatch(text.strip())
    if match is None or int(match[1]) == 0:
        raise click.BadParameter(f"{text!r} is not a size: write bytes, or 512M, 2G")
    bytes_in_unit: int = 1024 ** "_KMGT".index(match[2].upper() or "_")
    return int(match[1]) * bytes_in_unit


def share(text: str) -> float:
    """`0.05`: a part of the whole."""
    with suppress(ValueError):
        if 0 <= float(text) <= 1:  # which nan is not; click's own range takes it
            return float(text)
    raise click.BadParameter(f"{text!r} is not a share: write a number from 0 to 1, such as 0.05")


def job_id(text: str) -> int:
    if not _JOB_ID.fullmatch(text):
        raise click.BadParameter(f"{text!r} is not a job id: it is a whole number, from 1")
    return int(text)


def cursor_text(text: str) -> str:
    if not _CURSOR.fullmatch(text):
        raise click.BadParameter(f"{text!r} is no cursor: take the one that the list before this one ended with")
    return text


def example(*lines: str) -> str:
    """An epilog that click does not wrap."""
    return "\n".join(["\b", "Example:" if len(lines) == 1 else "Examples:", *(f"  {line}" for line in lines)])


class Signature(TypedDict):
    """Who does it, and why: as it is passed to what changes something, for the history."""

    actor: str | None
    reason: str


def signed(command: F) -> F:
    """Adds --actor and --reason, and passes them as `signature`."""

    @click.option("--actor", metavar="NAME", help="Who does it, for the history.  [default: your login]")
    @click.option("--reason", default="", metavar="TEXT", help="Why, for the history.")
    @functools.wraps(command)
    def with_signature(*args: Any, actor: str | None, reason: str, **given: Any) -> Any:
        return command(*args, signature=Signature(actor=actor, reason=reason), **given)

    return cast(F, with_signature)


def takes_filters(command: F) -> F:
    """Adds the options that say which jobs, and passes them as `filters`."""

    @click.option("--status", "-s", multiple=True, type=click.Choice(STATUSES), metavar="STATUS", help=_STATUS_HELP)
    @click.option(
        "--queue", "-q", multiple=True, metavar="NAME", shell_complete=complete_queues, help="Of this queue."
    )
    @click.option("--task", "-t", multiple=True, metavar="NAME", shell_complete=complete_tasks, help="Of this task.")
    @click.option("--tag", multiple=True, metavar="TEXT", help="With this tag.")
    @click.option("--key", multiple=True, metavar="TEXT", help="With this key.")
    @click.option("--error-code", multiple=True, metavar="CODE", help="That failed so, such as DEPENDENCY:STRIPE.")
    @click.option("--since", type=duration, metavar="DURATION", help="Enqueued within the last 30m, 1h, 2d, …")
    @functools.wraps(command)
    def with_filters(*args: Any, since: float | None, **given: Any) -> Any:
        names = ("status", "queue", "task", "tag", "key", "error_code")
        filters = {name: list(values) for name in names if (values := given.pop(name))}
        found = cast("Filters", filters)
        if since is not None:
            found["created_after"] = datetime.now(UTC) - timedelta(seconds=since)
        return command(*args, filters=found, **given)

    return cast(F, with_filters)
