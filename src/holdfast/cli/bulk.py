"""Actions on many jobs: by ids or by filters, with a dry run, a confirmation and a report."""

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

MAX_SCANNED = 100_000  # jobs that a count looks at


class Action(NamedTuple):
    """Something that can be done to jobs in certain states."""

    verb: str
    past: str
    states: tuple[str, ...]
    default_states: tuple[str, ...] = ()
    """The states selected when the filters name none. Empty: all of `states`."""


class BulkOptions(NamedTuple):
    yes: bool
    dry_run: bool
    as_json: bool


class BulkReport:
    """The result of an action. It is printed once, and decides the exit code."""

    def __init__(self, action: Action, options: BulkOptions) -> None:
        self._action, self._options = action, options
        self.matched = self.done = 0
        self.matched_all = True
        """Whether `matched` is exact. False: the count stopped early, and it is a lower bound."""
        self.refused: list[dict[str, Any]] = []
        self.not_found: list[int] = []

    def refuse(self, id: int, status: str, why: str, **detail: Any) -> None:
        self.refused.append({"id": id, "status": status, **detail})
        note(f"job {id} is unchanged: {why}")

    def miss(self, id: int, error: JobNotFound) -> None:
        self.not_found.append(id)
        note(str(error))

    def finish(self) -> None:
        if self._options.as_json:
            names = ("matched", "matched_all", "done", "refused", "not_found")
            head = {"action": self._action.verb.replace(" ", "-"), "dry_run": self._options.dry_run}
            document(head | {name: getattr(self, name) for name in names})
        elif self._options.dry_run:
            count = count_text(Counted(self.matched, self.matched_all))
            say(f"{count[0].upper()}{count[1:]} would be {self._action.past}.")
        else:
            say(f"{plural(self.done, 'job')} {self._action.past}.")
        click.get_current_context().exit(self._exit_code())

    def _exit_code(self) -> Exit:
        if self.not_found:
            return Exit.NOT_FOUND
        achieved = self.matched if self._options.dry_run else self.done
        return Exit.DONE if achieved and not self.refused else Exit.NOT_DONE


def run_action(
    app: Holdfast,
    action: Action,
    act: Callable[..., int],
    ids: Sequence[int],
    filters: Filters,
    options: BulkOptions,
) -> None:
    """Apply the action to the jobs with these ids, or to those that match the filters, and print the report."""
    check_selection(action, ids, filters)
    report = BulkReport(action, options)
    if ids:
        for id in dict.fromkeys(ids):
            _apply_to_id(app, id, act, report, action, options)
    else:
        apply_to_filters(act, lambda wanted: count(app, wanted), filters, report, action, options)
    report.finish()


def check_selection(action: Action, ids: Sequence[int], filters: Filters) -> None:
    if ids and filters:
        raise click.UsageError("pass ids or filters, not both")
    if not ids and not filters:
        raise click.UsageError(f"no jobs to {action.verb}: pass ids, or filters such as --queue mail")


def _apply_to_id(
    app: Holdfast, id: int, act: Callable[..., int], report: BulkReport, action: Action, options: BulkOptions
) -> None:
    try:
        status = app.jobs.get(id).status
        allowed = status in action.states
        done = allowed if options.dry_run else bool(act(id))
    except JobNotFound as error:
        report.miss(id, error)
        return
    if done:
        report.matched += 1
        report.done += not options.dry_run
    elif not allowed:
        report.refuse(id, status, f"it is {status}, and only {_any_of(action.states)} jobs can be {action.past}")
    elif action.verb == "retry":
        report.refuse(
            id, status, "an unfinished job has the same key, or retrying it would create a dependency cycle"
        )
    else:
        report.refuse(id, status, "another process changed it in the meantime")


def apply_to_filters(
    act: Callable[..., int],
    count: Callable[[Filters], Counted],
    filters: Filters,
    report: BulkReport,
    action: Action,
    options: BulkOptions,
) -> None:
    wanted = _limit_to_states(action, filters)
    counted = count(wanted)
    report.matched, report.matched_all = counted.count, counted.is_complete
    if options.dry_run or (counted.is_complete and not counted.count):
        return
    confirm(f"{action.verb.capitalize()} {count_text(counted)}?", options.yes)
    report.done = act(**wanted)


def count(app: Holdfast, filters: Filters, deletable: bool = False) -> Counted:
    """Count the jobs that match. The count stops early in a large database, and is a lower bound then."""
    return app.store.jobs.count(criteria(filters), deletable, MAX_SCANNED)


def count_text(counted: Counted, noun: str = "job") -> str:
    return f"{'' if counted.is_complete else 'at least '}{plural(counted.count, noun)}"


def _limit_to_states(action: Action, filters: Filters) -> Filters:
    """Restrict the filters to the states that allow the action, so that the count is right."""
    wanted = filters.get("status", action.default_states or action.states)
    states = [status for status in wanted if status in action.states]
    if not states:
        raise click.UsageError(f"only {_any_of(action.states)} jobs can be {action.past}")
    return {**filters, "status": states}


def confirm(question: str, yes: bool) -> None:
    """Continue only with `--yes`, or if the operator at the terminal agrees."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError(f"{question} Standard input is not a terminal: pass --yes to confirm")
    if not click.confirm(question, err=True):
        note("Nothing was changed.")
        click.get_current_context().exit(Exit.NOT_DONE)


def print_result(data: dict[str, Any], sentence: str, done: int, as_json: bool) -> None:
    """Print the data or the sentence. If nothing was done, exit with NOT_DONE."""
    if as_json:
        document(data)
    else:
        say(sentence)
    if not done:
        click.get_current_context().exit(Exit.NOT_DONE)


def print_paused(kind: str, name: str, paused: bool, changed: bool, as_json: bool) -> None:
    """Print the result of pausing or resuming a queue or a schedule."""
    unchanged = "was already paused" if paused else "was not paused"
    sentence = f"{name} {'paused' if paused else 'resumed'}." if changed else f"{name} {unchanged}: nothing changed."
    print_result({kind: name, "paused": paused, "changed": changed}, sentence, changed, as_json)


def _any_of(states: Sequence[str]) -> str:
    return f"{', '.join(states[:-1])} or {states[-1]}" if len(states) > 1 else states[0]
