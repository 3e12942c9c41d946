"""How fast a program enqueues, one by one and in bulk, beside peers and COPY."""

from collections.abc import Iterator

from holdfast import Holdfast

from ..measure import Effort, Figure, Rates, Target, rate
from ..workload import BODY, order
from .floor import bare_copy
from .peers import pgqueuer_sends, procrastinate_sends
from .server import Server

SINGLES, MANY = 1_000, 20_000
NOTES = """\
- **Enqueue:** 1,000 calls of `enqueue`, then one `enqueue_many` of 20,000, each job with a body of 88 bytes. Peers
  send the same, each by its own bulk call. **COPY:** of the same jobs into the same table and indexes without
  triggers, and one statement that inserts their events.
"""


def figures(server: Server, effort: Effort) -> Iterator[Figure]:
    singles, many = effort.of(SINGLES, least=100), effort.of(MANY, least=1_000)
    sides = {"ours": _ours, "procrastinate": procrastinate_sends, "pgqueuer": pgqueuer_sends}
    single: dict[str, list[float]] = {name: [] for name in sides}
    bulk: dict[str, list[float]] = {name: [] for name in [*sides, "COPY"]}
    for number in range(effort.rounds):
        names = list(bulk)
        first = number % len(names)
        for name in names[first:] + names[:first]:
            with server.database() as url:
                if name == "COPY":
                    bulk[name].append(bare_copy(url, many))
                else:
                    one, all_at_once = sides[name](url, singles, many)
                    single[name].append(one)
                    bulk[name].append(all_at_once)
    singles_of, bulk_of = Rates(single, "jobs/s"), Rates(bulk, "jobs/s")
    for peer in ("procrastinate", "pgqueuer"):
        yield singles_of.ratio(f"single enqueue ÷ {peer}", "ours", peer, Target(1))
        yield bulk_of.ratio(f"bulk enqueue ÷ {peer}", "ours", peer, Target(1))
    yield bulk_of.ratio("bulk enqueue ÷ COPY", "ours", "COPY", Target(0.5))


def _ours(url: str, singles: int, many: int) -> tuple[float, float]:
    with Holdfast(url) as app:
        task = app.task(order)
        task.enqueue(**BODY)
        single = rate(lambda: task.enqueue(**BODY), singles)
        return single, many * rate(lambda: task.enqueue_many([BODY] * many), 1)
