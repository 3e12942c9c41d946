"""All exceptions of Holdfast. Each message says what is wrong and what to do."""


class HoldfastError(Exception):
    """The root of all of them."""


# --- what the caller passed -----------------------------------------------------------------------


class InvalidInput(HoldfastError, ValueError):
    """A value that Holdfast cannot accept; nothing was stored."""


class InvalidArguments(InvalidInput, TypeError):
    """The arguments do not fit the task's signature or its annotations."""


class InvalidPayload(InvalidInput):
    """The payload cannot be stored as JSON: NaN, too deep, not UTF-8, or of an unknown type."""


class PayloadTooLarge(InvalidPayload):
    """The payload is larger than the limit."""


class InvalidTask(HoldfastError, TypeError):
    """A function that cannot be a task, or a name that is taken."""


class UndefinedAnnotation(InvalidTask):
    """A task's annotation names a type that is not defined, or not yet."""


class CannotLoadApp(HoldfastError, ImportError):
    """`module:app` on the command line leads to no Holdfast. `traceback` is that of the module, if it raised."""

    def __init__(self, message: str, traceback: str | None = None) -> None:
        self.traceback = traceback
        super().__init__(message)


# --- what became of a job -------------------------------------------------------------------------


class JobNotFound(HoldfastError, LookupError):
    """No job has this id: it never existed, or it was deleted."""


class ScheduleNotFound(HoldfastError, LookupError):
    """No schedule has this name: it was never added, or it was removed."""


class BatchNotFound(HoldfastError, LookupError):
    """No batch has this id: it never existed, or it was deleted."""


class BatchEnded(HoldfastError):
    """The batch takes no more members: all that it had have ended."""


class CircularWait(InvalidInput):
    """The job would wait for itself, by way of others, and so never run."""


class HasWaitingJobs(HoldfastError):
    """Others wait for the chain that was to be deleted. `waiting` are the ids of those jobs; nothing was deleted."""

    def __init__(self, chain_id: int, waiting: tuple[int, ...]) -> None:
        self.chain_id, self.waiting = chain_id, waiting
        shown = ", ".join(map(str, waiting[:10])) + (f" and {len(waiting) - 10} more" if len(waiting) > 10 else "")
        super().__init__(f"chain {chain_id} is waited for by {shown}: cancel them first, or pass cascade=True")


class PartOfChain(HoldfastError):
    """A job was to be deleted that is part of a longer chain, which goes only as a whole; nothing was deleted."""


class BlobMissing(HoldfastError, LookupError):
    """A large payload or result, which is kept beside the database, is not there any more."""


class BlobDamaged(BlobMissing):
    """It is there, and is not what was put there."""


class LeaseLost(HoldfastError):
    """The attempt holds its job no more: it was taken over, cancelled, or settled by others. Nothing was stored."""


class JobFailed(HoldfastError):
    """The job that was waited for ended `failed` or `cancelled`."""

    def __init__(self, job_id: int, status: str, code: str | None, detail: str | None) -> None:
        self.job_id, self.status, self.code, self.detail = job_id, status, code, detail
        reason = ": ".join(part for part in (code, detail) if part)
        super().__init__(f"job {job_id} {status}" + (f": {reason}" if reason else ""))


class WaitTimeout(HoldfastError, TimeoutError):
    """The job had not ended when the time to wait was over. It goes on; wait again if you like."""


class NeverIdle(HoldfastError):
    """In a test: `drain` or `inline` ran as many attempts as its limit allows, and there is still more to run."""


class WorkerStuck(HoldfastError):
    """A worker ended, since too many handlers had not come back after their timeouts. Their threads live on."""


class JobError(HoldfastError):
    """Raise it in a task to fail the attempt with a code of your own: `JobError("DEPENDENCY:STRIPE", "503")`."""

    def __init__(self, code: str, detail: str = "") -> None:
        self.code, self.detail = code, detail
        super().__init__(f"{code}: {detail}" if detail else code)


class ArchiveError(HoldfastError):
    """The file for jobs that are pruned cannot be written, or is none. What is not in it was not deleted."""


class AlreadyPruning(HoldfastError):
    """Another process prunes this database at the moment, since somebody asked for it."""


# --- the store ------------------------------------------------------------------------------------


class StoreError(HoldfastError):
    """The database could not do what was asked."""


class CannotOpen(StoreError):
    """The URL or path names nothing that can be opened as a database."""


class NotADatabase(CannotOpen):
    """The file exists and is something else."""


class UnsupportedFileSystem(CannotOpen):
    """SQLite's locks cannot be trusted on this kind of file system."""


class UnsupportedSQLite(CannotOpen):
    """The SQLite library is too old, or was built without something Holdfast needs."""


class SchemaOutdated(StoreError):
    """The tables are older than this version of Holdfast, and it was told not to migrate them."""


class DatabaseMissing(SchemaOutdated):
    """There is no such file, and Holdfast was told not to make one."""


class SchemaTooNew(StoreError):
    """The tables were made by a newer version of Holdfast."""


class SchemaUnsupported(StoreError):
    """The tables were made by a version of Holdfast that was never released, and cannot be migrated."""


class MigrationFailed(StoreError):
    """A migration failed. The database is as it was before."""


class ReadOnlyDatabase(StoreError):
    """The file, its folder or its file system cannot be written."""


class DiskFull(StoreError):
    """No space, or less than the reserve that lets running jobs settle."""


class CorruptDatabase(StoreError):
    """SQLite found the file damaged. Nothing more is written to it."""


class BlobError(StoreError):
    """What keeps large payloads and results could not do what was asked, or is not the one that has them."""


class BlobCollected(BlobError):
    """A large payload was deleted as left over at the very moment it was sent again. Nothing was stored."""


class StoreBusy(StoreError):
    """Another process held the write lock for longer than `busy_timeout`."""


class CannotVacuum(StoreError):
    """The file cannot be written anew now: workers are at work, or there is too little room."""


class StoreClosed(StoreError):
    """`close()` was called before."""


class TransactionError(StoreError):
    """A transaction was used in a way that would break its promise."""


class ForeignConnection(TransactionError):
    """The connection passed as `conn=` is not one to this database."""


class UsedAfterFork(TransactionError):
    """A transaction that was opened before a fork was used in the child."""
