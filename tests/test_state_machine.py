"""Random operations on Holdfast and on a plain model of it, with a fake clock: both must always agree.

HOLDFAST_EXAMPLES=5000 pytest tests/test_state_machine.py looks further, at other operations each time.
"""

import os
from collections.abc import Callable, Iterator

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from support.backend import SqliteBackend
from support.postgres_backend import PostgresBackend
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


@pytest.fixture(params=[SqliteBackend, PostgresBackend], ids=lambda kind: kind.name)
def machine(
    request: pytest.FixtureRequest, template: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[type[QueueMachine]]:
    """The machine on each store."""
    request.param.relax(monkeypatch)
    monkeypatch.setattr(QueueMachine, "kind", request.param, raising=False)
    monkeypatch.setattr(QueueMachine, "template", template(request.param), raising=False)
    monkeypatch.setattr(QueueMachine, "_hypothesis_internal_use_seed", None, raising=False)
    QueueMachine.reached.clear()
    yield QueueMachine


def test_random_operations_do_what_a_plain_model_does(machine: type[QueueMachine]) -> None:
    """And reach the states that matter: in one round, or in another."""
    is_slow = machine.kind is PostgresBackend  # a step takes four times as long
    missing = matters = set(MATTERS.replace("\n", " ").split(", "))
    if not machine.kind.ends_leases_at_boot:
        matters.discard("rebooted")
    for number in range(MOST_ROUNDS):
        how = thorough(25 if is_slow else 75)
        run_state_machine_as_test(seed(number)(machine) if how.derandomize else machine, settings=how)
        missing = {what for what in matters if not machine.reached[what]}
        if not missing:
            break
    print(dict(machine.reached))
    assert missing == set(), "no run came to these"


def test_an_enqueue_with_a_key_window_prefers_the_live_job_to_one_that_ended(machine: type[QueueMachine]) -> None:
    one = machine()
    for window, replace in ((None, False), (100, True), (100, False)):
        one.enqueue("mend", 0, 0, "k1", False, None, 2)
        one.operate_on_one(0, True, "cancel", 0)
        one.enqueue("mend", 30, 0, "k1", False, None, 2)
        one.enqueue("mend", 5, 0, "k1", replace, window, 2)
        one.both_agree()
        one.operate_on_one(0, True, "cancel", 0)
    one.teardown()
