"""A process that is killed in the middle of send_many: all of the batch is there, or none of it."""

import random
import sqlite3
import time
from collections import Counter
from pathlib import Path

import pytest

from holdfast import Holdfast
from support.child_processes import Crew

SIZE = 10_000


def batches(database: Path) -> dict[int, int]:
    """How many messages of each batch there are."""
    connection = sqlite3.connect(database)
    try:
        return Counter(int(row[0]) for row in connection.execute("SELECT args FROM holdfast_jobs"))
    finally:
        connection.close()


@pytest.mark.parametrize("stop_at", [1, 1_000, 1_001, 5_000, SIZE - 1])
def test_a_kill_in_the_middle_of_a_batch_leaves_nothing_of_it(tmp_path: Path, stop_at: int) -> None:
    database = tmp_path / "bulk.db"
    with Holdfast(database, busy_timeout=60) as app, Crew(tmp_path, database) as crew:
        sender = crew.start("bulk", str(SIZE), str(stop_at))
        assert sender.hear() == "batch 0", crew.complaints()
        assert sender.hear() == "stopped", crew.complaints()
        crew.kill(sender)
        assert batches(database) == {}
        app.queue("after").send(1)  # the dead process's lock is gone with it
        assert crew.complaints() == []


def test_kills_at_random_moments_leave_whole_batches_only(tmp_path: Path) -> None:
    counts: Counter[str] = Counter()
    for round in range(6):
        folder = tmp_path / str(round)
        folder.mkdir()
        database = folder / "bulk.db"
        with Crew(folder, database) as crew:
            sender = crew.start("bulk", str(SIZE), "0")
            begun = [sender.hear() for _ in range(1 + round % 2)]
            time.sleep(random.uniform(0, 0.15))
            crew.kill(sender)
            assert crew.complaints() == []
        stored = batches(database)
        acknowledged = {int(batch) for _, batch in sender.lines()}
        assert set(stored.values()) <= {SIZE}, "a part of a batch was stored"
        assert acknowledged <= stored.keys(), "an acknowledged batch is gone"
        counts["begun"] += len(begun)
        counts["stored"] += len(stored)
        counts["acknowledged"] += len(acknowledged)
    print(f"\nbatches of {SIZE} in killed processes:", dict(counts))
