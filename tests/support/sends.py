"""The ways to send messages, of five thousand letters each."""

from collections.abc import Callable
from typing import Any

from holdfast import Holdfast

Send = Callable[[Holdfast], Any]

SENDS: dict[str, Send] = {
    "send": lambda app: app.queue("inbox").send("x" * 5000),
    "send with key": lambda app: app.queue("inbox").send("x" * 5000, key="k"),
    "send_many": lambda app: app.queue("inbox").send_many(["x" * 5000] * 3),
}
