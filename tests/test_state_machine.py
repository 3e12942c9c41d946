"""Random operations on Holdfast and on a plain model of it, with a fake clock: both must always agree.

HOLDFAST_EXAMPLES=5000 pytest tests/test_state_machine.py looks further, at other operations each time.
"""

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from support.queue_machine import QueueMachine

MATTERS = """dead letter, failed task, fenced, fenced by a newer attempt, settled, recovered, rebooted, rolled back,
deduplicated, replaced, not replaced: running, requeued, cancelled running, purged running, promoted, run_now,
snoozed, retry_scheduled, released, succeeded, folded"""


MOST_ROUNDS = 6


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
    """And reach the states that matter: in one round, or in another."""
    monkeypatch.setattr(QueueMachine, "migrated", migrated)
    monkeypatch.setattr(QueueMachine, "_hypothesis_internal_use_seed", None, raising=False)
    QueueMachine.reached.clear()
    missing = matters = set(MATTERS.replace("\n", " ").split(", "))
    for number in range(MOST_ROUNDS):
        how = thorough(75)
        machine = seed(number)(QueueMachine) if how.derandomize else QueueMachine
        run_state_machine_as_test(machine, settings=how)
        missing = {what for what in matters if not QueueMachine.reached[what]}
        if not missing:
            break
    print(dict(QueueMachine.reached))
    assert missing == set(), "no run came to these"


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
