"""The dispatcher: tracks the running attempts, settles the finished ones and claims new jobs.

There is no thread of its own for this. A pool thread without work settles all finished attempts and claims the next
jobs in one transaction. So an idle worker settles each attempt at once, and a busy one settles in large batches.
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
from .claiming import RunTimes
from .job_log import JobLog

log = logging.getLogger("holdfast.worker")
FIRST_BACKOFF_SECONDS = 0.1
MAX_BACKOFF_SECONDS = 5.0
IDLE_NS = 1_000_000_000


class Dispatcher:
    """The state that the pools of a worker share. All methods are thread-safe."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        handlers: Mapping[str, Handler],
        job_log: JobLog,
        run_times: RunTimes,
        lease: int,
        claim_requests: Callable[[], list[ClaimRequest]],
        distribute: Callable[[list[Attempt], object], None],
    ) -> None:
        self._store, self._clock, self._handlers, self._job_log = store, clock, handlers, job_log
        self._run_times, self._claim_requests, self._distribute = run_times, claim_requests, distribute
        self._stale_ns = lease * 1000 * 2 // 3
        self.active: set[Attempt] = set()  # running, or about to start
        self.unsettled: deque[tuple[Attempt, Settlement]] = deque()  # finished, not stored yet
        self.was_idle = True  # whether the worker was idle before the last claim
        self._last_claim_ns = 0
        self._oldest_unsettled_ns = 0  # when the first of `unsettled` finished
        self.fatal_error: StoreError | None = None  # the worker cannot continue
        self._lock = threading.Lock()
        self._backoff_seconds = 0.0
        self._retry_at = 0.0  # monotonic seconds: end of the backoff after a store error

    def start(self, attempt: Attempt) -> None:
        self.active.add(attempt)

    def has_fresh_lease(self, attempt: Attempt) -> bool:
        """Return whether the lease cannot have expired: after a suspend, another worker may hold the job."""
        return monotonic_ns() - attempt.claimed_ns < self._stale_ns

    def finish(self, attempt: Attempt, settlement: Settlement) -> bool:
        """Queue the attempt for settling. Returns False if it was settled already: timed out, or cancelled."""
        try:
            self.active.remove(attempt)  # atomic: if two threads try, only one succeeds
        except KeyError:
            return False
        if not self.unsettled:
            self._oldest_unsettled_ns = monotonic_ns()
        if attempt.progress is not None:
            settlement = attempt.with_progress(settlement)
        self.unsettled.append((attempt, attempt.completed or settlement))
        return True

    def is_busy(self) -> bool:
        """Return whether an attempt is running, being settled or being claimed."""
        return bool(self.active or self.unsettled) or self._lock.locked()

    def give_back_active(self, attempt: Attempt) -> None:
        """Give back an active attempt whose handler was not called, unless it was settled already."""
        if self.discard_active(attempt):
            self.give_back(attempt)

    def give_back(self, attempt: Attempt) -> None:
        """Give back an attempt that was claimed but not started. Any worker may then claim the job."""
        self.active.add(attempt)
        self.finish(attempt, Settlement(attempt.claimed.lease, "give_back", None, self._clock.now()))

    def discard_active(self, attempt: Attempt) -> bool:
        """Remove an attempt that lost its lease, without settling it. Returns False if it has finished already."""
        try:
            self.active.remove(attempt)
        except KeyError:
            return False
        return True

    def is_idle(self) -> bool:
        """Return whether nothing was claimed in the last second."""
        return monotonic_ns() - self._last_claim_ns > IDLE_NS

    def unsettled_age_ns(self) -> int:
        """Return for how long the oldest finished attempt has been waiting to be settled."""
        return monotonic_ns() - self._oldest_unsettled_ns if self.unsettled else 0

    def settle_and_claim(self, claimed_by: object) -> bool | None:
        """Settle finished attempts and claim new jobs, in one transaction. Returns whether any were claimed.

        Returns None if it did neither: another thread is doing it, or the store failed and the backoff is not over.
        claimed_by: the pool of the calling thread, which runs the first claimed job and need not be woken.
        """
        if self._retry_at and monotonic() < self._retry_at:
            return None
        if not self._lock.acquire(blocking=False):
            return None
        try:
            return self._settle_and_claim(claimed_by)
        finally:
            self._lock.release()

    def flush(self) -> None:
        """Settle what is left at shutdown. Waits for a thread that is settling, and ignores the backoff."""
        with self._lock:
            self._settle_and_claim(None)

    def _settle_and_claim(self, claimed_by: object) -> bool | None:
        unsettled = self.unsettled
        batch = [unsettled.popleft() for _ in range(len(unsettled))]
        try:
            settled = self._store.jobs.settle_and_claim(*_to_store(batch, self._claim_requests()))
        except StoreError as error:
            self.unsettled.extendleft(reversed(batch))
            self.back_off(error)
            return None
        except Exception:
            log.exception("a batch of %d settlements could not be stored; storing them one by one", len(batch))
            self._settle_each(batch)
            return None
        self._reset_backoff()
        if batch:
            self._run_times.measure(batch)
            if settled.otherwise:
                batch = [(attempt, settled.instead_of(settlement)) for attempt, settlement in batch]
            self._job_log.settled(batch, set(map(id, settled.lost)))
        return self._hand_to_pools(settled.claimed, claimed_by)

    def _hand_to_pools(self, claimed: list[Claimed], claimed_by: object) -> bool:
        if claimed:
            now = monotonic_ns()
            self.was_idle = now - self._last_claim_ns > IDLE_NS
            self._last_claim_ns = now
            handlers = self._handlers
            self._distribute([Attempt(one, handlers[one.task or ""], now) for one in claimed], claimed_by)
        return bool(claimed)

    def back_off(self, error: StoreError) -> None:
        """Wait before the next try. Finished attempts stay in memory: a full disk or a held lock may be temporary."""
        if isinstance(error, (CorruptDatabase, StoreClosed)):
            self.fatal_error = error
        if not self._backoff_seconds:
            log.warning("cannot write to the database, will retry; finished jobs are kept in memory (%s)", error)
        self._backoff_seconds = min(self._backoff_seconds * 2 or FIRST_BACKOFF_SECONDS, MAX_BACKOFF_SECONDS)
        self._retry_at = monotonic() + self._backoff_seconds

    def _reset_backoff(self) -> None:
        if self._backoff_seconds:
            log.warning("the database is writable again")
            self._backoff_seconds = self._retry_at = 0.0

    def _settle_each(self, batch: list[tuple[Attempt, Settlement]]) -> None:
        for attempt, settlement in batch:
            try:
                settled = self._store.jobs.settle_and_claim(*_to_store([(attempt, settlement)], []))
            except StoreError:
                self.unsettled.append((attempt, settlement))
            except Exception as error:  # noqa: BLE001  one bad settlement must not block the others
                self._fail_instead(attempt, settlement, error)
            else:
                self._job_log.settled([(attempt, settled.instead_of(settlement))], set(map(id, settled.lost)))

    def _fail_instead(self, attempt: Attempt, settlement: Settlement, error: Exception) -> None:
        failure = Failure("INTERNAL:NOT_SETTLED", shorten(f"{settlement.transition}: {error!r}"))
        instead = Settlement(settlement.lease, "fail", settlement.started_at, settlement.finished_at, failure=failure)
        try:
            self._store.jobs.settle_and_claim(*_to_store([(attempt, instead)], []))
        except StoreError:
            self.unsettled.append((attempt, settlement))
        except Exception:
            log.exception("job %d cannot be settled; it is recovered when its lease expires", settlement.lease.id)


def _to_store(
    batch: list[tuple[Attempt, Settlement]], claim_requests: list[ClaimRequest]
) -> tuple[list[Settlement], list[ClaimRequest]]:
    """Return the arguments for the store. Attempts that ctx.complete() has already settled are left out."""
    return [settlement for attempt, settlement in batch if attempt.completed is None], claim_requests
