"""What the store reads from a database for the doctor and the health check. Data only; the doctor interprets it."""

from typing import Literal

from msgspec import Struct

from ..blobs import BlobReference
from ..errors import StoreError
from .worker import WorkerState, WorkerStatus


class FileUser(Struct, frozen=True):
    """A process that has the database file open, or the file that was at its path before."""

    pid: int
    command: str
    deleted: bool = False  # its file is no longer the one at the path
    has_holdfast: bool = False  # it seems to use Holdfast
    reads: bool = False  # it held the same read lock during the whole observation
    writes: bool = False  # it held the write lock during the whole observation


class BlobFolder(Struct, frozen=True):
    """The folder beside the database that holds large payloads."""

    path: str
    mode: int
    owner: int  # user ids
    database_owner: int
    link_target: str | None = None


FileKind = Literal["file", "missing", "no folder", "folder", "other", "unreachable"]


class FileEnvironment(Struct, frozen=True):
    """The database file and what surrounds it, read without opening the database."""

    path: str
    kind: FileKind
    error: str  # why the path is unreachable
    modes: dict[str, int]  # of the database, -wal and -shm files, by name
    file_system: str  # '' if the system does not tell
    unsafe: bool  # SQLite's locks do not work on this file system
    free_bytes: int
    min_free_bytes: int
    database_bytes: int
    log_bytes: int
    unflushed: bool
    """Whether a flush has failed, and the log was not written again yet."""
    not_writable: list[str]  # the file, its folder, -wal and -shm
    users: list[FileUser]  # includes this process only if it reads
    pid: int  # of this process
    blob_folder: BlobFolder | None = None


NO_FILE = FileEnvironment("", "other", "", {}, "", False, 0, 0, 0, 0, False, [], [], 0)


class DatabaseServer(Struct, frozen=True):
    """The PostgreSQL server, as a connection sees it."""

    shown: str
    """The URL, without a password."""
    schema: str
    version: str = ""
    writable: bool = True  # False: a standby, or transactions are read-only
    synchronous_commit: str = "on"  # of a new session
    off: tuple[str, ...] = ()  # settings that are off and should be on
    pooled: bool = False  # a pooler gives each transaction another session
    clock_offset: int = 0
    """By how many microseconds the server's clock is ahead of this machine's."""


class XminHolder(Struct, frozen=True):
    """What keeps VACUUM from removing rows that died since."""

    kind: Literal["transaction", "slot", "prepared", "standby"]
    name: str  # a process id, or the name of the slot, of the prepared transaction or of the standby
    told: str  # who it is
    seconds: float | None  # since when; None: unknown
    transactions: int  # that began since


class TableRows(Struct, frozen=True):
    """A table and its dead rows."""

    name: str
    live: int
    dead: int
    autovacuum: bool


class Connections(Struct, frozen=True):
    """Of the whole server. Some are reserved for superusers."""

    used: int = 0
    most: int = 0
    own: int = 0  # of Holdfast, in this database


class Settings(Struct, frozen=True):
    journal_mode: str | None = None  # None: unknown, because no process has the database open
    page_size: int = 0
    pages: int = 0
    free_pages: int = 0
    auto_vacuum: int = 0
    encoding: str = ""
    foreign_keys: bool = False  # whether this SQLite can enforce them


class SchemaDifference(Struct, frozen=True):
    """A part of the schema that differs from what the migrations create."""

    how: Literal["missing", "changed", "extra"]
    kind: str  # table, column, constraint, index, trigger, function, view
    name: str
    table: str


class Schema(Struct, frozen=True):
    applied: list[str] = []  # migrations
    pending: list[str] = []
    unknown: list[str] = []  # applied by a newer version, or by an unreleased one
    differences: list[SchemaDifference] = []
    other_prefixes: list[str] = []  # of other Holdfast tables in the file, if there are none with this prefix
    unreleased: bool = False  # created before the first release: cannot be migrated

    @property
    def state(self) -> Literal["unreleased", "too new", "absent", "outdated", "current"]:
        if self.unreleased:
            return "unreleased"
        if self.unknown:
            return "too new"
        if not self.applied:
            return "absent"
        return "outdated" if self.pending else "current"


class Sample(Struct, frozen=True):
    """The result of one query of `doctor_samples.sql`: how many rows it found, and the first ids."""

    count: int = 0
    ids: tuple[int, ...] = ()
    more: bool = False  # the query stopped at its limit

    def __bool__(self) -> bool:
        return self.count > 0


class ReadyJobs(Struct, frozen=True):
    """Ready jobs of one queue and task."""

    queue: str
    task: str
    count: int
    more: bool
    version: int = 0  # the newest


class PausedQueue(Struct, frozen=True):
    name: str
    paused_at: int
    has_ready_jobs: bool


class BlockedJob(Struct, frozen=True):
    """A blocked job whose blockers have all finished or been deleted, and how many of each there are."""

    id: int
    on_blocker_failure: str | None  # None: the job stays blocked
    succeeded: int
    failed: int
    deleted: int
    failed_ids: tuple[int, ...]  # blockers that failed or were cancelled

    @property
    def can_be_released(self) -> bool:
        return self.on_blocker_failure is not None or not (self.failed or self.deleted)


class BrokenRows(Struct, frozen=True):
    """Rows that break a constraint of their table."""

    table: str
    constraint: str
    count: int


OpenBatches = dict[int, WorkerState]
"""Batches whose block has not ended, and whether its process is alive."""


class BlobReferences(Struct, frozen=True):
    """Large payloads and results, which jobs refer to by name."""

    missing: list[BlobReference] = []
    orphaned: int = 0  # files that no job refers to
    folder: str | None = None  # None: they are not in files


class ClockHistory(Struct, frozen=True):
    """Signs that the wall clock was set back or that the machine was restarted. Steps are microseconds."""

    stored_boot_id: str | None = None
    boot_id: str = ""
    steps_back: int = 0  # in the newest events
    largest_step: int = 0


SkipReason = Literal["slow", "large", "schema", "busy", "damaged", "elsewhere", "other"]


class SkippedPart(Struct, frozen=True):
    """A part of the diagnosis that could not be read."""

    name: str
    reason: SkipReason
    detail: str = ""


class Diagnosis(Struct):
    """Everything the doctor's checks look at. A part that is not in `examined` was not read and is empty."""

    prefix: str
    now: int
    sqlite_version: str = ""
    sqlite_version_info: tuple[int, ...] = ()
    file: FileEnvironment = NO_FILE
    deep: bool = False
    server: DatabaseServer | None = None  # None: the database is a file
    horizon: list[XminHolder] = []
    tables: list[TableRows] = []
    connections: Connections = Connections()
    open_error: StoreError | None = None
    examined: set[str] = set()
    skipped: list[SkippedPart] = []
    samples: dict[str, Sample] = {}  # by the name of the query
    settings: Settings = Settings()
    schema: Schema = Schema()
    integrity: list[str] = []  # problems that SQLite found
    integrity_seconds: float = 0
    foreign_keys: dict[str, int] = {}  # number of rows that refer to missing rows, by table
    broken_rows: list[BrokenRows] = []
    counts: list[tuple[str, str, str, int, int]] = []  # wrong ones: queue, task, status, counted, actual
    workers: list[WorkerStatus] = []
    moved: tuple[str | None, str | None] = (None, None)  # to where, and from where it is being filled
    blocked_jobs: list[BlockedJob] = []
    endings: int = 0  # finished jobs whose dependents were not released yet
    open_batches: OpenBatches = {}
    ready_jobs: list[ReadyJobs] = []
    paused_queues: list[PausedQueue] = []
    clock: ClockHistory = ClockHistory()
    large_payloads: BlobReferences = BlobReferences()

    def workers_that_are(self, *states: WorkerState) -> list[WorkerStatus]:
        return [worker for worker in self.workers if worker.state in states]

    @property
    def live_workers(self) -> list[WorkerStatus]:
        return self.workers_that_are("alive", "unknown")


class HealthMetrics(Struct, frozen=True):
    """What a health check needs, read at one moment. Times are microseconds."""

    now: int
    oldest_ready_since: int | None
    oldest_ready_id: int | None
    attempts: dict[str, int]  # recent attempts, by how they ended
    workers: list[WorkerStatus]
