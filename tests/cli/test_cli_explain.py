"""`holdfast explain`, `holdfast complete` and `holdfast fail`."""

import json
import os
import shlex
import signal
import subprocess
from collections.abc import Callable
from typing import Any

import click
import pytest
from click.testing import Result

from holdfast import Holdfast
from holdfast.cli import main
from support.child_processes import command
from support.running_worker import eventually

Run = Callable[..., Result]
Data = Callable[..., Any]
Terminal = Callable[..., tuple[str, int]]

TASKS = """\
from holdfast import Holdfast
app = Holdfast("app.db")

@app.task
def work() -> None: ...
"""


@pytest.fixture
def work(app: Holdfast) -> Any:
    return app.task(name="work")(lambda: None)


def test_explain_prints_reason_and_advice(jobs: dict[str, int], on: Run) -> None:
    result = on("explain", jobs["scheduled"])
    reason, advice = result.stdout.splitlines()
    assert (result.exit_code, result.stderr) == (0, "")
    assert reason.startswith("Job 5 (send_mail) is scheduled, and due at ")
    assert advice == "Run it now: holdfast run-now 5"


def test_as_json(jobs: dict[str, int], data: Data) -> None:
    found = data("explain", jobs["cancelled"])
    assert found == {
        "id": 4,
        "status": "cancelled",
        "reason": "Job 4 (send_mail) was cancelled by joe: sent by hand.",
        "advice": "Run it anyway: holdfast retry 4",
    }


def test_a_missing_job_exits_with_4(app: Holdfast, on: Run) -> None:
    for args in (["explain", 99], ["complete", 99], ["fail", 99, "X"]):
        result = on(*args)
        assert (result.exit_code, result.stdout) == (4, "")
        assert result.stderr == "Error: there is no job 99: it never existed, or it was deleted\n"


@pytest.mark.parametrize("columns", [40, 80, 120])
def test_terminal_output_wraps_at_words(app: Holdfast, work: Any, url: str, terminal: Terminal, columns: int) -> None:
    jobs = work.enqueue_many([{}] * 9)
    last = work.using(after=jobs).enqueue()
    seen, _ = terminal("explain", last.id, "--db", url, columns=columns)
    assert max(map(len, seen.splitlines())) <= columns
    said = app.jobs.explain(last.id)
    assert " ".join(line.strip() for line in seen.splitlines()) == str(said)


def test_every_state_is_explained_with_a_valid_command(
    app: Holdfast, jobs: dict[str, int], work: Any, on: Run, data: Data
) -> None:
    ids = [*jobs.values(), app.external("approve").id]
    ids += [work.using(after=ids[0]).enqueue().id, work.using(after=ids[-1]).enqueue().id]
    ids += [work.using(after=jobs[name]).enqueue().id for name in ("failed", "running")]
    app.queue("default").pause()
    seen = set()
    for job_id in ids:
        advice = data("explain", job_id)["advice"]
        commands = [part for part in advice.split(": ")[-1].split(", or ") if part.startswith("holdfast ")]
        for one in commands:
            name, *rest = shlex.split(one)[1:]
            seen.add(name)
            advised = main.get_command(click.Context(main), name)
            assert advised is not None
            with advised.make_context(name, [arg.replace("CODE", "X:Y") for arg in rest]):
                pass  # click takes it
    assert seen >= {"run-now", "retry", "cancel", "complete", "fail", "queues", "explain"}


def test_a_killed_worker_is_not_reported_as_running(app: Holdfast, work: Any, on: Run, url: str, module: Any) -> None:
    module("tasks.py", TASKS)
    job = work.using(delay=3600).enqueue()
    process = subprocess.Popen(command("worker", "tasks.py", "--log", "quiet", "--queues", "default=1"))
    try:
        eventually(lambda: [one for one in app.workers() if one.pid == process.pid])
        with app.transaction() as tx:
            tx.execute("UPDATE holdfast_jobs SET task = 'unknown', status = 'ready'")
        assert "but the running worker does not have the task unknown." in on("explain", job.id).stdout
        process.send_signal(signal.SIGSTOP)
        os.waitpid(process.pid, os.WUNTRACED)  # it could still run the job until it has stopped
        with app.transaction() as tx:
            tx.execute("UPDATE holdfast_jobs SET task = 'work'")
        stopped = "but the worker that can run it is suspended by a signal"
        eventually(lambda: stopped in on("explain", job.id).stdout)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        assert app.workers()[0].ended_at is None, "nobody has noted its end"
        assert "is ready, but no worker is running." in on("explain", job.id).stdout
    finally:
        process.kill()
        process.wait()


# --- complete and fail ---


def test_an_external_job_is_completed_with_a_result(app: Holdfast, work: Any, on: Run) -> None:
    approval = app.external("approve", {"invoice": 7})
    ship = work.using(after=approval).enqueue()
    result = on("complete", approval.id, "--result", '{"approved": true}', "--actor", "kim")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "Job 1 succeeded.\n", "")
    job = app.jobs.get(approval.id)
    assert (job.status, job.result) == ("succeeded", {"approved": True})
    assert [entry.actor for entry in app.jobs.history(job.id)][-1] == "kim"
    assert app.jobs.get(ship.id).status == "ready"


def test_the_result_may_come_from_standard_input(app: Holdfast, on: Run) -> None:
    job = app.external("approve")
    assert on("complete", job.id, "--result", "-", input='["a", 1]').exit_code == 0
    assert app.jobs.get(job.id).result == ["a", 1]


def test_an_external_job_is_failed_with_a_code(app: Holdfast, on: Run) -> None:
    job = app.external("approve")
    result = on("fail", job.id, "REJECTED:BUDGET", "--detail", "too much", "--actor", "kim", "--json")
    assert (result.exit_code, result.stdout) == (0, '{"id":1,"status":"failed","done":true}\n')
    found = app.jobs.get(job.id)
    assert (found.error_code, found.error_detail) == ("REJECTED:BUDGET", "too much")
    assert "was failed by kim with REJECTED:BUDGET: too much." in on("explain", job.id).stdout


def test_any_unfinished_job_can_be_settled(jobs: dict[str, int], app: Holdfast, on: Run) -> None:
    for name in ("running", "scheduled"):
        assert on("complete", jobs[name]).exit_code == 0
        assert app.jobs.get(jobs[name]).status == "succeeded"


@pytest.mark.parametrize("args", [["complete"], ["fail", "X:Y"]], ids=" ".join)
def test_settling_a_finished_job_exits_with_1(jobs: dict[str, int], app: Holdfast, on: Run, args: list[str]) -> None:
    name, *rest = args
    result = on(name, jobs["cancelled"], *rest)
    assert result.exit_code == 1
    assert result.stdout == "Job 4 is already cancelled: nothing changed.\n"
    again = on(name, jobs["cancelled"], *rest, "--json")
    assert (again.exit_code, json.loads(again.stdout)) == (1, {"id": 4, "status": "cancelled", "done": False})


@pytest.mark.parametrize(
    ("args", "complaint"),
    [
        (["complete", 1, "--result", "{bad"], "--result: invalid JSON: JSON is malformed"),
        (["complete", 1, "--result", "yes"], """A JSON string needs its own quotes, such as '"hello"'"""),
        (["complete", 1, "--result", "NaN"], "--result: invalid JSON"),
        (["complete", "x"], "a job id must be a positive integer, got 'x'"),
        (["fail", 1], "Missing argument 'CODE'"),
        (["fail", 1, "rejected"], "an error code must be CATEGORY or CATEGORY:SUBCATEGORY in capitals"),
        (["complete", 2], "2 is a message: receive it from queue 'inbox'"),
    ],
)
def test_wrong_usage_exits_with_2(app: Holdfast, on: Run, args: list[Any], complaint: str) -> None:
    app.external("approve")
    app.queue("inbox").send(1)
    result = on(*args)
    assert result.exit_code == 2 and complaint in result.stderr
    assert app.jobs.get(1).status == "blocked"


@pytest.mark.parametrize(("result", "code"), [('"many"', 2), ("7", 0)])
def test_with_the_app_a_result_is_checked(
    app: Holdfast, run: Run, url: str, module: Any, result: str, code: int
) -> None:
    module(
        "shop.py",
        f"from holdfast import Holdfast\napp = Holdfast({url!r})\n\n@app.task\ndef count() -> int: ...\n",
    )
    app.task(name="count")(lambda: None).enqueue()
    ended = run("complete", 1, "--result", result, "--app", "shop:app")
    assert ended.exit_code == code and ("int" in ended.stderr) == (code == 2)
