"""Queues, and their messages: send, receive with long poll, ack, extend and release."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from ...errors import LeaseLost
from ...model.stats import QueueOverview, QueueStats
from ...text import to_data
from ..auth import Role
from .call import (
    Call,
    Created,
    Done,
    Items,
    Reason,
    Resource,
)

MAX_WAIT = 60.0  # seconds of one long poll
endpoint = Resource()


class NewMessageBody(Struct, forbid_unknown_fields=True):
    body: Any
    delay: float = 0
    priority: int = 0


class ReceiveBody(Struct, forbid_unknown_fields=True):
    limit: int = 1
    visibility: float = 30
    wait: float = 0


class AckBody(Struct, forbid_unknown_fields=True):
    attempt: int


class ExtendBody(AckBody):
    seconds: float


class ReleaseBody(AckBody):
    delay: float = 0


class MessageData(Struct):
    id: int
    attempt: int
    body: Any


@endpoint("GET", "/queues", Role.viewer, Items[QueueOverview])
def list_queues(call: Call) -> Any:
    """List the queues that have unfinished or failed jobs."""
    return {"items": to_data(call.app.queues())}


@endpoint("GET", "/queues/{queue}", Role.viewer, QueueStats)
def get_queue(call: Call) -> Any:
    """Count the messages of a queue by state."""
    return to_data(call.app.queue(call.path["queue"]).stats())


@endpoint("POST", "/queues/{queue}/pause", Role.operator, Done, body=Reason)
def pause_queue(call: Call) -> Any:
    """Stop all workers and consumers from taking jobs of a queue."""
    return {"ok": call.app.queue(call.path["queue"]).pause(**call.by)}


@endpoint("POST", "/queues/{queue}/resume", Role.operator, Done, body=Reason)
def resume_queue(call: Call) -> Any:
    """Undo a pause."""
    return {"ok": call.app.queue(call.path["queue"]).resume(**call.by)}


@endpoint(
    "POST", "/queues/{queue}/messages", Role.operator, Created, body=NewMessageBody, status=201, idempotent_key=True
)
def send(call: Call) -> Any:
    """Send a message."""
    body: NewMessageBody = call.body
    queue = call.app.queue(call.path["queue"])
    return {"id": queue.send(body.body, delay=body.delay, priority=body.priority, key=call.key)}


@endpoint("POST", "/queues/{queue}/receive", Role.operator, Items[MessageData], body=ReceiveBody)
async def receive(call: Call) -> Any:
    """Receive messages. `wait` is how many seconds to wait for one, up to 60."""
    body: ReceiveBody = call.body
    queue, wait = call.app.queue(call.path["queue"]), min(body.wait, MAX_WAIT)
    messages = await queue.areceive_many(body.limit, visibility=body.visibility, wait=wait)
    return {"items": [{"id": one.id, "attempt": one.attempt, "body": one.body} for one in messages]}


@endpoint("POST", "/queues/{queue}/messages/{id:int}/ack", Role.operator, Done, body=AckBody)
def ack(call: Call) -> Any:
    """Acknowledge a message. 409: the lease was lost."""
    return _held(call, call.app.queue(call.path["queue"]).ack(call.path["id"], call.body.attempt))


@endpoint("POST", "/queues/{queue}/messages/{id:int}/extend", Role.operator, Done, body=ExtendBody)
def extend(call: Call) -> Any:
    """Extend the lease of a message. 409: the lease was lost."""
    queue, body = call.app.queue(call.path["queue"]), call.body
    return _held(call, queue.extend(call.path["id"], body.attempt, body.seconds))


@endpoint("POST", "/queues/{queue}/messages/{id:int}/release", Role.operator, Done, body=ReleaseBody)
def release(call: Call) -> Any:
    """Release a message for another delivery. 409: the lease was lost."""
    queue, body = call.app.queue(call.path["queue"]), call.body
    return _held(call, queue.release(call.path["id"], body.attempt, body.delay))


def _held(call: Call, held: bool) -> Any:
    if not held:
        raise LeaseLost(f"message {call.path['id']} is not held by delivery {call.body.attempt} any more")
    return {"ok": True}
