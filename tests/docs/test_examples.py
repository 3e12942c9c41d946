"""The examples run, each in a process and a folder of its own, say what they show, and leave nothing behind."""

import os
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


def test_every_example_is_run() -> None:
    assert {file.name for file in EXAMPLES.glob("*.py")} == TELLING_LINES.keys() | PARTS


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
