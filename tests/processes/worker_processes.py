"""Workers as processes, and what a test wants to know of them and their jobs."""

import os
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.app.job import Job
from support.child_processes import Crew, Member
from support.running_worker import PATIENCE_SECONDS, eventually


class Processes:
    """A database, the processes at work on it, and files by which they are let go."""

    def __init__(self, folder: Path, crew: Crew, app: Holdfast, database: Path) -> None:
        self.folder, self.crew, self.app, self.database = folder, crew, app, database
        self.gate = folder / "go"

    def start(self, **options: Any) -> Member:
        """A worker; returns when it is at work. What is in capitals is for its environment."""
        environment = {name: str(options.pop(name)) for name in list(options) if name.isupper()}
        arguments = (f"{name}={value}" for name, value in options.items())
        member = self.crew.start("many_tasks_worker", *arguments, **environment)
        known = {one.record.id for one in self.app.store.workers.list()}
        eventually(
            lambda: (
                [
                    one
                    for one in (found.record for found in self.app.store.workers.list())
                    if one.pid == member.process.pid and one.id not in known
                ]
                or member.process.poll() is not None
                or member.is_at_work()
            ),
            "the worker did not start",
        )
        assert member.process.poll() is None, self.crew.complaints()
        return member

    def enqueue(self, task: str, args: str = "{}", **columns: Any) -> Job[Any]:
        """As another program does it, which has not the code of the task."""
        names = ["task", "args", *columns]
        connection = sqlite3.connect(self.database)
        connection.execute("PRAGMA synchronous = NORMAL")  # who waits for it need not wait for the disk
        try:
            with connection:
                statement = f"INSERT INTO holdfast_jobs ({', '.join(names)}) VALUES ({', '.join('?' * len(names))})"  # noqa: S608
                job_id = connection.execute(statement, (task, args, *columns.values())).lastrowid
        finally:
            connection.close()
        assert job_id is not None
        return self.app.jobs.get(job_id)

    def hold(self, task: str = "hold", **columns: Any) -> Job[Any]:
        return self.enqueue(task, f'{{"file": "{self.gate}"}}', **columns)

    def begins(self, job: Job[Any], times: int = 1) -> list[list[str]]:
        """Wait until so many attempts of the job have begun; returns what was noted of them."""
        eventually(lambda: len(self.noted("begin", job)) >= times, f"{job} did not begin {times} times")
        return self.noted("begin", job)

    def holds(self, job: Job[Any]) -> None:
        """Wait until the first attempt of a job of `hold_first` holds: a later one will not."""
        eventually(lambda: self.noted("holding", job), f"{job} did not hold")

    def noted(self, verb: str, job: Job[Any]) -> list[list[str]]:
        lines = [line for member in self.crew.members for line in member.lines()]
        return [line for line in lines if line[0] == verb and line[2] == str(job.id)]

    def ends(self, job: Job[Any], status: str = "succeeded") -> Job[Any]:
        return eventually(
            lambda: job.refresh() if job.refresh().status == status else None,  # type: ignore[return-value]
            f"it is {job.refresh().status}, not {status}; {self.crew.complaints()}",
        )

    def longer_and_longer(self, seconds: float = 1.0) -> Iterator[float]:
        """Times in seconds to try a thing with: the first may be too short on a slow machine."""
        while seconds < PATIENCE_SECONDS:
            yield seconds
            seconds *= 3
        pytest.fail("it had all the time in the world")

    def leases(self) -> list[int]:
        """When the leases of what is running end, by the boot clock."""
        connection = sqlite3.connect(self.database)
        try:
            rows = connection.execute("SELECT lease FROM holdfast_jobs WHERE status = 'running'").fetchall()
        finally:
            connection.close()
        return [row[0] for row in rows] or [0]

    def lines(self, member: Member, verb: str) -> list[list[str]]:
        return [line for line in member.lines() if line[0] == verb]

    def stop(self, member: Member) -> None:
        """Stop the process by a signal, at a moment at which it does not hold the write lock."""

        def is_stopped_outside_a_transaction() -> bool:
            os.kill(member.process.pid, signal.SIGSTOP)
            with closing(sqlite3.connect(self.database, timeout=1, isolation_level=None)) as connection:
                try:
                    connection.execute("BEGIN IMMEDIATE")
                    connection.execute("ROLLBACK")
                    return True
                except sqlite3.OperationalError:
                    os.kill(member.process.pid, signal.SIGCONT)
                    return False

        eventually(is_stopped_outside_a_transaction)

    def wait_for_end(self, member: Member) -> int:
        return member.process.wait(PATIENCE_SECONDS)
