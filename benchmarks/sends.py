"""One send at a time, and many threads that send at once."""

import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from time import perf_counter

from holdfast import Holdfast

from .floors import PlainSender
from .measure import Action, Effort, Figure, Target, seconds, take_turns, warm_up
from .workload import BODY, Durability, order, stored

SENDS = {"normal": 6_000, "full": 2_000}
THREADS = 8
THREADED_SENDS = 2_400


def single_sends(folder: Path, effort: Effort) -> Iterator[Figure]:
    yield _contest(folder, effort, "normal", "send", Target(0.5))
    yield _contest(folder, effort, "full", "send", Target(0.8))
    yield _contest(folder, effort, "normal", "enqueue", None)


def _contest(folder: Path, effort: Effort, durability: Durability, what: str, target: Target | None) -> Figure:
    sends = effort.of(SENDS[durability])
    floor = PlainSender(folder / f"floor-{what}-{durability}.db", durability)
    path = folder / f"{what}-{durability}.db"
    with Holdfast(path, durability=durability) as app:
        plain = partial(floor.send, BODY)
        ours = _sender(app) if what == "send" else _enqueuer(app)
        warm_up(plain, floor.path)
        warm_up(ours, path)
        before = floor.count(), stored(path)
        contest = take_turns(effort.rounds, lambda: seconds(plain, sends), lambda: seconds(ours, sends))
        after = floor.count(), stored(path)
    assert {now - then for now, then in zip(after, before, strict=True)} == {sends * effort.rounds}
    floor.close()
    return contest.as_speed(f"{what}, one at a time, {durability.upper()}", sends, "/s", target)


def _sender(app: Holdfast) -> Action:
    return partial(app.queue("inbox").send, BODY)


def _enqueuer(app: Holdfast) -> Action:
    return partial(app.task(order).enqueue, **BODY)


def threaded_sends(folder: Path, effort: Effort) -> Iterator[Figure]:
    """Not against a floor: eight threads against one, of ours."""
    sends = effort.of(THREADED_SENDS, least=8 * THREADS)
    path = folder / "threads.db"
    with Holdfast(path, durability="full") as app:
        send = _sender(app)
        warm_up(send, path)
        before = stored(path)
        contest = take_turns(
            effort.rounds,
            lambda: seconds(send, sends),
            lambda: _together(lambda: seconds(send, sends // THREADS)),
        )
        assert stored(path) - before == 2 * sends * effort.rounds
    name = f"send, {THREADS} threads to one thread, FULL"
    yield contest.as_speed(name, sends, "/s", Target(3))


def _together(work: Callable[[], object]) -> float:
    """The seconds from the common start of all threads until the last one ends."""
    start = threading.Barrier(THREADS + 1)

    def run() -> None:
        start.wait()
        work()

    threads = [threading.Thread(target=run) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    start.wait()
    begin = perf_counter()
    for thread in threads:
        thread.join()
    return perf_counter() - begin
