"""Power cuts: a real run is recorded, disks are built as a power cut could have left them, and each is opened.

Everything that was acknowledged must be there, and the file must be sound and usable.
"""

import json
import logging
import os
import random
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from faults.checkers import FEW, PROCESSES, Checkers
from faults.disk_model import WAYS, Disk, Entry, Image, read_recording, write_image
from faults.report import Report
from holdfast import Holdfast
from holdfast.clock import SystemClock
from support.child_processes import compile_shim

SHORT = 0.003
RECORDINGS, IMAGES, CONTROL_IMAGES = 5, 10_000, 600
OPERATIONS = 400
SCENARIOS = {
    "plain": "",  # only power cuts
    "failed flush": "fail",  # flushes fail now and then, and the kernel forgets what it could not write
}
CONTROLS = {
    "durability='normal'": "normal",  # nothing is flushed
    "a failed flush that is ignored": "fail ignore",
}


def run(report: Report) -> None:
    shim = compile_shim("fault_shim.c", report.folder)
    report.require(*(f"{name}: images that lost something unflushed" for name in SCENARIOS))
    report.require("failed flush: flushes that failed", "plain: acknowledged")
    images = report.scaled(IMAGES) // len(SCENARIOS)
    with Checkers(check, PROCESSES if images > FEW else 1) as checkers:
        for recording in report.mine(range(report.scaled(RECORDINGS))):
            for name, mode in SCENARIOS.items():
                seed = report.seed + recording
                if report.only is None or report.only // IMAGES == recording:
                    number = images // report.scaled(RECORDINGS)
                    for case, what in _scenario(report, checkers, shim, name, mode, number, seed):
                        report.violation(f"{name}: {what}", recording * IMAGES + case)
        if report.has_controls:
            for name, mode in CONTROLS.items():
                # In a short recording, few flushes fail before something is acknowledged: this one is long.
                unseen = Report("", report.seed, 1.0, report.folder)
                bad = _scenario(unseen, checkers, shim, name, mode, report.scaled(CONTROL_IMAGES, 24), report.seed)
                lost = sum("lost" in what or "damaged" in what for _, what in bad)
                report.control(f"{name}: {lost} images lost something acknowledged", caught=lost > 0)


def _scenario(
    report: Report, checkers: Checkers, shim: str, name: str, mode: str, images: int, seed: int
) -> list[tuple[int, str]]:
    """Record a run, and check so many images. Return the case and the problem of the bad ones."""
    folder = report.folder / f"{name.replace(' ', '-')}-{seed}"
    root, log = folder / "disk", folder / "log"
    root.mkdir(parents=True)
    code = f"import sys\nsys.path[:0] = {sys.path!r}\nfrom faults.power_cut import record\nrecord()"
    environment = {"LD_PRELOAD": shim, "FAULT_DIR": str(root), "FAULT_LOG": str(log), "FAULT_MODE": mode}
    command = [sys.executable, "-c", code, str(root / "app.db"), str(seed), str(report.scaled(OPERATIONS, 80))]
    subprocess.run(command, env=os.environ | environment, check=True, timeout=300)
    entries = list(read_recording(log))
    report.count(f"{name}: flushes that failed", sum(entry.kind == "F" for entry in entries))
    report.count(f"{name}: acknowledged", sum(entry.kind == "M" for entry in entries))
    bad = []
    for case, result in checkers.each(_cases(report, entries, str(root), images, seed)):
        report.count(f"{name}: images")
        report.count(f"{name}: images that lost something unflushed", int(case.image.lost > 0))
        if result:
            bad.append((case.number, f"image {case.number} ({case.way}): {result}"))
    if not bad:
        shutil.rmtree(folder)
    return bad


@dataclass
class Case:
    number: int
    way: str
    image: Image
    acknowledged: list[dict[str, Any]]
    root: str
    folder: str


def _cases(report: Report, entries: list[Entry], root: str, images: int, seed: int) -> Iterator[Case]:
    rng = random.Random(seed)
    interesting = [index for index, entry in enumerate(entries) if entry.kind in "MSFTRUC"]
    points: dict[int, list[int]] = {}
    for number in range(images):
        at = rng.choice(interesting) + rng.randint(0, 1) if rng.random() < 0.6 else rng.randint(0, len(entries))
        points.setdefault(at, []).append(number)
    disk, acknowledged = Disk(), list[dict[str, Any]]()
    for index in range(len(entries) + 1):
        for number in points.get(index, ()):
            if report.only is None or report.only % IMAGES == number:
                own = random.Random(seed * 1_000_003 + number)
                way = own.choice(WAYS)
                yield Case(number, way, disk.crash(own, way), acknowledged[:], root, str(report.folder))
        if index < len(entries):
            if entries[index].kind == "M":
                acknowledged.append(json.loads(entries[index].data))
            else:
                disk.step(entries[index])


# --- the run that is recorded ---


def record() -> None:
    """Do all that changes the database, in a process with the shim, and mark what was acknowledged."""
    import ctypes
    import threading

    from holdfast import Context
    from holdfast.errors import StoreError
    from holdfast.store.sqlite.engine import checkpoint, failed_flush

    logging.disable(logging.CRITICAL)
    shim, mode = ctypes.CDLL(None), os.environ["FAULT_MODE"].split()
    path, rng = sys.argv[1], random.Random(int(sys.argv[2]))
    checkpoint.CHANGES_PER_CHECKPOINT = 8000 if "ignore" in mode else rng.choice([40, 120, 8000])
    checkpoint.CHANGES_PER_SIZE_CHECK = 8
    failed_flush.RETRY_SECONDS = 0.0
    if "ignore" in mode:
        failed_flush.FailedFlush.notice = lambda self, error: None  # type: ignore[method-assign]

    def mark(**what: Any) -> None:
        shim.fault_mark(json.dumps(what).encode())

    def open_app() -> Holdfast:
        app = Holdfast(path, durability="normal" if "normal" in mode else "full")

        @app.task(max_attempts=9)
        def work(ctx: Context, n: int) -> None:
            with ctx.complete(n) as tx:
                tx.execute("INSERT INTO effects (job, n) VALUES (?, ?)", (ctx.job_id, n))
            mark(op="completed", id=ctx.job_id)

        return app

    app = open_app()
    with app.transaction() as tx:
        tx.execute("CREATE TABLE IF NOT EXISTS effects (job INTEGER, n INTEGER)")
    mark(op="table")

    def send(body: Any) -> None:
        mark(op="sent", id=app.queue("inbox", max_attempts=1000).send(body), body=body)

    def send_many(number: int) -> None:
        bodies = [f"{number}-{one}" for one in range(5)]
        for id, body in zip(app.queue("inbox").send_many(bodies), bodies, strict=True):
            mark(op="sent", id=id, body=body)

    def enqueue(number: int) -> None:
        mark(op="sent", id=app.tasks["work"].enqueue(number).id, body={"n": number})

    def receive(number: int) -> None:
        for message in app.queue("inbox").receive_many(1 + number % 4):
            message.ack()

    def in_transaction(number: int) -> None:
        with app.transaction() as tx:
            tx.execute("INSERT INTO effects (job, n) VALUES (-1, ?)", (number,))
            job = app.tasks["work"].using(conn=tx).enqueue(number)
        mark(op="sent", id=job.id, body={"n": number})
        mark(op="effect", n=number)

    def burst(number: int) -> None:
        def one(thread: int) -> None:
            try:
                send(f"{number} thread {thread}")
            except StoreError:
                return

        threads = [threading.Thread(target=one, args=(thread,)) for thread in range(5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def reopen(_: int) -> None:
        nonlocal app
        app.close()
        app = open_app()

    def fail(number: int) -> None:
        if "fail" in mode:
            receive(3)  # committed, and not flushed
            shim.fault_arm(b"s", 1 + number % 3, 5, number % 2, 0)

    actions = [
        (6, lambda number: send(f"{number}-" + "x" * rng.choice([0, 10, 500, 3000]))),
        (1, lambda number: send(f"{number} large " * 10_000)),
        (2, send_many),
        (4, enqueue),
        (4, receive),
        (2, lambda _: app.worker(until_idle=True, concurrency=3).run()),
        (1, lambda _: app.store.file.checkpoint()),
        (2, burst),
        (1, reopen),
        (1, lambda _: app.vacuum(hurry=True)),
        (2, in_transaction),
        (3, fail),
    ]
    for number in range(int(sys.argv[3])):
        (action,) = rng.choices([one for _, one in actions], [weight for weight, _ in actions])
        try:
            action(number)
        except StoreError:
            continue
    os._exit(0)  # as a power cut: nothing is closed


# --- the images ---


def check(case: Case) -> str:
    """Open an image. Return what is wrong with it, or an empty text."""
    logging.disable(logging.CRITICAL)
    place = Path(case.folder) / f"image-{os.getpid()}"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    write_image(case.image, case.root, place)
    SystemClock.boot_id = lambda self: f"boot {case.number % 2}"  # type: ignore[method-assign]
    try:
        return "; ".join(_problems(place / "app.db", case.acknowledged)[:3])
    except Exception as error:  # noqa: BLE001  any error is a finding
        return f"{type(error).__name__}: {error}"[:300]


def _problems(path: Path, acknowledged: list[dict[str, Any]]) -> list[str]:
    if not path.exists():
        return ["the database is lost"] if acknowledged else []
    found = []
    with Holdfast(path) as app:
        connection = sqlite3.connect(path)
        if connection.execute("PRAGMA integrity_check").fetchall() != [("ok",)]:
            found.append("damaged")
        if connection.execute("PRAGMA foreign_key_check").fetchall():
            found.append("foreign keys are damaged")
        status = dict(connection.execute("SELECT id, status FROM holdfast_jobs").fetchall())
        args = dict(connection.execute("SELECT id, args FROM holdfast_jobs").fetchall())
        table = connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'effects'").fetchone()
        effects = connection.execute("SELECT job, n FROM effects").fetchall() if table else []
        by_job = [job for job, _ in effects if job != -1]
        own = {n for job, n in effects if job == -1}
        connection.close()
        for one in acknowledged:
            if one["op"] == "table" and not table:
                found.append("the table is lost")
            elif one["op"] == "sent" and one["id"] not in status:
                found.append(f"job {one['id']} is lost")
            elif one["op"] == "sent" and not _is_same(app, one, args[one["id"]]):
                found.append(f"the payload of job {one['id']} is another")
            elif one["op"] == "completed" and (status[one["id"]] != "succeeded" or by_job.count(one["id"]) != 1):
                found.append(f"the completion of job {one['id']} is lost")
            elif one["op"] == "effect" and one["n"] not in own:
                found.append(f"the effect {one['n']} is lost")
        for job in by_job:
            if status.get(job) != "succeeded" or by_job.count(job) != 1:
                found.append(f"job {job} has an effect, and is {status.get(job)}")
        app.queue("after").send("x")
        message = app.queue("after").receive()
        if message is None or not message.ack():
            found.append("not usable")
    return found


def _is_same(app: Holdfast, sent: dict[str, Any], args: str | None) -> bool:
    if args is not None and json.loads(args) == sent["body"]:
        return True
    return bool(app.jobs.get(sent["id"]).args == sent["body"])  # a large one is in a file
