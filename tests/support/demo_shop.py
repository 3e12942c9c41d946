"""An app with an hour of history, for the browser tests and the pictures of the guide."""

import random
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from holdfast import Context, Holdfast, Then
from holdfast.clock import SECOND
from holdfast.testing import FakeClock, drain

MINUTES = 60


class Shop:
    """Tasks of a shop, what they did in the last hour, and a worker that is busy until `close`."""

    url = ""
    """Where the page of the shop is served."""

    def __init__(self, path: Path) -> None:
        self.clock = FakeClock(int(time.time() - 60 * MINUTES) * SECOND)
        self.app = Holdfast(path, clock=self.clock)
        self._random, self._let_go, self._started = random.Random(7), threading.Event(), threading.Event()
        self._tasks()
        self._fill()
        self.worker = self.app.worker("mail=4,media,reports,default", concurrency=8, lease=3600)
        self._thread = threading.Thread(target=self.worker.run, daemon=True)
        self._thread.start()
        assert self._started.wait(300)
        self.clock.advance(42)

    def close(self) -> None:
        self._let_go.set()
        self.worker.stop()
        self._thread.join()
        self.app.close()

    def _work(self, low: float, high: float) -> None:
        self.clock.advance(self._random.uniform(low, high))

    def _tasks(self) -> None:
        app = self.app

        @app.task(queue="mail", max_attempts=2)
        def send_mail(to: str, subject: str) -> str:
            self._work(0.02, 0.3)
            if self._random.random() < 0.1 or to.startswith("user13@"):
                raise ConnectionError("smtp.example.org refused the connection")
            return f"sent to {to}"

        @app.task(queue="media", max_attempts=3)
        def make_thumbnail(path: str, size: int) -> dict[str, Any]:
            self._work(0.1, 0.9)
            if self._random.random() < 0.06:
                raise ValueError(f"{path} is no image")
            return {"path": path, "size": [size, size], "format": "webp"}

        @app.task(queue="reports")
        def monthly_report(ctx: Context, month: str) -> str:
            ctx.progress(0.4, "read 12,000 rows")
            self._started.set()
            self._let_go.wait(300)
            return month

        @app.task
        def ship(order: int) -> str:
            return f"order {order} is on its way"

        @app.task
        def pay(order: int) -> Then:
            return Then(ship, order)

    def _fill(self) -> None:
        app, tasks = self.app, self.app.tasks
        for minute in range(MINUTES):
            for number in range(2 + round(3 * abs((minute % 30) / 15 - 1))):
                tasks["make_thumbnail"].enqueue(f"/photos/{minute}-{number}.jpg", size=256)
            tasks["send_mail"].enqueue(f"user{minute}@example.org", subject="Your order")
            if minute % 10 == 0:
                tasks["pay"].enqueue(1000 + minute)
            drain(app, seconds=57)
        now = datetime.fromtimestamp(self.clock.now() / SECOND, UTC)
        order = {"order": 1042, "customer": "Ada Lovelace", "amount": 129.5, "items": [{"sku": "A-1", "quantity": 2}]}
        self.approval = app.external("approve_refund", order, queue="people", timeout_at=now + timedelta(hours=4))
        app.external("check_address", {"order": 1043, "country": "CH"}, queue="people")
        thumbnail = tasks["make_thumbnail"].using(delay=1800).enqueue("/photos/new.jpg", size=512)
        after = tasks["monthly_report"].using(after=[self.approval, thumbnail], tags=["accounting"])
        self.blocked = after.enqueue("2026-10")
        tasks["send_mail"].using(after=self.blocked).enqueue("cfo@example.org", subject="Report")
        tasks["ship"].using(after=self.blocked).enqueue(1042)
        with app.batch() as batch:
            for number in range(40):
                delay = 600 if number > 30 else 0
                tasks["make_thumbnail"].using(batch=batch, delay=delay).enqueue(f"/album/{number}.jpg", size=64)
        drain(app, seconds=1)
        app.schedules.add(
            "nightly-report", "30 3 * * MON-FRI", "monthly_report", {"month": "now"}, tz="Europe/Zurich"
        )
        app.schedules.add("tidy", "*/15 * * * *", "ship", {"order": 1})
        app.queue("newsletter").send_many([{"to": number} for number in range(120)])
        app.queue("newsletter").pause(actor="ada", reason="the provider is down until noon")
        tasks["monthly_report"].enqueue("2026-11")
        app.observe.snapshot()  # imports what requests would import in several threads at once, which pytest rewrites
