"""The web server: how long its API takes in large files, what open pages cost a drain, the first page, and idling."""

import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from statistics import median
from time import perf_counter

import httpx

from holdfast import Holdfast

from .files import build_file, mostly, remove
from .measure import Effort, Figure, Table, at_most, seconds, take_turns
from .workers import cpu_seconds, wait_until_done, worker_process
from .workload import noop

REPEATS = 7
OPEN_PAGES = 100
DRAINED = 200_000
IDLE_SECONDS = 20
NOTES = f"""\
- **Web:** `holdfast web` in a process of its own, asked over loopback by one client; the median of {REPEATS} answers.
  The files have 5 queues, 50 tasks, jobs in all states, and 8 days of attempts with durations. Each line is a
  request that a page makes.
- **Web, open pages:** a worker process drains {DRAINED:,} no-op jobs while another process holds {OPEN_PAGES} event
  streams and reads them, as that many open tabs would; beside it the same without the web server.
- **Web, first page:** what Chromium loads for the overview, compressed as it goes over the wire, and the time from
  the request until the counts are on the page; the median of {REPEATS}, each with an empty cache.
- **Web, idle:** processor time of the server while one page is open and nothing happens.
"""
REQUESTS = {
    "Overview": [
        "/stats",
        "/timeline?since=604800&step=7200",
        "/timeline?since=86400&step=3600",
        "/timeline?since=900&step=60",
    ],
    "Jobs": [
        "/jobs?limit=50",
        "/jobs?limit=50&status=failed",
        "/jobs?limit=50&status=failed&queue=queue-1",
        "/jobs?limit=50&task=task-1*",
        "/jobs?limit=50&error_code=DEP*",
        "/jobs?limit=50&args=%7B%22n%22%3A%22absent%22%7D",
        "/counts",
        "/operations?limit=10",
    ],
    "Job": ["/jobs/{id}", "/jobs/{id}/history", "/jobs/{id}/explain"],
    "Queues": ["/queues", "/throughput?since=3600&step=120"],
    "Tasks": ["/attempts?since=604800&whole=true", "/latency?since=604800&whole=true"],
    "Errors": ["/failures?limit=100"],
    "Workers": ["/workers"],
    "Schedules": ["/schedules"],
    "Batches": ["/batches"],
    "Events": ["/events?limit=100"],
    "Storage": ["/storage"],
}


def figures(folder: Path, effort: Effort) -> Iterator[Figure | Table]:
    few, many = effort.rows // 10, effort.rows
    small, large = _answers(folder / "web.db", few), _answers(folder / "web.db", many)
    rows = [(page, path, f"{small[path]:.1f}", f"{large[path]:.1f}") for page in REQUESTS for path in REQUESTS[page]]
    yield Table("Requests of the web pages", ("page", "request", f"ms, {few:,} jobs", f"ms, {many:,} jobs"), rows)
    for taken, jobs, target in ((small, few, 50), (large, many, 100)):
        slowest = max(taken, key=lambda path: taken[path])
        name = f"slowest request of a web page, {jobs:,} jobs"
        yield Figure(name, f"{slowest}; median {median(taken.values()):.1f} ms", "", taken[slowest], None,
                     at_most(target, "ms"))  # fmt: skip
    yield _open_pages(folder, effort)
    yield from _first_page(folder)
    yield _idle(folder, effort)


@contextmanager
def server_process(path: Path) -> Iterator[tuple[str, int]]:
    """`holdfast web`. Gives its address and its process id."""
    Holdfast(path).close()
    command = [sys.executable, "-m", "holdfast", "web", "--db", str(path), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        found = re.search(r"http://\S+", process.stdout.readline())
        assert found is not None
        try:
            yield found[0], process.pid
        finally:
            process.terminate()


def _answers(path: Path, jobs: int) -> dict[str, float]:
    """The milliseconds of each request."""
    columns = {"status": mostly("succeeded"), "queue": "'queue-' || (i % 5)", "task": "'task-' || (i % 50)"}
    build_file(path, jobs, columns, minutes=8 * 24 * 60)
    taken = {}
    with server_process(path) as (url, _), httpx.Client(base_url=f"{url}api/v1", timeout=120) as api:
        for requests in REQUESTS.values():
            for request in requests:
                place = request.replace("{id}", str(jobs // 2))
                assert api.get(place).status_code == 200, place
                taken[request] = median(seconds(lambda place=place: api.get(place)) for _ in range(REPEATS)) * 1000  # type: ignore[misc]
    remove(path)
    return taken


def _open_pages(folder: Path, effort: Effort) -> Figure:
    jobs = effort.of(DRAINED, least=2_000)
    path = folder / "pages.db"

    def drain(with_pages: bool) -> float:
        Holdfast(path).close()
        with _pages(path) if with_pages else nullcontext():
            with Holdfast(path) as app:
                app.task(noop).enqueue_many([{}] * jobs)
            begin = perf_counter()
            with worker_process(path):
                wait_until_done(path)
                lasted = perf_counter() - begin
        remove(path)
        return jobs / lasted

    rates = take_turns(effort.rounds, "jobs/s", {"pages": lambda: drain(True), "alone": lambda: drain(False)})
    ratio = rates.ratio(f"a drain beside {OPEN_PAGES} open web pages ÷ alone", "pages", "alone")
    assert ratio.reached is not None
    cost = (1 - ratio.reached) * 100
    name = f"cost of {OPEN_PAGES} open web pages for a drain"
    return Figure(name, ratio.ours, f"alone {ratio.beside}", cost, None, at_most(5, "%"))


@contextmanager
def _pages(path: Path) -> Iterator[None]:
    """A server, and a process with as many open streams."""
    with server_process(path) as (url, _):
        command = [sys.executable, "-m", "benchmarks.web", url]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None and process.stdout.readline() == "open\n"
            try:
                yield
            finally:
                process.kill()


def _follow(url: str, number: int) -> None:
    """Hold open streams, and read what they send, until this process is killed."""
    import selectors

    address = re.findall(r"//([\d.]+):(\d+)", url)[0]
    selector = selectors.DefaultSelector()
    request = (
        b"GET /api/v1/stream?topics=changes,stats HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: text/event-stream\r\n\r\n"
    )
    for _ in range(number):
        client = socket.create_connection((address[0], int(address[1])))
        client.sendall(request)
        assert client.recv(1) == b"H"
        selector.register(client, selectors.EVENT_READ)
    print("open", flush=True)
    while True:
        for key, _ in selector.select():
            assert key.fileobj.recv(1_000_000), "the server has closed a stream"  # type: ignore[union-attr]


def _first_page(folder: Path) -> Iterator[Figure]:
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if chromium is None:
        print("[no Chromium: the first page is not measured]", flush=True)
        return
    from playwright.sync_api import sync_playwright

    flags = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking"]
    path = folder / "first.db"
    with Holdfast(path) as app:
        app.task(noop).enqueue_many([{}] * 1000)
        app.worker(until_idle=True).run()
    times, sizes = [], []
    with server_process(path) as (url, _), sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=flags)
        for _ in range(REPEATS + 1):
            context = browser.new_context()
            page = context.new_page()
            loaded: list[int] = []
            page.on("response", lambda one, loaded=loaded: loaded.append(int(one.headers.get("content-length", 0))))
            begin = perf_counter()
            page.goto(url, wait_until="commit")
            page.wait_for_selector(".value >> nth=0")
            times.append((perf_counter() - begin) * 1000)
            page.wait_for_selector(".u-legend")
            sizes.append(sum(loaded) / 1024)
            context.close()
        browser.close()
    remove(path)
    kilobytes, milliseconds = median(sizes[1:]), median(times[1:])
    yield Figure("first web page: over the wire", f"{kilobytes:.0f} KB", "", kilobytes, None, at_most(200, "KB"))
    yield Figure("first web page: usable", f"{milliseconds:.0f} ms", "", milliseconds,
                 (min(times[1:]), max(times[1:])), at_most(300, "ms"))  # fmt: skip


def _idle(folder: Path, effort: Effort) -> Figure:
    path, duration = folder / "idle.db", effort.of(IDLE_SECONDS, least=2)
    with server_process(path) as (url, pid):
        command = [sys.executable, "-m", "benchmarks.web", url, "1"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True) as page:
            assert page.stdout is not None and page.stdout.readline() == "open\n"
            time.sleep(2)
            before = cpu_seconds(pid)
            time.sleep(duration)
            share = (cpu_seconds(pid) - before) / duration * 100
            page.kill()
    remove(path)
    return Figure("idle web server with one open page", f"{share:.2f} %", "", share, None, at_most(1, "%"))


if __name__ == "__main__":
    _follow(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else OPEN_PAGES)
