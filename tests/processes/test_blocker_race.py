"""Two processes that end, enqueue or seal at the same instant what others wait for: it is released exactly once."""

import json
import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from soundness import unsound_however_folded

from holdfast import Holdfast
from support.child_processes import Crew, Member
from support.effort import a_part

PAIRS = a_part(300, 2000)
LATE_WAITERS = a_part(150, 500)
BATCHES = 300  # of each of three kinds


@dataclass
class Track:
    """Two racers, who do the same number of rounds in lockstep."""

    app: Holdfast
    database: Path
    sides: list[Member]

    def race(self, name: str, *numbers: list[Any]) -> "Seen":
        """Each side with numbers of its own, or both with the same."""
        for side, own in zip(self.sides, numbers if len(numbers) > 1 else numbers * 2, strict=True):
            side.say(json.dumps([name, own]))
        for side in self.sides:
            assert side.hear() == "done", side.complaint()
        return Seen([side.lines() for side in self.sides])

    def ask(self, question: str) -> list[Any]:
        with closing(sqlite3.connect(self.database)) as connection:
            return connection.execute(question).fetchall()


class Seen:
    """What the two wrote down."""

    def __init__(self, logs: list[list[list[str]]]) -> None:
        self.actors = [next(line[1] for line in log if line[0] == "actor") for log in logs]
        self.kinds = Counter(line[1] for line in logs[0] if line[0] == "round")
        spans = [{int(n): (int(a), int(b)) for verb, n, a, b in (x for x in log if x[0] == "raced")} for log in logs]
        both = [(spans[0][number], spans[1][number]) for number in spans[0]]
        self.overlapping = sum(mine[0] < other[1] and other[0] < mine[1] for mine, other in both)
        self.words = Counter(line[0] for log in logs for line in log)

    def check(self, rounds: int, by_side: list[int], at_least: list[int], **more: int) -> None:
        """by_side: how often each did what only one may do. at_least: in how many rounds the order made it do so."""
        figures = {"rounds": self.kinds, "overlapping": self.overlapping, "by_side": by_side}
        print("\n" + json.dumps(figures | more))
        assert sum(by_side) == sum(self.kinds.values()) == rounds
        assert self.overlapping >= self.kinds["locked"] > 0
        assert all(did >= least > 0 for did, least in zip(by_side, at_least, strict=True))


@pytest.fixture
def track(tmp_path: Path) -> Iterator[Track]:
    database, shared = tmp_path / "app.db", tmp_path / "barrier"
    shared.write_bytes(bytes(16))
    with Holdfast(database, busy_timeout=60) as app, Crew(tmp_path, database) as crew:
        for name in ("blocker", "waits", "member", "on_done", "on_success"):
            app.task(name=name)(lambda: None)
        yield Track(app, database, [crew.start("racer", str(side), str(shared)) for side in (0, 1)])
        assert crew.complaints() == []
        with closing(sqlite3.connect(database)) as connection:
            connection.execute("CREATE TABLE effects (job_id, attempt)")
        assert unsound_however_folded(database, ("blocker", "waits", "member")) == {}


RELEASES = """SELECT job.status, count(event.id), max(event.actor) FROM holdfast_jobs AS job
    LEFT JOIN holdfast_events AS event ON event.job_id = job.id AND event.event = 'unblocked'
    WHERE job.task = 'waits' GROUP BY job.id"""


def test_two_blockers_that_end_at_the_same_instant_release_a_job_exactly_once(track: Track) -> None:
    tasks = track.app.tasks
    left, right = (tasks["blocker"].enqueue_many([{}] * PAIRS) for _ in range(2))
    with track.app.transaction() as tx:
        for pair in zip(left, right, strict=True):
            tasks["waits"].using(after=pair, conn=tx).enqueue()
    seen = track.race("blockers", left, right)
    releases = track.ask(RELEASES)
    assert Counter(row[:2] for row in releases) == {("ready", 1): PAIRS}
    releasers = Counter(row[2] for row in releases)
    seen.check(PAIRS, [releasers[actor] for actor in seen.actors], [seen.kinds["10"], seen.kinds["01"]])


def test_a_job_that_is_enqueued_while_what_it_waits_for_ends_is_never_left_blocked(track: Track) -> None:
    blockers = track.app.tasks["blocker"].enqueue_many([{}] * LATE_WAITERS)
    seen = track.race("late_waiters", blockers)
    releases = track.ask(RELEASES)
    assert Counter(row[:2] for row in releases) == {("ready", 1): LATE_WAITERS}
    releasers = Counter(row[2] for row in releases)
    before_and_after = [seen.kinds["10"], seen.kinds["01"]]
    seen.check(LATE_WAITERS, [releasers[actor] for actor in seen.actors], before_and_after)


def make_batches(app: Holdfast, members: int, sealed: bool) -> list[list[int]]:
    """The id of each, with those of its members."""
    made = []
    with app.transaction() as tx:
        for _ in range(BATCHES):
            block = ExitStack()
            batch = block.enter_context(
                app.batch(on_done=app.tasks["on_done"], on_success=app.tasks["on_success"], conn=tx)
            )
            ids = app.tasks["member"].using(batch=batch, conn=tx).enqueue_many([{}] * members)
            if sealed:
                block.close()
            made.append([batch.id, *ids])
    return made


def called_back(track: Track, seen: Seen) -> list[int]:
    """For how many batches each side has called back."""
    enqueued = """SELECT job.task, event.actor
        FROM holdfast_jobs AS job JOIN holdfast_events AS event ON job_id = job.id
        WHERE job.task IN ('on_done', 'on_success') AND event = 'enqueued'"""
    calls = Counter(track.ask(enqueued))
    callers = [calls["on_done", actor] for actor in seen.actors]
    assert callers == [calls["on_success", actor] for actor in seen.actors]
    return callers


def test_a_batch_that_is_sealed_while_its_last_member_ends_calls_back_exactly_once(track: Track) -> None:
    seen = track.race("sealing", make_batches(track.app, members=1, sealed=False))
    seen.check(BATCHES, called_back(track, seen), [seen.kinds["10"], seen.kinds["01"]])


def test_a_batch_whose_last_two_members_end_at_the_same_instant_calls_back_exactly_once(track: Track) -> None:
    batches = make_batches(track.app, members=2, sealed=True)
    seen = track.race("last_members", [left for _, left, _ in batches], [right for *_, right in batches])
    seen.check(BATCHES, called_back(track, seen), [seen.kinds["10"], seen.kinds["01"]])


def test_a_batch_that_gets_a_member_while_its_last_one_ends_calls_back_exactly_once(track: Track) -> None:
    seen = track.race("late_members", make_batches(track.app, members=1, sealed=True))
    refused, kinds = seen.words["refused"], seen.kinds
    seen.check(BATCHES, called_back(track, seen), [kinds["01"] + kinds["10"], kinds["101"]], refused=refused)
    assert kinds["01"] <= refused <= BATCHES - kinds["10"] - kinds["101"]
