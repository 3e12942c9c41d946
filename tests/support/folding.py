"""Folding the log to its end, for tests that look at the tables of statistics."""

from holdfast import Holdfast


def fold_all(app: Holdfast) -> None:
    """Fold all events, and delete those of deleted jobs."""
    while app.store.statistics.fold():
        pass
