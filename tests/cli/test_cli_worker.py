"""The options of `holdfast worker`, as they reach the process that it starts."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from msgspec.structs import asdict

from holdfast import Holdfast
from holdfast.supervisor.worker_command import WorkerSettings, _server_arguments

Run = Callable[..., Result]

TASKS = """
from holdfast import Holdfast
app = Holdfast("app.db")

@app.task
def double(n: int) -> int:
    return 2 * n
"""

DEFAULTS = {
    "queues": None,
    "concurrency": 10,
    "processes": 1,
    "pool": None,
    "grace": 30.0,
    "lease": 60.0,
    "until_idle": False,
    "reload": False,
    "log": "text",
    "max_jobs": None,
    "max_memory": None,
    "metrics_port": None,
    "metrics_host": "127.0.0.1",
    "web_port": None,
    "web_host": "127.0.0.1",
    "web_auth": None,
    "web_allow_host": (),
    "web_read_only": False,
    "web_hide_args": False,
    "web_redact": (),
}


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, dict[str, Any]]]:
    """What would have been started, instead of starting it."""
    calls: list[tuple[str, dict[str, Any]]] = []

    def run_worker(reference: str, settings: WorkerSettings, servers: dict[str, Any]) -> int:
        assert ("metrics" in servers) == (settings.metrics_port is not None)
        assert ("the web page" in servers) == (settings.web_port is not None)
        calls.append((reference, asdict(settings)))
        return 75

    monkeypatch.setattr("holdfast.supervisor.worker_command.run_worker", run_worker)
    return calls


def test_the_defaults(run: Run, started: list[Any]) -> None:
    assert run("worker", "tasks:app").exit_code == 75, "the worker's own code"
    assert started == [("tasks:app", DEFAULTS)]


def test_every_option_is_passed_on(run: Run, started: list[Any], tmp_path: Path) -> None:
    options = "--queues mail=4,default --concurrency 20 --processes 4 --pool 2 --grace 1m --lease 90 --until-idle"
    options += " --reload --log json --max-jobs 1000 --max-memory 512M"
    options += " --metrics-port 9464 --metrics-host ::1"
    options += " --web-port 8520 --web-host ::1 --web-auth USERS --web-allow-host a --web-allow-host b"
    options += " --web-read-only --web-hide-args --web-redact token"
    users = tmp_path / "users.json"
    users.write_text("{}")
    options = options.replace("USERS", str(users))
    run("worker", "tasks.py", *options.split())
    assert started == [
        (
            "tasks.py",
            {
                "queues": "mail=4,default",
                "concurrency": 20,
                "processes": 4,
                "pool": 2,
                "grace": 60.0,
                "lease": 90.0,
                "until_idle": True,
                "reload": True,
                "log": "json",
                "max_jobs": 1000,
                "max_memory": 512 * 1024 * 1024,
                "metrics_port": 9464,
                "metrics_host": "::1",
                "web_port": 8520,
                "web_host": "::1",
                "web_auth": str(users),
                "web_allow_host": ("a", "b"),
                "web_read_only": True,
                "web_hide_args": True,
                "web_redact": ("token",),
            },
        )
    ]


def test_the_first_process_of_several_is_given_the_options_of_its_servers(
    run: Run, started: list[Any], tmp_path: Path
) -> None:
    users = tmp_path / "users.json"
    users.write_text("{}")
    given = WorkerSettings(
        metrics_port=0, web_port=1, web_host="::1", web_auth=str(users), web_allow_host=("a", "b"),
        web_redact=("token|key", "-"), web_read_only=True, web_hide_args=True,
    )  # fmt: skip
    run("worker", "tasks.py", *_server_arguments(given))
    assert started == [("tasks.py", asdict(given))]


@pytest.mark.parametrize("wrong", ["--web-redact=(", "--web-auth=missing.json", "--web-host=0.0.0.0"])
def test_what_is_wrong_with_the_web_page_is_told_before_anything_starts(
    run: Run, started: list[Any], wrong: str
) -> None:
    assert run("worker", "tasks.py", "--web-port=0", wrong).exit_code == 2
    assert started == []


@pytest.mark.parametrize(
    "wrong",
    [
        "--concurrency 0",
        "--processes -1",
        "--grace soon",
        "--log xml",
        "--max-memory much",
        "--max-memory 0",
        "--metrics-port 70000",
        "",
    ],
)
def test_wrong_options_exit_with_2(run: Run, started: list[Any], wrong: str) -> None:
    result = run("worker", *(["tasks:app"] if wrong else []), *wrong.split())
    assert result.exit_code == 2 and started == []


@pytest.mark.parametrize(
    ("text", "size"), [("1000", 1000), ("2k", 2048), ("1G", 2**30), ("1GiB", 2**30), ("3mb", 3 * 2**20)]
)
def test_sizes(run: Run, started: list[Any], text: str, size: int) -> None:
    run("worker", "tasks", "--max-memory", text)
    assert started[0][1]["max_memory"] == size


def test_send_and_worker_from_a_shell(start: Any, module: Any, tmp_path: Path) -> None:
    module("tasks.py", TASKS)
    sent = start("send", "default", '{"n": 21}', "--task", "double", "--db", "app.db", "--create", cwd=tmp_path)
    assert sent.stdout == "1\n"
    ended = start("worker", "tasks.py", "--until-idle", "--log", "quiet", cwd=tmp_path)
    assert (ended.returncode, ended.stdout) == (0, "")
    with Holdfast(tmp_path / "app.db") as app:
        assert app.jobs.get(1).result == 42


def test_a_worker_names_its_database_first(start: Any, module: Any, tmp_path: Path) -> None:
    """A relative path names another file in another folder."""
    module("tasks.py", TASKS)
    ended = start("worker", "tasks.py", "--until-idle", cwd=tmp_path)
    assert f" started on {(tmp_path / 'app.db').resolve()}: all queues" in ended.stderr.splitlines()[0]


def test_an_app_that_cannot_be_loaded_exits_with_2(start: Any, tmp_path: Path) -> None:
    ended = start("worker", "nowhere:app", cwd=tmp_path)
    assert ended.returncode == 2
    assert ended.stderr.startswith("Error: there is no module 'nowhere'")
