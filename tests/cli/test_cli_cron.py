"""`holdfast cron` and its subcommands."""

import re
from collections.abc import Callable
from typing import Any

import pytest
from click.testing import Result

from holdfast import Holdfast

Run = Callable[..., Result]
Data = Callable[..., Any]

KEYS = ["name", "cron", "tz", "task", "queue", "paused", "next_at", "last_at", "last_job_id", "missed", "source"]
KEYS += ["in_words"]


@pytest.fixture
def schedules(app: Holdfast) -> None:
    @app.task(queue="reports")
    def report(day: str = "") -> None: ...

    app.schedules.add("nightly", "30 2 * * *", report, {"day": "secret"}, tz="Europe/Zurich")
    app.schedules.add("often", "*/5 * * * *", report)


def test_the_list_shows_next_and_last_runs(schedules: None, on: Run) -> None:
    header, nightly, often = on("cron").stdout.splitlines()
    assert header.split() == ["NAME", "CRON", "ZONE", "TASK", "QUEUE", "NEXT", "LAST"]
    local = r"\d{4}-\d\d-\d\d 02:30:00 CES?T, in \d+[hm]"
    assert re.match(rf"nightly +30 2 \* \* \* +Europe/Zurich +report +reports +{local}", nightly)
    assert re.match(
        r"often +\*/5 \* \* \* \* +UTC +report +reports +\d{4}-\d\d-\d\d \d\d:\d[05]:00 UTC, in \d", often
    )


def test_json_has_the_times_but_not_the_arguments(schedules: None, on: Run, data: Data) -> None:
    nightly, _ = data("cron")["schedules"]
    assert list(nightly) == KEYS
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:30:00\.000000Z", nightly["next_at"])
    assert (nightly["last_at"], nightly["last_job_id"], nightly["source"]) == (None, None, "runtime")
    assert "secret" not in on("cron").stdout + on("cron", "--json").stdout


def test_no_schedules_is_not_an_error(app: Holdfast, on: Run, data: Data) -> None:
    result = on("cron")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "No schedules.\n")
    assert data("cron") == {"schedules": []}


def test_pause_and_resume(app: Holdfast, schedules: None, on: Run, data: Data) -> None:
    assert on("cron", "pause", "often", "--actor", "kim").stdout == "often paused.\n"
    assert app.schedules.get("often").paused
    assert re.search(r"^often .* paused$", on("cron").stdout, re.MULTILINE)
    assert data("cron")["schedules"][1]["next_at"] is None
    again = on("cron", "pause", "often")
    assert (again.exit_code, again.stdout) == (1, "often was already paused: nothing changed.\n")
    assert data("cron", "resume", "often") == {"schedule": "often", "paused": False, "changed": True}
    assert on("cron", "resume", "often").exit_code == 1
    assert not app.schedules.get("often").paused


def test_remove(app: Holdfast, schedules: None, on: Run, data: Data) -> None:
    assert on("cron", "remove", "often").stdout == "often removed.\n"
    assert data("cron", "remove", "nightly") == {"schedule": "nightly", "removed": True}
    assert app.schedules.list() == []


def test_run_enqueues_a_job_now(app: Holdfast, schedules: None, on: Run, data: Data) -> None:
    result = on("cron", "run", "nightly", "--actor", "kim", "--reason", "again")
    (job,) = app.jobs.list()
    assert (result.exit_code, result.stdout) == (0, f"{job.id}\n")
    assert (job.task, job.queue, job.status) == ("report", "reports", "ready")
    assert data("cron", "run", "often") == {"schedule": "often", "id": job.id + 1, "deduplicated": False}
    assert re.search(r" UTC, \d+s ago$", on("cron").stdout.splitlines()[2])


@pytest.mark.parametrize("verb", ["pause", "resume", "remove", "run"])
def test_a_missing_schedule_exits_with_4(schedules: None, on: Run, verb: str) -> None:
    result = on("cron", verb, "ofen")
    assert result.exit_code == 4 and result.stderr.startswith("Error: ") and "'ofen'" in result.stderr
    assert on("cron", verb, "").exit_code == 2


def test_removing_a_schedule_from_code_warns_that_it_is_added_again(app: Holdfast, on: Run) -> None:
    @app.cron("0 0 * * *")
    def tidy() -> None: ...

    app.store.schedules.put(app.schedules.declared["tidy"], "worker-1")  # as a worker does at its start
    result = on("cron", "remove", "tidy")
    assert result.exit_code == 0 and "adds it again" in result.stderr
