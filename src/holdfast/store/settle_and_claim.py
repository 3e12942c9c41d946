"""Settle finished attempts and claim the next jobs of a worker in one transaction."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from ..model.job import Claimed, ClaimRequest, LeaseRenewal, SettledAndClaimed, Settlement
from .claim import SWEPT_BEFORE_CLAIM, Claim, ClaimGroup, ClaimPlan, ReadyPairScanner, required_sweep
from .database import Connection, SharedDatabase
from .settle import Settle, as_row
from .statements import as_json
from .workflow import Workflows

LARGE_RESULT_CHARACTERS = 4096  # a larger result is settled by a statement of its own
MAX_ROWS = 400  # settled by one statement
READABLE_SCAN = 2000  # ready jobs of a queue and task among which a worker looks for those it can read


class SettleAndClaim:
    def __init__(self, db: SharedDatabase, claim: Claim, settle: Settle, workflows: Workflows) -> None:
        self._db, self._sql, self._clock, self._workflows = db, db.sql, db.clock, workflows
        self._claims, self._settlements, self._scanner = claim, settle, ReadyPairScanner(db.sql)

    def settle_and_claim(
        self, settlements: Sequence[Settlement], requests: Sequence[ClaimRequest]
    ) -> SettledAndClaimed:
        if requests and requests[0].job_id is not None:
            return SettledAndClaimed([], self._claim_by_id(requests[0]))
        plans = self._sweep_and_plan(requests) if requests else []
        if not plans and not settlements:  # do not take the write lock for nothing
            return SettledAndClaimed([], [])

        is_atomic, unresolved = _is_one_statement(settlements, plans), False

        def work(connection: Connection) -> SettledAndClaimed:
            nonlocal unresolved
            lost, changed = self._settle_all(connection, settlements) if settlements else ([], [])
            unresolved = bool(settlements) and self._workflows.has_endings(connection)
            if unresolved and not is_atomic:
                self._workflows.resolve_here(connection)
            claimed: list[Claimed] = []
            for request, groups in plans:
                claimed += self._claim(connection, request, groups, Counter(job.queue for job in claimed))
            return SettledAndClaimed(lost, claimed, changed)

        result = self._db.run(work, atomic=is_atomic, wakes=len(settlements) > 0)
        if unresolved and is_atomic:
            self._workflows.resolve()
        return result

    def _claim_by_id(self, request: ClaimRequest) -> list[Claimed]:
        """Claim one job of a task if it is ready and its queue is not paused."""

        def work(connection: Connection) -> list[Claimed]:
            times = {"lease": self._clock.boot_now() + request.lease, "now": self._clock.now()}
            values = {"id": request.job_id, "worker": request.worker} | times
            return _in_order(connection.execute(self._sql.claim_one, values).fetchall())

        return self._db.run(work, atomic=True)

    def renew(self, renewals: Sequence[LeaseRenewal], lease: int | None, conn: Any = None) -> set[int]:
        """Renew leases and store start times and progress. Return the ids of the jobs that are still held.

        lease: in microseconds; None: only check, in the transaction of conn if there is one.
        """
        rows = as_json(
            [
                (one.lease.id, one.lease.attempt, one.lease.queue, one.started_at, one.progress, one.progress_text)
                for one in renewals
            ]
        )

        def check(connection: Connection) -> set[int]:
            return {row[0] for row in connection.execute(self._sql.held, (rows,)).fetchall()}

        def renew(connection: Connection) -> set[int]:
            values = (rows, self._clock.boot_now() + (lease or 0), self._clock.now())
            return {row[0] for row in connection.execute(self._sql.renew, values).fetchall()}

        if lease is not None:
            return self._db.run(renew, atomic=True)
        return self._db.read(check) if conn is None else self._db.run_in_transaction(conn, check)

    def _sweep_and_plan(self, requests: Sequence[ClaimRequest]) -> list[tuple[ClaimRequest, list[ClaimGroup]]]:
        """Return where to claim for each request, after due and expired jobs were moved."""

        def plan(connection: Connection) -> list[ClaimPlan]:
            times = {"now": self._clock.now(), "boot_now": self._clock.boot_now()}
            return [self._scanner.scan(connection, request, times) for request in requests]

        plans = self._db.run(plan, atomic=True)
        if plans and (plans[0].due or plans[0].expired):
            self._claims.sweep(required_sweep(plans[0].due, plans[0].expired), SWEPT_BEFORE_CLAIM)
            plans = self._db.run(plan, atomic=True)
        return [(request, plan.groups) for request, plan in zip(requests, plans, strict=True) if plan.groups]

    def _claim(
        self, connection: Connection, request: ClaimRequest, groups: list[ClaimGroup], already: Counter[str]
    ) -> list[Claimed]:
        """already: how many jobs of each queue other requests have claimed in the same transaction."""
        claimed: list[Claimed] = []
        for group in groups:
            taken = already[group.pairs[0][0]] if request.queues is not None else 0
            left = min(group.limit - taken, request.limit - len(claimed))
            if left > 0:
                values: dict[str, Any] = {
                    "limit": left,
                    "worker": request.worker,
                    "lease": self._clock.boot_now() + request.lease,
                    "now": self._clock.now(),
                }
                if group.versions is not None:
                    statement = self._sql.claim_readable
                    pairs = [(*pair, version) for pair, version in zip(group.pairs, group.versions, strict=True)]
                    values |= {"pairs": as_json(pairs), "each": min(group.limit_per_pair, left)}
                    values |= {"skip": as_json([*request.skip]), "scanned": READABLE_SCAN + len(request.skip)}
                elif len(group.pairs) == 1:
                    statement, (values["queue"], values["task"]) = self._sql.claim_task, group.pairs[0]
                else:
                    statement = self._sql.claim_tasks
                    values |= {"pairs": as_json(group.pairs), "each": min(group.limit_per_pair, left)}
                claimed += _in_order(connection.execute(statement, values).fetchall())
        return claimed

    def _settle_all(
        self, connection: Connection, settlements: Sequence[Settlement]
    ) -> tuple[list[Settlement], list[tuple[Settlement, Settlement]]]:
        """Return the settlements whose lease was lost, and those that were settled differently than requested."""
        successes, continuations, others = list[Settlement](), list[Settlement](), list[Settlement]()
        for one in settlements:
            if _is_plain_success(one):
                successes.append(one)
            else:
                (continuations if _is_plain_continuation(one) else others).append(one)
        lost = self._settlements.continue_all(connection, continuations) if continuations else []
        if successes and self._succeed_all(connection, successes) != len(successes):
            rows = as_json([(one.lease.id, one.lease.attempt) for one in successes])
            unsettled = {row[0] for row in connection.execute(self._sql.unsettled, (rows,)).fetchall()}
            others += [one for one in successes if one.lease.id in unsettled]
        actual = [(one, self._settlements.settle_here(connection, one)) for one in others]
        lost += [one for one, instead in actual if instead is None]
        return lost, [(one, instead) for one, instead in actual if instead is not None and instead is not one]

    def _succeed_all(self, connection: Connection, some: Sequence[Settlement]) -> int:
        """Settle successes, many with one statement. Return how many were settled."""
        settled = 0
        for begin in range(0, len(some), MAX_ROWS):
            rows: list[tuple[Any, ...]] = [as_row(one) for one in some[begin : begin + MAX_ROWS]]
            statement, values = self._db.dialect.with_rows(self._sql.succeed_many, rows)
            settled += connection.execute(statement, values).rowcount
        return settled


def _is_one_statement(settlements: Sequence[Settlement], plans: list[tuple[ClaimRequest, list[ClaimGroup]]]) -> bool:
    """Return whether one statement does it all, so that no BEGIN and COMMIT are needed: common at low load."""
    if settlements:
        return not plans and all(map(_is_plain_success, settlements))
    return len(plans) == 1 and len(plans[0][1]) == 1


def _is_plain_success(one: Settlement) -> bool:
    if one.transition != "succeed" or one.then is not None or one.progress is not None or not one.lease.history:
        return False
    return one.result_blob is None and (one.result is None or len(one.result) <= LARGE_RESULT_CHARACTERS)


def _is_plain_continuation(one: Settlement) -> bool:
    then = one.then
    if then is None or then.links is not None or then.args_blob is not None:
        return False
    return len(then.args) <= LARGE_RESULT_CHARACTERS


def _in_order(rows: list[Any]) -> list[Claimed]:
    """Sort by priority, which comes first and negated, then by id: RETURNING gives rows in any order."""
    rows.sort()
    return [Claimed(*row[1:]) for row in rows]
