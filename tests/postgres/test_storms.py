"""Storms on a server of their own. `make storm` lets them last longer: STORM_SECONDS."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from support.effort import a_part, storm_seconds
from support.postgres_server import CRASHES, start_server
from support.server_storm import Storm, StormReport

SECONDS = storm_seconds(1.5)


@pytest.fixture
def storm(tmp_path: Path) -> Iterator[Storm]:
    with closing(Storm(tmp_path, start_server(CRASHES), producers=2, workers=a_part(2, 4))) as one:
        yield one


def is_clean(report: StormReport) -> bool:
    assert report.violations() == {}
    assert report.acknowledged > 50 and report.succeeded >= report.acknowledged
    return True


def test_ended_sessions_lose_nothing(storm: Storm) -> None:
    enough = a_part(20, 500)
    storm.rage(
        SECONDS, [storm.terminate] * 3 + [storm.cancel], lambda report: report.hits["sessions terminated"] > enough
    )
    assert is_clean(storm.end())


def test_crashes_of_the_server_lose_nothing(storm: Storm) -> None:
    enough = a_part(1, 20)
    storm.rage(
        SECONDS,
        [storm.crash, storm.kill_a_session],
        lambda report: min(report.hits["immediate crashes"], report.hits["sessions killed with -9"]) >= enough,
    )
    assert is_clean(storm.end())


def test_a_promoted_synchronous_standby_has_everything(tmp_path: Path) -> None:
    with closing(Storm(tmp_path, start_server(CRASHES), producers=0, workers=0)) as storm:
        storm.use_standby()
        for role in ("server_storm_producer", "server_storm_producer", "server_storm_worker", "server_storm_worker"):
            storm.start(role)
        storm.rage(SECONDS, [storm.fail_over], lambda report: report.hits["promotions"] >= a_part(1, 5))
        assert is_clean(storm.end())


def test_killed_programs_lose_nothing_and_effects_happen_once(storm: Storm) -> None:
    enough = a_part(4, 100)
    storm.rage(SECONDS, [storm.kill_a_program], lambda report: report.hits["workers killed"] >= enough)
    report = storm.end()
    assert is_clean(report) and report.recovered > 0
