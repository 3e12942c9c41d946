"""By which rules it goes: the program's own, or those that the last program with rules has left in the database."""

from __future__ import annotations

import logging

from ..retention import Retention, read
from ..store.base import Store

log = logging.getLogger("holdfast.upkeep")


def in_force(store: Store, given: Retention | None) -> Retention | None:
    """None if there are some that this version cannot read: then nothing is deleted."""
    if given is not None:
        return given
    stored = store.retention()
    if stored is None:
        return Retention()
    found = read(stored)
    if found is None:
        log.warning("nothing is pruned: the rules in the database are of another version of Holdfast")
    return found
