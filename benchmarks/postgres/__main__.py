"""`python -m benchmarks.postgres`: measure the PostgreSQL store, print the figures, write results.md."""

import argparse
import os
import platform
import sys
import traceback
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from time import perf_counter
from typing import Protocol

from ..measure import Effort, Figure
from ..report import HEAD, as_markdown, as_text, figure_row, summary
from . import churn, contention, depth, drains, sends, waking
from .server import Server, running_server

WHOLE = Effort(rounds=5, part=1.0, rows=1_000_000)
QUICK = Effort(rounds=1, part=0.05, rows=20_000)
RESULTS = Path(__file__).parent / "results.md"
NOTES = """\
## How it was measured

- One server of its own on a unix socket, with `fsync`, `full_page_writes` and `synchronous_commit` on. Each turn has
  a new database.
- All sides of a figure take turns, and each round begins with another side. A ratio is the median over the rounds of
  ours ÷ beside within a round; the spread is its smallest and largest. More is faster.
"""


class PostgresBenchmark(Protocol):
    NOTES: str

    def figures(self, server: Server, effort: Effort) -> Iterator[Figure]: ...


BENCHMARKS: dict[str, PostgresBenchmark] = {
    "drains": drains,
    "sends": sends,
    "contention": contention,
    "churn": churn,
    "waking": waking,
    "depth": depth,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.postgres", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a smoke run; writes no results.md")
    parser.add_argument("--only", action="append", choices=list(BENCHMARKS), help="this one; writes no results")
    options = parser.parse_args()
    effort = QUICK if options.quick else WHOLE
    begin = perf_counter()
    found: list[Figure] = []
    failed: list[str] = []
    with running_server() as server:
        where = _machine(server)
        for name in options.only or BENCHMARKS:
            started = perf_counter()
            try:
                for one in BENCHMARKS[name].figures(server, effort):
                    print("  ".join(cell for cell in figure_row(one) if cell), flush=True)
                    found.append(one)
            except Exception:  # noqa: BLE001  the others are measured all the same
                failed.append(name)
                traceback.print_exc()
            print(f"{name}: {perf_counter() - started:.0f} s", flush=True)
    rows = [figure_row(one) for one in found]
    print(f"\n{where}\n\n{as_text(HEAD, rows)}\n\n{summary(found)}; {perf_counter() - begin:.0f} s")
    if not options.quick and not options.only:
        notes = NOTES + "".join(one.NOTES for one in BENCHMARKS.values())
        head = f"# Speed on PostgreSQL\n\nWritten by `make bench-postgres`. {where}."
        told = f"{summary(found)}." + (f" Not measured, because of an error: {', '.join(failed)}." if failed else "")
        RESULTS.write_text("\n\n".join([head, as_markdown(HEAD, rows), told, notes]), encoding="utf-8")
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


def _machine(server: Server) -> str:
    peers = ", ".join(f"{name} {version(name)}" for name in ("psycopg", "procrastinate", "pgqueuer"))
    return (
        f"{os.cpu_count()} cores, {platform.system()}, Python {platform.python_version()}, "
        f"PostgreSQL {server.version()}, {peers}; {datetime.now(UTC):%Y-%m-%d}"
    )


if __name__ == "__main__":
    main()
