"""A worker that writes down what its handlers ran and how it settled them.

usage: server_storm_worker.py URL LOG
"""

import logging
import sys
from collections.abc import Callable

from server_storm_tasks import open_app, writer

from holdfast.errors import ConnectionLost


class WriteDown(logging.Handler):
    def __init__(self, write: Callable[[str], None]) -> None:
        super().__init__(logging.INFO)
        self._write = write

    def emit(self, record: logging.LogRecord) -> None:
        about = getattr(record, "holdfast", None)
        if about is not None and "attempt" in about:
            self._write(f"{about['outcome']} {about['job']} {about['attempt']}")
        elif about is not None:
            for job in about["jobs"]:
                self._write(f"lost {job} 0")
        elif record.levelno >= logging.WARNING:
            self._write(f"said {record.getMessage()}")


def main(url: str, log: str) -> None:
    from holdfast.worker import housekeeping, job_log

    job_log.LINES_PER_SECOND = 1_000_000  # each success has a line of its own
    housekeeping.MAX_UNSTARTED_NS = 3600 * 10**9
    write = writer(log)
    logger = logging.getLogger("holdfast.worker")
    logger.addHandler(WriteDown(write))
    logger.setLevel(logging.INFO)
    logger.propagate = False
    app = open_app(url, write)
    write("open")
    while True:
        try:
            app.worker(concurrency=4, lease=60).run()
        except ConnectionLost as error:  # the server is away while it starts
            write(f"said {error}")


if __name__ == "__main__":
    main(*sys.argv[1:])
