"""Assemble the parts of a store, each of which is given the database. Both stores consist of these."""

from collections.abc import Callable
from contextlib import suppress
from random import Random

from ..errors import StoreError
from ..model.stats import Storage
from .blobs import Blobs, CheckedBlobs
from .claim import Claim, ClaimScanner
from .database import DamageGuard, SharedDatabase
from .enqueue import Enqueue, Failures
from .explain import Explain
from .listing import Listing
from .operate import BulkOperations, Operate
from .protocol import Store
from .prune import Prune
from .read import ReadJobs
from .schedules import StoredSchedules
from .settle import Settle, SettleAndClaim
from .statistics import Statistics, StoredStatistics
from .wake_up import Waiters
from .workers import PruneRunLock, Workers
from .workflow import Workflows


class Parts:
    """Implements the small protocols of a store on one database."""

    def __init__(
        self,
        store: Store,
        db: SharedDatabase,
        checked_blobs: CheckedBlobs,
        random: Random,
        guarded: DamageGuard,
        size: Callable[[], Storage],
        planner: ClaimScanner,
    ) -> None:
        """guarded: see DamageGuard. size: returns how much space the database takes. planner: says where to claim."""
        blobs, self.fold_statistics = Blobs(db, checked_blobs), Statistics(db, db.sql, db.clock)
        workflows = Workflows(db, blobs, self.fold_statistics)
        enqueue, settle = Enqueue(db, blobs, workflows), Settle(db, blobs, workflows)
        workers = Workers(db, workflows)
        claim = Claim(db, workers, workflows)
        listing, run_lock = Listing(db, self.fold_statistics), PruneRunLock(db.locks, workers)
        self.reading = reading = ReadJobs(db)
        self.waiters = Waiters(store, reading.find_awaited)
        operate = Operate(db, blobs, workflows, listing)
        self.operations = BulkOperations(db, listing.ids_after, operate.apply)
        self.jobs = _Jobs(
            enqueue,
            claim,
            settle,
            SettleAndClaim(db, claim, settle, workflows, planner),
            operate,
            reading,
            listing,
            blobs,
            Failures(db, enqueue),
            guarded,
        )
        self.workers = _Workers(workers, guarded)
        self.workflows = _Workflows(workflows, Explain(db))
        self.schedules = StoredSchedules(db, blobs, enqueue, guarded, random)
        self.statistics = StoredStatistics(db, self.fold_statistics, guarded, size)
        self.pruning = Prune(db, db.sql, db.clock, run_lock, workflows, blobs)
        self.planner = planner
        self._workers, self._run_lock, self._block_lock = workers, run_lock, workflows.block_lock

    def forget_process(self) -> None:
        """Start without locks and waiting threads, in a forked child."""
        self._workers.slots, self._run_lock.slots = {}, {}
        self.waiters.forget()
        self._block_lock.forget()

    def fold(self) -> None:
        with suppress(StoreError):  # the next fold catches up
            self.statistics.fold()


class _Jobs:
    """Implements JobStore."""

    def __init__(
        self,
        enqueue: Enqueue,
        claim: Claim,
        settle: Settle,
        settle_and_claim: SettleAndClaim,
        operate: Operate,
        reading: ReadJobs,
        listing: Listing,
        blobs: Blobs,
        failures: Failures,
        guarded: DamageGuard,
    ) -> None:
        self.insert, self.insert_many = enqueue.insert, enqueue.insert_many
        self.claim_messages, self.sweep = guarded(claim.claim_messages), guarded(claim.sweep)
        self.settle_and_claim = guarded(settle_and_claim.settle_and_claim)
        self.settle, self.renew, self.operate = settle.settle, settle_and_claim.renew, operate.operate
        self.save_state = settle.save_state
        self.get, self.list, self.count = reading.get, listing.list, listing.count
        self.history, self.traceback = reading.history, reading.traceback
        self.offload, self.read_blob = blobs.offload, blobs.read_blob
        self.unreported_failures, self.report_failures = failures.unreported_failures, failures.report_failures


class _Workers:
    """Implements WorkerStore."""

    def __init__(self, workers: Workers, guarded: DamageGuard) -> None:
        self.register, self.unregister = guarded(workers.register), guarded(workers.unregister)
        self.heartbeat, self.list = guarded(workers.heartbeat), workers.list
        self.request_stop, self.is_asked_to_stop = workers.request_stop, workers.is_asked_to_stop


class _Workflows:
    """Implements WorkflowStore."""

    def __init__(self, workflows: Workflows, explain: Explain) -> None:
        self.chain, self.delete_chain = workflows.chain, workflows.delete_chain
        self.blockers, self.waiting_for = workflows.blockers, workflows.waiting_for
        self.add_batch, self.close_batch, self.batch = workflows.add_batch, workflows.close_batch, workflows.batch
        self.batches, self.job_details, self.count_ahead = workflows.batches, explain.job_details, explain.count_ahead
