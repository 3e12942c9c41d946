"""The world of a simulation: workers, a program that enqueues and consumes, an operator, and what goes wrong.

A seed decides the settings (how many workers, which faults, how often), what every actor does, and in which order.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Iterable, Iterator, MutableSet
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

from holdfast import Cancel, Context, Fail, Holdfast, Retry, Snooze, Then
from holdfast.errors import HoldfastError, JobNotFound, StoreBusy, StoreError, WorkerStuck
from holdfast.store.sqlite.engine.worker_locks import lock_path

from .simulation_machine import SECOND_NS, Killed, Machine, Process, SimulatedClock, SimulatedConnection
from .simulation_model import CRON_LABEL, LIVE, TERMINAL, WITH_EFFECT, Knowledge, Model, Violation

SLOWEST_COMMIT = 5.0
CALM_SECONDS = 240.0
RECOVERY_SECONDS = 5.0  # after a lease, until a sweep and a restart
QUEUES = ("default", "inbox", "fast")
VERBS = (
    "cancel",
    "cancel",
    "retry",
    "retry",
    "run_now",
    "delete",
    "pause",
    "resume",
    "resume",
    "purge",
    "sql",
    "complete",
)
FITTING = {
    "retry": {"failed", "cancelled"},
    "run_now": {"scheduled"},
    "cancel": {"running", "ready"},
    "delete": TERMINAL,
}


@dataclass(frozen=True)
class Settings:
    """What goes wrong in a run, and how often. Drawn from the seed: in many runs some faults do not occur at all."""

    workers: int
    concurrency: int
    lease: float
    switchiness: float
    crash_in_steps: int  # a process is killed about every so many steps; 0: never
    crash_at_commit: float
    stop_in_steps: int
    stop_owners: float  # how often the owner of a running job is stopped for about its lease, a second
    slow_disk: float
    clock_steps: float  # a minute
    reboots: float
    operator: float  # seconds between two actions
    producer: float
    work: list[float]  # how long handlers take
    has_cron: bool
    has_coroutines: bool
    patience: int  # steps until the faults end

    @classmethod
    def drawn(cls, random: Random) -> Settings:
        return cls(
            workers=random.choice([1, 2, 2, 3]),
            concurrency=random.choice([1, 2, 4]),
            lease=random.choice([1, 1, 3]),
            switchiness=random.choice([0.02, 0.1, 0.3]),
            crash_in_steps=random.choice([0, 2500, 1200, 500]),
            crash_at_commit=random.choice([0, 0.003, 0.01, 0.03]),
            stop_in_steps=random.choice([0, 3000, 1200, 600]),
            stop_owners=random.choice([0, 0.1, 0.5, 0.5]),
            slow_disk=random.choice([0, 0, 0.01, 0.05]),
            clock_steps=random.choice([0, 0.1, 0.5]),
            reboots=random.choice([0, 0, 0.03]),
            operator=random.choice([0.2, 1, 5]),
            producer=random.choice([0.05, 0.2, 1]),
            work=random.choice([[0, 0, 0.001, 0.05, 0.4, 2], [0.4, 1, 2, 4]]),
            has_cron=random.random() < 0.3,
            has_coroutines=random.random() < 0.4,
            patience=random.choice([300, 600, 1200, 2500]),
        )


class World:
    """One run: the machine, the database, the actors."""

    def __init__(
        self, seed: int, given: dict[str, Any], template: bytes, folder: Path, names: dict[str, str]
    ) -> None:
        self.random = Random(f"world {seed}")
        self.settings = settings = replace(Settings.drawn(self.random), **given)
        self.machine = Machine(seed, settings.switchiness)
        self.path = folder / "sim.db"
        self.path.write_bytes(template)
        lock_path(self.path).touch()
        self.known = Knowledge(expected={CRON_LABEL: 10**9})
        self.model = Model(self.machine, self.path, self.known)
        self.is_calm = False
        self.enqueued = ["plain", "pay", "timed", "poison"] + [
            "await_and_pay",
            "await_only",
        ] * settings.has_coroutines
        self.labels = 0
        self.unsure: dict[int, Callable[[Holdfast], Any]] = {}  # keyed enqueues whose outcome is unknown
        self.ids: list[int] = []
        self._apps: dict[Process, Holdfast] = {}
        self._workers = self._set_back = 0
        machine = self.machine
        machine.names |= names
        machine.on_step, machine.on_commit = self._on_step, self._on_commit
        machine.before_commit, machine.committed = self._before_commit, self._after_commit
        self._crash_in, self._stop_in = (
            self._steps(settings.crash_in_steps),
            self._steps(settings.stop_in_steps),
        )

    # --- faults ---

    def _steps(self, mean: int) -> int:
        return round(self.random.expovariate(1 / mean)) + 1 if mean else 0

    def _on_step(self, process: Process) -> None:
        """Before each statement, lock and look at a clock: perhaps kill or stop a process."""
        if self.is_calm:
            return
        settings, machine = self.settings, self.machine
        if settings.crash_in_steps:
            self._crash_in -= 1
            if self._crash_in <= 0:
                self._crash_in = self._steps(settings.crash_in_steps)
                machine.counts["kills"] += 1
                machine.kill(process if self.random.random() < 0.7 else self.random.choice(machine.processes))
                return
        if settings.stop_in_steps:
            self._stop_in -= 1
            if self._stop_in <= 0:
                self._stop_in = self._steps(settings.stop_in_steps)
                machine.counts["stops"] += 1
                if any(one.in_transaction for one in process.connections):
                    machine.counts["stopped inside a transaction"] += 1
                machine.stop(process, self.random.choice([0.02, 0.3, 2, 2 * settings.lease]))

    def _before_commit(self, connection: SimulatedConnection) -> None:
        if self.is_calm:
            return
        if self.random.random() < self.settings.slow_disk:
            self.machine.counts["slow commits"] += 1
            self.machine.sleep(self.random.choice([0.01, 0.2, 1, SLOWEST_COMMIT]))
        self._kill_at_commit(connection, "before")

    def _after_commit(self, connection: SimulatedConnection) -> None:
        if not self.is_calm:
            self._kill_at_commit(connection, "after")

    def _kill_at_commit(self, connection: SimulatedConnection, when: str) -> None:
        if self.random.random() < self.settings.crash_at_commit:
            self.machine.counts["kills"] += 1
            self.machine.counts[f"killed {when} a commit"] += 1
            self.machine.kill(connection.process)
            raise Killed

    def _on_commit(self, connection: SimulatedConnection) -> None:
        self.machine.counts["commits"] += 1
        try:
            self.model.after_commit(connection)
        except Violation as error:
            self.machine.fail(str(error), error)
            raise Killed from None

    # --- the director: starts processes again, sets clocks, and ends the faults ---

    def direct(self) -> None:
        machine, settings = self.machine, self.settings
        processes = [*["worker"] * settings.workers, "client"]
        running: list[Process | None] = [self._start(kind) for kind in processes]
        while not self.is_calm or self.model.unfinished() or self.unsure:
            machine.sleep(0.3 if self.is_calm else self.random.expovariate(1.0) + 0.05)
            for number, process in enumerate(running):
                if process is not None and process.is_dead:
                    running[number] = None
                elif process is None:
                    running[number] = self._start(processes[number])
            if not self.is_calm:
                self._disturb(running)
                if machine.steps > settings.patience:
                    self._calm_down()
                    del processes[1:-1], running[1:-1]  # one worker and the client see to the end
                    calm_since = machine.now + round(SLOWEST_COMMIT * SECOND_NS)
                    until = machine.now + round(CALM_SECONDS * SECOND_NS)
            else:
                self.model.no_job_is_held_by_the_dead(settings.lease + RECOVERY_SECONDS, calm_since)
            if self.is_calm and machine.now > until:
                raise Violation(f"not ended after {CALM_SECONDS:g} quiet seconds: {self.model.unfinished()[:5]}")
        self.model.at_the_end()

    def _start(self, kind: str) -> Process:
        self._workers += 1
        run = self._run_worker if kind == "worker" else self._run_client
        return self.machine.start(f"{kind}-{self._workers}", run)

    def _disturb(self, running: list[Process | None]) -> None:
        machine, settings, random = self.machine, self.settings, self.random
        if random.random() < settings.clock_steps:
            seconds = random.choice([-3600, -30, -1, 1, 30, 3600])
            machine.wall_offset += seconds * SECOND_NS
            self._set_back = min(0, self._set_back + seconds)
            machine.counts["clock steps"] += 1
            machine.log("machine", f"sets the clock by {seconds} s")
        if random.random() < settings.reboots:
            machine.counts["reboots"] += 1
            machine.reboot()
        elif random.random() < settings.reboots:
            machine.counts["suspends"] += 1
            machine.suspended += random.choice([5, 600]) * SECOND_NS
            machine.log("machine", "was suspended")
        owners = [one.owner_process for one in self.model.entries.values() if one.status == "running"]
        owner = random.choice(owners) if owners and random.random() < settings.stop_owners else None
        if owner is not None and not owner.is_dead:
            machine.counts["stops"] += 1
            machine.stop(owner, random.uniform(1, 3) * settings.lease)
        process = random.choice(running)
        if process is not None and process.worker is not None and random.random() < 0.1:
            machine.counts["graceful stops"] += 1
            machine.log(process.name, "gets SIGTERM")
            process.worker.stop()

    def _calm_down(self) -> None:
        """End the faults. What is left must come to an end by itself."""
        machine = self.machine
        machine.wall_offset += max(0, -self._set_back) * SECOND_NS  # otherwise what is scheduled is due in an hour
        machine.log("director", "ends the faults")
        machine.counts["steps with faults"] = machine.steps
        self.is_calm = True
        for process in list(machine.processes):
            if process.worker is not None and self.random.random() < 0.5:
                machine.kill(process)
            process.stopped_until = min(process.stopped_until, machine.now)

    # --- workers ---

    def _open(self) -> Holdfast:
        machine = self.machine
        app = Holdfast(
            self.path,
            clock=SimulatedClock(machine),
            random=Random(machine.random.getrandbits(64)),
            min_free_bytes=0,
            busy_timeout=20,
        )
        for name, function, options in TASKS + COROUTINES * self.settings.has_coroutines:
            app.task(name=name, **options)(function)
        if self.settings.has_cron:
            app.cron("* * * * *", name="tick", max_attempts=3)(tick)
        self._apps[machine.current.process] = app
        return app

    def _run_worker(self, process: Process) -> None:
        with suppress(StoreBusy, WorkerStuck):
            app = self._open()
            worker = app.worker(concurrency=self.settings.concurrency, pool=1, lease=self.settings.lease, grace=1)
            run = worker._worker_run
            for part in (run.dispatcher, run._loop):
                for name, value in vars(part).items():
                    if type(value) is set:  # a set of objects has another order in each run
                        setattr(part, name, OrderedSet(value))
            process.worker = worker
            report = worker.run()
            self.machine.counts["lost attempts"] += report.lost
            app.close()

    @property
    def app(self) -> Holdfast:
        """The app of the process that runs."""
        return self._apps[self.machine.current.process]

    def begin(self, ctx: Context) -> None:
        key = (ctx.job_id, ctx.attempt)
        self.known.begun[key] += 1
        if self.known.begun[key] > 1:
            self.machine.fail(f"attempt {key[1]} of job {key[0]} was run twice", None)
        if ctx.attempt > ctx.max_attempts:
            self.machine.fail(f"attempt {ctx.attempt} of job {ctx.job_id}, which has {ctx.max_attempts}", None)
        entry, process = self.model.entries.get(ctx.job_id), self.machine.current.process
        if entry is None or entry.status != "running" or entry.attempt != ctx.attempt:
            self.machine.counts["begun after the lease was lost"] += 1
        elif entry.owner_process is not process:
            self.machine.fail(f"{process.name} runs job {ctx.job_id}, which another process holds", None)
        self.machine.pause()

    def returning(self, ctx: Context, value: Any) -> Any:
        self.known.returned.add((ctx.job_id, ctx.attempt))
        entry = self.model.entries.get(ctx.job_id)
        if entry is None or entry.status != "running" or entry.attempt != ctx.attempt:
            self.machine.counts["fenced attempts"] += 1
        return value

    def work(self) -> None:
        seconds = self.random.choice(self.settings.work) if not self.is_calm else 0.001
        self.machine.sleep(seconds)

    # --- a program that enqueues, consumes messages, and lets an operator act: three threads of one process ---

    def _run_client(self, process: Process) -> None:
        with suppress(StoreError):
            app = self._open()
            for name, act in (("producer", self._produce), ("consumer", self._consume), ("operator", self._operate)):
                self.machine.spawn(process, name, lambda act=act: self._repeat(act, app))
            while True:
                self.machine.sleep(3600)

    def _repeat(self, act: Callable[[Holdfast], float], app: Holdfast) -> None:
        while True:
            try:
                seconds = act(app)
            except StoreError:  # a stopped process holds the write lock
                self.machine.counts["typed errors"] += 1
                seconds = 0.5
            self.machine.sleep(seconds)

    def label(self, jobs: int) -> int:
        self.labels += 1
        self.known.expected[self.labels] = jobs
        return self.labels

    def stored(self, label: int, *ids: int) -> None:
        for id in ids:
            self.known.acknowledged[id] = label
        self.ids += ids

    def _produce(self, app: Holdfast) -> float:
        for label, again in list(self.unsure.items()):
            self.stored(label, again(app))
            del self.unsure[label]
            self.machine.counts["enqueued again with its key"] += 1
        if not self.is_calm:
            ways = [self._enqueue] * 2 + [self._send] * 2
            ways += [self._enqueue_with_key, self._enqueue_many, self._in_transaction, self._with_blockers]
            self.random.choice([*ways, self._in_batch, self._by_plain_sql])(app)
        return self.random.expovariate(1 / self.settings.producer)

    def _options(self) -> dict[str, Any]:
        return {"delay": self.random.choice([0, 0, 0, 0.5, 2]), "priority": self.random.choice([0, 0, 1])}

    def _enqueue(self, app: Holdfast) -> None:
        label = self.label(1)
        self.stored(label, app.tasks[self.random.choice(self.enqueued)].using(**self._options()).enqueue(label).id)

    def _enqueue_with_key(self, app: Holdfast) -> None:
        label, name = self.label(1), self.random.choice(self.enqueued)

        def enqueue(app: Holdfast) -> int:
            # The window: a job that has ended by then is found as well.
            return app.tasks[name].using(key=f"key-{label}", key_window=3e7).enqueue(label).id

        self.unsure[label] = enqueue
        self.stored(label, enqueue(app))
        del self.unsure[label]

    def _enqueue_many(self, app: Holdfast) -> None:
        labels = [self.label(1) for _ in range(3)]
        for label, id in zip(labels, app.tasks["plain"].enqueue_many([{"n": one} for one in labels]), strict=True):
            self.stored(label, id)

    def _send(self, app: Holdfast) -> None:
        label, name = self.label(1), self.random.choice(["inbox", "fast"])
        self.stored(label, self._queue(app, name).send({"n": label}, delay=self.random.choice([0, 0, 1])))

    def _in_transaction(self, app: Holdfast) -> None:
        label = self.label(1)
        with app.transaction() as tx:
            tx.execute("INSERT INTO orders (label) VALUES (?)", (label,))
            job = app.tasks["plain"].using(conn=tx).enqueue(label)
            if self.random.random() < 0.1:
                raise StoreError("the caller has changed its mind")
        self.stored(label, job.id)

    def _with_blockers(self, app: Holdfast) -> None:
        blockers = [id for id in self.ids if (one := self.model.entries.get(id)) is not None and one.task is not None]
        if not blockers:
            return
        label = self.label(1)
        after = self.random.sample(blockers, min(len(blockers), 2))
        rule = self.random.choice(["hold", "fail", "cancel", "run"])
        with suppress(JobNotFound):  # deleted meanwhile
            job = app.tasks["plain"].using(after=after, on_blocker_failure=rule).enqueue(label)
            self.stored(label, job.id)

    def _in_batch(self, app: Holdfast) -> None:
        label, batch = self.label(1), None
        try:
            with app.batch(on_done=app.tasks["done"].s(label)) as batch:
                for _ in range(self.random.randrange(1, 4)):
                    member = self.label(1)
                    task = app.tasks[self.random.choice(["plain", "pay"])]
                    self.stored(member, task.using(batch=batch).enqueue(member).id)
                if self.random.random() < 0.1:
                    raise StoreError("the block has failed")
                self.work()
        finally:
            if batch is not None:
                self.known.left.add(batch.id)

    def _by_plain_sql(self, app: Holdfast) -> None:
        label = self.label(1)
        now = self.machine.wall_now()
        connection = self._connect()
        try:
            connection.execute(
                "INSERT INTO holdfast_jobs (task, args, created_at, run_at) VALUES ('plain', ?, ?, ?)",
                (f'{{"n":{label}}}', now, now),
            )
        except sqlite3.OperationalError:  # locked: another language does it again
            self.machine.counts["plain SQL was locked out"] += 1
        finally:
            connection.close()

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self.path, timeout=0, isolation_level=None, factory=SimulatedConnection, check_same_thread=False
        )
        connection.execute("PRAGMA wal_autocheckpoint = 0")
        return connection

    def _queue(self, app: Holdfast, name: str) -> Any:
        return app.queue(name, visibility=1, max_attempts=3, history=name != "fast")

    def _consume(self, app: Holdfast) -> float:
        name = self.random.choice(["inbox", "fast"])
        for message in self._queue(app, name).receive_many(2, wait=self.random.choice([0, 0.5])):
            self.work()
            chance = self.random.random() if not self.is_calm else 0
            if chance < 0.6:
                self.known.acking.add((message.id, message.attempt))
                message.ack()
            elif chance < 0.7:
                message.extend(3)
                self.work()
                self.known.acking.add((message.id, message.attempt))
                message.ack()
            elif chance < 0.8:
                message.release(self.random.choice([0, 1]))
            elif chance < 0.85:
                message.fail("BAD:MESSAGE")  # else: forgotten, so its visibility ends
        return 0.3 if self.is_calm else self.random.expovariate(2)

    def _operate(self, app: Holdfast) -> float:
        if self.is_calm:
            for name in QUEUES:
                app.queue(name).resume()
            return 30
        if not self.ids:
            return 0.1
        verb, asked = self.random.choice(VERBS), self.known.asked
        fitting = [one.id for one in self.model.entries.values() if one.status in FITTING.get(verb, LIVE)]
        id = self.random.choice(fitting if fitting and self.random.random() < 0.7 else self.ids[-12:])
        self.machine.counts[f"operator: {verb}"] += 1
        self.machine.log("operator", f"{verb} {id}")
        with suppress(JobNotFound, HoldfastError):
            if verb == "pause":
                app.queue(self.random.choice(QUEUES)).pause()
            elif verb == "resume":
                app.queue(self.random.choice(QUEUES)).resume()
            elif verb == "purge":
                name = self.random.choice(["inbox", "fast"])
                self.known.purging.add(name)
                self._queue(app, name).purge(dead_only=self.random.random() < 0.7)
            elif verb == "sql":
                self._edit(id)
            else:
                asked.add(({"retry": "requeued", "complete": "completed"}.get(verb, verb), id))
                if verb == "complete" and self._has_effect(id):
                    return 0  # its effect is its own
                getattr(app.jobs, verb)(id)
        return self.random.expovariate(1 / self.settings.operator)

    def _has_effect(self, id: int) -> bool:
        entry = self.model.entries.get(id)
        return entry is None or entry.task in WITH_EFFECT

    def _edit(self, id: int) -> None:
        """Cancel or delete by plain SQL, as another program would."""
        connection = self._connect()
        try:
            if self.random.random() < 0.5:
                self.known.asked.add(("edited", id))
                connection.execute(
                    "UPDATE holdfast_jobs SET status = 'cancelled', finished_at = ? WHERE id = ? AND status IN"
                    " ('ready', 'scheduled', 'running')",
                    (self.machine.wall_now(), id),
                )
            else:
                self.known.asked.add(("delete", id))
                connection.execute("PRAGMA foreign_keys = ON")
                connection.execute(
                    "DELETE FROM holdfast_jobs WHERE id = ? AND NOT awaited AND batch_id IS NULL", (id,)
                )
        except sqlite3.OperationalError:
            self.machine.counts["plain SQL was locked out"] += 1
        finally:
            connection.close()


# --- the tasks: their functions belong to the world that runs ---

worlds: list[World] = []


def plain(ctx: Context, n: int) -> Any:
    """End in any way there is."""
    world = worlds[-1]
    world.begin(ctx)
    world.work()
    outcome = world.random.random() if not world.is_calm else 0
    if outcome < 0.6:
        return world.returning(ctx, {"n": n})
    if outcome < 0.7:
        raise ValueError("no")
    if outcome < 0.85:
        return world.returning(ctx, Then(world.app.tasks["plain"], world.label(1)))
    return world.random.choice([Retry(after=1), Snooze(0.5), Fail("NO:WAY"), Cancel("gone")])


def pay(ctx: Context, n: int) -> None:
    """Have an effect that must happen exactly once."""
    world = worlds[-1]
    world.begin(ctx)
    world.work()
    with ctx.complete() as tx:
        tx.execute("INSERT INTO effects (job_id, attempt) VALUES (?, ?)", (ctx.job_id, ctx.attempt))
        if world.random.random() < 0.3:
            world.app.tasks["plain"].using(conn=tx).enqueue(world.label(1))
        if world.random.random() < 0.1 and not world.is_calm:
            raise ValueError("after the effect")
        tx.result = world.returning(ctx, {"attempt": ctx.attempt})
    world.work()


def timed(ctx: Context, n: int) -> None:
    """Take longer than the timeout, sometimes."""
    world = worlds[-1]
    world.begin(ctx)
    world.work()
    ctx.progress(0.5, "half")
    world.work()
    world.returning(ctx, None)


def poison(ctx: Context, n: int) -> None:
    """Kill the process, always or sometimes."""
    world = worlds[-1]
    world.begin(ctx)
    if n % 2 == 0 or world.random.random() < 0.5:
        world.machine.counts["killed by a job"] += 1
        world.machine.kill(world.machine.current.process)
        raise Killed
    world.returning(ctx, None)


def done(ctx: Context, n: int) -> None:
    """Be the callback of a batch."""
    world = worlds[-1]
    world.begin(ctx)
    world.returning(ctx, None)


def tick(ctx: Context, n: int = CRON_LABEL) -> None:
    """Be enqueued once a minute."""
    done(ctx, n)


async def await_and_pay(ctx: Context, n: int) -> None:
    """Wait as a coroutine, and have an effect that must happen exactly once."""
    world = worlds[-1]
    world.begin(ctx)
    await asyncio.sleep(world.random.choice([0, 0.001, 0.05, 1, 4]) if not world.is_calm else 0)
    if world.random.random() < 0.2:
        label = world.label(1)
        world.stored(label, (await world.app.tasks["plain"].aenqueue(label)).id)

    def have_effect(tx: Any) -> Any:
        tx.execute("INSERT INTO effects (job_id, attempt) VALUES (?, ?)", (ctx.job_id, ctx.attempt))
        tx.result = world.returning(ctx, {"attempt": ctx.attempt})

    await ctx.acomplete(have_effect)


async def await_only(ctx: Context, n: int) -> Any:
    """Wait as a coroutine, sometimes for longer than the timeout."""
    world = worlds[-1]
    world.begin(ctx)
    for _ in range(3):
        await asyncio.sleep(world.random.choice([0, 0.01, 0.5]) if not world.is_calm else 0)
    return world.returning(ctx, {"n": n})


TASKS: list[tuple[str, Callable[..., Any], dict[str, Any]]] = [
    ("plain", plain, {"max_attempts": 3, "retry": [0.1, 1]}),
    ("pay", pay, {"max_attempts": 4, "retry": [0.1]}),
    ("timed", timed, {"max_attempts": 3, "retry": [0.1], "timeout": 0.5}),
    ("poison", poison, {"max_attempts": 2}),
    ("done", done, {"max_attempts": 3}),
]
COROUTINES: list[tuple[str, Callable[..., Any], dict[str, Any]]] = [
    ("await_and_pay", await_and_pay, {"max_attempts": 4, "retry": [0.1]}),
    ("await_only", await_only, {"max_attempts": 3, "retry": [0.1], "timeout": 0.8}),
]


class OrderedSet(MutableSet[Any]):
    """A set that iterates in the order of insertion."""

    def __init__(self, some: Iterable[Any] = ()) -> None:
        self._some = dict.fromkeys(some)

    def __contains__(self, one: object) -> bool:
        return one in self._some

    def __iter__(self) -> Iterator[Any]:
        return iter(list(self._some))

    def __len__(self) -> int:
        return len(self._some)

    def add(self, one: Any) -> None:
        self._some[one] = None

    def discard(self, one: Any) -> None:
        self._some.pop(one, None)

    def update(self, some: Iterable[Any]) -> None:
        self._some.update(dict.fromkeys(some))

    def difference_update(self, some: Iterable[Any]) -> None:
        for one in some:
            self.discard(one)

    def copy(self) -> OrderedSet:
        return OrderedSet(self)
