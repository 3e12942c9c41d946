"""`@app.cron`: schedules that are declared in code, over restarts and changes."""

import math
from collections.abc import Callable

from holdfast import Context, Holdfast, Task
from holdfast.errors import InvalidInput, InvalidTask
from holdfast.testing import FakeClock
from holdfast.worker.scheduler import Scheduler
from support.refusals import told
from support.scheduling import DAY, MINUTE, fired, scheduler_of


def start_tidy(open_app: Callable[..., Holdfast], clock: FakeClock, expression: str) -> tuple[Holdfast, Scheduler]:
    """A process with this declaration, and its worker."""
    app = open_app(clock=clock)
    app.cron(expression, name="tidy")(lambda: None)
    return app, scheduler_of(app, clock)


def test_a_declared_schedule_is_stored_when_a_worker_starts_and_not_before(app: Holdfast, clock: FakeClock) -> None:
    @app.cron("*/5 * * * *", tz="Europe/Zurich", queue="night", priority=2, max_attempts=1, missed="skip")
    def tidy() -> None: ...

    assert isinstance(tidy, Task) and app.tasks["tidy"] is tidy
    assert (tidy.options.queue, tidy.options.priority, tidy.options.max_attempts) == ("night", 2, 1)
    assert app.schedules.list() == []
    scheduler = scheduler_of(app, clock)
    (stored,) = app.schedules.list()
    assert (stored.name, stored.source, stored.task, stored.queue) == ("tidy", "code", "tidy", "night")
    clock.advance(5 * MINUTE)
    scheduler.fire_due()
    assert [(job.task, job.queue, job.args) for job in app.jobs.list()] == [("tidy", "night", {})]


def test_cron_may_stand_above_task_and_more_than_once(app: Holdfast, clock: FakeClock) -> None:
    @app.cron("0 18 * * *", name="evening")
    @app.cron("0 6 * * *", name="morning")
    @app.task(queue="mail")
    async def greet(ctx: Context, name: str = "all") -> None: ...

    assert app.tasks == {"greet": greet}
    assert {one.name: one.task for one in app.schedules.declared.values()} == {"evening": "greet", "morning": "greet"}
    scheduler = scheduler_of(app, clock)
    clock.advance(DAY)
    scheduler.fire_due()
    assert fired(app) == [6 * 60, 18 * 60]


def test_a_declaration_that_cannot_work_is_refused_at_once(app: Holdfast) -> None:
    def needs(row: int, deep: bool = True) -> None: ...

    def fine() -> None: ...

    with told(InvalidTask, "needs", "row", "app.schedules.add"):
        app.cron("@daily")(needs)
    with told(InvalidInput, "five fields"):
        app.cron("every day")
    with told(InvalidInput, "must be a str"):
        app.cron(fine)  # type: ignore[arg-type]
    with told(InvalidInput, "did you mean 'queue'"):
        app.cron("@daily", queu="x")  # type: ignore[call-arg]
    task = app.cron("@daily")(fine)
    with told(InvalidTask, "'fine' is used by", "name="):
        app.cron("@hourly")(task)
    with told(InvalidTask, "already a task", "queue"):
        app.cron("@hourly", name="second", queue="x")(task)
    with told(InvalidInput, "@app.cron", "another name"):
        app.schedules.add("fine", "@daily", task)
    assert list(app.schedules.declared) == ["fine"]


def test_a_module_that_is_loaded_again_declares_again(app: Holdfast) -> None:
    def load(expression: str) -> None:
        @app.cron(expression)
        def tidy() -> None: ...

    load("@daily")
    load("@hourly")
    assert [one.cron for one in app.schedules.declared.values()] == ["@hourly"]


def test_an_unchanged_declaration_keeps_its_place_over_a_restart(
    open_app: Callable[..., Holdfast], clock: FakeClock
) -> None:
    def start(expression: str) -> tuple[Holdfast, Scheduler]:
        return start_tidy(open_app, clock, expression)

    first, scheduler = start("*/5 * * * *")
    clock.advance(5 * MINUTE)
    scheduler.fire_due()
    first.close()
    clock.advance(20 * MINUTE)  # nobody is there
    second, scheduler = start("*/5 * * * *")
    scheduler.fire_due()
    assert fired(second) == [5, 25]
    second.close()
    clock.advance(20 * MINUTE)
    third, scheduler = start("*/15 * * * *")  # another expression: it counts from now, at 12:45
    scheduler.fire_due()
    assert fired(third) == [5, 25]
    clock.advance(15 * MINUTE)
    scheduler.fire_due()
    assert fired(third) == [5, 25, 60]


def test_another_option_of_a_declaration_is_stored_and_its_place_kept(
    open_app: Callable[..., Holdfast], clock: FakeClock
) -> None:
    def start(queue: str) -> tuple[Holdfast, Scheduler]:
        app = open_app(clock=clock)
        app.cron("*/5 * * * *", name="tidy", queue=queue)(lambda: None)
        return app, scheduler_of(app, clock)

    start("old")
    clock.advance(5 * MINUTE)
    app, scheduler = start("new")
    scheduler.fire_due()
    assert [job.queue for job in app.jobs.list()] == ["new"]


def test_what_an_operator_paused_stays_paused_over_a_restart_and_a_change(
    open_app: Callable[..., Holdfast], clock: FakeClock
) -> None:
    def start(expression: str) -> tuple[Holdfast, Scheduler]:
        return start_tidy(open_app, clock, expression)

    app, _ = start("* * * * *")
    app.schedules.pause("tidy")
    for expression in ("* * * * *", "*/2 * * * *"):
        app, scheduler = start(expression)
        clock.advance(10 * MINUTE)
        scheduler.fire_due()
        assert app.schedules.get("tidy").paused
        assert fired(app) == []


def test_what_the_code_has_no_more_does_not_fire_and_can_be_removed(
    open_app: Callable[..., Holdfast], clock: FakeClock
) -> None:
    old, new = open_app(clock=clock), open_app(clock=clock)
    old.cron("* * * * *", name="tidy")(lambda: None)
    new.task(name="tidy")(lambda: None)  # it knows the task, and has no @app.cron for it
    of_old, of_new = scheduler_of(old, clock), scheduler_of(new, clock)
    clock.advance(MINUTE)
    assert of_new.fire_due() == math.inf
    assert fired(new) == []
    of_old.fire_due()
    assert fired(new) == [1]
    with told(InvalidInput, "@app.cron", "remove"):
        new.schedules.add("tidy", "@daily", "tidy")
    new.schedules.remove("tidy")
    assert new.schedules.add("tidy", "@daily", "tidy").source == "runtime"


def test_the_code_takes_over_a_schedule_that_was_added_under_the_same_name(
    open_app: Callable[..., Holdfast], clock: FakeClock
) -> None:
    first = open_app(clock=clock)
    first.task(name="tidy")(lambda: None)
    first.schedules.add("tidy", "@daily", "tidy")
    second = open_app(clock=clock)
    second.cron("@hourly", name="tidy")(lambda: None)
    scheduler_of(second, clock)
    (stored,) = first.schedules.list()
    assert (stored.source, stored.cron) == ("code", "@hourly")


def test_a_schedule_of_a_task_without_code_here_is_left_to_who_has_it(
    app: Holdfast, work: Task[..., None], open_app: Callable[..., Holdfast], clock: FakeClock
) -> None:
    stranger = open_app(clock=clock)
    stranger.task(name="other")(lambda: None)
    app.schedules.add("each", "* * * * *", work)
    of_stranger, of_app = scheduler_of(stranger, clock), scheduler_of(app, clock)
    clock.advance(MINUTE)
    assert of_stranger.fire_due() == math.inf
    assert fired(app) == []
    of_app.fire_due()
    assert fired(app) == [1]
