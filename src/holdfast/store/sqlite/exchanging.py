"""What a worker does with the database: settle what has ended and claim what comes next, in one transaction."""

import sqlite3
from collections import Counter
from collections.abc import Sequence
from typing import Any

from ...model import Claimed, Exchanged, Lease, Report, Settlement, Wanted
from ...rollup import Sample
from .claiming import Claiming
from .criteria import as_json
from .places import Look, Places, Share
from .settling import Settling, as_row

# Above this a result is settled by a statement of its own: SQLite would parse it several times.
LARGE_RESULT_CHARACTERS = 4096


class Exchanging(Claiming, Settling):
    _places: Places

    def claim_tasks(
        self, queues: Sequence[str] | None, tasks: Sequence[str], limit: int, lease: int, worker: str
    ) -> list[Claimed]:
        each = None if queues is None else [(queue, limit) for queue in queues]
        return self.exchange((), [Wanted(tasks, limit, lease, worker, each)]).claimed

    def exchange(
        self, settlements: Sequence[Settlement], wants: Sequence[Wanted], samples: Sequence[Sample | None] = ()
    ) -> Exchanged:
        shares = self._look_and_sweep(wants) if wants else []
        if not shares and not settlements:  # nothing to write, so the write lock is not taken
            return Exchanged([], [])

        at_once, unresolved = not samples and _is_one_statement(settlements, shares), False

        def work(connection: sqlite3.Connection) -> Exchanged:
            nonlocal unresolved
            lost, otherwise = self._settle_all(connection, settlements) if settlements else ([], [])
            if samples:
                self._count(connection, settlements, samples, lost, otherwise)
            unresolved = bool(settlements) and self._has_endings(connection)
            if unresolved and not at_once:
                self.resolve_here(connection)
            claimed: list[Claimed] = []
            for wanted, some in shares:
                claimed += self._claim(connection, wanted, some, Counter(one.queue for one in claimed))
            return Exchanged(lost, claimed, otherwise)

        exchanged = self._run(work, atomic=at_once, wakes=len(settlements) > 0)
        if unresolved and at_once:
            self.resolve()
        return exchanged

    def _count(
        self,
        connection: sqlite3.Connection,
        settlements: Sequence[Settlement],
        samples: Sequence[Sample | None],
        lost: list[Settlement],
        otherwise: list[tuple[Settlement, Settlement]],
    ) -> None:
        """Those that were settled, in the minute in which they ended."""
        counted = [sample for sample in samples if sample is not None]
        if lost or otherwise:
            gone, instead = set(map(id, lost)), {id(asked): actual for asked, actual in otherwise}
            counted = [
                self.sample_of_actual(connection, sample, one, instead.get(id(one), one))
                for one, sample in zip(settlements, samples, strict=True)
                if sample is not None and id(one) not in gone
            ]
        if counted:
            self.add_to_minutes(connection, counted)

    def claim_one(self, job_id: int, lease: int, worker: str) -> Claimed | None:
        def work(connection: sqlite3.Connection) -> list[Claimed]:
            times = {"lease": self._clock.boot_now() + lease, "now": self._clock.now()}
            values = {"id": job_id, "worker": worker} | times
            return _in_order(connection.execute(self._sql.claim_one, values).fetchall())

        return next(iter(self._run(work, atomic=True)), None)

    def report(self, reports: Sequence[Report], lease: int) -> set[int]:
        rows = as_json([(one.lease.id, one.lease.attempt, *_details(one)) for one in reports])

        def work(connection: sqlite3.Connection) -> set[int]:
            values = (rows, self._clock.boot_now() + lease, self._clock.now())
            held = {row[0] for row in connection.execute(self._sql.report, values).fetchall()}
            connection.execute(self._sql.report_starts, (rows,))
            return held

        return self._run(work)

    def held(self, leases: Sequence[Lease]) -> set[int]:
        rows = as_json([(lease.id, lease.attempt) for lease in leases])
        found = self._read(lambda connection: connection.execute(self._sql.held, (rows,)).fetchall())
        return {row[0] for row in found}

    def _look_and_sweep(self, wants: Sequence[Wanted]) -> list[tuple[Wanted, list[Share]]]:
        """What there is to claim from where, after whatever the clock has brought was moved."""

        def look(connection: sqlite3.Connection) -> list[Look]:
            times = {"now": self._clock.now(), "boot_now": self._clock.boot_now()}
            return [self._places.find(connection, wanted, times) for wanted in wants]

        looks = self._run(look, atomic=True)
        if looks and (looks[0].due or looks[0].ended):
            self._sweep_before_claim(looks[0].due, looks[0].ended)
            looks = self._run(look, atomic=True)
        return [(wanted, look.shares) for wanted, look in zip(wants, looks, strict=True) if look.shares]

    def _claim(
        self, connection: sqlite3.Connection, wanted: Wanted, shares: list[Share], already: Counter[str]
    ) -> list[Claimed]:
        """already: what others than this one have claimed of each queue in the same transaction."""
        claimed: list[Claimed] = []
        for share in shares:
            taken = already[share.pairs[0][0]] if wanted.queues is not None else 0
            left = min(share.limit - taken, wanted.limit - len(claimed))
            if left > 0:
                values = {
                    "pairs": as_json(share.pairs),
                    "limit": left,
                    "each": min(share.each, left),
                    "worker": wanted.worker,
                    "lease": self._clock.boot_now() + wanted.lease,
                    "now": self._clock.now(),
                }
                claimed += _in_order(connection.execute(self._sql.claim_tasks, values).fetchall())
        return claimed

    def _settle_all(
        self, connection: sqlite3.Connection, settlements: Sequence[Settlement]
    ) -> tuple[list[Settlement], list[tuple[Settlement, Settlement]]]:
        """Returns those whose lease was lost, and those that were settled otherwise than was asked for."""
        together, onward, alone = list[Settlement](), list[Settlement](), list[Settlement]()
        for one in settlements:
            (together if _is_plain_success(one) else onward if _is_plain_continuation(one) else alone).append(one)
        lost = self.continue_all(connection, onward) if onward else []
        if together:
            data = as_json(list(map(as_row, together)))
            if connection.execute(self._sql.succeed_many, (data,)).rowcount != len(together):
                left = {row[0] for row in connection.execute(self._sql.unsettled, (data,)).fetchall()}
                alone += [one for one in together if one.lease.id in left]
        actual = [(one, self.settle_here(connection, one)) for one in alone]
        lost += [one for one, instead in actual if instead is None]
        return lost, [(one, instead) for one, instead in actual if instead is not None and instead is not one]


def _is_one_statement(settlements: Sequence[Settlement], shares: list[tuple[Wanted, list[Share]]]) -> bool:
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


def _details(one: Report) -> tuple[int, float | None, str | None]:
    return one.started_at, one.progress, one.progress_text


def _in_order(rows: list[Any]) -> list[Claimed]:
    """RETURNING gives rows in any order: by priority, then by id."""
    rows.sort(key=lambda row: (-row[-1], row[0]))
    return [Claimed(*row[:-1]) for row in rows]
