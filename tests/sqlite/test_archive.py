"""The archive: every job is in it before it is deleted, whatever happens in between."""

import gzip
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast, Retention
from holdfast.errors import ArchiveError
from holdfast.testing import FakeClock
from holdfast.upkeep.archive import Archive
from support.finished_jobs import DAY, Ended
from support.running_worker import RunningWorker, eventually


def read(file: Path) -> list[dict[str, Any]]:
    with gzip.open(file, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "jobs.jsonl.gz"


@pytest.fixture
def ended(app: Holdfast) -> Ended:
    return Ended(app)


def test_each_job_is_a_line_with_its_attempts_and_events(
    app: Holdfast, clock: FakeClock, ended: Ended, file: Path
) -> None:
    job = ended.job("failed", payload="bell\x07 ünï\u2028", tags=["eu"], key="k-1")
    clock.advance(91 * DAY)
    report = app.prune(archive=file)
    assert (report.failed, report.archived) == (1, 1)
    (line,) = read(file)
    assert (line["id"], line["task"], line["status"], line["key"]) == (job, "work", "failed", "k-1")
    assert (line["args"], line["tags"]) == ({"payload": "bell\x07 ünï\u2028"}, ["eu"])
    assert [attempt["outcome"] for attempt in line["attempts"]] == ["failed"]
    assert [event["event"] for event in line["events"]] == ["enqueued", "claimed", "failed"]
    assert (line["events"][-1]["old_status"], line["events"][-1]["new_status"]) == ("running", "failed")
    assert file.stat().st_mode & 0o777 == 0o600


def test_the_archive_contains_large_payloads(app: Holdfast, clock: FakeClock, ended: Ended, file: Path) -> None:
    ended.job("succeeded", payload="x" * 200_000)
    clock.advance(31 * DAY)
    app.prune(archive=file)
    assert read(file)[0]["args"] == {"payload": "x" * 200_000}


def test_runs_append_and_gzip_tools_can_read_the_archive(
    app: Holdfast, clock: FakeClock, ended: Ended, file: Path
) -> None:
    jobs = []
    for _ in range(3):
        jobs += [ended.job("succeeded") for _ in range(4)]
        clock.advance(31 * DAY)
        app.prune(archive=file)
    assert [line["id"] for line in read(file)] == jobs
    subprocess.run(["gzip", "--test", file], check=True)
    assert len(subprocess.run(["zcat", file], check=True, capture_output=True).stdout.splitlines()) == 12


def test_a_truncated_member_is_removed_and_earlier_ones_are_kept(file: Path) -> None:
    with Archive(file) as archive:
        archive.append([b'{"id":1}', b'{"id":2}'])
        whole = file.stat().st_size
        archive.append([b'{"id":3}'])
    size = file.stat().st_size
    for length in range(whole, size):
        content = file.read_bytes()[:length]
        torn = file.with_name(f"torn-{length}.jsonl.gz")
        torn.write_bytes(content)
        with Archive(torn) as archive:
            assert torn.stat().st_size == whole
            archive.append([b'{"id":4}'])
        assert [line["id"] for line in read(torn)] == [1, 2, 4]


def test_a_job_that_could_not_be_archived_is_not_deleted(
    app: Holdfast, clock: FakeClock, ended: Ended, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = [ended.job("succeeded") for _ in range(5)]
    clock.advance(31 * DAY)

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(ArchiveError, match="No space left"):
        app.prune(archive=file)
    assert sorted(job.id for job in app.jobs.list()) == jobs
    monkeypatch.undo()
    assert app.prune(archive=file).archived == 5


def test_the_archive_is_flushed_before_jobs_are_deleted(
    app: Holdfast, clock: FakeClock, ended: Ended, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(3):
        ended.job("succeeded")
    clock.advance(31 * DAY)
    there: list[int] = []
    fsync = os.fsync

    def look(descriptor: int) -> None:
        fsync(descriptor)
        there.append(len(app.jobs.list()))

    monkeypatch.setattr(os, "fsync", look)
    app.prune(archive=file)
    assert there[-1] == 3, "the last flush of the archive came before the deletion"
    assert app.jobs.list().items == []


@pytest.mark.parametrize(
    "content",
    [b"text", gzip.compress(b"{}\n", mtime=0), b"\x1f\x8b\x08\x04" + b"x" * 40],
    ids=["text", "another gzip", "a cut one"],
)
def test_a_foreign_file_is_refused_and_not_changed(app: Holdfast, file: Path, content: bytes) -> None:
    file.write_bytes(content)
    with pytest.raises(ArchiveError, match="not an archive"):
        app.prune(archive=file)
    assert file.read_bytes() == content


def test_an_unusable_path_is_refused_before_anything_is_done(app: Holdfast, tmp_path: Path) -> None:
    with pytest.raises(ArchiveError, match="gz"):
        app.prune(archive=tmp_path / "jobs.jsonl")
    with pytest.raises(ArchiveError, match="cannot be opened"):
        app.prune(archive=tmp_path / "nowhere" / "jobs.jsonl.gz")


def test_two_processes_cannot_write_to_one_archive(file: Path) -> None:
    with Archive(file), pytest.raises(ArchiveError, match="another"):
        Archive(file)


def test_a_worker_writes_to_the_archive_of_the_policy(open_app: Any, clock: FakeClock, file: Path, url: str) -> None:
    del url
    app = open_app(clock=clock, retention=Retention(archive=str(file)))
    jobs = [Ended(app).job("succeeded") for _ in range(3)]
    clock.advance(31 * DAY)
    with RunningWorker(app):
        eventually(lambda: not app.jobs.list().items)
    assert [line["id"] for line in read(file)] == jobs


@pytest.mark.parametrize("kind", ["a pipe", "a device"])
def test_only_regular_files_are_accepted(
    app: Holdfast, clock: FakeClock, ended: Ended, file: Path, kind: str
) -> None:
    ended.job("succeeded")
    clock.advance(31 * DAY)
    os.mkfifo(file) if kind == "a pipe" else file.symlink_to("/dev/full")
    with pytest.raises(ArchiveError, match="not a regular file"):
        app.prune(archive=file)
    assert app.jobs.count() == 1


def test_an_archive_that_cannot_be_prepared_is_refused(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.ftruncate", full)
    with pytest.raises(ArchiveError, match="cannot be written: No space left on device"):
        Archive(file)
