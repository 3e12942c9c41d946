"""`python -m benchmarks`: measure everything, print a table, write results.md."""

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter

from .bulk import bulk_inserts
from .crews import many_processes
from .depth import claims_at_depth
from .drains import drain_beside_huey, worker_drains
from .finding import jobs_elsewhere
from .measure import QUICK, WHOLE, Effort, Figure
from .notes import NOTES
from .observing import observation
from .places import flush_milliseconds, scratch_folder
from .processes import send_storm, wake_up_latency
from .pruning import pruning_beside_load
from .recovery import recovery_after_kill
from .report import HEAD, as_markdown, as_text, figure_row, machine
from .residents import idle_worker, memory_over_time
from .sends import single_sends, threaded_sends
from .sizes import bytes_per_job
from .startup import import_time
from .trips import round_trips
from .wakeups import worker_wake_up
from .workflows import chains_and_blockers

Benchmark = Callable[[Path, Effort], Iterator[Figure]]

BENCHMARKS: dict[str, Benchmark] = {
    "sends": single_sends,
    "threads": threaded_sends,
    "bulk": bulk_inserts,
    "trips": round_trips,
    "depth": claims_at_depth,
    "import": import_time,
    "latency": wake_up_latency,
    "storm": send_storm,
    "sizes": bytes_per_job,
    "drain": worker_drains,
    "huey": drain_beside_huey,
    "crew": many_processes,
    "finding": jobs_elsewhere,
    "workflows": chains_and_blockers,
    "observe": observation,
    "wake-up": worker_wake_up,
    "recovery": recovery_after_kill,
    "pruning": pruning_beside_load,
    "idle": idle_worker,
    "memory": memory_over_time,
}

RESULTS = Path(__file__).parent / "results.md"


def main() -> None:
    options = _options()
    effort = QUICK if options.quick else WHOLE
    names = options.only or list(BENCHMARKS)
    begin = perf_counter()
    with scratch_folder() as folder:
        where = machine(flush_milliseconds(folder))
    figures = [figure for name in names for figure in _run(name, effort)]
    print(f"\n{where}\n")
    print(as_text(HEAD, [figure_row(figure) for figure in figures]))
    print(f"\n{perf_counter() - begin:.0f} s")
    if options.quick:
        print("A quick run only shows that the benchmarks work: its figures mean little.")
    elif not options.only:
        RESULTS.write_text(_results(where, figures), encoding="utf-8")
        print("written to benchmarks/results.md")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a smoke run of some seconds; writes no results.md")
    parser.add_argument(
        "--only", action="append", choices=list(BENCHMARKS), help="this one; may be repeated; writes no results.md"
    )
    return parser.parse_args()


def _run(name: str, effort: Effort) -> Iterator[Figure]:
    with scratch_folder() as folder:
        for figure in BENCHMARKS[name](folder, effort):
            print("  ".join(cell for cell in figure_row(figure) if cell), flush=True)
            yield figure


def _results(where: str, figures: list[Figure]) -> str:
    table = as_markdown(HEAD, [figure_row(figure) for figure in figures])
    return f"# Speed\n\nWritten by `make bench`. {where}.\n\n{table}\n\n{NOTES}"


if __name__ == "__main__":
    main()
