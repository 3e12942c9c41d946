"""Workers on disks that fill up, after a fork, after a restart of the machine, without their lock file."""

import logging
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast import Context, Holdfast
from holdfast.testing import FakeClock
from support.child_processes import Crew
from support.disks import Disk, disk, fill
from support.forking import Child, patient_forks
from support.running_worker import RunningWorker, attempts, comes_true, drain, eventually, outcomes
from support.transitions import claim_tasks, recover_lost

__all__ = ["disk", "patient_forks"]  # fixtures


# --- a full disk ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_job_that_ends_on_a_full_disk_is_settled_when_there_is_room_and_not_run_again(
    disk: Disk,
    caplog: pytest.LogCaptureFixture,
    kind: str,
) -> None:
    place, runs, full = disk("8m"), [], threading.Event()
    with Holdfast(place / "app.db", min_free_bytes=0, busy_timeout=60) as app:

        def fill_up(ctx: Context) -> str:
            runs.append(ctx.attempt)
            fill(place)
            full.set()
            return "x" * 500_000

        @app.task
        def work(ctx: Context) -> str:
            return fill_up(ctx)

        @app.task
        async def work_later(ctx: Context) -> str:
            return fill_up(ctx)

        job = (work if kind == "sync" else work_later).enqueue()
        with caplog.at_level(logging.WARNING, "holdfast"), RunningWorker(app, lease=2) as running:
            comes_true(full)
            eventually(lambda: "cannot write to the database" in caplog.text, "the disk was not full")
            lease_ends = time.monotonic() + 2.3
            eventually(lambda: time.monotonic() > lease_ends)
            assert job.refresh().status == "running"
            (place / "ballast").unlink()
            eventually(lambda: job.refresh().status == "succeeded")
            report = running.stop()
        assert (len(runs), len(job.result or "")) == (1, 500_000)
        assert outcomes(app, job.id) == ["succeeded"]
        assert report.succeeded == 1


def test_a_worker_on_a_full_disk_goes_on_when_there_is_room(disk: Disk) -> None:
    place = disk("8m")
    with Holdfast(place / "app.db", min_free_bytes=0, busy_timeout=60) as app:
        runs = Counter[int]()

        @app.task
        def work(n: int) -> None:
            runs[n] += 1
            if n == 40:
                fill(place)

        work.enqueue_many([{"n": n} for n in range(100)])
        with RunningWorker(app, concurrency=2) as running:
            eventually(lambda: running.worker._worker_run.dispatcher._backoff_seconds > 0, "no settling has failed")
            (place / "ballast").unlink()
            eventually(lambda: app.jobs.count(status="succeeded") == 100)
        assert set(runs.values()) == {1}


# --- forks ----------------------------------------------------------------------------------------


@pytest.fixture
def app(tmp_path: Path) -> Iterator[Holdfast]:
    with Holdfast(tmp_path / "app.db") as opened:
        yield opened


def test_workers_that_are_forked_from_one_process_have_names_of_their_own(app: Holdfast) -> None:
    @app.task
    def work() -> int:
        return os.getpid()

    ids = work.enqueue_many([{}] * 50)

    def run() -> str:
        worker = app.worker(until_idle=True, concurrency=2)
        return f"{worker.run().succeeded} {worker.id}"

    reports = [child.result().split() for child in [Child(run) for _ in range(3)]]
    assert sum(int(succeeded) for succeeded, _ in reports) == 50
    assert len({name for _, name in reports}) == 3
    assert all(app.jobs.get(job_id).result != os.getpid() for job_id in ids)
    assert {one.record.ending for one in app.store.workers.list()} == {"stopped"}


def test_a_fork_neither_frees_the_lock_of_a_running_worker_nor_takes_its_jobs(app: Holdfast) -> None:
    begun, release = threading.Event(), threading.Event()

    @app.task
    def hold() -> str:
        begun.set()
        comes_true(release)
        return "done"

    job = hold.enqueue()
    with RunningWorker(app):
        comes_true(begun)
        for _ in range(3):
            assert Child(lambda: recover_lost(app.store)).result() == "0"
        assert seen_by_a_stranger(app) == "0"
        release.set()
        eventually(lambda: job.refresh().status == "succeeded")
    assert (job.result, job.attempt) == ("done", 1)


# --- the lock file --------------------------------------------------------------------------------


def seen_by_a_stranger(app: Holdfast) -> str:
    """How many jobs another process recovers from workers that it takes for dead."""
    path = str(app.store.database.options.path)  # type: ignore[attr-defined]
    code = (
        "import sys, holdfast; from holdfast.model.job import Sweep; "
        "print(holdfast.Holdfast(sys.argv[1]).store.jobs.sweep(Sweep.WORKERS))"
    )
    done = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_a_worker_makes_its_lock_seen_again_when_the_file_was_removed(app: Holdfast, tmp_path: Path) -> None:
    begun, release = threading.Event(), threading.Event()

    @app.task
    def hold() -> None:
        begun.set()
        comes_true(release)

    job = hold.enqueue()
    lock = tmp_path / "app.db-workers"
    with RunningWorker(app) as running:
        comes_true(begun)
        for _ in range(3):
            lock.unlink()
            assert seen_by_a_stranger(app) == "0"
            assert app.store.workers.heartbeat(running.worker.id) is not None
            assert lock.exists()
            assert seen_by_a_stranger(app) == "0"
        release.set()
        eventually(lambda: job.refresh().status == "succeeded")
    assert job.attempt == 1


# --- a restart of the machine ---------------------------------------------------------------------


@pytest.mark.parametrize("lock", ["kept", "another"])
@pytest.mark.parametrize(("max_attempts", "ends"), [(5, ["lost", "succeeded"]), (1, ["lost"])])
def test_what_ran_when_the_machine_went_down_is_recovered_at_once(
    tmp_path: Path, lock: str, max_attempts: int, ends: list[str]
) -> None:
    """With another lock file, as beside a restored backup, the name of the boot alone tells that they are dead."""
    database = tmp_path / "app.db"
    with Holdfast(database, busy_timeout=60) as before, Crew(tmp_path, database) as crew:
        worker = crew.start("many_tasks_worker")
        tx_job = before.queue("unrelated").send("x")
        with before.transaction() as tx:
            tx.execute(
                "INSERT INTO holdfast_jobs (task, args, max_attempts) VALUES ('hold', '{\"file\": \"never\"}', ?)",
                (max_attempts,),
            )
        job_id = tx_job + 1
        eventually(lambda: before.jobs.get(job_id).status == "running")
        crew.kill(worker)
    if lock == "another":
        (tmp_path / "new").touch()
        (tmp_path / "new").rename(f"{database}-workers")
    with Holdfast(database, clock=FakeClock(time.time_ns() // 1000, boot_id="another-boot")) as after:

        @after.task
        def hold(file: str) -> str:
            return "after the restart"

        drain(after)
        assert outcomes(after, job_id) == ends
        assert attempts(after, job_id)[0].detail["error_code"] == "INTERNAL:WORKER_LOST"
        assert [one.record.ending for one in after.store.workers.list()].count(None) == 0, (
            "a dead worker is still listed as alive"
        )


def test_a_clock_of_the_boot_that_begins_anew_does_not_make_leases_endless(open_app: Callable[..., Holdfast]) -> None:
    clock = FakeClock()
    app = open_app(clock=clock)

    @app.task
    def work() -> str:
        return "done"

    job = work.enqueue()
    claim_tasks(app.store, None, ["work"], 1, 3600 * 1_000_000, "a worker that is gone")
    app.close()
    clock.reboot()
    again = open_app(clock=clock)

    @again.task(name="work")
    def work_again() -> str:
        return "done"

    drain(again)
    assert again.jobs.get(job.id).result == "done"
