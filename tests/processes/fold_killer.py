"""Work on a database in child processes that are killed at a statement, and compare its statistics with a recount.

    python fold_killer.py DATABASE KILLS SEED

Every child sends, receives, settles, deletes and folds, and kills itself before a statement that was drawn by chance:
every other child inside the transaction that stores a fold. After each kill the sums, with what is not folded, must
be those of tables that triggers of this test keep, and the index of events by job must have what is folded. Prints
what happened as JSON.
"""

import json
import os
import signal
import sqlite3
import sys
from collections import Counter
from contextlib import closing
from random import Random
from typing import Any

from soundness import INDEXED

from holdfast import Holdfast

TRUTH = """
CREATE TABLE truth (what TEXT, queue TEXT, n INTEGER, PRIMARY KEY (what, queue));
CREATE TRIGGER truth_put AFTER INSERT ON holdfast_jobs BEGIN
    INSERT INTO truth VALUES ('enqueued', NEW.queue, 1) ON CONFLICT DO UPDATE SET n = n + 1;
END;
CREATE TRIGGER truth_end AFTER UPDATE OF status ON holdfast_jobs
WHEN OLD.status = 'running' AND NEW.status IN ('succeeded', 'failed') BEGIN
    INSERT INTO truth VALUES (NEW.status, NEW.queue, 1) ON CONFLICT DO UPDATE SET n = n + 1;
END;
"""
QUEUES = ("a", "b", "c")


class Trap:
    """Kills this process before a statement of its writer: the n-th of all, or of those that store a fold."""

    def __init__(self, pipe: int, in_fold: bool, after: int) -> None:
        self._pipe, self._in_fold, self._left, self._folding = pipe, in_fold, after, False

    def see(self, statement: str) -> None:
        if "UPDATE holdfast_fold" in statement:
            self._folding = True
        if self._folding or not self._in_fold:
            self._left -= 1
            if self._left <= 0:
                os.write(self._pipe, b"f" if self._folding else b"w")
                os.kill(os.getpid(), signal.SIGKILL)
        if statement.startswith(("COMMIT", "ROLLBACK")):
            self._folding = False


def work(database: str, random: Random, pipe: int, in_fold: bool) -> None:
    app = Holdfast(database, busy_timeout=60)
    trap = Trap(pipe, in_fold, random.randint(1, 12 if in_fold else 60))
    app.store.database.engine().writer._connection.set_trace_callback(trap.see)  # type: ignore[attr-defined]
    while True:
        queue = app.queue(random.choice(QUEUES), max_attempts=2)
        queue.send_many(range(random.randint(1, 4)))
        for message in queue.receive_many(3):
            if random.random() < 0.2:
                message.fail("TEST:FAILED")
            elif random.random() < 0.9:
                message.ack()
        if random.random() < 0.3:
            app.jobs.delete(status="succeeded", queue=random.choice(QUEUES))
        app.store.statistics.fold()


def kill_one(database: str, random: Random, in_fold: bool) -> str:
    """Returns where the child was killed."""
    hear, tell = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            work(database, random, tell, in_fold)
        finally:
            os._exit(1)
    os.close(tell)
    with os.fdopen(hear, "rb") as pipe:
        where = pipe.read().decode()
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status), f"a child ended by itself with {status}"
    return where


def compare(database: str, folded: bool) -> list[str]:
    """What the statistics tell and what is true, where they differ."""
    wrong: list[str] = []
    with Holdfast(database, busy_timeout=60) as app, closing(sqlite3.connect(database)) as connection:
        while folded and app.store.statistics.fold():
            pass
        with app.store.snapshot():
            counts = Counter({(one.queue, one.status): one.count or 0 for one in app.store.statistics.counts().items})
            totals = app.store.statistics.totals()
            minutes = app.store.statistics.minutes(0)
        rows = connection.execute("SELECT queue, status, count(*) FROM holdfast_jobs GROUP BY 1, 2").fetchall()
        real = Counter({(queue, status): n for queue, status, n in rows})
        if counts != real:
            wrong.append(f"counts {counts} instead of {real}")
        for what, queue, n in connection.execute("SELECT what, queue, n FROM truth").fetchall():
            told: dict[str, Any] = {
                "minutes": sum(one.count for one in minutes if (one.queue, one.measure) == (queue, what)),
            }
            if what != "enqueued":
                told["totals"] = totals.outcomes.get((queue, "", what), 0)
            wrong += [f"{name}: {n} {what} in {queue}, told {got}" for name, got in told.items() if got != n]
        for what, question in INDEXED.items():
            wrong += [f"{what}: {row}" for row in connection.execute(question).fetchmany(3)]
    return wrong


def main(database: str, kills: int, seed: int) -> None:
    random = Random(seed)
    with Holdfast(database, busy_timeout=60):
        pass
    with closing(sqlite3.connect(database)) as connection:
        connection.executescript(TRUTH)
    where: Counter[str] = Counter()
    for number in range(kills):
        where[kill_one(database, Random(random.random()), in_fold=number % 2 == 0)] += 1
        if number % 10 == 0 or number > kills - 3:
            wrong = compare(database, folded=number % 20 == 0)
            if wrong:
                print(json.dumps({"seed": seed, "kills": number + 1, "wrong": wrong}))
                return
    print(json.dumps({"seed": seed, "kills": kills, "in_fold": where["f"], "elsewhere": where["w"], "wrong": []}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
