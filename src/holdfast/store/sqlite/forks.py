"""Surviving os.fork(): a child must neither use nor close the connections that its parent opened.

SQLite's locks belong to the process that took them. A child that uses an inherited connection believes it holds
locks which it does not, and one that closes it can delete the parent's log: commits vanish.
"""

import ctypes
import os
import weakref
from contextlib import AbstractContextManager, ExitStack
from typing import Protocol

_leaked: list[object] = []


class Forkable(Protocol):
    def hold_still(self) -> AbstractContextManager[None]:
        """Entered before a fork and left after it, in the parent."""
        ...

    def forget_parent(self) -> None:
        """Called in the child right after a fork."""
        ...


_watched: "weakref.WeakSet[Forkable]" = weakref.WeakSet()


def watch_forks(owner: Forkable) -> None:
    _watched.add(owner)


def leak(thing: object) -> None:
    """Keep an object from ever being finalised, not even when the interpreter ends."""
    _leaked.append(thing)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


_holding: list[ExitStack] = []


def _before() -> None:
    stack = ExitStack()
    for owner in list(_watched):
        stack.enter_context(owner.hold_still())
    _holding.append(stack)


def _in_parent() -> None:
    _holding.pop().close()


def _in_child() -> None:
    leak(_holding.pop())  # what it would release belongs to the parent
    for owner in list(_watched):
        owner.forget_parent()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
