"""Run a transaction again that was not stored, and find out whether a commit took place whose reply was lost.

The server remembers the outcome of each transaction by its id. But an id is given out again if the server lost it: a
crash forgets what was not flushed, a failover what was not replicated. So "committed" counts only in the incarnation
of the server in which the transaction began, or if the transaction has left an event of an enqueue.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import psycopg

from ...errors import OutcomeUnknown, StoreError
from .connection import incarnation_of
from .dialect import Driver, Handle

if TYPE_CHECKING:
    from ..statements import Statements

T = TypeVar("T")
MAX_TRIES = 10  # of a transaction that others are in the way of
MAX_PAUSE_SECONDS = 0.25
PAUSE_SECONDS = 0.05  # while the old session still works on it
EVENT_BITS = 20  # of the number of an event in its transaction, in the id of the event


class Again(Exception):
    """Nothing of the transaction was stored, and it can run once more.

    error: what to raise if it does not. is_outage: the server was away, which can take longer than a conflict.
    """

    def __init__(self, error: StoreError, is_outage: bool) -> None:
        super().__init__(str(error))
        self.error, self.is_outage = error, is_outage


def run_again(run: Callable[[], T], seconds: float) -> T:
    """Run until it does not raise Again: for so many seconds, or ten times if only others are in the way."""
    deadline, conflicts, pause = time.monotonic() + seconds, 0, 0.002
    while True:
        try:
            return run()
        except Again as again:
            conflicts += not again.is_outage
            if conflicts >= MAX_TRIES or (again.is_outage and time.monotonic() + pause >= deadline):
                raise again.error from again.error.__cause__
        time.sleep(pause * (0.5 + os.urandom(1)[0] / 256))
        pause = min(pause * 2, MAX_PAUSE_SECONDS if conflicts == 0 else 1.0)


class Commit(NamedTuple):
    """A commit that was sent."""

    transaction: str
    """Its id."""
    incarnation: int | None
    """Of the server, when the connection was opened."""
    sent_at: int
    """By the clock of the server."""
    actor: str
    """Of the events that the transaction wrote: this process."""


class Sent(NamedTuple):
    """An enqueue by a single statement, of which no answer came."""

    pid: int
    begun: int
    """When its session began."""
    event_bound: int
    """The first id that its event can have."""
    at: int
    """The time of its event, which no other event of this process has."""
    actor: str
    """Of its event: this process."""


class CommitOutcomes:
    def __init__(
        self,
        sql: Statements,
        ask: Callable[[Callable[[Driver], Any]], Any],
        shown: str,
    ) -> None:
        """ask: runs a function with a connection. shown: the database, for messages."""
        self._sql, self._ask, self._shown = sql, ask, shown

    def find_enqueued(self, sent: Sent, seconds: float) -> int | None:
        """Return the id of the job if it was stored: its event tells it, also after a crash or a failover.

        Raises OutcomeUnknown if the server does not answer, or its session is still at work, after so many seconds.
        """
        deadline = time.monotonic() + seconds
        while True:
            try:
                is_over, id = self._ask(lambda driver: self._find(driver, sent))
            except StoreError as error:
                if time.monotonic() >= deadline:
                    raise self._unknown("it cannot be asked") from error
            else:
                if is_over:
                    return None if id is None else int(id)
                if time.monotonic() >= deadline:
                    raise self._unknown("the session is still at work")
            time.sleep(PAUSE_SECONDS)

    def _find(self, driver: Driver, sent: Sent) -> tuple[bool, int | None]:
        """Return whether the session is gone, and which job it has stored."""
        handle = Handle(driver)
        if handle.execute(self._sql.end_session, {"pid": sent.pid, "begun": sent.begun}).fetchone() is not None:
            return False, None
        found = {"bound": sent.event_bound, "at": sent.at, "actor": sent.actor}
        row = handle.execute(self._sql.find_enqueued, found).fetchone()
        if row is None:
            return True, None
        self._wait_for_standby(handle)
        return True, row[0]

    def _wait_for_standby(self, handle: Handle) -> None:
        """Commit something, which returns when a synchronous standby has it, and so has all that is before it.

        A session that is ended while it waits for the standby leaves a commit that others see, and a failover loses.
        """
        handle.execute(self._sql.confirm)

    def took_place(self, commit: Commit, seconds: float) -> bool:
        """Return whether the commit took place. Raises OutcomeUnknown if that is not known after so many seconds."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                status, is_ours = self._ask(lambda driver: self._look(driver, commit))
            except StoreError as error:
                if time.monotonic() >= deadline:
                    raise self._unknown("it cannot be asked") from error
            else:
                if status == "aborted":
                    return False
                if status == "committed" and is_ours:
                    return True
                if status != "in progress":
                    raise self._unknown("it has crashed or was replaced since then")
                if time.monotonic() >= deadline:
                    raise self._unknown("the commit is still going on")
            time.sleep(PAUSE_SECONDS)

    def _look(self, driver: Driver, commit: Commit) -> tuple[str | None, bool]:
        """Return the status of the transaction with this id, and whether it is the one that is meant."""
        handle = Handle(driver)
        try:
            (status,) = handle.execute(self._sql.transaction_status, {"transaction": commit.transaction}).fetchone()
        except psycopg.errors.InvalidParameterValue:  # an id that this server has not given out yet
            return "aborted", True
        if status != "committed":
            return status, True
        self._wait_for_standby(handle)
        if incarnation_of(driver) == commit.incarnation:
            return status, True
        first = int(commit.transaction) << EVENT_BITS
        values = {"first": first, "end": first + (1 << EVENT_BITS), "until": commit.sent_at, "actor": commit.actor}
        (is_ours,) = handle.execute(self._sql.wrote_event, values).fetchone()
        return status, bool(is_ours)

    def _unknown(self, why: str) -> OutcomeUnknown:
        return OutcomeUnknown(
            f"the connection to {self._shown} was lost during a commit, and the server does not tell its outcome "
            f"({why}): do it again with the same key"
        )
