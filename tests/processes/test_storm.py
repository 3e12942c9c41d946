"""Producers and consumers, killed at random with kill -9: nothing is lost, nothing is acknowledged twice."""

import json
import random
import time
from pathlib import Path

from checker import check
from consumer import VISIBILITY
from producer import MAX_ATTEMPTS, QUEUE

from holdfast import Holdfast
from support.child_processes import Crew
from support.effort import storm_seconds

SECONDS = storm_seconds(5)
PRODUCERS, CONSUMERS = 3, 4
ENOUGH_KILLS = 25
LONGEST_OVERTIME_SECONDS = 240  # on a machine that is busy with other things
LONGEST_END_SECONDS = 300


def test_a_storm_of_kills_loses_nothing_and_acknowledges_nothing_twice(tmp_path: Path) -> None:
    database = tmp_path / "storm.db"
    with Holdfast(database, busy_timeout=60) as app, Crew(tmp_path, database) as crew:
        for role, count in (("producer", PRODUCERS), ("consumer", CONSUMERS)):
            for _ in range(count):
                crew.start(role)
        kill_and_replace(crew, time.monotonic() + SECONDS)
        for member in crew.living():
            crew.kill(member)
        for _ in range(2):
            crew.start("consumer", "calm")
        wait_until_all_is_settled(app, crew)
        complaints = crew.complaints()

    report = check(database, crew.members)
    print(f"\n{SECONDS:g} s of kill -9:", json.dumps(report.counters()))
    assert complaints == []
    assert report.violations() == {}
    assert report.lost == [] and report.acked_twice == []
    assert report.acknowledged > 100
    assert report.delivered <= report.succeeded + report.dead_letters
    assert report.acks_cut_short <= report.kills, "a kill can cut one ack short, not more"
    # If the storm was a calm, it has shown nothing.
    assert report.kills_while_holding > 0
    assert report.redelivered_after_kill > 0
    assert report.recoveries > 0
    assert report.fenced > 0


def kill_and_replace(crew: Crew, until: float) -> None:
    kills = 0
    while time.monotonic() < until or (
        time.monotonic() < until + LONGEST_OVERTIME_SECONDS
        and (kills < ENOUGH_KILLS or not somebody_was_fenced(crew))
    ):
        time.sleep(random.uniform(0.02, 0.2))
        assert not crew.complaints(), crew.complaints()
        at_work = [one for one in crew.living() if one.is_at_work()]
        calm = time.monotonic() > until and kills >= ENOUGH_KILLS  # so that who dawdles lives to settle too late
        if at_work and not calm:
            victim = random.choice(at_work)
            crew.kill(victim)
            crew.start(victim.role)
            kills += 1


def somebody_was_fenced(crew: Crew) -> bool:
    logs = [one.log for one in crew.members if one.role == "consumer" and one.log.exists()]
    return any(b" False\n" in log.read_bytes() for log in logs)


def wait_until_all_is_settled(app: Holdfast, crew: Crew) -> None:
    """The last consumers take what is there and, once its visibility has ended, what the dead ones held."""
    inbox = app.queue(QUEUE, visibility=VISIBILITY, max_attempts=MAX_ATTEMPTS)
    until = time.monotonic() + LONGEST_END_SECONDS
    while True:
        seen, stats = app.store.commits_seen(), inbox.stats()
        if stats.total == stats.failed:
            return
        assert not crew.complaints(), crew.complaints()
        assert time.monotonic() < until, f"not settled after {LONGEST_END_SECONDS} s: {stats}"
        app.store.wait_for_commit(seen, 1)
