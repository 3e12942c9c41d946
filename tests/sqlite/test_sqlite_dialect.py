"""Plain SQL as only SQLite has it."""

from collections.abc import Callable
from typing import Any

from holdfast import Holdfast

Sql = Callable[..., list[Any]]


def test_an_insert_with_a_key_that_lives_can_be_ignored(app: Holdfast, sql: Sql) -> None:
    ((first,),) = sql("INSERT INTO holdfast_jobs (task, key) VALUES ('work', 'k') RETURNING id")
    sql("INSERT OR IGNORE INTO holdfast_jobs (task, key) VALUES ('work', 'k') ON CONFLICT DO NOTHING")
    assert [job.id for job in app.jobs.list()] == [first]
