"""The web page and the HTTP API on a server: each route, the event stream, and each page in a browser, once."""

import shutil
from collections.abc import Iterator
from contextlib import suppress
from queue import Queue
from threading import Thread
from typing import Any

import httpx
import pytest

from holdfast import Holdfast
from holdfast.testing import drain
from holdfast.web.api import ENDPOINTS
from holdfast.web.server import WebServer
from support.postgres_server import CRASHES, start_server, stop_server
from support.running_worker import eventually

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
PAGES = {
    "/": "Overview",
    "/jobs?q=status:failed": "Jobs",
    "/jobs/2": "Job 2",
    "/inbox": "Inbox",
    "/queues": "Queues",
    "/tasks": "Tasks",
    "/errors": "Errors",
    "/workers": "Workers",
    "/schedules": "Schedules",
    "/batches": "Batches",
    "/events": "Events",
    "/storage": "Storage",
}


@pytest.fixture
def served(app: Holdfast) -> Iterator[str]:
    """A server of jobs in several states: 1 succeeded, 2 failed, 3 is scheduled, 4 is external, 5 in a batch."""

    @app.task(queue="math", max_attempts=1)
    def divide(a: int, by: int) -> float:
        return a / by

    divide.enqueue(1, 2)
    divide.enqueue(1, 0)
    drain(app, raise_errors=False)
    divide.using(delay=3600, tags=["vip"], key="k").enqueue(3, 4)
    app.external("approve", {"amount": 7})
    with app.batch() as batch:
        divide.using(batch=batch).enqueue(5, 0)
    app.schedules.add("nightly", "0 3 * * *", "divide", {"a": 1, "by": 1})
    server = WebServer(app.web(), port=0).start()
    yield server.url.rstrip("/")
    server.close()


def test_every_route_answers(app: Holdfast, served: str) -> None:
    left = {(one.method, one.path) for one in ENDPOINTS}
    with httpx.Client(base_url=f"{served}/api/v1", timeout=60) as api:

        def call(method: str, path: str, body: Any = None, *, status: int = 200, **parts: Any) -> Any:
            left.discard((method, path))
            filled = path
            for name, value in parts.items():
                filled = filled.replace(f"{{{name}:int}}", str(value)).replace(f"{{{name}}}", str(value))
            query = {"since": "604800", "step": "3600"} if path in ("/timeline", "/throughput") else None
            response = api.request(method, filled, json=body if method != "GET" else None, params=query)
            assert response.status_code == status, (method, filled, response.text)
            return response.json()

        fingerprint = call("GET", "/failures")["items"][0]["fingerprint"]
        assert "ZeroDivisionError" in call("GET", "/tracebacks/{fingerprint}", fingerprint=fingerprint)["traceback"]
        found = {"status": "failed", "fingerprint": fingerprint}
        assert [one["id"] for one in api.get("/jobs", params=found).json()["items"]] == [2]
        assert call("POST", "/operations/count", {"action": "retry", "filters": found})["count"] == 1
        operation = call("POST", "/operations", {"action": "retry", "filters": found}, status=202)["id"]
        call("GET", "/operations/{id:int}", id=operation)
        call("POST", "/operations/{id:int}/stop", {}, id=operation)
        new = call("POST", "/jobs", {"task": "divide", "args": {"a": 1, "by": 3}, "delay": 60}, status=201)["id"]
        for action, body in (("run-now", {}), ("cancel", {}), ("retry", {}), ("complete", {"result": 7})):
            assert call("POST", f"/jobs/{{id:int}}/{action}", body, id=new) == {"ok": True}
        assert call("GET", "/jobs/{id:int}", id=new)["result"] == 7
        call("POST", "/jobs/{id:int}/fail", {"code": "REJECTED:BUDGET"}, id=4)
        assert call("DELETE", "/jobs/{id:int}", {}, id=1) == {"ok": True}
        for part in ("history", "explain", "graph"):
            call("GET", f"/jobs/{{id:int}}/{part}", id=2)
        for number in range(2):
            call("POST", "/queues/{queue}/messages", {"body": number}, status=201, queue="inbox")
        first, second = call("POST", "/queues/{queue}/receive", {"limit": 2}, queue="inbox")["items"]
        held = {"attempt": 1}
        call(
            "POST", "/queues/{queue}/messages/{id:int}/extend", held | {"seconds": 60}, queue="inbox", id=first["id"]
        )
        call("POST", "/queues/{queue}/messages/{id:int}/ack", held, queue="inbox", id=first["id"])
        call("POST", "/queues/{queue}/messages/{id:int}/release", held, queue="inbox", id=second["id"])
        call("POST", "/queues/{queue}/messages/{id:int}/ack", held, status=409, queue="inbox", id=first["id"])
        for action in ("pause", "resume"):
            call("POST", f"/queues/{{queue}}/{action}", {"reason": "deploy"}, queue="inbox")
            call("POST", f"/schedules/{{name}}/{action}", {"reason": "deploy"}, name="nightly")
        call("GET", "/queues/{queue}", queue="inbox")
        call("GET", "/schedules/{name}/times", name="nightly")
        call("POST", "/schedules/{name}/run", {}, status=201, name="nightly")
        batch = call("GET", "/batches")["items"][0]["id"]
        for action in ("cancel", "retry"):
            call("POST", f"/batches/{{id:int}}/{action}", {}, id=batch)
        call("POST", "/workers/{id}/stop", {}, status=404, id="nobody")
        call("POST", "/vacuum", {})
        for path in [path for method, path in left if method == "GET"]:
            call("GET", path)
    assert not left


def test_the_stream_tells_what_happens_and_what_was_missed(app: Holdfast, served: str) -> None:
    with httpx.Client(base_url=f"{served}/api/v1", timeout=300) as api:

        def follow(last: int | None, until: int) -> list[int]:
            headers = {} if last is None else {"Last-Event-ID": str(last)}
            ids: list[int] = []
            with api.stream("GET", "/stream?topics=events", headers=headers) as stream:
                for line in stream.iter_lines():
                    if line == "event: ready" and last is None:
                        app.queue("q").send(1)
                    if line.startswith("id: "):
                        ids.append(int(line[4:]))
                    if ids and ids[-1] >= until:
                        return ids
            return ids

        before = app.observe.last_event()
        seen = follow(None, before + 1)
        assert seen[-1] > before
        app.queue("q").send(2)
        last = app.observe.last_event()
        assert [one for one in follow(seen[-1], last) if one <= last] == [
            one.id for one in app.observe.events(seen[-1])
        ]


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")
def test_every_page_shows_its_data(served: str) -> None:
    from playwright.sync_api import expect, sync_playwright

    errors: list[str] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        page = browser.new_page()
        page.set_default_timeout(60_000)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("response", lambda answer: errors.append(answer.url) if answer.status >= 400 else None)
        for path, title in PAGES.items():
            page.goto(served + path)
            expect(page.get_by_role("heading", level=1)).to_have_text(title, timeout=60_000)
            expect(page.locator(".loading")).to_have_count(0, timeout=60_000)
            expect(page.locator("[role=alert]")).to_have_count(0)
        browser.close()
    assert errors == []


def test_a_stopped_server_is_told_and_the_page_goes_on_after_it() -> None:
    server = start_server(CRASHES)
    try:
        with Holdfast(server.url, busy_timeout=1) as app:
            app.queue("q").send(1)
            web = WebServer(app.web(), port=0).start()
            try:
                with httpx.Client(base_url=f"{web.url}api/v1", timeout=300) as api:
                    told: Queue[str] = Queue()
                    Thread(target=_follow, args=(web.url, told), daemon=True).start()
                    assert told.get(timeout=300) == "ready"
                    server.stop()
                    assert told.get(timeout=300) == "unavailable"
                    refused = api.get("/jobs")
                    assert refused.status_code == 503
                    assert refused.headers["content-type"] == "application/problem+json"
                    server.start()
                    while (name := told.get(timeout=300)) != "ready":
                        assert name == "unavailable"
                    eventually(lambda: api.get("/jobs").status_code == 200)
                    app.queue("q").send(2)
                    assert told.get(timeout=300) == "event"
            finally:
                web.close()
    finally:
        stop_server(server)


def _follow(url: str, told: Queue[str]) -> None:
    with (
        suppress(httpx.RemoteProtocolError),  # the end of the server
        httpx.stream("GET", f"{url}api/v1/stream?topics=events", timeout=None) as stream,
    ):
        for line in stream.iter_lines():
            if line.startswith("event: "):
                told.put(line[7:])
