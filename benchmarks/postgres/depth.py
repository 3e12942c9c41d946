"""What a claim and a snapshot of the counts cost beside a million jobs that ended, failed or are scheduled."""

from collections.abc import Iterator
from statistics import median

import psycopg

from holdfast import Holdfast

from ..measure import Effort, Figure, at_most, seconds
from .server import Server

CLAIMS = 300
FILL = """INSERT INTO holdfast_jobs (queue, status, run_at, created_at, finished_at)
    SELECT 'messages', %(status)s, 4000000000000000, 1700000000000000,
           CASE WHEN %(status)s <> 'scheduled' THEN 1700000000000000 END
    FROM generate_series(1, %(rows)s)"""
NOTES = """\
- **Depth:** receiving and acknowledging one message at a time, in an empty table and, by turns, beside 1,000,000
  messages of one status in the same queue. The ratio is of times: less is better. The snapshot is the slowest of the
  three statuses, the median of five.
"""


def figures(server: Server, effort: Effort) -> Iterator[Figure]:
    snapshots: list[float] = []
    with server.database() as empty:
        for status in ("succeeded", "scheduled", "failed"):
            with server.database() as url:
                Holdfast(url).close()
                with psycopg.connect(url, autocommit=True) as connection:
                    connection.execute("SET session_replication_role = replica")
                    connection.execute(FILL, {"status": status, "rows": effort.rows})
                    connection.execute("VACUUM ANALYZE")
                with Holdfast(empty) as one, Holdfast(url) as other:
                    turns = [(_milliseconds(one, effort), _milliseconds(other, effort)) for _ in range(effort.rounds)]
                    snapshots.append(median(1000 * seconds(other.observe.snapshot) for _ in range(5)))
                times = [deep / shallow for shallow, deep in turns]
                name = f"claim beside {effort.rows:,} {status} ÷ none (time)"
                beside, ours = (f"{median(side):.2f} ms" for side in zip(*turns, strict=True))
                yield Figure(name, ours, beside, median(times), (min(times), max(times)), at_most(1.25, "×"))
    slowest = max(snapshots)
    name = f"observe.snapshot() beside {effort.rows:,} jobs"
    yield Figure(name, f"{slowest:.1f} ms", "", slowest, None, at_most(100, "ms"))


def _milliseconds(app: Holdfast, effort: Effort) -> float:
    """Of one round trip: receive and acknowledge, the median."""
    claims, queue = effort.of(CLAIMS, least=50), app.queue("messages")
    queue.send_many([{}] * claims)

    def trip() -> None:
        message = queue.receive()
        assert message is not None
        message.ack()

    return median(1000 * seconds(trip) for _ in range(claims))
