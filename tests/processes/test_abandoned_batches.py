"""The process of a block that makes a batch is killed inside it: a worker notices, and the batch ends."""

import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from holdfast import Context, Holdfast
from support.running_worker import PATIENCE_SECONDS, RunningWorker

CREATOR = """
import sys
from holdfast import Holdfast

app = Holdfast(sys.argv[1])

@app.task
def member() -> None: ...

@app.task
def report() -> None: ...

with app.batch(on_done=report, on_success=report) as batch, app.batch() as other:
    member.using(batch=batch).enqueue_many([{}, {}])
    print(batch.id, other.id, flush=True)
    sys.stdin.readline()
"""


@pytest.fixture
def tasks(live: Holdfast) -> list[bool]:
    """Defines the tasks of the creator here, and returns whether the batch of each report was abandoned."""
    reports: list[bool] = []

    @live.task
    def member() -> None: ...

    @live.task
    def report(ctx: Context) -> None:
        assert ctx.batch is not None
        reports.append(ctx.batch.progress().abandoned)

    return reports


@pytest.fixture
def creator(url: str) -> Iterator["subprocess.Popen[str]"]:
    """A process that is in the blocks of two batches."""
    command = [sys.executable, "-c", CREATOR, url]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    yield process
    process.kill()
    process.communicate()


def ids(creator: "subprocess.Popen[str]") -> list[int]:
    assert creator.stdout is not None
    return [int(word) for word in creator.stdout.readline().split()]


def test_a_batch_ends_when_the_process_of_its_block_is_killed(
    live: Holdfast, tasks: list[bool], creator: "subprocess.Popen[str]"
) -> None:
    with RunningWorker(live):
        batch, other = (live.batches.get(id) for id in ids(creator))
        live.store.jobs.sweep()
        assert (batch.progress().state, other.progress().state) == ("open", "open"), "its process is alive"
        creator.send_signal(signal.SIGKILL)
        progress = batch.wait(timeout=PATIENCE_SECONDS)
        assert (progress.succeeded, progress.abandoned) == (2, True)
        assert other.wait(timeout=PATIENCE_SECONDS).abandoned
        assert batch.done_job_id is not None
        live.jobs.get(batch.done_job_id).wait(timeout=PATIENCE_SECONDS)
    assert tasks == [True]
    assert batch.success_job_id is None


def test_a_block_that_ends_leaves_nothing_to_notice(
    live: Holdfast, tasks: list[bool], creator: "subprocess.Popen[str]"
) -> None:
    batch, other = (live.batches.get(id) for id in ids(creator))
    creator.communicate("go on\n", timeout=PATIENCE_SECONDS)
    with RunningWorker(live):
        assert not batch.wait(timeout=PATIENCE_SECONDS).abandoned
        assert not other.wait(timeout=PATIENCE_SECONDS).abandoned
        for job in (batch.done_job_id, batch.success_job_id):
            assert job is not None
            live.jobs.get(job).wait(timeout=PATIENCE_SECONDS)
    assert tasks == [False, False]
