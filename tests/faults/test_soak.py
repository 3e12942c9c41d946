"""The soak itself takes an hour: here is its rule for what is flat, and one backup."""

import random
import sqlite3
from contextlib import closing
from pathlib import Path

from faults.soak import TOLERANCES, check_backup, growth
from holdfast import Holdfast

SAMPLES = 400


def samples(leak: str | None = None, by: float = 0.0, seed: int = 1) -> list[dict[str, float]]:
    """Samples of figures that vary, with a peak now and then, and one that also grows by so much with each."""
    rng = random.Random(seed)
    return [
        {
            name: 1000 * rng.uniform(0.9, 1.1) * (20 if rng.random() < 0.02 else 1) + (by * n if name == leak else 0)
            for name in TOLERANCES
        }
        for n in range(SAMPLES)
    ]


def test_figures_that_vary_are_flat() -> None:
    assert not any(growth(samples(seed=seed)) for seed in range(20))


def test_a_leak_is_found_in_every_figure() -> None:
    """The negative control: growth that passes the tolerance by a little in the course of the run."""
    for name, tolerance in TOLERANCES.items():
        excess = 1000 * (tolerance.factor - 1) + tolerance.plus + 50
        assert list(growth(samples(name, by=8 * excess / SAMPLES))) == [name]


def test_too_few_samples_are_not_flat() -> None:
    assert "samples" in growth(samples()[:4])


def test_a_backup_that_contradicts_itself_is_found(tmp_path: Path) -> None:
    with Holdfast(tmp_path / "app.db", durability="normal") as app, app.transaction() as tx:
        for statement in (
            "CREATE TABLE effects (job_id INTEGER, attempt INTEGER)",
            "CREATE TABLE ledger (total INTEGER, trimmed INTEGER, trimmed_id INTEGER)",
            "INSERT INTO ledger VALUES (0, 0, 0)",
        ):
            tx.execute(statement)
    assert check_backup(tmp_path / "app.db") == []
    with closing(sqlite3.connect(tmp_path / "app.db")) as connection, connection:
        connection.execute("INSERT INTO effects VALUES (1, 1)")
    assert any("the sum that is stored" in problem for problem in check_backup(tmp_path / "app.db"))
