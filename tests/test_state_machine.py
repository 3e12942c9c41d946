"""Random operations on Holdfast and on a plain model of it, with a fake clock: both must always agree.

HOLDFAST_EXAMPLES=5000 pytest tests/test_state_machine.py looks further, at other operations each time.
"""

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from queue_machine import QueueMachine

MATTERS = """dead letter, failed task, fenced, fenced by a newer attempt, settled, recovered, rebooted, rolled back,
deduplicated, replaced, requeued, promoted, snoozed, retry_scheduled, released, succeeded, folded"""


def thorough(examples: int) -> settings:
    """The same examples every time, unless more are asked for."""
    wished = int(os.environ.get("HOLDFAST_EXAMPLES", 0))
    return settings(
        max_examples=wished or examples,
        stateful_step_count=50,
        deadline=None,
        derandomize=not wished,
        database=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )


def test_random_operations_do_what_a_plain_model_does(migrated: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And reach the states that matter."""
    monkeypatch.setattr(QueueMachine, "migrated", migrated)
    QueueMachine.reached.clear()
    run_state_machine_as_test(QueueMachine, settings=thorough(75))
    reached = QueueMachine.reached
    print(dict(reached))
    for what in MATTERS.replace("\n", " ").split(", "):
        assert reached[what] > 0, f"no run came to this: {what}"


def test_an_enqueue_with_a_key_window_prefers_the_live_job_to_one_that_ended() -> None:
    machine = QueueMachine()
    for window, replace in ((None, False), (100, True), (100, False)):
        machine.enqueue("mend", 0, 0, "k1", False, None, 2)
        machine.operate_on_one(0, True, "cancel", 0)
        machine.enqueue("mend", 30, 0, "k1", False, None, 2)
        machine.enqueue("mend", 5, 0, "k1", replace, window, 2)
        machine.both_agree()
        machine.operate_on_one(0, True, "cancel", 0)
    machine.teardown()
