"""Doing something to many jobs: what it would be, whether to do it, and what became of it."""

import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import click

from ..app.jobs import Filters, criteria
from ..errors import JobNotFound
from ..model.job import Counted
from ..supervisor import Holdfast
from .errors import Exit
from .output import document, note, plural, say

MOST_LOOKED_AT = 100_000


class Action(NamedTuple):
    """`unless_said` are the states it is done to when filters name none."""

    verb: str
    past: str
    states: tuple[str, ...]
    unless_said: tuple[str, ...] = ()


class Consent(NamedTuple):
    yes: bool
    dry_run: bool
    as_json: bool


class BulkReport:
    """What became of it. It is printed once, and decides the exit code."""

    def __init__(self, action: Action, consent: Consent) -> None:
        self._action, self._consent = action, consent
        self.matched = self.done = 0
        self.is_counted = True
        """Whether `matched` is all of them, and not only how many were found until the count was stopped."""
        self.refused: list[dict[str, Any]] = []
        self.not_found: list[int] = []

    def end(self) -> None:
        if self._consent.as_json:
            document(
                {
                    "action": self._action.verb.replace(" ", "-"),
                    "dry_run": self._consent.dry_run,
                    "matched": self.matched,
                    "matched_all": self.is_counted,
                    "done": self.done,
                    "refused": self.refused,
                    "not_found": self.not_found,
                }
            )
        elif self._consent.dry_run:
            some = how_many(Counted(self.matched, self.is_counted))
            say(f"{some[0].upper()}{some[1:]} would be {self._action.past}.")
        else:
            say(f"{plural(self.done, 'job')} {self._action.past}.")
        click.get_current_context().exit(self._exit_code())

    def _exit_code(self) -> Exit:
        if self.not_found:
            return Exit.NOT_FOUND
        achieved = self.matched if self._consent.dry_run else self.done
        return Exit.DONE if achieved and not self.refused else Exit.NOT_DONE


def operate(
    app: Holdfast,
    action: Action,
    act: Callable[..., int],
    ids: Sequence[int],
    filters: Filters,
    consent: Consent,
) -> None:
    check_which(action, ids, filters)
    report = BulkReport(action, consent)
    if ids:
        for one in dict.fromkeys(ids):
            _by_id(app, one, act, report, action, consent)
    else:
        by_filters(act, lambda wanted: count(app, wanted), filters, report, action, consent)
    report.end()


def check_which(action: Action, ids: Sequence[int], filters: Filters) -> None:
    if ids and filters:
        raise click.UsageError("pass ids or filters, not both")
    if not ids and not filters:
        raise click.UsageError(f"say which jobs to {action.verb}: pass ids, or filters such as --queue mail")


def _by_id(
    app: Holdfast, id: int, act: Callable[..., int], report: BulkReport, action: Action, consent: Consent
) -> None:
    try:
        status = app.jobs.get(id).status
        allowed = status in action.states
        done = allowed if consent.dry_run else bool(act(id))
    except JobNotFound as error:
        report.not_found.append(id)
        note(str(error))
        return
    if done:
        report.matched += 1
        report.done += not consent.dry_run
        return
    report.refused.append({"id": id, "status": status})
    if not allowed:
        note(f"job {id} is {status}: only {_any_of(action.states)} ones can be {action.past}")
    elif action.verb == "retry":
        note(f"job {id} is left as it is: another job that has not ended has its key, or what it waits for needs it")
    else:
        note(f"job {id} is left as it is: it has changed in the meantime")


def by_filters(
    act: Callable[..., int],
    count: Callable[[Filters], Counted],
    filters: Filters,
    report: BulkReport,
    action: Action,
    consent: Consent,
) -> None:
    wanted = _within(action, filters)
    counted = count(wanted)
    report.matched, report.is_counted = counted.count, counted.is_complete
    if consent.dry_run or (counted.is_complete and not counted.count):
        return
    ask(f"{action.verb.capitalize()} {how_many(counted)}?", consent.yes)
    report.done = act(**wanted)


def count(app: Holdfast, filters: Filters, deletable: bool = False) -> Counted:
    """How many fit, or at least how many: nobody has to wait for millions of jobs to be looked at."""
    return app.store.jobs.count(criteria(filters), deletable, MOST_LOOKED_AT)


def how_many(counted: Counted) -> str:
    return f"{'' if counted.is_complete else 'at least '}{plural(counted.count, 'job')}"


def _within(action: Action, filters: Filters) -> Filters:
    """The filters, held to the states in which it can be done: so that the count is right."""
    said = filters.get("status", action.unless_said or action.states)
    states = [status for status in said if status in action.states]
    if not states:
        raise click.UsageError(f"only jobs that are {_any_of(action.states)} can be {action.past}")
    return {**filters, "status": states}


def ask(question: str, yes: bool) -> None:
    """Go on only with `--yes`, or if the person at the terminal agrees."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError(f"{question} Nobody is there to answer: pass --yes")
    if not click.confirm(question, err=True):
        note("Nothing was done.")
        click.get_current_context().exit(Exit.NOT_DONE)


def end(data: dict[str, Any], sentence: str, done: int, as_json: bool) -> None:
    """Say what was done, in one of two ways. Nothing done is an exit code of its own."""
    if as_json:
        document(data)
    else:
        say(sentence)
    if not done:
        click.get_current_context().exit(Exit.NOT_DONE)


def _any_of(states: Sequence[str]) -> str:
    return f"{', '.join(states[:-1])} or {states[-1]}" if len(states) > 1 else states[0]
