"""What `make demo` shows: two worker processes on a sample app, live for half a minute, then what became of it all.

Jobs pour in. The API fails at times and is tried again, one job kills its worker and another takes over, and cron
makes up for the minutes it missed. The web page shows it, too: its address is printed first. Everything
happens in a temporary folder that is removed at the end.
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from holdfast import Holdfast
from holdfast.clock import SECOND, SystemClock
from holdfast.testing import FakeClock

FOLDER = Path(__file__).parent
STATES = ["ready", "scheduled", "running", "succeeded", "failed"]
COLOURS = {"ready": "cyan", "scheduled": "blue", "running": "yellow", "succeeded": "green", "failed": "red"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=30, help="how long it runs (default: 30)")
    seconds = parser.parse_args().seconds
    with tempfile.TemporaryDirectory() as folder:
        os.environ["HOLDFAST_URL"] = str(Path(folder) / "demo.db")
        run_a_worker_an_hour_ago(os.environ["HOLDFAST_URL"])
        demonstrate(Path(folder), seconds)


def demonstrate(folder: Path, seconds: float) -> None:
    import sample_app

    app = sample_app.app
    console = Console()
    with app, workers(folder / "worker.log"), web_page(app) as address:
        console.print(f"The web page: {address}", highlight=False)
        end = time.monotonic() + seconds
        sample_app.crash.using(delay=seconds / 5).enqueue()
        if console.is_terminal:
            with Live(console=console, refresh_per_second=8, transient=True) as live:
                while (left := end - time.monotonic()) > 0:
                    pour_in(sample_app, left > seconds / 5)
                    note = f"{left:.0f} s left. A worker is killed by its own job on the way. Web page: {address}"
                    live.update(view(app, note))
                    time.sleep(0.12)
        else:
            while (left := end - time.monotonic()) > 0:
                for _ in range(8):
                    pour_in(sample_app, left > seconds / 5)
                print(f"{left:4.0f} s left: {line(app)}", flush=True)
                time.sleep(min(1.0, left))
        summarise(app, console)


def run_a_worker_an_hour_ago(database: str) -> None:
    """So that cron has a missed run to make up for: no worker has run since."""
    now = SystemClock()
    with Holdfast(database, clock=FakeClock(now.now() - 3600 * SECOND, now.boot_id())) as app:
        app.cron("* * * * *", queue="cron", name="tidy")(lambda: None)
        app.worker(until_idle=True).run()


@contextmanager
def workers(log: Path) -> Iterator[None]:
    """Two processes, started and watched by `holdfast worker`. Their log lines go to a file here."""
    command = [sys.executable, "-m", "holdfast", "worker", "sample_app:app", "--processes", "2", "--grace", "3s"]
    with log.open("wb") as lines:
        process = subprocess.Popen(command, cwd=FOLDER, stderr=lines)
        try:
            yield
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait()


@contextmanager
def web_page(app: Holdfast) -> Iterator[str]:
    """Serve the web page from this process, at the usual port or, if that is taken, at another."""
    from holdfast.errors import InvalidInput
    from holdfast.web.server import DEFAULT_PORT, WebServer

    page = app.web()
    try:
        server = WebServer(page, port=DEFAULT_PORT)
    except InvalidInput:
        server = WebServer(page, port=0)
    server.start()
    try:
        yield server.url
    finally:
        server.close()


def pour_in(sample: Any, still: bool) -> None:
    """Some more of everything. Towards the end nothing new, so that all can be done."""
    if still:
        for _ in range(random.randint(0, 4)):
            sample.send_mail.enqueue(f"{random.choice(['ada', 'grace', 'edsger'])}@example.org")
        if random.random() < 0.3:
            sample.make_thumbnail.enqueue(f"beach-{random.randint(1, 99)}.jpg")
        if random.random() < 0.6:
            sample.call_api.enqueue(random.randint(1000, 9999))


def counts(app: Any) -> dict[str, dict[str, int]]:
    return {task: {state: app.jobs.count(task=task, status=state) for state in STATES} for task in sorted(app.tasks)}


def line(app: Any) -> str:
    found = counts(app)
    return ", ".join(f"{sum(task[state] for task in found.values())} {state}" for state in STATES)


def view(app: Any, note: str) -> Group:
    jobs = Table(title="jobs", title_justify="left", expand=False)
    jobs.add_column("task")
    for state in STATES:
        jobs.add_column(state, justify="right", style=COLOURS[state], min_width=9)
    for task, row in counts(app).items():
        jobs.add_row(task, *(str(row[state] or "") for state in STATES))
    running = Table(title="running now", title_justify="left", min_width=72)
    for name in ("job", "task", "attempt", "progress"):
        running.add_column(name)
    for job in app.jobs.list(status="running", limit=8):
        running.add_row(str(job.id), job.task, f"{job.attempt} of {job.max_attempts}", bar(job.progress))
    parts = [jobs, running, crews(app)] if running.row_count else [jobs, crews(app)]
    return Group(Text(f"Holdfast: {note}", style="bold"), *parts)


def bar(progress: float | None) -> str:
    return "" if progress is None else "█" * round(progress * 20) + "·" * (20 - round(progress * 20))


def crews(app: Any) -> Table:
    table = Table(title="workers", title_justify="left", min_width=72)
    for name in ("worker", "process", "since", "state"):
        table.add_column(name)
    for worker in app.workers()[:6]:
        state = Text("running", style="green") if worker.ended_at is None else Text(worker.ending, style="red")
        table.add_row(worker.id, str(worker.pid), f"{worker.started_at:%H:%M:%S}", state)
    return table


def summarise(app: Any, console: Console) -> None:
    console.print(view(app, "what became of it all"))
    for job in app.jobs.list(task="crash"):
        console.print(f"\nThe story of job {job.id}, which killed its worker:", style="bold", highlight=False)
        for entry in app.jobs.history(job.id):
            if entry.kind == "attempt":
                code = entry.detail.get("error_code") or ""
                console.print(
                    f"  attempt {entry.attempt} on worker {entry.actor}: {entry.name} {code}", highlight=False
                )
        console.print(f"  now: {job.status}, {job.error_code}: {job.error_detail}", highlight=False)
    retried = [job for job in app.jobs.list(task="call_api", status="succeeded", limit=1000) if job.attempt > 1]
    console.print(f"\n{len(retried)} calls of the flaky API succeeded after another try.", highlight=False)
    console.print(f"cron: {app.jobs.count(task='tidy')} × tidy, once for the hour it missed.", highlight=False)


if __name__ == "__main__":
    main()
