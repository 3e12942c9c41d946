"""A worker that writes down what its handlers ran and what it settled, or came too late to settle.

usage: storm_worker.py DATABASE LOG
"""

import logging
import os
import sys

LEASE_SECONDS = 1


class WriteDown(logging.Handler):
    def __init__(self, log: str) -> None:
        super().__init__(logging.INFO)
        self._out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def emit(self, record: logging.LogRecord) -> None:
        about = getattr(record, "holdfast", None)
        if about is not None and "attempt" in about:
            os.write(self._out, f"{about['outcome']} {about['job']} {about['attempt']}\n".encode())
        elif about is not None:
            for job in about["jobs"]:
                os.write(self._out, f"lost {job} 0\n".encode())


def main(database: str, log: str) -> None:
    os.environ.update(STORM_DATABASE=database, STORM_LOG=log)
    from storm_tasks import app

    from holdfast.worker import job_log

    job_log.LINES_PER_SECOND = 1_000_000  # each success has a line of its own
    logger = logging.getLogger("holdfast.worker")
    logger.addHandler(WriteDown(log))
    logger.setLevel(logging.INFO)
    logger.propagate = False
    app.worker(concurrency=8, pool=1, lease=LEASE_SECONDS).run()


if __name__ == "__main__":
    main(*sys.argv[1:])
