"""`holdfast top`: all that happens, as it happens, and keys to do something about it."""

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
from ..bulk import count
from ..errors import Exit
from ..options import AuditOptions, DatabaseOption, complete_queues, example, signed, takes_database
from ..output import Cell, clean, clean_lines, local, plural
from .data import Glance, take_glance
from .state import Board, Deed, Item, failure_name
from .view import HELP, draw, page

if TYPE_CHECKING:
    from ...app.jobs import Filters
    from ...store.protocol import Store
    from ...supervisor import Holdfast
    from .terminal import Screen


LEAST_SECONDS = 0.25  # between looks, however much happens
REST = 9  # times as long as a look took, it rests: a large database does not wear down a processor
MOST_SECONDS = 5.0  # a look, even if nothing seems to happen: a worker may have died
TICK_SECONDS = 1.0  # ages grow
BUSY_SECONDS = 3.0  # others write: give up, rather than freeze
FOREVER_SECONDS = 3600.0
FAREWELL_SECONDS = 2.0


@click.command(epilog=example("holdfast top --db app.db", "holdfast top --filter mail --db app.db"))
@click.option(
    "--filter", "wanted", default="", metavar="TEXT", shell_complete=complete_queues,
    help="Only what has this in the name of its queue or task.",
)  # fmt: skip
@signed
@takes_database
@click.pass_context
def top(ctx: click.Context, database: DatabaseOption, wanted: str, signature: AuditOptions) -> None:
    """Watch it live: throughput, queues, running jobs, failures, workers.

    Keys: q quits, ? tells all others. To retry, cancel or pause asks first.
    """
    _require_terminal()
    from .terminal import Screen

    with database.open() as app:
        first = take_glance(app, wanted)  # what cannot be read is told before the screen is taken
        with Screen() as screen:
            _Top(app, screen, Board(wanted), signature).run(first)
    if screen.ended == signal.SIGINT:
        raise KeyboardInterrupt
    if screen.ended is not None:
        ctx.exit(Exit.TERMINATED)


def _require_terminal() -> None:
    for stream, name in ((sys.stdout, "standard output"), (sys.stdin, "standard input")):
        if not stream.isatty():
            raise click.UsageError(f"top needs a terminal, and {name} is none: use holdfast stats")
    if os.environ.get("TERM", "") in ("", "dumb", "unknown"):
        raise click.UsageError("top needs a terminal that can move its cursor, and TERM says no: use holdfast stats")


class _Top:
    """Looks, draws, and waits for a key or a commit; and again."""

    def __init__(self, app: Holdfast, screen: Screen, board: Board, signature: AuditOptions) -> None:
        self._app, self._screen, self._board, self._signature = app, screen, board, signature
        self._text: list[Cell] = []

    def run(self, glance: Glance) -> None:
        board, screen = self._board, self._screen
        board.follow(glance)
        earliest = monotonic() + LEAST_SECONDS
        latest, shown = earliest + MOST_SECONDS, board.wanted
        with _Lookout(self._app.store, screen.wake) as lookout:
            while screen.ended is None and not board.quit:
                now = monotonic()
                if board.wanted != shown or now >= latest or (lookout.news and now >= earliest):
                    lookout.arm()
                    glance, shown = take_glance(self._app, board.wanted), board.wanted
                    board.follow(glance)
                    took = monotonic() - now
                    earliest = monotonic() + max(LEAST_SECONDS, REST * took)
                    latest = earliest + MOST_SECONDS
                self._draw(glance)
                wait = min(TICK_SECONDS, (earliest if lookout.news else latest) - monotonic())
                for key in screen.keys(max(0.0, wait)):
                    self._press(key, glance)
                    latest = 0.0 if self._act() else latest

    def _press(self, key: str, glance: Glance) -> None:
        if key == "redraw":
            self._screen.redraw()
            return
        before = self._board.detail
        self._board.press(key, glance)
        if self._board.detail is not None and self._board.detail != before:
            self._text = self._read(self._board.detail, glance)
        asked = self._board.question
        if asked is not None and asked.verb == "retry all":
            found = count(self._app, _failed_so(asked))
            some = f"{'' if found.is_complete else 'at least '}{plural(found.count, 'failed job')}"
            self._board.question = asked._replace(question=f"Retry {some}{asked.question}")

    def _draw(self, glance: Glance) -> None:
        board, size, plain = self._board, self._screen.size(), self._screen.is_plain
        if board.mode == "help":
            text = [Cell(line) for line in HELP.split("\n")]
            self._screen.draw(page("Keys", text, board, size))
            return
        if board.mode == "detail":
            self._screen.draw(page("More", self._text, board, size))
            return
        lines = draw(glance, board, self._app.store.location, size, datetime.now(UTC), plain=plain)
        cursor = None
        if board.mode == "filter":
            from rich.cells import cell_len

            cursor = (len(lines) - 1, sum(cell_len(cell.text) for cell in lines[-1]))
        self._screen.draw(lines, cursor)

    # --- doing something ---

    def _act(self) -> bool:
        """What was agreed to. Whether anything was."""
        deed, self._board.agreed = self._board.agreed, None
        if deed is None:
            return False
        try:
            with self._app.store.busy_timeout(BUSY_SECONDS):
                self._board.message = self._do(deed)
        except HoldfastError as error:
            self._board.message = clean(str(error))
        return True

    def _do(self, deed: Deed) -> str:
        jobs, signature = self._app.jobs, self._signature
        if deed.verb == "retry":
            done = jobs.retry(deed.job_id, **signature)
            return f"Job {deed.job_id} {'is retried.' if done else 'has changed meanwhile: nothing was done.'}"
        if deed.verb == "cancel":
            done = jobs.cancel(deed.job_id, **signature)
            return f"Job {deed.job_id} {'is cancelled.' if done else 'had ended already: nothing was done.'}"
        if deed.verb == "retry all":
            return f"{plural(jobs.retry(**signature, **_failed_so(deed)), 'job')} retried."
        queue = self._app.queue(deed.queue)
        if deed.verb == "pause":
            return f"{clean(deed.queue)} {'is' if queue.pause(**signature) else 'was'} paused."
        return f"{clean(deed.queue)} {'is resumed' if queue.resume(**signature) else 'was not paused'}."

    # --- reading more ---

    def _read(self, item: Item, glance: Glance) -> list[Cell]:
        """Why the job is where it is; of a failure, its traceback too."""
        if item.kind == "job":
            return self._explained(item.name)
        failure = next((one.info for one in glance.failures if failure_name(one) == item.name), None)
        if failure is None:
            return [Cell("That failure is gone.")]
        found = [
            Cell(f"{clean(failure.error_code)}, {plural(failure.count, 'time')}", "bold red"),
            Cell(f"first seen {local(failure.first_seen)} UTC, last seen {local(failure.last_seen)} UTC"),
            Cell(""),
            *self._explained(failure.last_job_id),
            Cell(""),
        ]
        kept = self._app.store.jobs.traceback(failure.fingerprint) if failure.fingerprint else None
        text = clean_lines(kept.rstrip()) if kept else "No traceback is kept."
        return [*found, *(Cell(line) for line in text.split("\n"))]

    def _explained(self, job_id: int) -> list[Cell]:
        from textwrap import wrap

        width = max(20, self._screen.size()[0] - 2)
        try:
            found = self._app.jobs.explain(job_id)
        except JobNotFound as error:
            return [Cell(line) for line in wrap(clean(str(error)), width)]
        return [Cell(line) for text in (found.reason, found.advice) for line in wrap(clean(text), width)]


def _failed_so(deed: Deed) -> Filters:
    filters: Filters = {"status": "failed", "queue": deed.queue, "error_code": deed.error_code}
    if deed.task is not None:
        filters["task"] = deed.task
    return filters


class _Lookout:
    """A thread that waits for commits, one at a time: after each it rests until it is armed again."""

    def __init__(self, store: Store, wake: Callable[[], None]) -> None:
        self._store, self._wake = store, wake
        self._armed = threading.Event()
        self._closed = False
        self._seen = 0
        self.news = False
        """Whether anyone has committed since it was armed."""
        self._thread = threading.Thread(target=self._watch, name="holdfast-top", daemon=True)

    def __enter__(self) -> Self:
        self.arm()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed = True
        self._armed.set()
        self._store.wake_waiters()
        self._thread.join(FAREWELL_SECONDS)

    def arm(self) -> None:
        """Before a look, so that nothing is missed that is committed after it."""
        self._seen, self.news = self._store.commits_seen(), False
        self._armed.set()

    def _watch(self) -> None:
        while not self._closed:
            self._armed.wait()
            self._armed.clear()
            try:
                self._wait()
            except StoreError:  # the next look meets it, and tells
                self.news = True
            if self.news:
                self._wake()

    def _wait(self) -> None:
        """It returns at times for nothing."""
        while not self._closed and not self._armed.is_set():
            seen = self._seen
            self._store.wait_for_commit(seen, FOREVER_SECONDS)
            if self._store.commits_seen() != seen:
                self.news = not self._armed.is_set()
                return
