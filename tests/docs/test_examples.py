"""The examples run, each in a process and a folder of its own, say what they show, and leave nothing behind."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support.running_worker import PATIENCE_SECONDS

EXAMPLES = Path(__file__).parents[2] / "examples"

TRIES: dict[str, list[list[str]]] = {
    "demo.py": [["--seconds", seconds] for seconds in ("6", "30", "120")],
    "nightly_import.py": [["--rows", "400"]],
}
"""Arguments: if there is too little to see, as on a slow machine, it is tried with the next ones."""
PARTS = {"sample_app.py", "nightly_tasks.py"}  # of another example
TELLING_LINES = {
    "demo.py": [
        "The story of job 1, which killed its worker:",
        ": lost INTERNAL:WORKER_LOST",
        "now: failed, INTERNAL:WORKER_LOST",
        "calls of the flaky API succeeded after another try",
        "once for the hour it missed",
    ],
    "killed_consumer.py": [
        "consumer B received message 1, attempt 2",
        "INTERNAL:ATTEMPTS_SPENT: released in attempt 3, the last",
        "message 3 received, attempt 4, and acknowledged",
        "attempt 1 ended: recovered after",
        "requeued   attempt 3  by operator ada",
    ],
    "messages.py": [
        "the slow one's ack: False; the quick one's extend: True, and ack: True",
        "attempt 3: acknowledged, True",
    ],
    "transactional_enqueue.py": ["mails:  ['ada@example.org', 'eve@example.org']"],
    "plain_sql.py": ["its history: enqueued, by sql", "received: {'text': 'hello from SQL'}, acknowledged: True"],
    "typed_queue.py": ["Invalid enum value 'USD'", "dead letter 2: INVALID_INPUT:SCHEMA"],
    "order_workflow.py": [
        "the weights are [5, 8]; the order is blocked",
        "the chain: charge succeeded, ship succeeded, notify succeeded",
        "the money: {'ada': 87, 'shop': 13}",
        "1000 of 1000 mails were sent",
    ],
    "nightly_import.py": [
        "In the middle, the worker is killed; the import is running.",
        "The report says: 396 imported, 4 rejected",
        "Customers: 396 of 396, each imported 1 time. Reports: 1.",
        "'n/a' is not a number",
    ],
    "sql_consumer.py": [
        "parcel 4, attempt 2: the warehouse is closed",
        "3: INVALID_INPUT:UNDECODABLE",
        "2: INVALID_INPUT:SCHEMA",
        "5: REJECTED:TOO_HEAVY",
        "Booked: [(1, 250), (4, 90)]",
    ],
    "debounce.py": ["job 1: scheduled, {'document': 'report.txt', 'version': 4}"],
}


PROJECTS: dict[str, list[list[str]]] = {
    "fastapi_shop": [
        ["-m", "pytest", "-q", "-p", "no:cacheprovider"],
        [
            "-c",
            "from fastapi.testclient import TestClient; from api import api; client = TestClient(api)\n"
            "with client: print(client.post('/orders', json={'customer': 'ada', 'amount': 15}).json())",
        ],
        ["-m", "holdfast", "worker", "jobs:jobs", "--until-idle"],
        [
            "-c",
            "from fastapi.testclient import TestClient; from api import api\n"
            "with TestClient(api) as client: print(client.get('/orders/1').json())",
        ],
    ],
    "django_shop": [
        ["manage.py", "test"],
        ["manage.py", "makemigrations", "--check"],
        ["manage.py", "migrate"],
        [
            "-c",
            "import django; django.setup()\n"
            "from django.test import Client; from shop.jobs import report\n"
            "order = {'customer': 'ada@example.org', 'amount': 15}\n"
            "print(Client().post('/orders/', order, content_type='application/json').json(), report.enqueue())",
        ],
        ["-m", "holdfast", "worker", "shop.jobs:jobs", "--until-idle", "--pool=1", "--log=json"],
        ["-c", "import django; django.setup(); from shop.models import Order; print(Order.objects.get().state)"],
        ["-m", "holdfast", "jobs", "--db", "shop.db", "--json"],
    ],
}
"""Programs of several files: the commands that are run in the folder."""
TELLING_PARTS = {
    "fastapi_shop": ["6 passed", "{'order': 1, 'job': 1}", "mail to ada: paid 15 for order 1", "'state': 'paid'"],
    "django_shop": ["Ran 6 tests", "OK", "No changes detected", "{'order': 1, 'job': 1}", "paid\n"],
}


def test_every_example_is_run() -> None:
    assert {file.name for file in EXAMPLES.glob("*.py")} == TELLING_LINES.keys() | PARTS
    folders = {folder.name for folder in EXAMPLES.iterdir() if folder.is_dir()} - {"__pycache__"}
    assert folders == PROJECTS.keys() | {"mounted"}, "tests/web/test_mounted.py runs the mounted ones"


@pytest.mark.parametrize("name", PROJECTS)
def test_a_project_passes_its_own_tests_and_works(name: str, tmp_path: Path) -> None:
    folder = tmp_path / name
    shutil.copytree(EXAMPLES / name, folder, ignore=shutil.ignore_patterns("__pycache__"))
    before = {*folder.iterdir()}
    own = {"SHOP_DB": "shop.db", "TMPDIR": str(tmp_path), "DJANGO_SETTINGS_MODULE": "project.settings"}
    if name != "django_shop":
        del own["DJANGO_SETTINGS_MODULE"]
    printed = ""
    for command in PROJECTS[name]:
        run = subprocess.run(
            [sys.executable, *command],
            cwd=folder,
            env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1", **own},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            timeout=PATIENCE_SECONDS,
        )
        printed += run.stdout
        assert run.returncode == 0, printed
    assert [part for part in TELLING_PARTS[name] if part not in printed] == [], printed
    if name == "django_shop":
        assert printed.count('"status":"succeeded"') == 3  # charge, mail, report in its own process
    assert {file.name for file in {*folder.iterdir()} - before if not file.name.startswith("shop.db")} == set()


@pytest.mark.parametrize("name", TELLING_LINES)
def test_an_example_runs_and_leaves_nothing_behind(name: str, tmp_path: Path) -> None:
    folder, temporary = tmp_path / "cwd", tmp_path / "tmp"
    folder.mkdir()
    temporary.mkdir()
    for arguments in TRIES.get(name, [[]]):
        printed = printed_by(name, arguments, folder, temporary)
        missing = [line for line in TELLING_LINES[name] if line not in printed]
        if not missing:
            break
    assert missing == []
    assert [*folder.iterdir(), *temporary.iterdir()] == []


def printed_by(name: str, arguments: list[str], folder: Path, temporary: Path) -> str:
    run = subprocess.run(
        [sys.executable, str(EXAMPLES / name), *arguments],
        cwd=folder,
        env={**os.environ, "TMPDIR": str(temporary), "PYTHONIOENCODING": "utf-8"},
        capture_output=True,
        encoding="utf-8",
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert (run.returncode, run.stderr) == (0, "")
    return run.stdout
