"""A refusal, as every test of bad input wants it: the named exception, telling words, and nothing stored."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from holdfast import Holdfast
from holdfast.errors import HoldfastError

NARRATIVE = 1500
"""No message is longer than this, whatever was passed: it will stand in a log."""


def stored(app: Holdfast) -> list[int]:
    """The ids of all jobs and messages."""
    return [job.id for job in app.jobs.list(limit=1000)]


@contextmanager
def refused(app: Holdfast, error: type[HoldfastError], *words: str) -> Iterator[None]:
    """The block raises exactly this, the message has all the words, and nothing was stored."""
    before = stored(app)
    with told(error, *words):
        yield
    assert stored(app) == before


@contextmanager
def told(error: type[HoldfastError], *words: str) -> Iterator[None]:
    """The block raises exactly this, and the message has all the words."""
    with pytest.raises(error) as caught:
        yield
    assert type(caught.value) is error
    message = str(caught.value)
    assert [word for word in words if word.lower() not in message.lower()] == [], message
    assert len(message) <= NARRATIVE, f"{len(message):,} characters"
