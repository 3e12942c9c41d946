"""`python -m benchmarks.peers`: the same work on queues of others; prints a table, writes peers.md."""

import argparse
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median

from .drains import drain_beside_huey
from .measure import QUICK, WHOLE, Action, Effort, seconds, warm_up
from .places import flush_milliseconds, scratch_folder
from .report import HEAD as FIGURE_HEAD
from .report import Row, as_markdown, as_text, figure_row, machine
from .workload import BODY, Durability

try:
    from .contenders import CONTENDERS, Contender
except ModuleNotFoundError as missing:
    sys.exit(f"{missing}: run 'make bench-peers', which installs requirements-peers.txt")

RESULTS = Path(__file__).parent / "peers.md"
PACKAGES = ("litequeue", "persist-queue", "huey")
HEAD: Row = ("work", "durability", "queue", "rate", "to the floor", "spread", "its default?")
LEVELS: tuple[Durability, ...] = ("normal", "full")
BULK_ROWS = 10_000


@dataclass(frozen=True)
class Work:
    title: str
    times: dict[Durability, int]
    action_of: Callable[[Contender], Action | None]
    rows: int = 1  # that one action writes


NOTES = """\
## How it was measured

- All take turns in one process, on files of their own on a disk; the rates are medians over the rounds, the ratio is
  the median of the ratios within a round. The floors are those of results.md: for send two rows in one transaction,
  for send + receive + ack three bare statements without history, for bulk a bare executemany into Holdfast's table.
- NORMAL and FULL are SQLite's `synchronous` in WAL mode. Where a library has no setting for it, the pragma was given
  on its connection; the last column says which level it uses by itself.
- At FULL, the others and the floor flush all of send, receive and ack; Holdfast flushes the send alone, since a claim
  or an ack that a power cut takes back only delivers the message again.
- Holdfast writes a history (attempts and events) that the others have not, unless it says `history=False`.
- litequeue and persist-queue keep finished rows and grow slower with them, so they are tidied every 1,000 messages by
  their own methods, inside the measured time. litequeue has no bulk call: its puts were put into its `transaction()`.
- persist-queue and huey have no bulk call. persist-queue uses its JSON serializer. huey is measured at its storage,
  `enqueue` and `dequeue`: it deletes a task when it is taken, so there is no ack, and a crash loses it.
- Workers: the floor is huey's own consumer with one worker thread (its default) on jobs that do nothing, from its
  start to the last job; ours is `app.worker(until_idle=True).run()`, from its start to its end, with full history.
  Both are in this process and take turns. Holdfast's worker settles at NORMAL. huey takes jobs one at a time and
  deletes each as it is taken; it writes no history, and no result of a job that returns None.
"""


def _sends(contender: Contender) -> Action:
    return partial(contender.send, BODY)


def _trips(contender: Contender) -> Action:
    return partial(contender.round_trip, BODY)


def _bulk(contender: Contender) -> Action | None:
    return None if contender.send_many is None else partial(contender.send_many, [BODY] * BULK_ROWS)


WORKS: list[Work] = [
    Work("send", {"normal": 4_000, "full": 1_000}, _sends),
    Work("send + receive + ack", {"normal": 1_500, "full": 400}, _trips),
    Work(f"bulk, {BULK_ROWS:,} a call", {"normal": 2, "full": 2}, _bulk, BULK_ROWS),
]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a smoke run of some seconds; writes no peers.md")
    options = parser.parse_args()
    effort = QUICK if options.quick else WHOLE
    with scratch_folder() as folder:
        where = machine(flush_milliseconds(folder)) + "; " + ", ".join(map(_with_version, PACKAGES))
    rows = [row for work in WORKS for level in LEVELS for row in _rows(work, level, effort)]
    with scratch_folder() as folder:
        drains = [figure_row(figure) for figure in drain_beside_huey(folder, effort)]
    print(f"{where}\n\n{as_text(HEAD, rows)}\n\n{as_text(FIGURE_HEAD, drains)}")
    if not options.quick:
        RESULTS.write_text(_results(where, rows, drains), encoding="utf-8")
        print("\nwritten to benchmarks/peers.md")


def _results(where: str, rows: list[Row], drains: list[Row]) -> str:
    return (
        f"# Beside others\n\nWritten by `make bench-peers`. {where}.\n\n{as_markdown(HEAD, rows)}\n\n"
        f"## Workers\n\n{as_markdown(FIGURE_HEAD, drains)}\n\n{NOTES}"
    )


def _with_version(package: str) -> str:
    try:
        return f"{package} {version(package)}"
    except PackageNotFoundError:
        return package


def _rows(work: Work, level: Durability, effort: Effort) -> Iterator[Row]:
    times = effort.of(work.times[level])
    with scratch_folder() as folder:
        contenders = [make(folder, level) for make in CONTENDERS]
        actions = {one: action for one in contenders if (action := work.action_of(one)) is not None}
        for contender, action in actions.items():
            if work.rows == 1:
                warm_up(action, contender.path)
            else:
                action()
        taken = _take_turns(actions, times, effort.rounds)
        for contender in contenders:
            contender.close()
    floor = taken[contenders[0]]
    for contender, own in taken.items():
        ratios = [bare / other for bare, other in zip(floor, own, strict=True)]
        yield (
            work.title,
            level.upper(),
            contender.name,
            f"{times * work.rows / median(own):,.0f} /s",
            f"{median(ratios):.2f} ×",
            f"{min(ratios):.2f}–{max(ratios):.2f}",
            {"": "", level: "yes"}.get(contender.default, f"no: {contender.default.upper()}"),
        )


def _take_turns(actions: dict[Contender, Action], times: int, rounds: int) -> dict[Contender, list[float]]:
    taken: dict[Contender, list[float]] = {contender: [] for contender in actions}
    for _ in range(rounds):
        for contender, action in actions.items():
            taken[contender].append(seconds(action, times))
    return taken


if __name__ == "__main__":
    main()
