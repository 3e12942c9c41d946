"""Assemble the SQLite store from its parts, each of which is given the database. The SQL is in `sql/`."""

from contextlib import suppress
from random import Random
from typing import Any

from ...blobs import BlobStore
from ...clock import Clock
from ...errors import StoreError
from ..blob_store import CheckedBlobs, FileBlobs
from ..protocol import StatementObserver
from ..prune import Prune
from ..statistics import Statistics
from ..waiters import Waiters
from .blobs import Blobs
from .claim import Claim
from .constraints import DamagedJobs
from .database import Database
from .diagnose import Diagnostics, Repairs
from .engine.engine import Options
from .engine.files import blob_folder, database_path
from .engine.worker_locks import Slot
from .engine.writer import Owner
from .enqueue import Enqueue
from .explain import Explain
from .failures import Failures
from .file import File
from .listing import Listing
from .migrate import DEFAULT_PREFIX
from .operate import Operate
from .read import ReadJobs
from .schedules import SqliteSchedules
from .settle import Settle
from .settle_and_claim import SettleAndClaim
from .stats import SqliteStatistics
from .workers import Workers
from .workflow import Workflows


class PruneRunLock:
    """Proves to other processes that a pruning run is alive: by a worker's lock, or one of the run's own."""

    def __init__(self, workers: Workers) -> None:
        self._workers = workers
        self.slots: dict[str, Slot] = {}  # of runs in a process without workers

    def take(self, token: str) -> dict[str, Any]:
        slot = next(iter(self._workers.slots.values()), None)
        if slot is None:
            slot = self.slots[token] = self._workers.lock_file().acquire()
        return {"slot": slot.number, "inode": slot.inode}

    def is_held(self, number: int, inode: int) -> bool:
        file, slot = self._workers.lock_file(), Slot(number, inode)
        return not file.is_free(slot) and file.is_current(slot)

    def release(self, token: str) -> None:
        slot = self.slots.pop(token, None)
        if slot is not None:
            self._workers.lock_file().release(slot)


class SqliteStore:
    """Implements Store."""

    def __init__(self, options: Options, clock: Clock, random: Random, token: str, conn: Any = None) -> None:
        self.clock = clock
        self.database = db = Database(options, clock, random, token, conn)
        checked_blobs = CheckedBlobs(
            options.blobs or FileBlobs(blob_folder(options.path, options.prefix)), options.blob_bytes
        )
        blobs = Blobs(db, checked_blobs)
        statistics = Statistics(db, db.sql, clock)
        workflows = Workflows(db, blobs, statistics)
        enqueue, settle = Enqueue(db, blobs, workflows), Settle(db, blobs, workflows)
        workers = Workers(db, workflows)
        claim = Claim(db, workers, workflows)
        damaged = DamagedJobs(db)
        reading, listing, run_lock = ReadJobs(db), Listing(db, statistics), PruneRunLock(workers)
        self.waiters = Waiters(self, reading.find_awaited)
        self.jobs = _Jobs(
            enqueue,
            claim,
            settle,
            SettleAndClaim(db, claim, settle, workflows),
            Operate(db, blobs, workflows, listing),
            reading,
            listing,
            blobs,
            Failures(db, enqueue),
            damaged,
        )
        self.workers = _Workers(workers, damaged)
        self.workflows = _Workflows(workflows, Explain(db))
        self.schedules = SqliteSchedules(db, blobs, enqueue, damaged, random)
        self.statistics = SqliteStatistics(db, statistics, damaged)
        self.pruning = Prune(db, db.sql, clock, run_lock, workflows, blobs)
        self.file = File(db, Diagnostics(db, checked_blobs), Repairs(db, statistics))

        def forget_workers() -> None:
            workers.slots, run_lock.slots = {}, {}
            self.waiters.forget()
            workflows.block_lock.forget()

        def fold() -> None:
            with suppress(StoreError):  # the next fold catches up
                self.statistics.fold()

        db.fold, db.after_fork = fold, forget_workers
        self.transaction, self.snapshot, self.guard = db.transaction, db.reading, db.guard
        self.busy_timeout, self.transaction_age = db.hurried, db.held_for
        self.wait_as_worker = db.wait_as_worker
        self.commits_seen, self.wait_for_commit = reading.commits_seen, reading.wait_for_commit
        self.wake_waiters = reading.wake_waiters

    @property
    def actor(self) -> str:
        return self.database.actor

    @property
    def location(self) -> str:
        options = self.database.options
        prefix = "" if options.prefix == DEFAULT_PREFIX else f" ({options.prefix})"
        return f"{options.path.resolve()}{prefix}"

    def require_no_transaction(self) -> Owner:
        self.database.engine().writer.forbid_self_wait()
        return Owner()

    def close(self) -> None:
        self.database.close()
        self.waiters.close()


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
        damaged: DamagedJobs,
    ) -> None:
        self.insert, self.insert_many = enqueue.insert, enqueue.insert_many
        self.claim_messages, self.sweep = damaged.guarded(claim.claim_messages), damaged.guarded(claim.sweep)
        self.settle_and_claim = damaged.guarded(settle_and_claim.settle_and_claim)
        self.settle, self.renew, self.operate = settle.settle, settle_and_claim.renew, operate.operate
        self.save_state = settle.save_state
        self.get, self.list, self.count = reading.get, listing.list, listing.count
        self.history, self.traceback = reading.history, reading.traceback
        self.offload, self.read_blob = blobs.offload, blobs.read_blob
        self.unreported_failures, self.report_failures = failures.unreported_failures, failures.report_failures


class _Workers:
    """Implements WorkerStore."""

    def __init__(self, workers: Workers, damaged: DamagedJobs) -> None:
        self.register, self.unregister = damaged.guarded(workers.register), damaged.guarded(workers.unregister)
        self.heartbeat, self.list = damaged.guarded(workers.heartbeat), workers.list


class _Workflows:
    """Implements WorkflowStore."""

    def __init__(self, workflows: Workflows, explain: Explain) -> None:
        self.chain, self.delete_chain = workflows.chain, workflows.delete_chain
        self.blockers, self.waiting_for = workflows.blockers, workflows.waiting_for
        self.add_batch, self.close_batch, self.batch = workflows.add_batch, workflows.close_batch, workflows.batch
        self.batches, self.job_details, self.count_ahead = workflows.batches, explain.job_details, explain.count_ahead


def open_store(
    url: str,
    *,
    prefix: str,
    durable_level: str,
    migrate: bool,
    busy_timeout: float,
    worker_busy_timeout: float,
    min_free_bytes: int,
    guard_connections: bool,
    blobs: BlobStore | None,
    blob_bytes: int | None,
    clock: Clock,
    random: Random,
    token: str,
    conn: Any = None,
    observer: StatementObserver | None = None,
) -> SqliteStore:
    """Open the database. conn: use only this connection, for tests; the URL then names a place for blobs."""
    options = Options(
        path=database_path(url),
        prefix=prefix,
        durable_level=durable_level,
        migrate=migrate,
        busy_timeout=busy_timeout,
        worker_busy_timeout=worker_busy_timeout,
        min_free_bytes=min_free_bytes,
        guard_connections=guard_connections,
        blobs=blobs,
        blob_bytes=blob_bytes,
        observer=observer,
    )
    return SqliteStore(options, clock, random, token, conn)
