"""Many processes that write at once: all get their turn, and nobody hears of a lock."""

import json
import sqlite3
from pathlib import Path

from holdfast import Holdfast
from support.child_processes import Crew
from support.effort import a_part

WRITERS, SECONDS = 16, a_part(3, 10)


def test_of_sixteen_writing_processes_none_starves(tmp_path: Path) -> None:
    database = tmp_path / "writers.db"
    Holdfast(database).close()
    with Crew(tmp_path, database) as crew:
        writers = [crew.start("writer", str(SECONDS)) for _ in range(WRITERS)]
        for writer in writers:
            assert writer.hear() == "ready", crew.complaints()
        for writer in writers:
            writer.say("go")
        reports = [json.loads(writer.hear() or "null") for writer in writers]
        complaints = crew.complaints()

    assert complaints == []
    sent = [report["sent"] for report in reports]
    worst = max(report["worst"] for report in reports)
    print(
        f"\n{WRITERS} writers: {sum(sent) / SECONDS:.0f} sends a second ({min(sent)} to {max(sent)} each), ", end=""
    )
    print(f"longest wait {worst * 1000:.0f} ms")
    assert min(sent) > max(sent) / 20
    logged = {int(id) for writer in writers for _, id in writer.lines()}
    assert len(logged) == sum(sent), "an id was given out twice"
    with sqlite3.connect(database) as connection:
        assert {row[0] for row in connection.execute("SELECT id FROM holdfast_jobs")} == logged
    connection.close()
