"""What the threads of a worker share: attempts taken and not begun, attempts that run, and what is to be settled.

The thread that runs dry settles what has ended and claims what comes next, in one
transaction. So a worker with little to do settles at once, and a busy one in large batches, without any thread that
hands work to another.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping
from time import monotonic, monotonic_ns

from ..clock import Clock
from ..errors import CorruptDatabase, StoreClosed, StoreError
from ..failure import Failure, shorten
from ..model.job import Claimed, ClaimRequest, Settlement
from ..store.protocol import Store
from .attempt import Attempt, Handler
from .job_log import JobLog
from .prefetch import RunTimes

log = logging.getLogger("holdfast.worker")
FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 5.0
IDLE_NS = 1_000_000_000


class Dispatcher:
    def __init__(
        self,
        store: Store,
        clock: Clock,
        handlers: Mapping[str, Handler],
        job_log: JobLog,
        run_times: RunTimes,
        lease: int,
        wants: Callable[[], list[ClaimRequest]],
        hand_out: Callable[[list[Attempt], object], None],
    ) -> None:
        self._store, self._clock, self._handlers, self._job_log = store, clock, handlers, job_log
        self._run_times, self._wants, self._hand_out = run_times, wants, hand_out
        self._stale_ns = lease * 1000 * 2 // 3
        self.active: set[Attempt] = set()
        self.done: deque[tuple[Attempt, Settlement]] = deque()
        self.was_idle = True  # before the last claim
        self._claimed_ns = 0
        self._oldest_ns = 0  # when the first of `done` ended
        self.broken: StoreError | None = None  # the store cannot be used any more
        self._claiming = threading.Lock()
        self._pause = 0.0
        self._not_before = 0.0  # monotonic seconds: after a failed settle_and_claim

    def begin(self, attempt: Attempt) -> None:
        self.active.add(attempt)

    def may_start(self, attempt: Attempt) -> bool:
        """Whether its lease is fresh still. A process that was stopped in between may find it another's."""
        return monotonic_ns() - attempt.taken < self._stale_ns

    def finish(self, attempt: Attempt, settlement: Settlement) -> bool:
        """False where somebody else has settled it meanwhile: it ran out of time, or was cancelled."""
        try:
            self.active.remove(attempt)  # one step for Python: only one of two that try succeeds
        except KeyError:
            return False
        if not self.done:
            self._oldest_ns = monotonic_ns()
        self.done.append((attempt, attempt.completed or settlement))
        return True

    def is_busy(self) -> bool:
        """Whether something runs, is to be settled, or is being claimed right now."""
        return bool(self.active or self.done) or self._claiming.locked()

    def return_begun(self, attempt: Attempt) -> None:
        """Give it back after all, unless somebody else has settled it meanwhile."""
        if self.disown(attempt):
            self.give_back(attempt)

    def give_back(self, attempt: Attempt) -> None:
        """It was taken and never started: others may have it."""
        self.active.add(attempt)
        self.finish(attempt, Settlement(attempt.claimed.lease, "give_back", None, self._clock.now()))

    def disown(self, attempt: Attempt) -> bool:
        """It is not this worker's any more, so there is nothing to settle. False where it was finished meanwhile."""
        try:
            self.active.remove(attempt)
        except KeyError:
            return False
        return True

    def is_idle(self) -> bool:
        """Whether nothing was claimed for a while."""
        return monotonic_ns() - self._claimed_ns > IDLE_NS

    def unsettled_ns(self) -> int:
        """For how long the first that has ended waits to be settled."""
        return monotonic_ns() - self._oldest_ns if self.done else 0

    def settle_and_claim(self, claimed_by: object) -> bool | None:
        """Settle and claim. True: something was claimed; None: another thread trades, or it is too early.

        claimed_by: who goes on with what is claimed, and need not be woken for it.
        """
        if self._not_before and monotonic() < self._not_before:
            return None
        if not self._claiming.acquire(blocking=False):
            return None
        try:
            return self._settle_and_claim(claimed_by)
        finally:
            self._claiming.release()

    def settle_at_once(self) -> None:
        """At the end: once more, however lately it failed, and whoever else is at it."""
        with self._claiming:
            self._settle_and_claim(None)

    def _settle_and_claim(self, claimed_by: object) -> bool | None:
        done = self.done
        batch = [done.popleft() for _ in range(len(done))]
        try:
            exchanged = self._store.jobs.settle_and_claim(*_unsettled(batch, self._wants()))
        except StoreError as error:
            self.done.extendleft(reversed(batch))
            self.put_off(error)
            return None
        except Exception:
            log.exception("%d settlements could not be stored together; trying each alone", len(batch))
            self._settle_each(batch)
            return None
        self._recovered()
        if batch:
            self._run_times.measure(batch)
            if exchanged.otherwise:
                batch = [(attempt, exchanged.instead_of(settlement)) for attempt, settlement in batch]
            self._job_log.settled(batch, set(map(id, exchanged.lost)))
        return self._take(exchanged.claimed, claimed_by)

    def _take(self, claimed: list[Claimed], claimed_by: object) -> bool:
        if claimed:
            now = monotonic_ns()
            self.was_idle = now - self._claimed_ns > IDLE_NS
            self._claimed_ns = now
            handlers = self._handlers
            self._hand_out([Attempt(one, handlers[one.task or ""], now) for one in claimed], claimed_by)
        return bool(claimed)

    def put_off(self, error: StoreError) -> None:
        """A full disk or a held lock may pass: what has ended is kept and tried again while this process lives."""
        if isinstance(error, (CorruptDatabase, StoreClosed)):
            self.broken = error
        if not self._pause:
            log.warning("the database cannot be written (%s); trying again, nothing is lost", error)
        self._pause = min(self._pause * 2 or FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS)
        self._not_before = monotonic() + self._pause

    def _recovered(self) -> None:
        if self._pause:
            log.warning("the database can be written again")
            self._pause = self._not_before = 0.0

    def _settle_each(self, batch: list[tuple[Attempt, Settlement]]) -> None:
        for attempt, settlement in batch:
            try:
                exchanged = self._store.jobs.settle_and_claim(*_unsettled([(attempt, settlement)], []))
            except StoreError:
                self.done.append((attempt, settlement))
            except Exception as error:  # noqa: BLE001  one that cannot be stored must not hold up the others
                failure = Failure("INTERNAL:NOT_SETTLED", shorten(f"{settlement.transition}: {error!r}"))
                instead = Settlement(
                    settlement.lease, "fail", settlement.started_at, settlement.finished_at, failure=failure
                )
                self._store.jobs.settle_and_claim(*_unsettled([(attempt, instead)], []))
            else:
                self._job_log.settled([(attempt, exchanged.instead_of(settlement))], set(map(id, exchanged.lost)))


def _unsettled(
    batch: list[tuple[Attempt, Settlement]], wants: list[ClaimRequest]
) -> tuple[list[Settlement], list[ClaimRequest]]:
    """What is to be exchanged: without those that completed themselves, of which there is nothing left to store."""
    return [settlement for attempt, settlement in batch if attempt.completed is None], wants
