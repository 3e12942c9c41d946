"""All exceptions of Holdfast, and the error codes that it gives to failed attempts.

docs/generate_reference.py makes docs/reference/errors.md from this module. In each docstring the first paragraph says
when the exception is raised, and the one that begins with "To do:" what to do about it.
"""


class HoldfastError(Exception):
    """The base of all exceptions of Holdfast."""


# --- What you passed ------------------------------------------------------------------------------


class InvalidInput(HoldfastError, ValueError):
    """A value is not allowed: an empty name, a negative time, a naive datetime, an unknown status, filter or option,
    a body that does not fit the type of the queue, an option that needs another one, a URL that is not SQLite's
    (which the message does not show).

    To do: Read the message: it says which values are allowed.
    """


class InvalidArguments(InvalidInput, TypeError):
    """The arguments do not fit the signature or the annotations of the task, as Python values: a text is not a
    `datetime`, `bytes` are not a `str`.

    To do: Fix the call, or the annotation.
    """


class InvalidContinuation(InvalidInput):
    """`Then(…)` was given something that cannot be enqueued: no task, arguments that do not fit the task, or options
    that a continuation does not take. If a task raises it, its job fails with RESULT:BAD_CONTINUATION.

    To do: Fix the call: `Then(task, …)` takes the arguments of `task.enqueue(…)`.
    """


class InvalidResult(InvalidInput):
    """`ctx.complete()` was given a result that cannot be stored: not JSON, too large, not of the annotated type, or
    None although the annotation requires a result. Nothing of its block is stored. The job fails with `code`, such as
    RESULT:WRONG_TYPE, and is not retried.

    To do: Pass `ctx.complete(result=…)`, or set `tx.result`, to a value of the annotated type.
    """

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.code = code


class CircularWait(InvalidInput):
    """A job would wait for itself, by way of others: `Then(task.using(after=…))` names a job that waits for this
    chain. A plain enqueue cannot do that.

    To do: Wait for another job, or for none.
    """


class InvalidPayload(InvalidInput):
    """The payload cannot be stored as JSON: NaN, a naive datetime, two keys that are the same in JSON, more than 64
    levels, not UTF-8, an unknown type. `job.args` raises it for a row that was damaged by hand.

    To do: Pass plain data, a dataclass, a msgspec Struct or a pydantic model.
    """


class PayloadTooLarge(InvalidPayload):
    """The payload has more than 64 MiB; more than 1 MiB with `blob_bytes=None`, in a schedule, and in a callback of a
    batch.

    To do: Store it elsewhere, and pass a reference.
    """


class InvalidTask(HoldfastError, TypeError):
    """A function cannot be a task, one of its annotations cannot be decoded from JSON, or its name is taken.

    To do: Name all parameters; use types that msgspec supports; pass `name=`.
    """


class UndefinedAnnotation(InvalidTask):
    """An annotation of a task names a type that is not defined when the task is first used.

    To do: Import the type at run time, not under `TYPE_CHECKING`.
    """


class CannotLoadApp(HoldfastError, ImportError):
    """`module:app` on the command line does not name a `Holdfast`. `traceback` is that of the module, if it raised.

    To do: Read the message: it says which module and name were tried.
    """

    def __init__(self, message: str, traceback: str | None = None) -> None:
        self.traceback = traceback
        super().__init__(message)


# --- What happened to a job -----------------------------------------------------------------------


class JobNotFound(HoldfastError, LookupError):
    """No job has this id. It never existed, was deleted, or was enqueued in a transaction that was rolled back."""


class ScheduleNotFound(HoldfastError, LookupError):
    """No schedule has this name. It was never added, or was removed. A schedule of `@app.cron` is stored when a
    worker starts.

    To do: Look at `app.schedules.list()`.
    """


class BatchNotFound(HoldfastError, LookupError):
    """No batch has this id. It never existed, was pruned, or was made in a transaction that was rolled back."""


class WorkerNotFound(HoldfastError, LookupError):
    """No worker has this id. The last hundred that ended are known.

    To do: Look at `app.observe.workers()`.
    """


class OperationNotFound(HoldfastError, LookupError):
    """No bulk operation has this id. It never existed, or many others have followed it."""


class BatchEnded(HoldfastError):
    """`using(batch=…)`: the batch is done, so it takes no more members.

    To do: Add members in the block of the batch, or from members while they run.
    """


class HasWaitingJobs(HoldfastError):
    """`app.jobs.delete`, `app.chains.delete`: other jobs wait for the chain. `chain_id` is its id, `waiting` the ids
    of these jobs. Nothing was deleted.

    To do: Cancel them first, or pass `cascade=True`.
    """

    def __init__(self, chain_id: int, waiting: tuple[int, ...]) -> None:
        self.chain_id, self.waiting = chain_id, waiting
        shown = ", ".join(map(str, waiting[:10])) + (f" and {len(waiting) - 10} more" if len(waiting) > 10 else "")
        super().__init__(f"jobs wait for chain {chain_id}: {shown}. Cancel them first, or pass cascade=True")


class PartOfChain(HoldfastError):
    """`app.jobs.delete(id)`: the chain of the job has more jobs. Nothing was deleted.

    To do: Delete the whole chain with `app.chains.delete(id)`.
    """


class BlobMissing(HoldfastError, LookupError):
    """`job.args`, `job.result`, `ctx.blocker_results`: a large payload or result, which is stored outside the
    database, is missing. See docs/guides/large-payloads.md#when-one-is-missing.

    To do: Restore its file, or do the work again.
    """


class BlobDamaged(BlobMissing):
    """The stored bytes of a large payload or result are not those that were written.

    To do: Restore its file, or do the work again.
    """


class LeaseLost(HoldfastError):
    """`ctx.complete()`, `msg.ack_with()`: this attempt does not hold the job or message any more. It was cancelled,
    settled by an operator, or taken over by another attempt. Nothing was stored.

    To do: Stop: what this attempt does is not recorded.
    """


class JobFailed(HoldfastError):
    """`job.wait()`, `job.wait_chain()`: the job failed or was cancelled. Has `job_id`, `status`, `code` and `detail`.
    Also a value in `ctx.blocker_results`: see docs/guides/workflows.md#when-one-of-them-fails.

    To do: Look at `app.jobs.history(id)`.
    """

    def __init__(self, job_id: int, status: str, code: str | None, detail: str | None) -> None:
        self.job_id, self.status, self.code, self.detail = job_id, status, code, detail
        reason = ": ".join(part for part in (code, detail) if part)
        super().__init__(f"job {job_id} {status}" + (f": {reason}" if reason else ""))


class NoResult(HoldfastError):
    """`job.wait()`, `job.wait_chain()`: the job succeeded without a result, and the annotation of its task does not
    allow None: it continued with `Then`, or was completed without one. Or the chain did not end with the task in
    `last=`.

    To do: Use `job.wait_chain()` for a job that continues; or annotate the task with `| None`.
    """


class WaitTimeout(HoldfastError, TimeoutError):
    """`wait(timeout=…)`: the job, chain or batch has not finished in time. It continues.

    To do: Wait again, or look at `app.jobs.explain(id)`.
    """


class NeverIdle(HoldfastError):
    """In a test: `drain` or `inline` ran as many attempts as its `limit` allows, and there are more to run.

    To do: The message names the job. See docs/guides/testing.md#run-what-waits-drain.
    """


class WorkerStuck(HoldfastError):
    """`worker.run()`: the worker stopped, since more than 100 tasks were still running after their timeouts.

    To do: Give what they wait for a timeout of its own, or run them with `pool="process"`. Start a new process, since
    their threads are still running.
    """


class JobError(HoldfastError):
    """Never raised by Holdfast: raise it in a task to fail the attempt with an error code of your own, such as
    `JobError("DEPENDENCY:STRIPE", "503")`. Has `code` and `detail`.
    """

    def __init__(self, code: str, detail: str = "") -> None:
        self.code, self.detail = code, detail
        super().__init__(f"{code}: {detail}" if detail else code)


class ArchiveError(HoldfastError):
    """`app.prune(archive=…)`: the file cannot be written, is not an archive of Holdfast, or another process writes to
    it. Jobs that are not in it were not deleted.

    To do: Read the message; choose another file.
    """


class AlreadyPruning(HoldfastError):
    """`app.prune()`: another operator is pruning this database.

    To do: Wait until that run has finished.
    """


# --- The store ------------------------------------------------------------------------------------


class StoreError(HoldfastError):
    """The database could not do what was requested, for another reason than those below.

    To do: Read the message; check the disk and the system log.
    """


class CannotOpen(StoreError):
    """The path is a folder, is not a regular file, may not be opened, or its folder does not exist. Or the database
    stores text as UTF-16.

    To do: Fix the path, or use another file.
    """


class NotADatabase(CannotOpen):
    """The file is not an SQLite database.

    To do: Choose another path, or move that file away.
    """


class UnsupportedFileSystem(CannotOpen):
    """The folder is on NFS, CIFS, SMB, FUSE, 9p or a similar file system, where SQLite's locks cannot be trusted.

    To do: Use a local disk.
    """


class UnsupportedSQLite(CannotOpen):
    """SQLite is older than 3.35, lacks the JSON functions, or cannot use its write-ahead log here.

    To do: Use another Python build, or another disk.
    """


class SchemaOutdated(StoreError):
    """The tables are older than this version of Holdfast, and `migrate=False`.

    To do: Run `holdfast migrate --db app.db`, or open the database once with `migrate=True`.
    """


class DatabaseMissing(SchemaOutdated):
    """The file does not exist, and `migrate=False`.

    To do: Check the path. Create the database with `holdfast migrate --create`, or with `migrate=True`.
    """


class SchemaTooNew(StoreError):
    """The tables were made by a newer version of Holdfast.

    To do: Upgrade Holdfast.
    """


class SchemaUnsupported(StoreError):
    """The tables were made by a development version, before the first release, and cannot be migrated.

    To do: Move the file away and start with a new one, or pass another `prefix`.
    """


class MigrationFailed(StoreError):
    """A migration failed and was rolled back: the database is unchanged. Or one of your tables has the name of a
    table of Holdfast.

    To do: Pass another `prefix` if a name is taken; otherwise report it, with the message.
    """


class ReadOnlyDatabase(StoreError):
    """The file, its folder or its file system cannot be written.

    To do: Check the permissions of all three.
    """


class DiskFull(StoreError):
    """The disk is full, or would have less than `min_free_bytes` left after this write.

    To do: Free some space. Running jobs can still be settled while the reserve lasts.
    """


class CorruptDatabase(StoreError):
    """SQLite found the file damaged. This process does not write to it any more.

    To do: Stop, copy the file with its `-wal`, and restore a backup. See
    docs/guides/durability.md#when-the-file-is-damaged.
    """


class FileReplaced(CorruptDatabase):
    """The database file or its `-wal` was deleted, moved or replaced while this process had it open. What it wrote
    since may be in a file without a name. This process does not use the file any more.

    To do: Find out what replaced it, and start the program again. Stop all programs before you restore a backup.
    """


class FlushFailed(StoreError):
    """The disk reported an error when the log was flushed, so what was written last may not survive a power cut.
    Until the whole log is written and flushed again, which each call tries, nothing that must be on disk is accepted.
    Jobs are still run and settled. See docs/guides/durability.md#when-a-flush-fails.

    To do: Check the disk and the system log, and do it again, with the same `key`. Nothing needs to be restarted.
    """


class DamagedRow(StoreError):
    """A row holds a value that a constraint of its table does not allow, so SQLite refuses to change it. It was
    written with constraints switched off, or the file was damaged.

    To do: Run `holdfast doctor`, which names the table and the constraint.
    """


class BlobError(StoreError):
    """The store for large payloads and results failed, or is not the one that has them.

    To do: Check the folder, or the store that you passed as `blobs=`. With `--db` on the command line, name the app
    instead.
    """


class BlobCollected(BlobError):
    """`enqueue_many`, `send_many`, `app.jobs.complete`: a large payload that no job referred to was deleted at the
    moment it was sent again. Nothing was stored.

    To do: Try again.
    """


class StoreBusy(StoreError):
    """Another connection held the write lock for longer than `busy_timeout`: 5 seconds, or 60 where jobs run.

    To do: If it is one of your own, in a transaction, pass it as `conn=`: see
    docs/guides/transactions.md#what-to-avoid. Otherwise find the program with a long write transaction.
    """


class CannotMove(StoreError):
    """`app.move()`: the destination has jobs, or cannot take what the source has. The source stays in service.

    To do: Read the message. See docs/guides/postgresql.md#moving.
    """


class DatabaseMoved(StoreError):
    """This database was moved to another one, which the message names, or is being filled by a move.

    To do: Use the URL of the other database. See docs/guides/postgresql.md#moving.
    """


class ConnectionLost(StoreError):
    """The connection to the PostgreSQL server was lost, and could not be opened again within `busy_timeout`. Nothing
    of the call, or of the transaction, was stored.

    To do: Do it again when the server is back. See docs/guides/postgresql.md#when-the-server-is-away.
    """


class OutcomeUnknown(StoreError):
    """The connection to the PostgreSQL server was lost during a commit, and the server could not be asked whether the
    commit took place.

    To do: Do it again with the same `key`, which yields exactly one job. See
    docs/guides/postgresql.md#when-the-server-is-away.
    """


class CannotVacuum(StoreError):
    """`app.vacuum()`: the file was not created to shrink in steps. With `full=True`: workers are running, or there is
    too little free space for a copy.

    To do: Read the message. See docs/guides/retention.md#space.
    """


class StoreClosed(StoreError):
    """`close()` was called before.

    To do: Make a new `Holdfast`.
    """


class TransactionError(StoreError):
    """A transaction was used in a way that would break its guarantees: `COMMIT` inside `app.transaction()`, a write
    or `close()` beside it or beside one of your own, a write by the iterable of `enqueue_many`, a `conn` without an
    open transaction or one that cannot write any more, `close()` or `rollback()` of the connection of a transaction.

    To do: Read the message.
    """


class ForeignConnection(TransactionError):
    """The connection passed as `conn=` is to another file.

    To do: Pass a connection to the same file. In a test, see docs/guides/testing.md#on-the-connection-of-the-test.
    """


class UsedAfterFork(TransactionError):
    """The process was forked while a transaction was open, or while the database was in use for longer than a second.
    The child cannot use the app.

    To do: Fork while no transaction is open, or start processes with `spawn`. See
    docs/guides/forking-and-threads.md#fork.
    """


OWN_CODES: dict[str, str] = {
    "TIMEOUT:VISIBILITY": "a message was not settled before its visibility ended",
    "TIMEOUT:LEASE": "the worker of a job was suspended for longer than its lease",
    "TIMEOUT:HANDLER": "an attempt took longer than its `timeout`",
    "TIMEOUT:EXPIRED": "a job was not started before it [expired](../guides/jobs.md#jobs-that-expire)",
    "TIMEOUT:EXTERNAL": "an [external](api.md#appexternal) job was not settled by its `timeout_at`",
    "DEPENDENCY:BLOCKER": 'a blocker failed or was cancelled, and the job has `on_blocker_failure="fail"`',
    "INTERNAL:WORKER_LOST": "the worker died",
    "INTERNAL:PROCESS_DIED": 'the process of an attempt with `pool="process"` died',
    "INTERNAL:PROCESS_START": "such a process could not be started, or did not find the task",
    "RESOURCE:MEMORY": "such a process used more than `max_memory` and was killed",
    "RETRY:REQUESTED": "the task returned `Retry`",
    "RESOURCE:BLOB_MISSING": (
        "its [large payload](../guides/large-payloads.md#when-one-is-missing) is missing; the job is not retried"
    ),
    "RESOURCE:BLOB_DAMAGED": "the large payload of the job is damaged; it is not retried",
    "RESOURCE:BLOB_STORE": "the large payload could not be read, or the large result not be stored; it is retried",
    "RESULT:TOO_LARGE": "the result has more than 64 MiB; more than 1 MiB with `blob_bytes=None`",
    "RESULT:NOT_JSON": "the result cannot be stored as JSON",
    "RESULT:WRONG_TYPE": "the result does not have the type that the task is annotated to return",
    "RESULT:BAD_CONTINUATION": (
        "the task returned a `Then` with which the chain cannot continue: wrong arguments, an option that is not "
        "allowed, a circular wait"
    ),
    "INVALID_INPUT:PAYLOAD": (
        "the arguments of a job are not JSON, or did not fit the code of any worker for "
        "[`payload_timeout`](../guides/upgrades.md#a-new-parameter)"
    ),
    "INTERNAL:ATTEMPTS_SPENT": "a message was released in its last attempt",
    "INVALID_INPUT:SCHEMA": "the body of a message does not fit the type of the queue",
    "INVALID_INPUT:UNDECODABLE": "the body of a message is not JSON",
    "INTERNAL:BAD_CODE": "a `JobError` was raised with an invalid code",
    "INTERNAL:BAD_OUTCOME": "the task returned an outcome that is not one of Holdfast's",
    "INTERNAL:DAMAGED_ROW": "the row of the job holds a value that the schema does not allow: see `holdfast doctor`",
    "INTERNAL:NOT_SETTLED": "the end of an attempt could not be stored, although the database works: report it",
}
"""The error codes that Holdfast itself gives, and when."""
