"""Many processes that write at once: all get their turn, and nobody hears of a lock."""

import json
import sqlite3
from pathlib import Path

from holdfast import Holdfast
from support.child_processes import Crew
from support.effort import a_part
from support.running_worker import eventually

WRITERS = 16
TURNS = a_part(50, 1000)
UNFAIR = 100
"""How many turns a writer may take for each of another. With SQLite's own waiting it is some ten thousand."""


def test_of_sixteen_writing_processes_none_starves(tmp_path: Path) -> None:
    """They are stopped when each has had some turns, and not after a time: it may be long on a slow machine."""
    database = tmp_path / "writers.db"
    Holdfast(database).close()
    with Crew(tmp_path, database) as crew:
        writers = [crew.start("writer") for _ in range(WRITERS)]
        for writer in writers:
            assert writer.hear() == "ready", crew.complaints()
        for writer in writers:
            writer.say("go")

        def all_had_their_turns() -> bool:
            turns = [len(writer.lines()) for writer in writers]
            assert max(turns) < UNFAIR * TURNS, f"a writer starves: {turns}"
            return min(turns) >= TURNS

        eventually(all_had_their_turns, "a writer starves")
        for writer in writers:
            writer.say("stop")
        reports = [json.loads(writer.hear() or "null") for writer in writers]
        complaints = crew.complaints()

    assert complaints == []
    sent = [report["sent"] for report in reports]
    worst = max(report["worst"] for report in reports)
    print(f"\n{WRITERS} writers: {min(sent)} to {max(sent)} sends each, longest wait {worst * 1000:.0f} ms")
    logged = {int(id) for writer in writers for _, id in writer.lines()}
    assert len(logged) == sum(sent), "an id was given out twice"
    with sqlite3.connect(database) as connection:
        assert {row[0] for row in connection.execute("SELECT id FROM holdfast_jobs")} == logged
    connection.close()
