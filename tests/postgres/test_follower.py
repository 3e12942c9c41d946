"""A follower of the log beside writers whose transactions overlap and are rolled back: each event comes once."""

import random
import threading
from collections import Counter
from contextlib import closing

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


def test_a_follower_does_not_wait_for_autovacuum(backend: PostgresBackend) -> None:
    """Its ANALYZE evaluates the expression of an index, which takes a transaction id and waits here."""
    app = backend.open()
    with closing(backend.connect()) as holder, closing(backend.connect()) as other:
        holder.autocommit = other.autocommit = True
        holder.execute("SELECT pg_advisory_lock(77)")
        other.execute(
            "CREATE FUNCTION slow(n int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS $$ BEGIN "
            "IF EXISTS (SELECT 1 FROM pg_stat_activity WHERE pid = pg_backend_pid() AND usesysid IS NULL) THEN "
            "PERFORM pg_current_xact_id(), pg_advisory_xact_lock_shared(77); END IF; RETURN n; END $$"
        )
        other.execute("CREATE TABLE analyzed (n int) WITH (autovacuum_analyze_threshold = 1)")
        other.execute("CREATE INDEX ON analyzed (slow(n))")
        other.execute("INSERT INTO analyzed SELECT * FROM generate_series(1, 1000)")
        waiting = (
            "SELECT pid FROM pg_stat_activity WHERE backend_type = 'autovacuum worker' AND wait_event = 'advisory'"
        )
        eventually(lambda: other.execute(waiting).fetchall(), "autovacuum analyzes the table")
        sent = app.queue("inbox").send(1)
        assert [event.job_id for event in app.store.statistics.events(10, after=0)] == [sent]
        assert other.execute(waiting).fetchall(), "and still does"


def _follow(statistics: object, seen: list[EventRecord]) -> bool:
    """Read what comes after the last event, as a follower does that was started again."""
    found = statistics.events(50, after=seen[-1].id if seen else 0)  # type: ignore[attr-defined]
    seen += found
    return bool(found)
