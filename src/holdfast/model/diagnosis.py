"""What a store finds when it looks itself over. Pure data; what it means is for others to say."""

from typing import Literal

from msgspec import Struct

from ..blobs import BlobReference
from .worker import WorkerStatus


class Opener(Struct, frozen=True):
    """A process that has the database open, or a file that was once at its path."""

    pid: int
    command: str
    deleted: bool = False  # the file that it has is not the one at the path any more
    has_holdfast: bool = False  # it seems to have Holdfast in it
    reads: bool = False  # it was within a read transaction, each time somebody looked
    writes: bool = False  # and in a write transaction


class BlobFolder(Struct, frozen=True):
    """Where large payloads are, beside the database."""

    path: str
    mode: int
    owner: int
    owner_of_database: int
    link_to: str | None = None


class Surroundings(Struct, frozen=True):
    """The database as a file, without opening it."""

    path: str
    kind: Literal["file", "missing", "no folder", "folder", "other", "unreachable"]
    trouble: str  # of one that is unreachable
    modes: dict[str, int]  # of the file and its companions, by name
    file_system: str  # '' where the system does not tell
    unsafe: bool  # SQLite's locks do not hold there
    free_bytes: int
    min_free_bytes: int
    database_bytes: int
    log_bytes: int
    not_writable: list[str]  # the file, its folder, its companions
    openers: list[Opener]  # this process only if it reads
    pid: int  # of this process
    blob_folder: BlobFolder | None = None  # if there is one


class Settings(Struct, frozen=True):
    journal_mode: str | None  # None: nobody has it open, and it shows only then
    page_size: int
    pages: int
    free_pages: int
    auto_vacuum: int
    encoding: str
    foreign_keys: bool  # this SQLite can enforce them


class Drift(Struct, frozen=True):
    """Something of the schema that is not as the migrations make it."""

    how: Literal["missing", "changed", "extra"]
    kind: str  # table, index, trigger, view
    name: str
    table: str


class Schema(Struct, frozen=True):
    found: list[str]  # migrations that were applied
    pending: list[str]
    unknown: list[str]  # applied by a newer version, or by one that was never released
    drift: list[Drift]
    others: list[str] = []  # prefixes of other sets of Holdfast's tables, where there is none of this one
    unreleased: bool = False  # made by a version before the first release: it cannot be migrated


class Integrity(Struct, frozen=True):
    problems: list[str]
    thorough: bool
    seconds: float


class Some(Struct, frozen=True):
    """How many, up to a bound, and the first of them."""

    count: int = 0
    ids: tuple[int, ...] = ()
    more: bool = False  # than were counted

    def __bool__(self) -> bool:
        return self.count > 0


class StuckReady(Struct, frozen=True):
    """Ready jobs of one queue and task."""

    queue: str
    task: str | None
    count: int
    more: bool


class Pause(Struct, frozen=True):
    queue: str
    paused_at: int
    ready: bool  # something waits there


class Held(Struct, frozen=True):
    """A blocked job whose blockers have all ended, or are gone; how many of each."""

    id: int
    policy: str | None  # on_blocker_failure; None is hold
    succeeded: int
    failed: int
    gone: int
    retryable: tuple[int, ...]  # jobs that failed or were cancelled


class Miscount(Struct, frozen=True):
    """A count of the statistics, and how many jobs there are."""

    queue: str
    task: str
    status: str
    counted: int
    real: int


class BlobReferences(Struct, frozen=True):
    """Large payloads and results, which are kept by reference."""

    missing: list[BlobReference]
    orphaned: int  # that are there, and nobody refers to
    folder: str | None = None  # in which they are; None: elsewhere


class Times(Struct, frozen=True):
    boot_id: str | None  # as stored
    current_boot_id: str
    created_ahead: Some  # made later than now
    far_ahead: Some  # scheduled for years
    ended_ahead: Some  # ended later than now
    ended_untimed: Some  # ended at no time
    wrong_unit: Some  # before anybody made a job: seconds or milliseconds, most likely
    steps_back: int  # how often the log went back in time, of late
    largest_step: int  # microseconds


Why = Literal["slow", "large", "schema", "busy", "damaged", "elsewhere", "other"]


class Question(Struct, frozen=True):
    """What could not be answered, and why."""

    name: str
    why: Why
    detail: str = ""


class Unopened(Struct, frozen=True):
    """Why the database could not be read at all, by the name of Holdfast's exception."""

    kind: str
    message: str


class Examination(Struct):
    """Each part is None where it was not, or could not be, looked at."""

    prefix: str
    now: int
    sqlite_version: str
    sqlite_version_info: tuple[int, ...]
    surroundings: Surroundings
    deep: bool = False
    unopened: Unopened | None = None
    unanswered: list[Question] = []
    settings: Settings | None = None
    schema: Schema | None = None
    integrity: Integrity | None = None
    broken_keys: list[tuple[str, int]] | None = None  # rows that refer to nothing, by table
    orphans: dict[str, Some] | None = None  # ids of jobs that are gone, by table
    rootless: Some | None = None  # jobs of chains without their first one
    batchless: Some | None = None  # jobs of a batch that is gone
    miscounts: list[Miscount] | None = None
    workers: list[WorkerStatus] | None = None
    overdue: Some | None = None  # run, past their lease, and no live worker holds them
    abandoned: Some | None = None  # run in the name of a worker that is dead
    unheld: Some | None = None  # blocked by nothing
    held: list[Held] | None = None
    endings: int | None = None
    waiting: list[StuckReady] | None = None
    late: Some | None = None  # scheduled, due for a while, and not ready yet
    pauses: list[Pause] | None = None
    times: Times | None = None
    blobs: BlobReferences | None = None


class Vitals(Struct, frozen=True):
    """What a health check asks, all of it at once. Times are microseconds."""

    now: int
    oldest_ready_since: int | None
    oldest_ready_id: int | None
    ended: dict[str, int]  # attempts since a minute, by how they ended
    workers: list[WorkerStatus]
