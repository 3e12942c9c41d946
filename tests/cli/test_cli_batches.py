"""`holdfast batches`, `holdfast batch`, and `--batch` of the commands about jobs."""

from collections.abc import Callable
from typing import Any

import pytest
from click.testing import Result

from holdfast import Batch, Holdfast
from holdfast.cli.top.state import TopState, read_data
from holdfast.cli.top.view import draw
from support.running_worker import drain

Run = Callable[..., Result]
Data = Callable[..., Any]


@pytest.fixture
def batches(app: Holdfast) -> dict[str, Batch]:
    @app.task(max_attempts=1)
    def work(ok: bool) -> None:
        if not ok:
            raise ConnectionError

    @app.task
    def report() -> None: ...

    with app.batch(on_done=report) as done:
        work.using(batch=done).enqueue_many([{"ok": True}, {"ok": False}])
    drain(app)
    with app.batch() as running:
        work.using(batch=running, delay=60).enqueue(True)
    open_one = app.batch().__enter__()
    return {"done": done, "running": running, "open": open_one}


def test_the_list_has_state_and_counts(batches: dict[str, Batch], on: Run, data: Data) -> None:
    lines = on("batches").stdout.splitlines()
    assert [line.split() for line in lines] == [
        ["ID", "STATE", "MEMBERS", "PENDING", "SUCCEEDED", "FAILED", "CANCELLED", "AGE"],
        ["3", "open", "0", "0", "0", "0", "0", lines[1].split()[-1]],
        ["2", "running", "1", "1", "0", "0", "0", lines[2].split()[-1]],
        ["1", "done", "2", "0", "1", "1", "0", lines[3].split()[-1]],
    ]
    listed = data("batches", "--state", "done")["batches"]
    assert [(one["id"], one["state"], one["failed"], one["abandoned"]) for one in listed] == [(1, "done", 1, False)]
    page = data("batches", "--limit", "2")
    assert [one["id"] for one in data("batches", "--cursor", page["next"])["batches"]] == [1]


def test_no_batches_is_not_an_error(app: Holdfast, on: Run, data: Data) -> None:
    result = on("batches")
    assert (result.exit_code, result.stdout) == (0, "") and "No batches" in result.stderr
    assert data("batches") == {"batches": [], "next": None, "previous": None}


def test_show_has_members_and_callbacks(batches: dict[str, Batch], app: Holdfast, on: Run, data: Data) -> None:
    shown = on("batch", "show", "1").stdout
    assert "2: 1 succeeded, 1 failed" in shown
    assert f"job {batches['done'].done_job_id}" in shown
    assert data("batch", "show", "1")["creator"] == app.store.actor
    assert on("batch", "show", "9").exit_code == 4


def test_retry_runs_the_failed_members_again(batches: dict[str, Batch], app: Holdfast, on: Run) -> None:
    result = on("batch", "retry", "1", "--actor", "kim", "--reason", "fixed")
    assert (result.exit_code, result.stdout) == (0, "1 member retried.\n")
    assert batches["done"].progress().state == "running"
    assert on("batch", "retry", "2").exit_code == 1


def test_cancel_asks_first(batches: dict[str, Batch], on: Run, data: Data) -> None:
    assert on("batch", "cancel", "2").exit_code == 2, "not a terminal: it needs --yes"
    assert data("batch", "cancel", "2", "--yes") == {"batch": 2, "cancelled": 1}
    assert batches["running"].progress().state == "done"


def test_seal_ends_an_open_batch(batches: dict[str, Batch], app: Holdfast, on: Run) -> None:
    assert on("batch", "seal", "3", "--actor", "kim", "--reason", "complete").stdout == "Batch 3 is sealed.\n"
    (event,) = [one for one in app.observe.events() if one.event == "batch_sealed"]
    assert (event.actor, event.detail) == ("kim", {"batch": 3, "reason": "complete"})
    again = on("batch", "seal", "3")
    assert (again.exit_code, again.stdout) == (1, "Batch 3 was sealed already.\n")


def test_jobs_are_listed_by_batch(batches: dict[str, Batch], data: Data) -> None:
    assert [job["id"] for job in data("jobs", "--batch", "1")["jobs"]] == [2, 1]
    assert [job["id"] for job in data("jobs", "--batch", "1", "--status", "failed")["jobs"]] == [2]
    assert [job["status"] for job in data("jobs", "--batch", "2")["jobs"]] == ["scheduled"]


def test_top_counts_batches_that_are_not_done(batches: dict[str, Batch], app: Holdfast) -> None:
    data = read_data(app)
    assert data.batches == 2
    lines = draw(data, TopState(), "app.db", (120, 24), data.at)
    assert "2 unfinished batches" in "".join(cell.text for cell in lines[1])


def test_a_batch_id_is_a_positive_number(app: Holdfast, on: Run) -> None:
    for arguments in (("batch", "show", "x"), ("jobs", "--batch", "0"), ("batches", "--state", "late")):
        assert on(*arguments).exit_code == 2
