"""Which queues a worker serves: all of them, or some, in order or by weight, each with a limit of its own or none."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from random import Random

from msgspec import Struct

from ..errors import InvalidInput
from ..failure import shorten

_WRITTEN = re.compile(r"(?P<name>[^*=,]+)(\*(?P<weight>[0-9]{1,6}))?(=(?P<limit>[0-9]{1,6}))?")


class ServedQueue(Struct, frozen=True):
    name: str
    limit: int | None = None
    """At most so many of its jobs at a time."""
    weight: int | None = None
    """How often it comes first, compared with the others; without weights they are served in order."""


Queues = str | Sequence[str | ServedQueue] | Mapping[str, int | None]


def parse_queues(queues: Queues | None) -> tuple[ServedQueue, ...] | None:
    """`"mail=4,default"`, `"critical*5,bulk"`, a list of such, or a dict from names to limits. None: all queues."""
    if queues is None:
        return None
    if isinstance(queues, Mapping):
        served = [ServedQueue(_name(name), _limit(limit, name)) for name, limit in queues.items()]
    else:
        parts = queues.split(",") if isinstance(queues, str) else list(queues)
        served = [part if isinstance(part, ServedQueue) else _parse(part) for part in parts]
    names = [queue.name for queue in served]
    if not names:
        raise InvalidInput("queues names no queue: leave it out to serve all of them")
    if len(set(names)) < len(names):
        raise InvalidInput(f"queues names one of them twice: {', '.join(names)}")
    return tuple(served)


def in_order(queues: Sequence[ServedQueue], random: Random) -> list[ServedQueue]:
    """As listed; or by chance, where weights are given: the heavier, the earlier."""
    if all(queue.weight is None for queue in queues):
        return list(queues)
    # The smallest of these keys is this one's with a probability in proportion to its weight.
    keys = {queue.name: random.expovariate(1.0) / (queue.weight or 1) for queue in queues}
    return sorted(queues, key=lambda queue: keys[queue.name])


def _parse(part: object) -> ServedQueue:
    match = _WRITTEN.fullmatch(part.strip()) if isinstance(part, str) else None
    if match is None:
        raise InvalidInput(
            f"queues has {shorten(repr(part), 100)}: write 'mail', 'mail=4' for at most 4 at a time, 'mail*3' for a "
            "weight of 3, or 'mail*3=4' for both"
        )
    weight = match["weight"]
    if weight is not None and int(weight) == 0:
        raise InvalidInput(f"queues has {part!r}: a weight is at least 1")
    limit = match["limit"]
    return ServedQueue(
        _name(match["name"].strip()),
        None if limit is None else _limit(int(limit), match["name"]),
        None if weight is None else int(weight),
    )


def _name(name: object) -> str:
    if not isinstance(name, str) or not 1 <= len(name) <= 200 or not name.isprintable():
        raise InvalidInput(f"a queue name has 1 to 200 printable characters, not {shorten(repr(name), 100)}")
    return name


def _limit(limit: object, name: object) -> int | None:
    if limit is None or (isinstance(limit, int) and not isinstance(limit, bool) and limit >= 1):
        return limit
    raise InvalidInput(f"the limit of queue {name!r} is at least 1, not {shorten(repr(limit), 100)}")
