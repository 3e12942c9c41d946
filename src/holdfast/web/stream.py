"""Server-sent events: one reader of the event log serves all open pages.

While a page is open, a task reads the new events once per tick and hands them, encoded once, to every subscriber. A
page that reconnects names the last event that it saw, and is sent what it missed before it joins the others. A client
that does not read is disconnected: its queue is bounded.

There are two kinds of followers. Programs follow `events`, and get every one. Pages follow `changes`: while more
happens than a person could read, they are only told to reload, so that a busy queue costs them very little.
Then ticks are longer, too: they adapt to what reading and sending costs, so that open pages do not slow a worker
down. What waits for a page is sent to it in one piece.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from typing import Any

import msgspec

from ..text import to_data
from .api import Served
from .api.call import without_tracebacks

TICK_SECONDS = 0.5
BUSY_TICK_SECONDS = 2.0  # while much happens
LONGEST_TICK_SECONDS = 5.0
BUSY_SHARE = 1 / 40  # of the time is spent on reading and sending, at most, unless the tick would be too long
STATS_SECONDS = 2.0
PING_SECONDS = 15.0
CHECK_SECONDS = 15.0  # a user who logged out or was removed is not told more than that long
SEND_SECONDS = 30.0
PAGE_EVENTS = 500
MAX_CHANGES = 200  # events in one tick that are sent to a page one by one
MAX_MISSED = 10_000
"""A follower that missed more events is told to reload its data."""
MAX_QUEUED_BYTES = 1024 * 1024  # of one subscriber; what waits for several is stored once
MAX_STREAMS = 1_000
TOPICS = ("events", "changes", "stats")
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
RunInThread = Callable[[Callable[[], Any]], Awaitable[Any]]


def frame(name: str, data: Any, id: int | None = None) -> bytes:
    """Return one server-sent event. JSON has no line breaks, so the data is one line."""
    head = f"id: {id}\n" if id is not None else ""
    return f"{head}event: {name}\ndata: ".encode() + msgspec.json.encode(data) + b"\n\n"


class Subscriber:
    """One open page."""

    def __init__(self, topics: frozenset[str]) -> None:
        self.topics = topics
        self._queue: asyncio.Queue[bytes] = asyncio.Queue()
        self.queued_bytes = 0
        self.overflowed = False

    def put(self, chunk: bytes) -> None:
        if self.queued_bytes + len(chunk) > MAX_QUEUED_BYTES:
            self.overflowed = True
        else:
            self.queued_bytes += len(chunk)
            self._queue.put_nowait(chunk)

    async def get(self) -> bytes:
        """Wait for something, and return all there is."""
        chunks = [await self._queue.get()]
        while not self._queue.empty():
            chunks.append(self._queue.get_nowait())
        found = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        self.queued_bytes -= len(found)
        return found


class Hub:
    """Reads once for all subscribers, and not at all while there are none."""

    def __init__(self, app: Served, run_in_thread: RunInThread) -> None:
        self._app, self._run_in_thread = app, run_in_thread
        self._subscribers: set[Subscriber] = set()
        self._reader: asyncio.Task[None] | None = None
        self._cursor = 0
        self._is_burst = False

    @property
    def is_full(self) -> bool:
        return len(self._subscribers) >= MAX_STREAMS

    @contextlib.asynccontextmanager
    async def subscribe(self, topics: frozenset[str]) -> AsyncIterator[tuple[Subscriber, int]]:
        """Give the subscriber, and the cursor from which on its queue has every event."""
        subscriber = Subscriber(topics)
        if self._reader is None or self._reader.done():
            self._cursor = await self._run_in_thread(self._app.observe.last_event)
            if self._reader is None or self._reader.done():
                self._reader = asyncio.create_task(self._read())
        self._subscribers.add(subscriber)
        try:
            yield subscriber, self._cursor
        finally:
            self._subscribers.discard(subscriber)

    async def _read(self) -> None:
        stats_at, last_stats = 0.0, -1
        loop = asyncio.get_running_loop()
        idle_ticks, is_failing, spent = 0, False, 0.0
        while idle_ticks < 2:  # a page that reloads finds the reader still running
            await asyncio.sleep(pause(spent, self._is_burst))
            idle_ticks = 0 if self._subscribers else idle_ticks + 1
            if not self._subscribers:
                continue
            begin = loop.time()
            try:
                await self._read_events()
                if is_failing:
                    is_failing = False
                    self._send(None, frame("ready", {"cursor": self._cursor}))
                wants_stats = any("stats" in one.topics for one in self._subscribers)
                if wants_stats and self._cursor != last_stats and loop.time() >= stats_at:
                    last_stats = self._cursor
                    stats = await self._run_in_thread(self._app.observe.snapshot)
                    self._send("stats", frame("stats", to_data(without_tracebacks(stats))))
                    stats_at = loop.time() + STATS_SECONDS
            except Exception as error:  # noqa: BLE001  the database may be locked or gone: the page says so, and continues
                is_failing = True
                self._send(None, frame("unavailable", {"detail": str(error)}))
            await asyncio.sleep(0)  # the subscribers send
            spent = loop.time() - begin

    async def _read_events(self) -> None:
        begin = self._cursor
        last = await self._run_in_thread(self._app.observe.last_event)
        is_burst = self._is_burst = last - begin > MAX_CHANGES
        if is_burst:
            self._send("changes", frame("reset", {"cursor": last}, last))
        if last == begin or (is_burst and not any("events" in one.topics for one in self._subscribers)):
            self._cursor = last
            return
        while True:
            events = await self._run_in_thread(lambda: self._app.observe.events(self._cursor, PAGE_EVENTS))
            chunk = b"".join(frame("event", to_data(one), one.id) for one in events)
            self._send("events", chunk)
            if not is_burst:
                self._send("changes", chunk)
            if events:
                self._cursor = events[-1].id
            if len(events) < PAGE_EVENTS:
                return

    def _send(self, topic: str | None, chunk: bytes) -> None:
        for one in self._subscribers if chunk else ():
            if topic is None or topic in one.topics:
                one.put(chunk)


def pause(spent: float, is_burst: bool) -> float:
    """Return the seconds until the next tick. spent: the seconds that this one took."""
    least = BUSY_TICK_SECONDS if is_burst else TICK_SECONDS
    return max(least, min(spent / BUSY_SHARE, LONGEST_TICK_SECONDS))


class EventStream:
    """An ASGI response: what was missed, then what happens. Ends when the client leaves or does not read."""

    def __init__(
        self,
        hub: Hub,
        app: Served,
        run_in_thread: RunInThread,
        topics: frozenset[str],
        last: int | None,
        is_allowed: Callable[[], Awaitable[bool]],
    ) -> None:
        """is_allowed: whether the client may still read."""
        self._hub, self._app, self._run_in_thread = hub, app, run_in_thread
        self._topics, self._last, self._is_allowed = topics, last, is_allowed

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        del scope
        headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-store")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        sending = asyncio.create_task(self._send_all(send))
        leaving = asyncio.create_task(disconnected(receive))
        try:
            await asyncio.wait([sending, leaving], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (sending, leaving):
                task.cancel()
            await asyncio.gather(sending, leaving, return_exceptions=True)

    async def _send_all(self, send: Send) -> None:
        async def write(chunk: bytes) -> None:
            message = {"type": "http.response.body", "body": chunk, "more_body": True}
            async with asyncio.timeout(SEND_SECONDS):  # wait_for of Python 3.11 may swallow a cancellation
                await send(message)

        await write(b"retry: 2000\n\n")
        async with self._hub.subscribe(self._topics) as (subscriber, cursor):
            if self._last is not None and self._topics & {"events", "changes"}:
                async for chunk in self._missed(self._last, cursor):
                    await write(chunk)
            await write(frame("ready", {"cursor": cursor}, cursor if self._last is None else None))
            loop = asyncio.get_running_loop()
            checked_at = loop.time()
            while not subscriber.overflowed:
                try:
                    async with asyncio.timeout(PING_SECONDS):
                        chunk = await subscriber.get()
                except TimeoutError:
                    chunk = b": ping\n\n"
                if loop.time() - checked_at >= CHECK_SECONDS:
                    if not await self._is_allowed():
                        break
                    checked_at = loop.time()
                await write(chunk)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _missed(self, after: int, until: int) -> AsyncIterator[bytes]:
        """Yield the events between two cursors, or one that tells the page to reload."""
        most = MAX_MISSED if "events" in self._topics else MAX_CHANGES
        if until - after > most or after > until:
            yield frame("reset", {"cursor": until}, until)
            return
        while after < until:
            events = await self._run_in_thread(lambda start=after: self._app.observe.events(start, PAGE_EVENTS))  # type: ignore[misc]
            for one in events:
                if one.id <= until:
                    yield frame("event", to_data(one), one.id)
            if len(events) < PAGE_EVENTS:
                return
            after = events[-1].id


async def disconnected(receive: Receive) -> None:
    """Return when the client has left."""
    while (await receive())["type"] != "http.disconnect":
        pass
