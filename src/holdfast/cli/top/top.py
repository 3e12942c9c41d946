"""`holdfast top`: a live view with keys to retry, cancel and pause."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from time import monotonic
from typing import TYPE_CHECKING, Self

import click

from ...errors import HoldfastError, JobNotFound, StoreError
from ..bulk import count, count_text
from ..main import Exit
from ..options import AuditOptions, DatabaseOption, audit_options, complete_queues, database_options, example
from ..output import Cell, clean, clean_lines, plural, utc_text
from .state import FAILURE_GONE, Item, PendingAction, TopData, TopState, failure_name, read_data
from .view import HELP, draw, page

if TYPE_CHECKING:
    from ...app.jobs import Filters
    from ...store.protocol import Store
    from ...supervisor import Holdfast
    from .terminal import Screen


MIN_REFRESH_SECONDS = 0.25  # between two reads
MAX_REFRESH_SECONDS = 5.0  # without a commit: a worker may have died
REST_FACTOR = 9  # pause 9 times as long as the last read took, to limit the load of a large database
TICK_SECONDS = 1.0  # between two drawings, since ages grow
BUSY_SECONDS = 3.0  # give up when the database is locked for longer
FOREVER_SECONDS = 3600.0
JOIN_SECONDS = 2.0


@click.command(epilog=example("holdfast top --db app.db", "holdfast top --filter mail --db app.db"))
@click.option(
    "--filter", "pattern", default="", metavar="TEXT", shell_complete=complete_queues,
    help="Show only queues and tasks whose name contains this.",
)  # fmt: skip
@audit_options
@database_options
@click.pass_context
def top(ctx: click.Context, database: DatabaseOption, pattern: str, audit: AuditOptions) -> None:
    """Show queues, running jobs, failures and workers live.

    Keys: q quits, ? lists all keys. To retry, cancel or pause, it asks for confirmation. The screen is updated when a
    process commits, at most four times a second. Needs a terminal; otherwise use stats.
    """
    _require_terminal()
    from .terminal import Screen

    with database.open() as app:
        data = read_data(app, pattern)  # before the screen switches, so that an error stays visible
        with Screen() as screen:
            _Top(app, screen, TopState(pattern), audit).run(data)
    if screen.signal == signal.SIGINT:
        raise KeyboardInterrupt
    if screen.signal is not None:
        ctx.exit(Exit.TERMINATED)


def _require_terminal() -> None:
    for stream, name in ((sys.stdout, "standard output"), (sys.stdin, "standard input")):
        if not stream.isatty():
            raise click.UsageError(f"top needs a terminal, but {name} is not a terminal: use holdfast stats")
    if os.environ.get("TERM", "") in ("", "dumb", "unknown"):
        raise click.UsageError("top needs a terminal that can move its cursor, check TERM: use holdfast stats")


class _Top:
    """The main loop: read, draw, wait for a key or a commit."""

    def __init__(self, app: Holdfast, screen: Screen, state: TopState, audit: AuditOptions) -> None:
        self._app, self._screen, self._state, self._audit = app, screen, state, audit
        self._text: list[Cell] = []

    def run(self, data: TopData) -> None:
        state, screen = self._state, self._screen
        state.follow(data)
        earliest = monotonic() + MIN_REFRESH_SECONDS
        latest, shown = earliest + MAX_REFRESH_SECONDS, state.pattern
        with _CommitWatch(self._app.store, screen.wake) as watch:
            while screen.signal is None and not state.quit:
                now = monotonic()
                if state.pattern != shown or now >= latest or (watch.has_commit and now >= earliest):
                    watch.arm()
                    data, shown = read_data(self._app, state.pattern), state.pattern
                    state.follow(data)
                    took = monotonic() - now
                    earliest = monotonic() + max(MIN_REFRESH_SECONDS, REST_FACTOR * took)
                    latest = earliest + MAX_REFRESH_SECONDS
                self._draw(data)
                wait = min(TICK_SECONDS, (earliest if watch.has_commit else latest) - monotonic())
                for key in screen.keys(max(0.0, wait)):
                    self._press(key, data)
                    latest = 0.0 if self._act() else latest

    def _press(self, key: str, data: TopData) -> None:
        if key == "redraw":
            self._screen.redraw()
            return
        before = self._state.detail
        self._state.press(key, data)
        if self._state.detail is not None and self._state.detail != before:
            self._text = self._details(self._state.detail, data)
        action = self._state.question
        if action is not None and action.verb == "retry all":
            jobs = count_text(count(self._app, _filters(action)), "failed job")
            self._state.question = action._replace(question=f"Retry {jobs}{action.question}")

    def _draw(self, data: TopData) -> None:
        state, size, plain = self._state, self._screen.size(), self._screen.is_plain
        if state.mode == "help":
            text = [Cell(line) for line in HELP.split("\n")]
            self._screen.draw(page("Keys", text, state, size))
            return
        if state.mode == "detail":
            self._screen.draw(page("Details", self._text, state, size))
            return
        lines = draw(data, state, self._app.store.location, size, datetime.now(UTC), plain=plain)
        cursor = None
        if state.mode == "filter":
            from rich.cells import cell_len

            cursor = (len(lines) - 1, sum(cell_len(cell.text) for cell in lines[-1]))
        self._screen.draw(lines, cursor)

    # --- actions ---

    def _act(self) -> bool:
        """Run the confirmed action. Return whether there was one."""
        action, self._state.confirmed = self._state.confirmed, None
        if action is None:
            return False
        try:
            with self._app.store.busy_timeout(BUSY_SECONDS):
                self._state.message = self._run(action)
        except HoldfastError as error:
            self._state.message = clean(str(error))
        return True

    def _run(self, action: PendingAction) -> str:
        jobs, audit = self._app.jobs, self._audit
        if action.verb == "retry":
            done = jobs.retry(action.job_id, **audit)
            return (
                f"Job {action.job_id} {'was retried.' if done else 'has changed in the meantime: nothing was done.'}"
            )
        if action.verb == "cancel":
            done = jobs.cancel(action.job_id, **audit)
            return f"Job {action.job_id} {'was cancelled.' if done else 'is already finished: nothing was done.'}"
        if action.verb == "retry all":
            return f"{plural(jobs.retry(**audit, **_filters(action)), 'job')} retried."
        queue = self._app.queue(action.queue)
        if action.verb == "pause":
            return f"{clean(action.queue)} {'paused' if queue.pause(**audit) else 'was already paused'}."
        return f"{clean(action.queue)} {'resumed' if queue.resume(**audit) else 'was not paused'}."

    # --- details ---

    def _details(self, item: Item, data: TopData) -> list[Cell]:
        """Explain the job; for a failure, also show the traceback."""
        if item.kind == "job":
            return self._explain(item.name)
        failure = next((one.info for one in data.failures if failure_name(one) == item.name), None)
        if failure is None:
            return [Cell(FAILURE_GONE)]
        found = [
            Cell(f"{clean(failure.error_code)}, {plural(failure.count, 'time')}", "bold red"),
            Cell(f"first seen {utc_text(failure.first_seen)} UTC, last seen {utc_text(failure.last_seen)} UTC"),
            Cell(""),
            *self._explain(failure.last_job_id),
            Cell(""),
        ]
        stored = self._app.store.jobs.traceback(failure.fingerprint) if failure.fingerprint else None
        text = clean_lines(stored.rstrip()) if stored else "No traceback stored."
        return [*found, *(Cell(line) for line in text.split("\n"))]

    def _explain(self, job_id: int) -> list[Cell]:
        from textwrap import wrap

        width = max(20, self._screen.size()[0] - 2)
        try:
            found = self._app.jobs.explain(job_id)
        except JobNotFound as error:
            return [Cell(line) for line in wrap(clean(str(error)), width)]
        return [Cell(line) for text in (found.reason, found.advice) for line in wrap(clean(text), width)]


def _filters(action: PendingAction) -> Filters:
    filters: Filters = {"status": "failed", "queue": action.queue, "error_code": action.error_code}
    if action.task is not None:
        filters["task"] = action.task
    if action.fingerprint is not None:
        filters["fingerprint"] = action.fingerprint
    return filters


class _CommitWatch:
    """A thread that waits for one commit, and after it until `arm` is called again."""

    def __init__(self, store: Store, wake: Callable[[], None]) -> None:
        self._store, self._wake = store, wake
        self._armed = threading.Event()
        self._closed = False
        self._seen = 0
        self.has_commit = False
        """Whether a process has committed since `arm`."""
        self._thread = threading.Thread(target=self._watch, name="holdfast-top", daemon=True)

    def __enter__(self) -> Self:
        self.arm()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed = True
        self._armed.set()
        self._store.wake_waiters()
        self._thread.join(JOIN_SECONDS)

    def arm(self) -> None:
        """Call this before a read, so that no later commit is missed."""
        self._seen, self.has_commit = self._store.commits_seen(), False
        self._armed.set()

    def _watch(self) -> None:
        while not self._closed:
            self._armed.wait()
            self._armed.clear()
            try:
                self._wait()
            except StoreError:  # the next read raises it again in the main thread
                self.has_commit = True
            if self.has_commit:
                self._wake()

    def _wait(self) -> None:
        """Wait for a commit. wait_for_commit may return without one."""
        while not self._closed and not self._armed.is_set():
            seen = self._seen
            self._store.wait_for_commit(seen, FOREVER_SECONDS)
            if self._store.commits_seen() != seen:
                self.has_commit = not self._armed.is_set()
                return
