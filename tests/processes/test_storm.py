"""Producers and consumers, killed at random with kill -9: nothing is lost, nothing is acknowledged twice."""

import json
import random
import time
from pathlib import Path

from checker import Report, check, count
from consumer import VISIBILITY
from producer import MAX_ATTEMPTS, QUEUE

from holdfast import Holdfast
from support.child_processes import Crew
from support.effort import storm_seconds

SECONDS = storm_seconds(3)
PRODUCERS, CONSUMERS = 3, 4
ENOUGH_KILLS, ENOUGH_SENT = 25, 100
LONGEST_OVERTIME_SECONDS = 600  # on a machine that is busy with other things
LONGEST_END_SECONDS = 300


def test_a_storm_of_kills_loses_nothing_and_acknowledges_nothing_twice(tmp_path: Path) -> None:
    database = tmp_path / "storm.db"
    with Holdfast(database, busy_timeout=60) as app, Crew(tmp_path, database) as crew:
        for role, count in (("producer", PRODUCERS), ("consumer", CONSUMERS)):
            for _ in range(count):
                crew.start(role)
        kill_and_replace(database, crew)
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
    assert report.delivered <= report.succeeded + report.dead_letters
    assert report.acks_cut_short <= report.kills, "a kill can cut one ack short, not more"
    assert was_a_storm(report), "it was a calm, and has shown nothing"


def kill_and_replace(database: Path, crew: Crew) -> None:
    """For some seconds, and then on until everything has happened that is to be shown."""
    until, kills = time.monotonic() + SECONDS, 0
    while (now := time.monotonic()) < until or (
        now < until + LONGEST_OVERTIME_SECONDS and not was_a_storm(count(database, crew.members))
    ):
        time.sleep(random.uniform(0.02, 0.2))
        assert not crew.complaints(), crew.complaints()
        at_work = [one for one in crew.living() if one.is_at_work()]
        calmer = now > until and kills >= ENOUGH_KILLS  # so that a consumer that dawdles lives to settle too late
        if at_work and (not calmer or random.random() < 0.1):
            victim = random.choice(at_work)
            crew.kill(victim)
            crew.start(victim.role)
            kills += 1


def was_a_storm(seen: Report) -> bool:
    happened = (seen.kills_while_holding, seen.redelivered_after_kill, seen.recoveries, seen.fenced)
    return seen.acknowledged > ENOUGH_SENT and seen.kills >= ENOUGH_KILLS and all(happened)


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
