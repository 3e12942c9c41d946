"""`python -m benchmarks`: measure everything, print the figures, write results.md."""

import argparse
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Protocol

from . import (
    bulk,
    depth,
    drains,
    footprint,
    latency,
    listing,
    observing,
    pruning,
    sends,
    trips,
    waiting,
    web,
    workflows,
)
from .files import flush_milliseconds, scratch_folder
from .measure import QUICK, WHOLE, Effort, Figure, Table
from .report import HEAD, as_markdown, as_text, figure_row, machine, summary


class Benchmark(Protocol):
    NOTES: str

    def figures(self, folder: Path, effort: Effort) -> Iterator[Figure | Table]: ...


BENCHMARKS: dict[str, Benchmark] = {
    "trips": trips,
    "sends": sends,
    "drains": drains,
    "bulk": bulk,
    "observing": observing,
    "latency": latency,
    "waiting": waiting,
    "pruning": pruning,
    "depth": depth,
    "workflows": workflows,
    "footprint": footprint,
    "listing": listing,
    "web": web,
}
RESULTS = Path(__file__).parent / "results.md"
NOTES = """\
## How it was measured

- All sides of a figure were measured in the same run, in turns, each round beginning with another side. A ratio is
  the median over the rounds of ours ÷ beside within a round; the spread is its smallest and largest. The rates are
  medians, so they need not divide to exactly the ratio. Ratios are of speeds: more is faster.
- Files are new, on a disk. The body is a JSON object of 88 bytes. FULL flushes the log to the disk at every commit;
  NORMAL flushes only at checkpoints. All is with full history (attempts and events) unless `history=False` is said.
- **The floor, "bare":** plain `sqlite3`, pages of 1024 bytes, WAL, the same synchronous level, SQLite's defaults
  otherwise; one slim jobs table without history, one statement for each of send, claim and settle.
"""


def main() -> None:
    options = _options()
    effort = QUICK if options.quick else WHOLE
    if options.rows:
        effort = replace(effort, rows=options.rows)
    begin = perf_counter()
    with scratch_folder() as folder:
        where = machine(flush_milliseconds(folder))
    found = [one for name in options.only or BENCHMARKS for one in _run(name, effort)]
    figures = [one for one in found if isinstance(one, Figure)]
    tables = [one for one in found if isinstance(one, Table)]
    for table in tables:
        print(f"\n{table.title}\n\n{as_text(table.head, table.rows)}")
    print(f"\n{where}\n\n{as_text(HEAD, [figure_row(figure) for figure in figures])}")
    print(f"\n{summary(figures)}; {perf_counter() - begin:.0f} s")
    if options.quick:
        print("A quick run only shows that the benchmarks work: its figures mean little.")
    elif not options.only and not options.rows:
        RESULTS.write_text(_results(where, figures, tables), encoding="utf-8")
        print("written to benchmarks/results.md")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a smoke run of a minute; writes no results.md")
    parser.add_argument(
        "--only", action="append", choices=list(BENCHMARKS), help="this one; may be repeated; writes no results.md"
    )
    parser.add_argument(
        "--rows", type=int, help=f"rows in the largest files, instead of {WHOLE.rows:,}; writes no results.md"
    )
    return parser.parse_args()


def _run(name: str, effort: Effort) -> Iterator[Figure | Table]:
    begin = perf_counter()
    with scratch_folder() as folder:
        for one in BENCHMARKS[name].figures(folder, effort):
            if isinstance(one, Figure):
                print("  ".join(cell for cell in figure_row(one) if cell), flush=True)
            yield one
    print(f"[{name}: {perf_counter() - begin:.0f} s]", flush=True)


def _results(where: str, figures: list[Figure], tables: list[Table]) -> str:
    parts = [
        f"# Speed\n\nWritten by `make bench`. {where}.",
        as_markdown(HEAD, [figure_row(figure) for figure in figures]),
        f"{summary(figures)}.",
        *(f"## {table.title}\n\n{as_markdown(table.head, table.rows)}" for table in tables),
        NOTES + "".join(benchmark.NOTES for benchmark in BENCHMARKS.values()),
    ]
    return "\n\n".join(parts)


if __name__ == "__main__":
    main()
