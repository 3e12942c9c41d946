"""A nightly import of 20,000 rows: a worker is killed in the middle, and every row is still imported exactly once.

The tasks are in nightly_tasks.py. `--rows 500` makes it shorter.
"""

import argparse
import csv
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
EVERY = 100  # each row of so many is wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=20_000, help="how many rows the file has (default: 20,000)")
    rows = parser.parse_args().rows
    with tempfile.TemporaryDirectory() as folder:
        os.environ["HOLDFAST_URL"] = str(Path(folder) / "import.db")
        write_file(Path(folder) / "customers.csv", rows)
        import nightly_tasks

        with nightly_tasks.app:
            with closing(sqlite3.connect(os.environ["HOLDFAST_URL"])) as conn:
                conn.executescript(nightly_tasks.TABLES)
            run(nightly_tasks, Path(folder), rows)


def write_file(path: Path, rows: int) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["number", "name"])
        writer.writerows(["n/a" if n % EVERY == 0 else n, f"customer {n}"] for n in range(1, rows + 1))


def run(tasks: Any, folder: Path, rows: int) -> None:
    app = tasks.app
    tasks.import_file.enqueue(str(folder / "customers.csv"))
    print(f"The file has {rows:,} rows, and each {EVERY}th is wrong.")

    first = start_worker(folder, CRASH_AT=str(rows // 2 + 1))
    first.wait()
    (batch,) = app.batches.list()
    print(f"In the middle, the worker is killed; the import is {batch.state}.")

    second = start_worker(folder)
    progress = app.batches.get(batch.id).wait(timeout=300)
    report = app.jobs.get(app.batches.get(batch.id).done_job_id)
    print(f"Another worker continues. The report says: {report.wait(timeout=300)}")
    second.send_signal(signal.SIGTERM)
    second.wait()

    with closing(sqlite3.connect(os.environ["HOLDFAST_URL"])) as conn:
        (customers, most) = conn.execute("SELECT count(*), max(imports) FROM customers").fetchone()
        (reports,) = conn.execute("SELECT count(*) FROM reports").fetchone()
    print(f"Customers: {customers} of {progress.succeeded}, each imported {most} time. Reports: {reports}.")
    rejected = app.jobs.list(batch=batch.id, status="failed", limit=3)
    print(f"Rejected, for example: {rejected[0].raw_args.decode()}: {rejected[0].error_detail}")


def start_worker(folder: Path, **environment: str) -> "subprocess.Popen[bytes]":
    with (folder / "worker.log").open("ab") as log:
        command = [sys.executable, "-m", "holdfast", "worker", "nightly_tasks:app"]
        return subprocess.Popen(command, cwd=FOLDER, stderr=log, env=os.environ | environment)


if __name__ == "__main__":
    main()
