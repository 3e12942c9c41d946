"""Programs without a worker fold the event log every so many changes."""

from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.store import statistics
from holdfast.store.sqlite import database


def test_a_fold_with_many_changes_starts_no_fold_inside_itself(
    app: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "CHANGES_PER_FOLD", 10**9)
    for number in range(400):
        app.queue(f"queue-{number}").send(number)
    monkeypatch.setattr(statistics, "FOLD_EVENTS", 1)  # each fold stores more changes than the next line allows
    monkeypatch.setattr(database, "CHANGES_PER_FOLD", 0)
    depth = deepest = 0
    kind = type(app.store.statistics)
    fold = kind.fold

    def counted(self: Any) -> int:
        nonlocal depth, deepest
        depth += 1
        deepest = max(deepest, depth)
        try:
            return fold(self)
        finally:
            depth -= 1

    monkeypatch.setattr(kind, "fold", counted)
    app.queue("inbox").send("last")
    assert deepest == 1
    assert app.observe.counts().total == 401
