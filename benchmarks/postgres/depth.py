"""What a claim and a snapshot of the counts cost beside a million jobs that ended, failed or are scheduled."""

from collections.abc import Iterator
from statistics import median

import psycopg

from holdfast import Holdfast

from ..measure import Effort, Figure, at_most, seconds
from .server import Server

CLAIMS = 300
FILL = """INSERT INTO holdfast_jobs (queue, task, status, run_at, created_at, finished_at)
    SELECT 'default', 'order', %(status)s, 4000000000000000, 1700000000000000,
           CASE WHEN %(status)s <> 'scheduled' THEN 1700000000000000 END
    FROM generate_series(1, %(rows)s)"""
NOTES = """\
- **Depth:** receiving and acknowledging one message at a time, in an empty table and beside 1,000,000 jobs of one
  status. The ratio is of times: less is better.
"""


def figures(server: Server, effort: Effort) -> Iterator[Figure]:
    with server.database() as empty:
        shallow = _milliseconds(empty, effort)
        for status in ("succeeded", "scheduled", "failed"):
            with server.database() as url:
                Holdfast(url).close()
                with psycopg.connect(url, autocommit=True) as connection:
                    connection.execute("SET session_replication_role = replica")
                    connection.execute(FILL, {"status": status, "rows": effort.rows})
                    connection.execute("VACUUM ANALYZE")
                deep = _milliseconds(url, effort)
                times = [mine / other for mine, other in zip(deep, shallow, strict=True)]
                name = f"claim beside {effort.rows:,} {status} ÷ none (time)"
                ours, beside = (f"{median(one):.2f} ms" for one in (deep, shallow))
                yield Figure(name, ours, beside, median(times), (min(times), max(times)), at_most(1.25, "×"))
                with Holdfast(url) as app:
                    took = median(1000 * seconds(app.observe.snapshot) for _ in range(5))
                if status == "succeeded":
                    name = f"observe.snapshot() beside {effort.rows:,} jobs"
                    yield Figure(name, f"{took:.1f} ms", "", took, None, at_most(100, "ms"))


def _milliseconds(url: str, effort: Effort) -> list[float]:
    """Of one round trip: receive and acknowledge, the median in each round."""
    claims, result = effort.of(CLAIMS, least=50), []
    with Holdfast(url) as app:
        queue = app.queue("messages")
        for _ in range(effort.rounds):
            queue.send_many([{}] * claims)

            def trip() -> None:
                message = queue.receive()
                assert message is not None
                message.ack()

            result.append(median(1000 * seconds(trip) for _ in range(claims)))
    return result
