"""Enqueueing by plain SQL, here from a trigger on the program's own table. No Python is needed for it."""

import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path

from holdfast import Holdfast

SCHEMA = """
CREATE TABLE users (id INTEGER PRIMARY KEY, email TEXT NOT NULL);

CREATE TRIGGER welcome AFTER INSERT ON users
BEGIN
    INSERT INTO holdfast_jobs (queue, task, args, key)
    VALUES ('mail', 'send_welcome', json_object('user_id', NEW.id, 'to', NEW.email), 'welcome-' || NEW.id);
END;
"""


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "app.db"
        with Holdfast(path) as app, closing(sqlite3.connect(path)) as conn:
            run(app, conn)


def run(app: Holdfast, conn: sqlite3.Connection) -> None:
    conn.executescript(SCHEMA)

    @app.task(queue="mail")
    def send_welcome(user_id: int, to: str) -> None:
        """A worker runs this. Until there is one, the jobs wait."""

    print("A user is inserted, and the trigger enqueues a job:")
    with conn:
        conn.execute("INSERT INTO users (email) VALUES ('ada@example.org')")
    job = app.jobs.list(task=send_welcome.name)[0]
    print(f"   {job}")
    print(f"   its arguments: {job.args}")
    for entry in app.jobs.history(job.id):
        print(f"   its history: {entry.name}, by {entry.actor}")

    print("The same for a message, due at the next full second; a body is any JSON:")
    with conn:
        conn.execute(
            """INSERT INTO holdfast_jobs (queue, args, run_at)
               VALUES ('inbox', '{"text": "hello from SQL"}', (strftime('%s', 'now') + 1) * 1000000)"""
        )
    message = app.queue("inbox").receive(wait=5)
    assert message is not None
    print(f"   received: {message.body}, acknowledged: {message.ack()}")


if __name__ == "__main__":
    main()
