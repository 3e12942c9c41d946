"""Settle attempts (the transitions out of running), and renew their leases.

A worker settles many attempts and claims its next jobs in one transaction. Every statement is fenced by the attempt
number. `SettleAndClaim` settles plain successes and continuations itself, and the others with `Settle`.
"""

from collections import Counter
from collections.abc import Sequence
from itertools import chain
from typing import Any

from msgspec.structs import replace

from ..errors import HoldfastError
from ..failure import Failure, shorten
from ..model.job import Claimed, ClaimRequest, Lease, LeaseRenewal, NewJob, SettledAndClaimed, Settlement, Transition
from .blobs import Blobs
from .claim import SWEPT_BEFORE_CLAIM, Claim, ClaimGroup, ClaimPlan, ClaimScanner, Place, required_sweep
from .database import Connection, SharedDatabase
from .statements import NEW_JOB_ROW, Statements, as_json, insert_statement, new_job_values
from .workflow import Workflows

NO_FAILURE = Failure("")
INSERTED_AT_ONCE = (64, 8, 1)  # continuations, by one statement each; few numbers, so that few are prepared

# The statements of each transition. If there are two, the second one is for the last attempt, or for a payload that
# was kept for newer code for long enough.
TRANSITIONS: dict[Transition, list[str]] = {
    "retry": ["retry", "fail"],
    "fail": ["fail"],
    "stop": ["stop"],
    "snooze": ["snooze"],
    "interrupt": ["interrupt"],
    "give_back": ["give_back"],
    "release": ["release", "fail"],
    "unfit": ["return_unfit", "fail"],
}


class Settle:
    def __init__(self, db: SharedDatabase, blobs: Blobs, workflows: Workflows) -> None:
        self._db, self._sql, self._clock, self._blobs, self._workflows = db, db.sql, db.clock, blobs, workflows
        one = insert_statement(db.sql.insert_continuation)
        self._insert_continuations = {
            number: one.replace(NEW_JOB_ROW, ", ".join([NEW_JOB_ROW] * number)) for number in INSERTED_AT_ONCE
        }

    def settle(self, one: Settlement, conn: Any = None) -> bool:
        """Settle one attempt, in the caller's transaction if conn is given. Return False if the lease was lost."""
        if conn is not None:
            return self._db.run_in_transaction(conn, lambda connection: self._settle_in(connection, one))
        if one.transition == "succeed" and one.result is None and one.lease.queue is not None:
            return self._db.run(_Ack(self._sql, one), atomic=True)
        one = self._blobs.offload(one)

        def work(connection: Connection) -> bool:
            settled = self.settle_here(connection, one) is not None
            if one.lease.queue is None:  # not a message: jobs may wait for it
                self._workflows.resolve_here(connection)
            return settled

        return self._db.run(work, wakes=True)

    def save_state(self, lease: Lease, state: str) -> bool:
        def work(connection: Connection) -> bool:
            return connection.execute(self._sql.save_state, (state, lease.id, lease.attempt)).rowcount == 1

        self._db.require_space(len(state))
        return self._db.run(work, durable=True, atomic=True)

    def _settle_in(self, connection: Connection, one: Settlement) -> bool:
        """Settle in the caller's transaction. A continuation that cannot be inserted raises."""
        if one.then is not None:
            settled = not self.continue_all(connection, [one])
        else:
            settled = self.settle_here(connection, one) is not None
        self._workflows.resolve_here(connection)
        return settled

    def settle_here(self, connection: Connection, one: Settlement) -> Settlement | None:
        """Settle in an open transaction.

        Return the settlement that was applied, which is a failure if the continuation could not be inserted, and a
        retry if a blob that the attempt has stored was deleted. Return None if the lease was lost.
        """
        one = self._blobs.unless_collected(connection, one)
        if one.then is not None:
            return self._continue_here(connection, one, one.then)
        if one.transition == "succeed":
            return one if self._succeed_here(connection, one) else None
        statements = TRANSITIONS[one.transition]
        failure = one.failure or NO_FAILURE
        if one.transition == "release":
            failure = Failure("INTERNAL:ATTEMPTS_SPENT", f"released in attempt {one.lease.attempt}, the last")
        # finished_at is when the attempt ended, but the delay starts now: the clock may have been set since.
        bound = _values(one, self._clock.now(), failure)
        done = self._run_first(connection, statements, bound | {"keep": one.keep})
        if done is None:
            return None
        return replace(one, transition="fail") if one.transition == "unfit" and done == "fail" else one

    def _succeed_here(self, connection: Connection, one: Settlement) -> bool:
        lease = one.lease
        if connection.execute(self._sql.succeed, _success(one)).rowcount == 1:
            if one.result_blob is not None:
                connection.execute(self._sql.set_result_blob, (one.result_blob, lease.id))
            return True
        if one.result_blob is not None:
            connection.execute(self._sql.mark_unused, (one.result_blob,))
        key = (lease.id, lease.attempt, lease.queue)
        return connection.execute(self._sql.succeed_without_history, key).rowcount == 1

    def _continue_here(self, connection: Connection, one: Settlement, then: NewJob) -> Settlement | None:
        """Succeed and insert the continuation. If that is impossible, the attempt fails."""
        connection.execute("SAVEPOINT continuation")
        try:
            settled = None if self.continue_all(connection, [one]) else one
        except HoldfastError as error:
            connection.execute("ROLLBACK TO continuation")
            failure = Failure("RESULT:BAD_CONTINUATION", shorten(f"Then({then.task}): {error}"))
            settled = self.settle_here(connection, replace(one, transition="fail", failure=failure, then=None))
        connection.execute("RELEASE continuation")
        return settled

    def continue_all(self, connection: Connection, settlements: Sequence[Settlement]) -> list[Settlement]:
        """Succeed and insert the continuations. Return the settlements whose lease was lost."""
        finished = as_json([(*as_row(one), one.progress, one.progress_text) for one in settlements])
        rows = connection.execute(self._sql.continue_many, (finished,)).fetchall()
        settled = {row[0]: row[1:] for row in rows}
        plain: list[tuple[Any, ...]] = []
        for one in settlements:
            then = one.then
            if then is None or one.lease.id not in settled:
                continue
            chain_id, index, batch_id, worker, trace = settled[one.lease.id]
            if then.trace is None and trace is not None:
                then = replace(then, trace=trace.decode("utf-8", "replace"))
            values = new_job_values(then, self._clock.now(), worker, chain_id, index, batch_id)
            if then.links is None and then.args_blob is None:
                plain.append(values)
            else:
                self._insert_linked(connection, then, chain_id, values)
        for number in INSERTED_AT_ONCE:
            while len(plain) >= number:
                flat = chain.from_iterable(plain[:number])
                connection.execute(self._insert_continuations[number], list(flat))
                del plain[:number]
        return [one for one in settlements if one.lease.id not in settled]

    def _insert_linked(self, connection: Connection, then: NewJob, chain_id: int, values: tuple[Any, ...]) -> None:
        """Insert a continuation with links or a large payload."""
        if then.args_blob is not None:
            self._blobs.require_blob(connection, then.args_blob)
        inserted = connection.execute(self._insert_continuations[1], values)
        if inserted.rowcount == 1 and then.links is not None:
            self._workflows.link(connection, [self._db.dialect.inserted_id(inserted)], then.links, chain_id)

    def _run_first(self, connection: Connection, names: list[str], values: dict[str, Any]) -> str | None:
        """Run statements until one changes the row. Return its name, or None if none does: the lease was lost."""
        done = next((name for name in names if self._changes_row(connection, name, values)), None)
        if done is not None and values["fingerprint"] is not None:
            connection.execute(self._sql.remember_traceback, values)
        return done

    def _changes_row(self, connection: Connection, name: str, values: dict[str, Any]) -> bool:
        return connection.execute(getattr(self._sql, name), values).rowcount == 1


class _Ack:
    """Acknowledges a message without a result: a single statement, which is a transaction by itself."""

    __slots__ = ("_one", "_sql")

    def __init__(self, sql: Statements, one: Settlement) -> None:
        self._sql, self._one = sql, one

    def __call__(self, connection: Connection) -> bool:
        # Only one of the two statements changes a row, so together they are as atomic as either.
        if self._one.lease.history:
            return self._succeed(connection) or self._delete(connection)
        return self._delete(connection) or self._succeed(connection)

    def _succeed(self, connection: Connection) -> bool:
        return connection.execute(self._sql.succeed, _success(self._one)).rowcount == 1

    def _delete(self, connection: Connection) -> bool:
        lease = self._one.lease
        return (
            connection.execute(self._sql.succeed_without_history, (lease.id, lease.attempt, lease.queue)).rowcount
            == 1
        )


def as_row(one: Settlement) -> tuple[int, int, str | None, int | None, int]:
    """Return a row for the statements succeed_many and continue_many."""
    return one.lease.id, one.lease.attempt, one.result, one.started_at, one.finished_at


def _success(one: Settlement) -> tuple[Any, ...]:
    """Return the values of the statement succeed."""
    lease = one.lease
    about = (one.finished_at, one.result, lease.id, lease.attempt, lease.queue, one.started_at)
    return (*about, one.progress, one.progress_text)


def _values(one: Settlement, clock: int, failure: Failure) -> dict[str, Any]:
    return {
        "id": one.lease.id,
        "attempt": one.lease.attempt,
        "queue": one.lease.queue,
        "now": one.finished_at,
        "clock": clock,
        "run_at": clock + one.delay,
        "started_at": one.started_at,
        "progress": one.progress,
        "progress_text": one.progress_text,
        "error_code": failure.code,
        "error_detail": failure.detail or None,
        "fingerprint": failure.fingerprint,
        "traceback": failure.traceback,
        "reason": one.reason or None,
    }


LARGE_RESULT_CHARACTERS = 4096  # a larger result is settled by a statement of its own
MAX_ROWS = 400  # settled by one statement
READABLE_SCAN = 2000  # ready jobs of a queue and task among which a worker looks for those it can read
MAX_PRIORITIES = 4  # of remembered places, in one claim; then the database is searched
MIN_CANDIDATES = 16  # of each remembered place


class SettleAndClaim:
    def __init__(
        self, db: SharedDatabase, claim: Claim, settle: Settle, workflows: Workflows, planner: ClaimScanner
    ) -> None:
        self._db, self._sql, self._clock, self._workflows = db, db.sql, db.clock, workflows
        self._claims, self._settlements, self._planner = claim, settle, planner

    def settle_and_claim(
        self, settlements: Sequence[Settlement], requests: Sequence[ClaimRequest]
    ) -> SettledAndClaimed:
        if requests and requests[0].job_id is not None:
            return SettledAndClaimed([], self._claim_by_id(requests[0]))
        remembered = [self._planner.remembered(request) for request in requests]
        known = [groups for groups in remembered if groups is not None]
        looks = len(known) < len(requests)
        plans = self._sweep_and_plan(requests) if looks else list(zip(requests, known, strict=True))
        if not plans and not settlements:  # do not take the write lock for nothing
            return SettledAndClaimed([], [])

        is_atomic, unresolved = looks and _is_one_statement(settlements, plans), False

        def work(connection: Connection) -> SettledAndClaimed:
            nonlocal unresolved
            lost, changed = self._settle_all(connection, settlements) if settlements else ([], [])
            unresolved = bool(settlements) and self._workflows.has_endings(connection)
            if unresolved and not is_atomic:
                self._workflows.resolve_here(connection)
            claimed: list[Claimed] = []
            for request, groups in plans:
                claimed += self._claim_request(connection, request, groups, claimed, looks)
            return SettledAndClaimed(lost, claimed, changed)

        result = self._db.run(work, atomic=is_atomic, wakes=len(settlements) > 0)
        if unresolved and is_atomic:
            self._workflows.resolve()
        return result

    def _claim_request(
        self,
        connection: Connection,
        request: ClaimRequest,
        groups: list[ClaimGroup],
        before: list[Claimed],
        has_looked: bool,
    ) -> list[Claimed]:
        """Claim what one request wants. before: what others have claimed in the same transaction."""
        found = self._claim(connection, request, groups, Counter(job.queue for job in before))
        self._planner.claimed(request, len(found))
        if len(found) < request.limit and not has_looked:  # at the end of what is remembered
            rest = replace(request, limit=request.limit - len(found))
            groups = self._planner.scan(connection, rest, self._times()).groups
            found += self._claim(connection, rest, groups, Counter(job.queue for job in before + found))
        return found

    def _times(self) -> dict[str, int]:
        return {"now": self._clock.now(), "boot_now": self._clock.boot_now()}

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
            times = self._times()
            return [self._planner.scan(connection, request, times) for request in requests]

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
                times = {"lease": self._clock.boot_now() + request.lease, "now": self._clock.now()}
                claimed += self._claim_group(
                    connection, group, {"limit": left, "worker": request.worker} | times, request
                )
        return claimed

    def _claim_group(
        self, connection: Connection, group: ClaimGroup, values: dict[str, Any], request: ClaimRequest
    ) -> list[Claimed]:
        if group.places is not None:
            return self._claim_places(connection, group.places, values)
        each = min(group.limit_per_pair, values["limit"])
        if len(group.pairs) == 1 and group.versions is None:
            ((values["queue"], values["task"]),) = group.pairs
            return _of_one_pair(connection.execute(self._sql.claim_task, values).fetchall(), *group.pairs[0])
        if group.versions is not None:
            statement = self._sql.claim_readable
            pairs = [(*pair, version) for pair, version in zip(group.pairs, group.versions, strict=True)]
            values |= {"pairs": as_json(pairs), "each": each}
            values |= {"skip": as_json([*request.skip]), "scanned": READABLE_SCAN + len(request.skip)}
        else:
            statement = self._sql.claim_tasks
            values |= {"pairs": as_json(group.pairs), "each": each}
        return _in_order(connection.execute(statement, values).fetchall())

    def _claim_places(self, connection: Connection, places: Sequence[Place], values: dict[str, Any]) -> list[Claimed]:
        """Claim from these places, those of the highest priority first, and move them on."""
        claimed: list[Claimed] = []
        by_priority: dict[int, list[Place]] = {}
        for place in places:
            by_priority.setdefault(place.priority, []).append(place)
        left = values["limit"]
        for priority in sorted(by_priority, reverse=True)[:MAX_PRIORITIES]:
            level = by_priority[priority]
            while level and left > 0:
                each = min(left, max(MIN_CANDIDATES, 4 * left // len(level)))
                rows, taken = self._claim_level(connection, level, values | {"limit": left, "each": each})
                claimed, left = claimed + rows, left - len(rows)
                # If not all of these were wanted, others have no more than what was taken.
                level = [one for one in level if each < left and taken[one.queue, one.task] >= each]
        return claimed

    def _claim_level(
        self, connection: Connection, level: Sequence[Place], values: dict[str, Any]
    ) -> tuple[list[Claimed], Counter[tuple[str, str]]]:
        """Claim from places of one priority. Return also how many jobs each place had."""
        if len(level) == 1:
            (one,) = level
            values |= {"queue": one.queue, "task": one.task, "priority": one.priority, "after": one.after}
            rows = connection.execute(self._sql.claim_place, values).fetchall()
        else:
            wanted = as_json([(one.queue, one.task, one.priority, one.after) for one in level])
            rows = connection.execute(self._sql.claim_places, values | {"places": wanted}).fetchall()
        taken, last = Counter[tuple[str, str]](), dict[tuple[str, str], int]()
        for _, job_id, _, _, queue, task, *_ in rows:
            taken[queue, task] += 1
            last[queue, task] = max(job_id, last.get((queue, task), 0))
        for one in level:
            one.after = max(one.after, last.get((one.queue, one.task), 0))
        return _in_order(rows), taken

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


def _of_one_pair(rows: list[Any], queue: str, task: str) -> list[Claimed]:
    """As _in_order, for rows without queue and task: to read the same text from each row would take long."""
    rows.sort()
    return [
        Claimed(id, attempt, most, queue, task, args, timeout, history, uncounted, code, detail, run_at, trace, blob)
        for _, id, attempt, most, args, timeout, history, uncounted, code, detail, run_at, trace, blob in rows
    ]
