"""Workers and their state. Pure data; times are microseconds."""

from typing import Literal

from msgspec import Struct


class WorkerLimits(Struct, frozen=True, omit_defaults=True):
    """Limits of a worker besides its concurrency."""

    queues: dict[str, int] = {}  # the most jobs of a queue at a time
    weighted: bool = False  # queues are chosen at random by weight, not in order
    pool: int = 0  # the number of processes for pool_tasks
    pool_tasks: tuple[str, ...] = ()
    versions: dict[str, int] = {}  # the newest version that it takes, of tasks that have one


class WorkerRecord(Struct, frozen=True):
    """A row of the workers table."""

    id: str
    pid: int
    host: str
    queues: tuple[str, ...] | None  # None: all of them
    tasks: tuple[str, ...]
    concurrency: int
    lease: int
    started_at: int
    heartbeat_at: int
    ended_at: int | None = None
    ending: str | None = None
    limits: WorkerLimits = WorkerLimits()
    version: str | None = None  # of Holdfast
    memory: int | None = None  # resident bytes at the last heartbeat
    stop_at: int | None = None  # when an operator asked it to stop

    def version_of(self, task: str | None) -> int:
        """Return the newest version of the task's jobs that it takes."""
        return self.limits.versions.get(task or "", 0)


WorkerState = Literal[
    "alive",
    "suspended",  # by SIGSTOP or SIGTSTP: it does nothing until SIGCONT
    "stopped",  # it shut down
    "lost",  # its process died
    "unknown",  # the lock file was removed, so it may be alive
]


class WorkerStatus(Struct, frozen=True):
    """A worker, whether its process is alive, and the jobs it has claimed."""

    record: WorkerRecord
    state: WorkerState
    claimed: list[tuple[str, str | None, int]] = []  # queue, task and number of jobs

    @property
    def is_present(self) -> bool:
        """Whether its process is alive, or may be."""
        return self.state in ("alive", "suspended", "unknown")

    @property
    def is_unnoticed(self) -> bool:
        """Whether its process died, and its jobs are not recovered yet."""
        return self.state == "lost" and self.record.ended_at is None

    @property
    def running(self) -> int:
        return sum(count for _, _, count in self.claimed)
