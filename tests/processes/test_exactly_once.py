"""Kill -9 at each step between the start of a handler and its commit, with the user's rows in the same file.

Of the statements and writes between two steps, `make storm` kills at each, and `make test` at every third: at which
differs from shape to shape, so that together they hit each kind of statement.

Whatever the moment, the user's table and the jobs agree: an effect is there exactly if its job has succeeded. Each
process that is killed has first worked off what those before it left.
"""

import itertools
import json
import signal
import sqlite3
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Literal

import msgspec
import pytest
from soundness import count, unsound_however_folded
from traps import Trap
from zygote import Order

from support.child_processes import Crew, Member, compile_shim
from support.effort import a_part

WITHOUT_EFFECT = ("return_then",)
STEPS_BEFORE_COMMIT = ("start", "before complete", "after the first write", "after an enqueue", "end of the block")
STEPS_AFTER_COMMIT = ("after the block", "before return")
EVERY = a_part(5, 1)  # statement or write
LEAST_KILLS = a_part(30, 160)  # of each of two tests
MOST = 1000


class Ward:
    """A database, and processes on it of which each may be killed."""

    def __init__(self, crew: Crew, zygote: Member, database: Path) -> None:
        self._crew, self._zygote, self._database = crew, zygote, database
        self.kills = Counter[str]()
        self._shapes = 0

    def works(self, *shapes: tuple[str, Trap | None], trap: Trap | None = None, kind: str = "") -> bool:
        """Whether a process that enqueues these, and works off all there is, lives to the end."""
        self._zygote.say(msgspec.json.encode(Order(list(shapes), trap)).decode())
        code = self._zygote.hear()
        assert code in ("0", str(-signal.SIGKILL)), f"{shapes} {trap}: {code or self._crew.complaints()}"
        self.kills[kind] += code != "0"
        return code == "0"

    def kill_at_each(self, kind: Literal["statement", "write"], shape: str, most: int = MOST, by: int = 1) -> None:
        """From the start of a handler on, until one lives or there were so many."""
        self._shapes += 1
        for number in range(1 + self._shapes % EVERY, most, by * EVERY):
            if self.works((shape, Trap(kind, number)), kind=f"{kind} of {shape}"):
                return
        assert most < MOST, f"{shape} has no end"

    def check(self, ended: Collection[str] = ("succeeded",)) -> dict[str, int]:
        """When everything was worked off: that it is sound, that all ended so, and what was seen."""
        assert self._crew.complaints() == []
        began = Counter((int(job), int(attempt)) for _, job, attempt in self._zygote.lines())
        assert unsound_however_folded(self._database, WITHOUT_EFFECT) == {}
        with closing(sqlite3.connect(self._database)) as connection:
            assert {row[0] for row in connection.execute("SELECT status FROM holdfast_jobs")} == set(ended)
            rows = connection.execute("SELECT job_id, attempt, outcome FROM holdfast_attempts").fetchall()
            jobs, effects = count(connection, "holdfast_jobs"), count(connection, "effects")
            recovered = count(connection, "holdfast_jobs", "attempt > 1 AND status = 'succeeded'")
        ends = {(job, attempt): outcome for job, attempt, outcome in rows}
        # An attempt is on disk before the user's code runs, and runs it once.
        assert set(began) <= set(ends) and set(began.values()) == {1}
        cut_off = sum(ends[one] != "succeeded" for one in began)
        seen = {
            "kills": sum(self.kills.values()),
            "between start and commit": cut_off,
            "jobs": jobs,
            "effects": effects,
            "recovered jobs": recovered,
        }
        print("\n" + json.dumps(seen | self.kills))
        return seen

    def outcomes(self, task: str) -> dict[str, list[str]]:
        """How the attempts of each ended, by the step at which it was to be killed."""
        with closing(sqlite3.connect(self._database)) as connection:
            rows = connection.execute(
                """SELECT json_extract(args, '$.trap.step'), outcome FROM holdfast_jobs
                   JOIN holdfast_attempts AS tried ON tried.job_id = id WHERE task = ? ORDER BY id, tried.attempt""",
                (task,),
            ).fetchall()
        found: dict[str, list[str]] = {}
        for step, outcome in rows:
            found.setdefault(step, []).append(outcome)
        return found


@contextmanager
def a_ward(folder: Path, **environment: str) -> Iterator[Ward]:
    database = folder / "app.db"
    with Crew(folder, database) as crew:
        yield Ward(crew, crew.start("zygote", **environment), database)


@pytest.fixture
def ward(tmp_path: Path) -> Iterator[Ward]:
    with a_ward(tmp_path) as ward:
        yield ward


def steps_of(task: str, attempts: int = 1) -> list[tuple[str, Trap]]:
    return [(task, Trap("step", step=step, attempts=attempts)) for step in STEPS_BEFORE_COMMIT + STEPS_AFTER_COMMIT]


def expected(lost: str, attempts: int = 1) -> dict[str, list[str]]:
    before = {step: [lost] * attempts + ["succeeded"] for step in STEPS_BEFORE_COMMIT}
    return before | {step: ["succeeded"] for step in STEPS_AFTER_COMMIT}


@pytest.mark.parametrize("task", ["do_all", "do_all_later"])
@pytest.mark.parametrize("attempts", [1, 3])
def test_a_kill_at_any_step_of_a_handler_leaves_all_of_its_effects_or_none(
    ward: Ward, task: str, attempts: int
) -> None:
    for shape, trap in steps_of(task, attempts):
        assert not ward.works((shape, trap), kind=task)
        for _ in range(1, attempts if trap.step in STEPS_BEFORE_COMMIT else 1):
            assert not ward.works(kind=task)
    assert ward.works()
    assert ward.outcomes(task) == expected("lost", attempts)
    seen = ward.check()
    assert seen["between start and commit"] == len(STEPS_BEFORE_COMMIT) * attempts
    assert seen["kills"] == seen["between start and commit"] + len(STEPS_AFTER_COMMIT)


@pytest.mark.parametrize(
    "shapes",
    [("write", "go_on", "return_then", "breed", "message"), ("two_blockers", "members", "knot")],
    ids=["alone", "in graphs"],
)
def test_kills_at_statements_all_along_leave_effects_and_jobs_in_agreement(
    ward: Ward, shapes: tuple[str, ...]
) -> None:
    while sum(ward.kills.values()) < LEAST_KILLS:
        for shape in shapes:
            ward.kill_at_each("statement", shape, most=30 if shape == "message" else MOST, by=1 + (shape == "knot"))
    assert ward.works()
    seen = ward.check()
    assert seen["between start and commit"] > seen["kills"] / 3 and seen["recovered jobs"] > seen["kills"] / 3
    assert all(ward.kills[f"statement of {shape}"] > 15 / EVERY for shape in shapes)


def test_kills_at_statements_of_a_worker_that_starts_leave_jobs_that_succeed_once(ward: Ward) -> None:
    """While it opens the database, enqueues, enlists, recovers what is left, claims, and so on."""
    for number in itertools.count(1, EVERY):
        if ward.works(("write", None), trap=Trap("statement", number), kind="start"):
            break
    seen = ward.check()
    assert seen["kills"] > seen["between start and commit"] + 24 / EVERY
    assert seen["between start and commit"] > 0


def test_kills_in_writes_to_the_file_leave_effects_and_jobs_in_agreement(tmp_path: Path) -> None:
    """A commit is many writes: they are cut off in their middle, and so are the flushes."""
    with a_ward(tmp_path, LD_PRELOAD=compile_shim("kill_in_write_shim.c", tmp_path)) as ward:
        ward.kill_at_each("write", "write")
        ward.kill_at_each("write", "breed", by=2)
        ward.kill_at_each("write", "knot", by=a_part(3, 7))
        assert ward.works()
        seen = ward.check()
    assert seen["kills"] >= a_part(15, 60)
    assert 0 < seen["between start and commit"] < seen["kills"]


def test_a_kill_of_a_process_of_the_pool_leaves_effects_and_jobs_in_agreement(ward: Ward) -> None:
    """Its worker lives, and tries again."""
    task = "do_all_apart"
    at_statements = [(task, Trap("statement", number)) for number in range(2, 30, 4)]
    assert ward.works(*steps_of(task), *at_statements)
    outcomes = ward.outcomes(task)
    in_statements = Counter(outcomes.pop(""))
    assert outcomes == expected("retry_scheduled")
    assert in_statements["retry_scheduled"] > 3 and in_statements["succeeded"] == len(at_statements)
    ward.kills["step"], ward.kills["statement"] = len(outcomes), in_statements["retry_scheduled"]
    seen = ward.check()
    assert seen["between start and commit"] == seen["kills"] - len(STEPS_AFTER_COMMIT)


def test_a_job_that_kills_its_process_in_every_attempt_fails_in_the_end_and_leaves_no_effect(ward: Ward) -> None:
    step = "end of the block"
    assert not ward.works(("do_all", Trap("step", step=step, attempts=20)), kind="spent")
    while not ward.works(kind="spent"):
        pass
    assert ward.kills["spent"] == 20
    assert ward.outcomes("do_all") == {step: ["lost"] * 20}
    seen = ward.check(ended={"failed"})
    assert (seen["jobs"], seen["effects"]) == (1, 0)
