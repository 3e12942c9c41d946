"""The policy in force: the program's own, or that of the last worker that had one."""

from __future__ import annotations

import logging

from ..retention import Retention, read
from ..store.protocol import Store

log = logging.getLogger("holdfast.upkeep")


def in_force(store: Store, given: Retention | None) -> Retention | None:
    """None where this version cannot read the stored policy: then nothing is deleted."""
    if given is not None:
        return given
    stored = store.pruning.state().retention
    if stored is None:
        return Retention()
    found = read(stored)
    if found is None:
        log.warning("nothing is pruned: the rules in the database are of another version of Holdfast")
    return found
