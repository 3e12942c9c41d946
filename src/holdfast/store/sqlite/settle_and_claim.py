"""What a worker does with the database: settle what has ended and claim what comes next, in one transaction."""

import sqlite3
from collections import Counter
from collections.abc import Sequence
from functools import cache
from itertools import chain
from typing import Any

from ...model.job import Claimed, ClaimRequest, LeaseRenewal, SettledAndClaimed, Settlement
from ..statements import as_json
from .claim import Claim, Places, ReadyPairs, Share, needed
from .database import Database
from .settle import Settle, as_row
from .workflow import Workflows

LARGE_RESULT_CHARACTERS = 4096  # above this a result is settled by a statement of its own
MOST_ROWS = 400  # settled by one statement
ROWS_STEP = 20
NO_ROW = (None,) * 5


class SettleAndClaim:
    def __init__(self, db: Database, claim: Claim, settle: Settle, workflows: Workflows) -> None:
        self._db, self._sql, self._clock, self._workflows = db, db.sql, db.clock, workflows
        self._claim_part, self._settle_part, self._places = claim, settle, Places(db.sql)

    def settle_and_claim(self, settlements: Sequence[Settlement], wants: Sequence[ClaimRequest]) -> SettledAndClaimed:
        if wants and wants[0].job_id is not None:
            return SettledAndClaimed([], self._claim_by_id(wants[0]))
        shares = self._look_and_sweep(wants) if wants else []
        if not shares and not settlements:  # nothing to write, so the write lock is not taken
            return SettledAndClaimed([], [])

        at_once, unresolved = _is_one_statement(settlements, shares), False

        def work(connection: sqlite3.Connection) -> SettledAndClaimed:
            nonlocal unresolved
            lost, otherwise = self._settle_all(connection, settlements) if settlements else ([], [])
            unresolved = bool(settlements) and self._workflows.has_endings(connection)
            if unresolved and not at_once:
                self._workflows.resolve_here(connection)
            claimed: list[Claimed] = []
            for wanted, some in shares:
                claimed += self._claim(connection, wanted, some, Counter(one.queue for one in claimed))
            return SettledAndClaimed(lost, claimed, otherwise)

        exchanged = self._db.run(work, atomic=at_once, wakes=len(settlements) > 0)
        if unresolved and at_once:
            self._workflows.resolve()
        return exchanged

    def _claim_by_id(self, wanted: ClaimRequest) -> list[Claimed]:
        """This job of a task, if it is ready and its queue not paused."""

        def work(connection: sqlite3.Connection) -> list[Claimed]:
            times = {"lease": self._clock.boot_now() + wanted.lease, "now": self._clock.now()}
            given = {"id": wanted.job_id, "worker": wanted.worker} | times
            return _in_order(connection.execute(self._sql.claim_one, given).fetchall())

        return self._db.run(work, atomic=True)

    def renew(self, reports: Sequence[LeaseRenewal], lease: int | None, conn: Any = None) -> set[int]:
        """Store when attempts began and how far they are, with a new lease. Returns the ids of those still held."""
        rows = as_json(
            [
                (one.lease.id, one.lease.attempt, one.lease.queue, one.started_at, one.progress, one.progress_text)
                for one in reports
            ]
        )

        def look(connection: sqlite3.Connection) -> set[int]:
            return {row[0] for row in connection.execute(self._sql.held, (rows,)).fetchall()}

        def renew(connection: sqlite3.Connection) -> set[int]:
            given = (rows, self._clock.boot_now() + (lease or 0), self._clock.now())
            return {row[0] for row in connection.execute(self._sql.renew, given).fetchall()}

        if lease is not None:
            return self._db.run(renew, atomic=True)
        return self._db.read(look) if conn is None else self._db.take_part(conn, look)

    def _look_and_sweep(self, wants: Sequence[ClaimRequest]) -> list[tuple[ClaimRequest, list[Share]]]:
        """What there is to claim from where, after whatever the clock has brought was moved."""

        def look(connection: sqlite3.Connection) -> list[ReadyPairs]:
            times = {"now": self._clock.now(), "boot_now": self._clock.boot_now()}
            return [self._places.find(connection, wanted, times) for wanted in wants]

        looks = self._db.run(look, atomic=True)
        if looks and (looks[0].due or looks[0].ended):
            self._claim_part.sweep(needed(looks[0].due, looks[0].ended))
            looks = self._db.run(look, atomic=True)
        return [(wanted, look.shares) for wanted, look in zip(wants, looks, strict=True) if look.shares]

    def _claim(
        self, connection: sqlite3.Connection, wanted: ClaimRequest, shares: list[Share], already: Counter[str]
    ) -> list[Claimed]:
        """already: what others than this one have claimed of each queue in the same transaction."""
        claimed: list[Claimed] = []
        for share in shares:
            taken = already[share.pairs[0][0]] if wanted.queues is not None else 0
            left = min(share.limit - taken, wanted.limit - len(claimed))
            if left > 0:
                values: dict[str, Any] = {
                    "limit": left,
                    "worker": wanted.worker,
                    "lease": self._clock.boot_now() + wanted.lease,
                    "now": self._clock.now(),
                }
                if len(share.pairs) == 1:
                    statement, (values["queue"], values["task"]) = self._sql.claim_task, share.pairs[0]
                else:
                    statement = self._sql.claim_tasks
                    values |= {"pairs": as_json(share.pairs), "each": min(share.each, left)}
                claimed += _in_order(connection.execute(statement, values).fetchall())
        return claimed

    def _settle_all(
        self, connection: sqlite3.Connection, settlements: Sequence[Settlement]
    ) -> tuple[list[Settlement], list[tuple[Settlement, Settlement]]]:
        """Returns those whose lease was lost, and those that were settled otherwise than was asked for."""
        together, onward, alone = list[Settlement](), list[Settlement](), list[Settlement]()
        for one in settlements:
            (together if _is_plain_success(one) else onward if _is_plain_continuation(one) else alone).append(one)
        lost = self._settle_part.continue_all(connection, onward) if onward else []
        if together and self._succeed_all(connection, together) != len(together):
            rows = as_json([(one.lease.id, one.lease.attempt) for one in together])
            left = {row[0] for row in connection.execute(self._sql.unsettled, (rows,)).fetchall()}
            alone += [one for one in together if one.lease.id in left]
        actual = [(one, self._settle_part.settle_here(connection, one)) for one in alone]
        lost += [one for one, instead in actual if instead is None]
        return lost, [(one, instead) for one, instead in actual if instead is not None and instead is not one]

    def _succeed_all(self, connection: sqlite3.Connection, some: Sequence[Settlement]) -> int:
        """Settle plain successes by one statement for many. Returns how many of the leases were held."""
        settled = 0
        for begin in range(0, len(some), MOST_ROWS):
            rows: list[tuple[Any, ...]] = [as_row(one) for one in some[begin : begin + MOST_ROWS]]
            # The number of rows is rounded up, so that few statements are prepared. The rest matches no job.
            rows += [NO_ROW] * (-len(rows) % (1 if len(rows) < ROWS_STEP else ROWS_STEP))
            statement = _with_rows(self._sql.succeed_many, len(rows))
            settled += connection.execute(statement, list(chain.from_iterable(rows))).rowcount
        return settled


@cache
def _with_rows(statement: str, count: int) -> str:
    return statement.replace("(VALUES (?, ?, ?, ?, ?))", f"(VALUES {', '.join(['(?, ?, ?, ?, ?)'] * count)})")


def _is_one_statement(settlements: Sequence[Settlement], shares: list[tuple[ClaimRequest, list[Share]]]) -> bool:
    """A worker with little to do claims one job, and later settles it: neither needs a BEGIN and a COMMIT."""
    if settlements:
        return not shares and all(map(_is_plain_success, settlements))
    return len(shares) == 1 and len(shares[0][1]) == 1


def _is_plain_success(one: Settlement) -> bool:
    if one.transition != "succeed" or one.then is not None or not one.lease.history:
        return False
    return one.result_blob is None and (one.result is None or len(one.result) <= LARGE_RESULT_CHARACTERS)


def _is_plain_continuation(one: Settlement) -> bool:
    then = one.then
    if then is None or then.links is not None or then.args_blob is not None:
        return False
    return len(then.args) <= LARGE_RESULT_CHARACTERS


def _in_order(rows: list[Any]) -> list[Claimed]:
    """RETURNING gives rows in any order: sort by priority, which comes negated and first, then by id."""
    rows.sort()
    return [Claimed(*row[1:]) for row in rows]
