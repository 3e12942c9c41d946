"""Close open databases before a fork, and keep the child from using what it inherits.

SQLite keeps the locks of a process in memory, and a fork copies that memory: connections that the child opens later
would rely on locks that the child does not hold. So every owner closes its connections before a fork. If it cannot,
the child never uses or closes them.
"""

import ctypes
import os
import weakref
from contextlib import AbstractContextManager, ExitStack
from typing import Protocol


class Forkable(Protocol):
    def around_fork(self) -> AbstractContextManager[None]:
        """Enter before a fork, leave after it in the parent. The child never leaves it."""
        ...

    def after_fork_in_child(self) -> None:
        """Drop everything that belongs to the parent."""
        ...


_owners: "weakref.WeakSet[Forkable]" = weakref.WeakSet()
_entered: list[ExitStack] = []
_leaked: list[object] = []


def register_forkable(owner: Forkable) -> None:
    _owners.add(owner)


def leak(thing: object) -> None:
    """Keep an object from ever being finalised, even at interpreter exit."""
    _leaked.append(thing)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


def _before() -> None:
    stack = ExitStack()
    for owner in list(_owners):
        stack.enter_context(owner.around_fork())
    _entered.append(stack)


def _in_parent() -> None:
    _entered.pop().close()


def _in_child() -> None:
    leak(_entered.pop())  # what it would release belongs to the parent
    for owner in list(_owners):
        owner.after_fork_in_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
