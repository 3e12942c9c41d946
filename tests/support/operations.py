"""What the machine in `queue_machine.py` may do, how often, and with which values."""

from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

QUEUES = {"a": (5, 3), "b": (30, 2)}  # visibility, max_attempts
TASKS = {"mend": ("a", 2), "knit": ("b", 3)}  # queue, max_attempts

queue_names = st.sampled_from(sorted(QUEUES))
task_names = st.sampled_from(sorted(TASKS))
keys = st.sampled_from([None, None, "k1", "k2"])
priorities = st.sampled_from([0, 0, 0, 5, -5])
delays = st.sampled_from([0, 0, 0, 1, 5, 30])
passing = st.sampled_from([0.000001, 1, 4.999999, 5, 29.999999, 30, 100])
picks = st.integers(0, 1000)
verbs = st.sampled_from(["ack", "release", "extend 0", "extend", "retry", "fail", "stop", "snooze"])
operator_verbs = st.sampled_from(["retry", "cancel", "run_now", "delete"])

OPERATIONS: dict[str, tuple[int, Any]] = {}


def operation(weight: int, **arguments: Any) -> Callable[[Any], Any]:
    """One of the things `QueueMachine.step` does, `weight` times as often as one of weight 1.

    Rules of their own would leave out some of them in most runs, and those that need a claim would starve.
    """

    def register(method: Any) -> Any:
        OPERATIONS[method.__name__] = weight, st.fixed_dictionaries(arguments)
        return method

    return register


def any_operation() -> Any:
    often = [name for name, (weight, _) in OPERATIONS.items() for _ in range(weight)]
    return st.sampled_from(often).flatmap(lambda name: st.tuples(st.just(name), OPERATIONS[name][1]))
