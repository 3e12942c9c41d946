"""Server-sent events: each event once and in order, one reader for all pages, nothing kept for clients that stall."""

import asyncio
import json
from collections.abc import Callable, Coroutine
from typing import Any

import httpx
import pytest

from holdfast import Holdfast
from holdfast.web import Users, stream
from holdfast.web.server import WebServer
from holdfast.web.stream import EventStream, Hub


@pytest.fixture(autouse=True)
def short_ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "TICK_SECONDS", 0.01)
    monkeypatch.setattr(stream, "BUSY_TICK_SECONDS", 0.01)
    monkeypatch.setattr(stream, "LONGEST_TICK_SECONDS", 0.1)


async def in_thread(call: Callable[[], Any]) -> Any:
    return await asyncio.to_thread(call)


async def allowed() -> bool:
    return True


def run(main: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(main, 60))


class Page:
    """A client that collects what it is sent, until it leaves."""

    def __init__(self, app: Holdfast, hub: Hub, last: int | None = None, topics: str = "events") -> None:
        self.frames: asyncio.Queue[tuple[str, Any]] = asyncio.Queue()
        self._left = asyncio.Event()
        response = EventStream(hub, app, in_thread, frozenset(topics.split(",")), last, allowed)
        self.task = asyncio.create_task(response({}, self._receive, self._send))

    async def _receive(self) -> dict[str, Any]:
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        for one in message.get("body", b"").decode().split("\n\n"):
            fields = dict(line.split(": ", 1) for line in one.splitlines() if ": " in line)
            if "event" in fields:
                self.frames.put_nowait((fields["event"], json.loads(fields["data"])))

    async def next(self, name: str = "event") -> Any:
        while True:
            found, data = await self.frames.get()
            if found == name:
                return data

    async def leave(self) -> None:
        self._left.set()
        await self.task


def test_events_come_once_and_in_order(app: Holdfast) -> None:
    async def main() -> None:
        page = Page(app, Hub(app, in_thread))
        await page.next("ready")
        for number in range(2 * stream.PAGE_EVENTS + 7):
            app.queue("q").send(number)
        ids = [(await page.next())["id"] for _ in range(2 * stream.PAGE_EVENTS + 7)]
        assert ids == sorted(set(ids))
        await page.leave()

    run(main())


def test_a_page_that_reconnects_misses_nothing(app: Holdfast) -> None:
    async def main() -> None:
        hub, queue = Hub(app, in_thread), app.queue("q")
        page = Page(app, hub)
        await page.next("ready")
        queue.send(1)
        seen = [(await page.next())["id"]]
        await page.leave()
        queue.send_many(range(stream.PAGE_EVENTS + 3))
        again = Page(app, hub, last=seen[0])
        queue.send(2)
        seen += [(await again.next())["id"] for _ in range(stream.PAGE_EVENTS + 4)]
        assert seen == [one.id for one in app.observe.events(0, 1000)]
        await again.leave()

    run(main())


def test_a_page_that_missed_too_much_starts_anew(app: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "MAX_MISSED", 3)

    async def main() -> None:
        app.queue("q").send_many(range(9))
        page = Page(app, Hub(app, in_thread), last=1)
        assert (await page.next("reset"))["cursor"] == 9
        await page.leave()

    run(main())


def test_a_page_is_told_to_load_anew_while_much_happens_and_a_program_gets_every_event(app: Holdfast) -> None:
    async def main() -> None:
        hub = Hub(app, in_thread)
        page, program = Page(app, hub, topics="changes"), Page(app, hub)
        await page.next("ready"), await program.next("ready")
        app.queue("q").send_many(range(stream.MAX_CHANGES + 1))
        assert (await page.next("reset"))["cursor"] == stream.MAX_CHANGES + 1
        assert [(await program.next())["id"] for _ in range(stream.MAX_CHANGES + 1)][-1] == stream.MAX_CHANGES + 1
        app.queue("q").send(1)
        assert (await page.next())["id"] == (await program.next())["id"] == stream.MAX_CHANGES + 2
        await page.leave()
        await program.leave()
        again = Page(app, hub, last=1, topics="changes")
        assert (await again.next("reset"))["cursor"] == stream.MAX_CHANGES + 2
        await again.leave()

    run(main())


def test_a_hundred_pages_cost_as_many_reads_as_one(app: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    events = type(app.observe).events

    def counted(observe: Any, after: int, *rest: Any) -> Any:
        read.append(after)
        return events(observe, after, *rest)

    async def main() -> None:
        monkeypatch.setattr(type(app.observe), "events", counted)
        hub = Hub(app, in_thread)
        pages = [Page(app, hub) for _ in range(100)]
        for page in pages:
            await page.next("ready")
        app.queue("q").send(1)
        for page in pages:
            assert (await page.next())["event"] == "enqueued"
        assert read == [0]
        for page in pages:
            await page.leave()
        assert hub._reader is not None
        await hub._reader  # without pages nothing is read

    run(main())


def test_ticks_are_longer_while_much_happens_and_where_they_cost_much(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in (("TICK_SECONDS", 0.5), ("BUSY_TICK_SECONDS", 2), ("LONGEST_TICK_SECONDS", 5)):
        monkeypatch.setattr(stream, name, seconds)
    assert stream.pause(0.001, False) == 0.5
    assert stream.pause(0.001, True) == 2
    assert stream.pause(0.1, True) == stream.pause(0.1, False) == 4
    assert stream.pause(10, True) == 5


def test_what_waits_for_a_page_is_sent_in_one_piece() -> None:
    async def main() -> None:
        subscriber = stream.Subscriber(frozenset({"changes"}))
        for chunk in (b"reset", b"stats"):
            subscriber.put(chunk)
        assert await subscriber.get() == b"resetstats"
        assert subscriber.queued_bytes == 0

    run(main())


def test_statistics_come_when_something_happened(app: Holdfast) -> None:
    async def main() -> None:
        page = Page(app, Hub(app, in_thread), topics="stats")
        first = await page.next("stats")
        assert first["counts"]["items"] == []
        await page.leave()

    run(main())


def test_a_client_that_does_not_read_is_disconnected(app: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "SEND_SECONDS", 0.05)

    async def stuck(message: Any) -> None:
        if message["type"] == "http.response.body":
            await asyncio.Event().wait()

    async def never() -> dict[str, Any]:
        await asyncio.Event().wait()
        return {}

    response = EventStream(Hub(app, in_thread), app, in_thread, frozenset({"events"}), None, allowed)
    run(response({}, never, stuck))


def test_a_full_queue_ends_the_stream_instead_of_growing(app: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "MAX_QUEUED_BYTES", 1000)

    async def main() -> None:
        hub = Hub(app, in_thread)
        async with hub.subscribe(frozenset({"events"})) as (subscriber, _):
            while not subscriber.overflowed:
                app.queue("q").send(1)
                await asyncio.sleep(0.01)
            assert 0 < subscriber.queued_bytes <= 1000

    run(main())


def test_a_database_that_fails_is_told_and_then_goes_on(app: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        page = Page(app, Hub(app, in_thread))
        await page.next("ready")
        with monkeypatch.context() as broken:

            def fail(*_: Any, **__: Any) -> Any:
                raise OSError("the disk is gone")

            broken.setattr(type(app.observe), "last_event", fail)
            assert "the disk is gone" in (await page.next("unavailable"))["detail"]
        await page.next("ready")
        app.queue("q").send(1)
        assert (await page.next())["event"] == "enqueued"
        await page.leave()

    run(main())


def test_a_removed_user_is_told_nothing_more(served: Holdfast, users: Users, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream may be open for days, and its request was authorized only at the beginning."""
    monkeypatch.setattr(stream, "CHECK_SECONDS", 0)
    server = WebServer(served.web(auth=users), port=0).start()
    headers = {"authorization": "Bearer viewer"}
    with httpx.stream("GET", f"{server.url}api/v1/stream?topics=events", headers=headers, timeout=60) as response:
        lines = response.iter_lines()
        assert next(line for line in lines if line.startswith("event: ")) == "event: ready"
        served.queue("q").send(1)
        assert next(line for line in lines if line.startswith("event: ")) == "event: event"
        with users.edit() as found:
            del found["viewer"]
        served.queue("secret").send(2)
        for line in lines:
            assert "secret" not in line
    server.close()


def test_a_program_follows_the_log_by_http_and_continues_where_it_stopped(served: Holdfast) -> None:
    """Read the log as a client would, with Accept: text/event-stream and Last-Event-ID."""
    server = WebServer(served.web(), port=0).start()

    def follow(after: int, number: int, happen: Callable[[], Any]) -> list[dict[str, Any]]:
        headers = {"accept": "text/event-stream", "last-event-id": str(after)}
        found: list[dict[str, Any]] = []
        with httpx.stream("GET", f"{server.url}api/v1/events", headers=headers, timeout=60) as response:
            assert response.headers["content-type"].startswith("text/event-stream")
            names = [""]
            for line in response.iter_lines():
                field, _, value = line.partition(": ")
                if field == "event":
                    names.append(value)
                    if value == "ready":
                        happen()
                elif field == "data" and names[-1] == "event":
                    found.append(json.loads(value))
                    if len(found) == number:
                        break
        return found

    queue = served.queue("q")
    queue.send(1)
    first = follow(0, 2, lambda: queue.send(2))
    assert [(one["event"], one["job_id"]) for one in first] == [("enqueued", 1), ("enqueued", 2)]
    queue.send(3)
    (missed,) = follow(first[-1]["id"], 1, lambda: None)
    assert missed["job_id"] == 3
    server.close()
