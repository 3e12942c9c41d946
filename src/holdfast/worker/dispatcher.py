"""The dispatcher: tracks the running attempts, settles the finished ones and claims new jobs.

There is no thread of its own for this. A pool thread without work settles all finished attempts and claims the next
jobs in one transaction. So an idle worker settles each attempt at once, and a busy one settles in large batches.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from time import monotonic, monotonic_ns

from ..clock import SECOND, Clock, boot_ns
from ..errors import CorruptDatabase, DamagedRow, StoreClosed, StoreError
from ..failure import Failure, describe
from ..model.job import Claimed, ClaimRequest, SettledAndClaimed, Settlement
from ..store.protocol import Store
from ..text import plural
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
        self.start_within_ns = lease * 1000 * 2 // 3  # of a claim or renewal
        self.held: set[Attempt] = set()  # claimed, and neither settled nor lost
        self.active: set[Attempt] = set()  # running, or about to start
        self.unsettled: deque[tuple[Attempt, Settlement]] = deque()  # finished, not stored yet
        self._unsettleable: list[tuple[Attempt, Settlement]] = []  # the store raised an unexpected error for them
        self.rounds_begun = self.rounds_ended = 0  # of settling and claiming
        self.was_idle = True  # whether the worker was idle before the last claim
        self._last_claim_ns = 0
        self._oldest_unsettled_ns = 0  # when the first of `unsettled` finished
        self.fatal_error: StoreError | None = None  # the worker cannot continue
        self.lasting_error: StoreError | None = None  # the store has failed for seconds
        self._lock = threading.Lock()
        self._backoff_seconds = 0.0
        self._retry_at = 0.0  # monotonic seconds: end of the backoff after a store error

    def start(self, attempt: Attempt) -> None:
        self.active.add(attempt)

    def finish(self, attempt: Attempt, settlement: Settlement) -> bool:
        """Queue the attempt for settling. Returns False if it was settled already: timed out, or cancelled."""
        try:
            self.active.remove(attempt)  # atomic: if two threads try, only one succeeds
        except KeyError:
            return False
        if not self.unsettled:
            self._oldest_unsettled_ns = monotonic_ns()
        self.unsettled.append((attempt, attempt.completed or settlement))
        return True

    def finish_with_error(self, attempt: Attempt, error: Exception) -> None:
        """Queue an attempt for a retry because of an error in the worker itself, unless it was settled already."""
        self.note_error(f"running {attempt.handler.name} {attempt.claimed.id}", error)
        failure = Failure("INTERNAL:ERROR", describe(error))
        lease, started_at, now = attempt.claimed.lease, attempt.started_at or None, self._clock.now()
        self.finish(attempt, Settlement(lease, "retry", started_at, now, delay=SECOND, failure=failure))

    def is_busy(self) -> bool:
        """Return whether an attempt is running, being settled or being claimed."""
        return len(self.held) > len(self._unsettleable) or self._lock.locked()

    def give_back_active(self, attempt: Attempt) -> None:
        """Give back an active attempt whose handler was not called, unless it was settled already."""
        with suppress(KeyError):
            self.active.remove(attempt)
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
        self.held.discard(attempt)
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

    def retry_unsettleable(self) -> None:
        """Queue settlements again for which the store raised an unexpected error."""
        while self._unsettleable:
            self.unsettled.append(self._unsettleable.pop())

    def note_error(self, what: str, error: Exception) -> None:
        """Log an error that must not end the thread. If it is the database's, wait before the next try."""
        if isinstance(error, StoreError):
            self.back_off(error)
        else:
            self._job_log.error(what, error)

    def _settle_and_claim(self, claimed_by: object) -> bool | None:
        self.rounds_begun += 1
        try:
            return self._settle_all_and_claim(claimed_by)
        finally:
            self.rounds_ended = self.rounds_begun

    def _settle_all_and_claim(self, claimed_by: object) -> bool | None:
        unsettled = self.unsettled
        batch = [unsettled.popleft() for _ in range(len(unsettled))]
        try:
            settled = self._store.jobs.settle_and_claim(*_to_store(batch, self._claim_requests()))
        except StoreError as error:
            if isinstance(error, DamagedRow) and len(batch) > 1:
                self._settle_each(batch)
                return None
            self.unsettled.extendleft(reversed(batch))
            self.back_off(error)
            return None
        except Exception as error:  # noqa: BLE001  one bad settlement must not block the others
            self._job_log.error(f"storing {plural(len(batch), 'settlement')}; storing them one by one", error)
            self._settle_each(batch)
            return None
        self._reset_backoff()
        try:
            if batch:
                self._record(batch, settled)
        finally:
            claimed = self._hand_to_pools(settled.claimed, claimed_by)
        return claimed

    def _record(self, batch: list[tuple[Attempt, Settlement]], settled: SettledAndClaimed) -> None:
        """Measure and log what was settled. Whatever goes wrong here, it is settled."""
        self.held.difference_update([attempt for attempt, _ in batch])
        try:
            self._run_times.measure(batch)
            if settled.otherwise:
                batch = [(attempt, settled.instead_of(settlement)) for attempt, settlement in batch]
            self._job_log.settled(batch, set(map(id, settled.lost)))
        except Exception as error:  # noqa: BLE001  a measurement or a log line is not worth a job
            self._job_log.error("logging settlements", error)

    def _hand_to_pools(self, claimed: list[Claimed], claimed_by: object) -> bool:
        if claimed:
            now = monotonic_ns()
            self.was_idle = now - self._last_claim_ns > IDLE_NS
            self._last_claim_ns = now
            handlers, start_until = self._handlers, boot_ns() + self.start_within_ns
            attempts = [Attempt(one, handlers[one.task or ""], now, start_until) for one in claimed]
            self.held.update(attempts)
            self._distribute(attempts, claimed_by)
        return bool(claimed)

    def back_off(self, error: StoreError) -> None:
        """Wait before the next try. Finished attempts stay in memory: a full disk or a held lock may be temporary."""
        if isinstance(error, (CorruptDatabase, StoreClosed)):
            self.fatal_error = error
        if not self._backoff_seconds:
            log.warning("cannot write to the database, will retry; finished jobs are kept in memory (%s)", error)
        self._backoff_seconds = min(self._backoff_seconds * 2 or FIRST_BACKOFF_SECONDS, MAX_BACKOFF_SECONDS)
        self._retry_at = monotonic() + self._backoff_seconds
        self.lasting_error = error if self._backoff_seconds >= MAX_BACKOFF_SECONDS else None

    def _reset_backoff(self) -> None:
        if self._backoff_seconds:
            log.warning("the database is writable again")
            self._backoff_seconds = self._retry_at = 0.0
            self.lasting_error = None

    def _settle_each(self, batch: list[tuple[Attempt, Settlement]]) -> None:
        for attempt, settlement in batch:
            try:
                self._settle_one(attempt, settlement)
            except StoreError:
                self.unsettled.append((attempt, settlement))
            except Exception as error:  # noqa: BLE001  one bad settlement must not block the others
                self._fail_instead(attempt, settlement, error)

    def _settle_one(self, attempt: Attempt, settlement: Settlement) -> None:
        one = [(attempt, settlement)]
        self._record(one, self._store.jobs.settle_and_claim(*_to_store(one, [])))

    def _fail_instead(self, attempt: Attempt, settlement: Settlement, error: Exception) -> None:
        """Fail a job whose settlement cannot be stored. If that cannot be stored either, try again later."""
        failure = Failure("INTERNAL:NOT_SETTLED", f"{settlement.transition}: {describe(error)}")
        instead = Settlement(settlement.lease, "fail", settlement.started_at, settlement.finished_at, failure=failure)
        try:
            self._settle_one(attempt, instead)
        except StoreError:
            self.unsettled.append((attempt, settlement))
        except Exception as error:  # noqa: BLE001  the last resort must not end the thread
            self._unsettleable.append((attempt, settlement))
            self._job_log.error(f"job {settlement.lease.id} cannot be settled; trying again later", error)


def _to_store(
    batch: list[tuple[Attempt, Settlement]], claim_requests: list[ClaimRequest]
) -> tuple[list[Settlement], list[ClaimRequest]]:
    """Return the arguments for the store. Attempts that ctx.complete() has already settled are left out."""
    return [settlement for attempt, settlement in batch if attempt.completed is None], claim_requests
