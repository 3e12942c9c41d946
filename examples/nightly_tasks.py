"""The app of nightly_import.py: one job reads the file and enqueues a job per row, and a report comes at the end.

Run it yourself:

    HOLDFAST_URL=import.db holdfast worker nightly_tasks:app
    python -c 'import nightly_tasks; nightly_tasks.import_file.enqueue("customers.csv")'
"""

import csv
import os
import signal
from pathlib import Path

from holdfast import Context, Fail, Holdfast

app = Holdfast()  # the database that HOLDFAST_URL names
CRASH_AT = os.environ.get("CRASH_AT")  # the number of a row that kills its worker, once

TABLES = """
CREATE TABLE IF NOT EXISTS customers (number INTEGER PRIMARY KEY, name TEXT NOT NULL, imports INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS reports (imported INTEGER, rejected INTEGER, total INTEGER);
"""


@app.task(max_attempts=3, retry=0)
def import_file(ctx: Context, path: str) -> None:
    """Enqueue a job for each row. All of them, the batch and the end of this job are one transaction."""
    with Path(path).open(newline="", encoding="utf-8") as file:
        rows = [{"number": row["number"], "name": row["name"]} for row in csv.DictReader(file)]
    with ctx.complete() as tx, app.batch(on_done=report, conn=tx) as batch:
        import_row.using(batch=batch, conn=tx).enqueue_many(rows)


@app.task(queue="rows", max_attempts=3, retry=0)
def import_row(ctx: Context, number: str, name: str) -> Fail | None:
    """Store one customer, exactly once: the row and the end of the job are one transaction."""
    if number == CRASH_AT and ctx.attempt == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if not number.isdecimal():
        return Fail("INVALID_INPUT:NUMBER", f"{number!r} is not a number")
    with ctx.complete() as tx:
        tx.execute(
            "INSERT INTO customers (number, name, imports) VALUES (?, ?, 1) "
            "ON CONFLICT (number) DO UPDATE SET name = excluded.name, imports = imports + 1",
            (int(number), name),
        )
    return None


@app.task
def report(ctx: Context) -> None:
    """Count what became of the rows. It runs once, after the last of them."""
    assert ctx.batch is not None
    progress = ctx.batch.progress()
    with ctx.complete() as tx:
        tx.execute("INSERT INTO reports VALUES (?, ?, ?)", (progress.succeeded, progress.failed, progress.total))
        tx.result = f"{progress.succeeded} imported, {progress.failed} rejected"
