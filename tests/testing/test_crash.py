"""`crash_at_every_point` crashes a scenario at each statement and commit, restarts, and checks what is left."""

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast import Context, Holdfast
from holdfast.errors import InvalidInput
from holdfast.testing import crash_at_every_point, crash_point, drain, enqueued


@pytest.fixture
def paid(app: Holdfast) -> Callable[[], list[int]]:
    """Reads the table that tasks write to."""

    def read() -> list[int]:
        with app.transaction() as tx:
            return [row[0] for row in tx.execute("SELECT n FROM paid").fetchall()]

    return read


def create_table(app: Holdfast) -> None:
    with app.transaction() as tx:
        tx.execute("CREATE TABLE paid (n INTEGER)")


def write(tx: Any, n: int) -> None:
    tx.execute("INSERT INTO paid VALUES (?)", (n,))


def test_an_effect_of_ctx_complete_happens_once_wherever_the_process_crashes(
    app: Holdfast, paid: Callable[[], list[int]]
) -> None:
    @app.task
    def pay(ctx: Context, n: int) -> None:
        with ctx.complete() as tx:
            write(tx, n)

    def setup() -> None:
        create_table(app)
        pay.enqueue(7)

    def check() -> None:
        assert paid() == [7]
        assert [job.status for job in enqueued(pay)] == ["succeeded"]

    points = crash_at_every_point(app, lambda: drain(app), check, setup=setup)
    whats = [point.what for point in points]
    assert whats.count("before COMMIT") == 1
    assert whats.count("after the commit") == 2  # of the claim, and of ctx.complete()
    assert "before INSERT INTO paid VALUES (?)" in whats
    assert [point.number for point in points] == list(range(1, len(points) + 1))
    assert app.jobs.count() == 0, "the app's own database was used"


def test_it_finds_an_effect_that_commits_apart_from_its_job(app: Holdfast, paid: Callable[[], list[int]]) -> None:
    @app.task
    def pay(n: int) -> None:
        with app.transaction() as tx:
            write(tx, n)

    checked: list[list[int]] = []

    def setup() -> None:
        create_table(app)
        pay.enqueue(7)

    def check() -> None:
        checked.append(paid())
        assert checked[-1] == [7]

    with pytest.raises(AssertionError) as caught:
        crash_at_every_point(app, lambda: drain(app), check, setup=setup)
    assert checked[-1] == [7, 7]
    (note,) = caught.value.__notes__
    assert "after the commit (test_crash.py:" in note
    assert "in pay). Replay it with only=" in note

    number = int(note.rpartition("only=")[2].rstrip("."))
    checked.clear()
    with pytest.raises(AssertionError):
        crash_at_every_point(app, lambda: drain(app), check, setup=setup, only=number)
    assert checked == [[7], [7, 7]], "one round without a crash, and one with this one"


def test_a_declared_point_crashes_between_an_effect_outside_and_the_next_statement(app: Holdfast) -> None:
    charges: list[str] = []

    def charge(key: str) -> None:
        """Stands in for a payment service that knows idempotency keys."""
        if key not in charges:
            charges.append(key)
        crash_point("the card is charged")

    @app.task
    def pay(n: int) -> None:
        charge(f"order-{n}")

    def setup() -> None:
        charges.clear()
        pay.enqueue(7)

    def check() -> None:
        assert charges == ["order-7"]

    points = crash_at_every_point(app, lambda: drain(app), check, setup=setup)
    assert [point.what for point in points].count("the card is charged") == 1
    crash_point("outside of a scenario it does nothing")


def test_an_enqueue_that_crashed_can_be_done_again_with_its_key(app: Holdfast) -> None:
    @app.task
    def work() -> None: ...

    def order() -> None:
        work.using(key="order-7", key_window=3600).enqueue()
        drain(app)

    def check() -> None:
        assert [job.status for job in enqueued(work)] == ["succeeded"]

    points = crash_at_every_point(app, order, check, recover=order)
    assert any("INSERT INTO" in point.what for point in points)


def test_a_crash_counts_as_an_attempt(app: Holdfast) -> None:
    @app.task(max_attempts=1)
    def once() -> None:
        crash_point("in the task")

    statuses: set[tuple[str, str | None]] = set()

    def check() -> None:
        (job,) = enqueued(once)
        statuses.add((job.status, job.error_code))

    crash_at_every_point(app, lambda: drain(app), check, setup=once.enqueue)
    assert statuses == {("succeeded", None), ("failed", "TIMEOUT:LEASE")}


def test_code_that_runs_while_a_crash_unwinds_cannot_write(app: Holdfast) -> None:
    reached: list[str] = []

    @app.task
    def stubborn(n: int) -> None:
        try:
            crash_point("in the task")
        finally:
            reached.append("cleaned up")
            other.enqueue()  # no process that has crashed gets here

    @app.task
    def other() -> None: ...

    def check() -> None:
        assert enqueued(stubborn)[0].status == "succeeded"
        assert len(enqueued(other)) <= 2

    points = crash_at_every_point(app, lambda: drain(app), check, setup=lambda: stubborn.enqueue(1))
    number = next(point.number for point in points if point.what == "in the task")

    def check_one() -> None:
        assert len(enqueued(other)) == 1

    reached.clear()
    crash_at_every_point(app, lambda: drain(app), check_one, setup=lambda: stubborn.enqueue(1), only=number)
    assert reached == ["cleaned up"] * 3


def test_coroutines_and_messages_crash_as_well(app: Holdfast, paid: Callable[[], list[int]]) -> None:
    inbox = app.queue("inbox")

    @app.task
    async def pay(ctx: Context, n: int) -> None:
        await ctx.acomplete(lambda tx: write(tx, n))

    def work() -> None:
        drain(app)
        while message := inbox.receive():
            with message.ack_with() as tx:
                write(tx, message.body)

    def setup() -> None:
        create_table(app)
        pay.enqueue(7)
        inbox.send(8)

    def check() -> None:
        assert paid() == [7, 8]
        assert inbox.stats().total == 0

    crash_at_every_point(app, work, check, setup=setup, recover=work)


def test_a_connection_of_your_own_finds_the_database_by_its_path(app: Holdfast, tmp_path: Path) -> None:
    path = tmp_path / "mine.db"

    @app.task
    def work() -> None: ...

    def check() -> None:
        connection = sqlite3.connect(path)
        assert connection.execute("SELECT status FROM holdfast_jobs").fetchall() == [("succeeded",)]
        connection.close()

    assert crash_at_every_point(app, lambda: drain(app), check, setup=work.enqueue, path=path)


def test_the_app_has_its_own_store_and_clock_again(app: Holdfast) -> None:
    own = (app.store, app.clock, app.random)

    @app.task
    def work() -> None: ...

    def check() -> None:
        raise RuntimeError("found")

    with pytest.raises(RuntimeError, match="found") as caught:
        crash_at_every_point(app, lambda: drain(app), check, setup=work.enqueue)
    assert not hasattr(caught.value, "__notes__"), "nothing has crashed yet"
    assert (app.store, app.clock, app.random) == own


def test_what_the_scenario_raises_by_itself_is_raised(app: Holdfast) -> None:
    def scenario() -> None:
        raise RuntimeError("no crash")

    with pytest.raises(RuntimeError, match="no crash"):
        crash_at_every_point(app, scenario, lambda: None)


def test_bad_arguments_and_scenarios_are_refused(app: Holdfast) -> None:
    runs: list[int] = []

    @app.task
    def work() -> None: ...

    def changing() -> None:
        runs.append(1)
        if len(runs) == 1:
            drain(app)

    with pytest.raises(InvalidInput, match="app must be a Holdfast, got 'app'"):
        crash_at_every_point("app", lambda: None, lambda: None)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match=r"has \d+ points, more than limit=1"):
        crash_at_every_point(app, lambda: drain(app), lambda: None, setup=work.enqueue, limit=1)
    with pytest.raises(InvalidInput, match=r"only must be at most \d+, the number of points, got 999"):
        crash_at_every_point(app, lambda: drain(app), lambda: None, only=999)
    with pytest.raises(InvalidInput, match=r"reached point 1, before .* and not again: it must do the same"):
        crash_at_every_point(app, changing, lambda: None, setup=work.enqueue)
