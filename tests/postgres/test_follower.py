"""A follower of the log beside writers whose transactions overlap and are rolled back: each event comes once."""

import random
import threading
from collections import Counter

from holdfast.model.stats import EventRecord
from support.postgres_backend import PostgresBackend
from support.running_worker import eventually

WRITERS, TRANSACTIONS = 8, 40


def test_a_follower_beside_eight_writers_misses_nothing(backend: PostgresBackend) -> None:
    app = backend.open()
    statistics, done = app.store.statistics, Counter[str]()

    def write(seed: int) -> None:
        chance = random.Random(seed)
        with backend.connect() as connection:
            for _ in range(TRANSACTIONS):
                for _ in range(chance.randint(1, 4)):
                    connection.execute("INSERT INTO holdfast_jobs (task) VALUES ('job')")
                    connection.execute("SELECT pg_sleep(%s)", (chance.random() / 500,))
                ends = chance.random() < 0.3
                connection.rollback() if ends else connection.commit()
                done["rolled back" if ends else "committed"] += 1

    writers = [threading.Thread(target=write, args=(seed,)) for seed in range(WRITERS)]
    for one in writers:
        one.start()
    seen: list[EventRecord] = []
    while any(one.is_alive() for one in writers):
        done["looks that found something"] += _follow(statistics, seen)
    stored = [row[0] for row in backend.sql("SELECT id FROM holdfast_events ORDER BY id")]
    eventually(lambda: not _follow(statistics, seen) and len(seen) >= len(stored))
    print(dict(done), len(stored), "events")
    assert [event.id for event in seen] == stored
    assert Counter(event.job_id for event in seen) == Counter(
        row[0] for row in backend.sql("SELECT id FROM holdfast_jobs")
    )
    assert min(done["rolled back"], done["committed"], done["looks that found something"]) > 10, done


def _follow(statistics: object, seen: list[EventRecord]) -> bool:
    """Read what comes after the last event, as a follower does that was started again."""
    found = statistics.events(50, after=seen[-1].id if seen else 0)  # type: ignore[attr-defined]
    seen += found
    return bool(found)
