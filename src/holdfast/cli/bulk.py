"""Actions on many jobs: by ids or by filters, with a dry run, a confirmation and a report."""

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import click

from ..app.jobs import Filters, criteria
from ..errors import JobNotFound
from ..model.job import Counted
from ..supervisor import Holdfast
from .main import Exit
from .output import document, note, plural, say

if TYPE_CHECKING:
    from ..model.job import BulkAction

MAX_SCANNED = 20_000  # jobs that a count looks at: one step, which takes less than a tenth of a second
CHANGED = "another process changed it in the meantime"


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
    background: bool = False


class BulkRun:
    """Applies an action to jobs, collects the results, prints them, and decides the exit code."""

    def __init__(self, app: Holdfast, action: Action, options: BulkOptions) -> None:
        self._app, self._action, self._options = app, action, options
        self.matched = self.done = 0
        self.matched_all = True
        """Whether `matched` is exact. False: the count stopped early, and it is a lower bound."""
        self.refused: list[dict[str, Any]] = []
        self.not_found: list[int] = []

    def run(self, act: Callable[..., int], ids: Sequence[int], filters: Filters, how: Mapping[str, Any]) -> None:
        """Apply the action to the jobs with these ids, or to those that match the filters, and print the result.

        how: the options of the action, for one in the background.
        """
        check_selection(self._action, ids, filters)
        self.check_background(ids)
        for id in dict.fromkeys(ids):
            self._apply_to_id(act, id)
        if not ids:
            self.apply_to_filters(act, filters, lambda wanted: count(self._app, wanted), how)
        self.finish()

    def _apply_to_id(self, act: Callable[..., int], id: int) -> None:
        action, dry_run = self._action, self._options.dry_run
        try:
            status = self._app.jobs.get(id).status
            allowed = status in action.states
            done = allowed if dry_run else bool(act(id))
        except JobNotFound as error:
            self.miss(id, error)
            return
        if done:
            self.add(1)
        elif not allowed:
            self.refuse(id, status, f"it is {status}, and only {_any_of(action.states)} jobs can be {action.past}")
        elif action.verb == "retry":
            self.refuse(id, status, "an unfinished job has its key, or a retry would create a dependency cycle")
        else:
            self.refuse(id, status, CHANGED)

    def check_background(self, ids: Sequence[int]) -> None:
        if ids and self._options.background:
            raise click.UsageError("--background requires filters: ids are changed at once")

    def apply_to_filters(
        self,
        act: Callable[..., int],
        filters: Filters,
        count: Callable[[Filters], Counted],
        how: Mapping[str, Any],
    ) -> None:
        wanted = self._limit_to_states(filters)
        counted = count(wanted)
        self.matched, self.matched_all = counted.count, counted.is_complete
        if self._options.dry_run or (counted.is_complete and not counted.count):
            return
        confirm(f"{self._action.verb.capitalize()} {count_text(counted)}?", self._options.yes)
        if self._options.background:
            self._start(wanted, how)
        else:
            self.done = act(**wanted)

    def _start(self, wanted: Filters, how: Mapping[str, Any]) -> None:
        action = cast("BulkAction", self._action.verb.replace(" ", "_"))
        started = self._app.operations.start(action, **{**wanted, **how})
        if self._options.as_json:
            document({"action": action.replace("_", "-"), "operation": started.id, "matched": self.matched})
        else:
            say(f"Operation {started.id} started: holdfast operation show {started.id}")
        click.get_current_context().exit(Exit.DONE)

    def _limit_to_states(self, filters: Filters) -> Filters:
        """Restrict the filters to the states that allow the action, so that the count is right."""
        action = self._action
        wanted = filters.get("status", action.default_states or action.states)
        states = [status for status in wanted if status in action.states]
        if not states:
            raise click.UsageError(f"only {_any_of(action.states)} jobs can be {action.past}")
        return {**filters, "status": states}

    def add(self, jobs: int) -> None:
        self.matched += jobs
        self.done += 0 if self._options.dry_run else jobs

    def refuse(self, id: int, status: str, why: str, **detail: Any) -> None:
        self.refused.append({"id": id, "status": status, **detail})
        note(f"job {id} is unchanged: {why}")

    def miss(self, id: int, error: JobNotFound) -> None:
        self.not_found.append(id)
        note(str(error))

    def finish(self) -> None:
        """Print the result and exit."""
        if self._options.as_json:
            names = ("matched", "matched_all", "done", "refused", "not_found")
            head = {"action": self._action.verb.replace(" ", "-"), "dry_run": self._options.dry_run}
            document(head | {name: getattr(self, name) for name in names})
        elif self._options.dry_run:
            count = count_text(Counted(self.matched, self.matched_all))
            say(f"{count[0].upper()}{count[1:]} would be {self._action.past}.")
        else:
            say(f"{plural(self.done, 'job')} {self._action.past}.")
        achieved = self.matched if self._options.dry_run else self.done
        code = Exit.DONE if achieved and not self.refused else Exit.NOT_DONE
        click.get_current_context().exit(Exit.NOT_FOUND if self.not_found else code)


def check_selection(action: Action, ids: Sequence[int], filters: Filters) -> None:
    if ids and filters:
        raise click.UsageError("pass ids or filters, not both")
    if not ids and not filters:
        raise click.UsageError(f"no jobs to {action.verb}: pass ids, or filters such as --queue mail")


def count(app: Holdfast, filters: Filters, deletable: bool = False) -> Counted:
    """Count the jobs that match. The count stops early in a large database, and is a lower bound then."""
    return app.store.jobs.count(criteria(filters), deletable, MAX_SCANNED)


def count_text(counted: Counted, noun: str = "job") -> str:
    return f"{'' if counted.is_complete else 'at least '}{plural(counted.count, noun)}"


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
