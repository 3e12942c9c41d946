"""The worker, as a program sees it."""

from ..errors import InvalidInput
from .parts import Parts, WorkerOptions, WorkerReport
from .shift import Shift


class Worker:
    """Runs jobs until it is told to stop. Make it with `app.worker(…)`."""

    def __init__(self, parts: Parts, options: WorkerOptions) -> None:
        self.options = options
        self._shift = Shift(parts, options)
        self._has_run = False

    @property
    def id(self) -> str:
        """Random with every start, and what `job.worker` says."""
        return self._shift.id

    def run(self) -> WorkerReport:
        """Run jobs until `stop()`, a signal, or with until_idle until there is nothing left to do. Once only."""
        if self._has_run:
            raise InvalidInput("this worker has run already: make another with app.worker()")
        self._has_run = True
        return self._shift.run()

    def stop(self) -> None:
        """Take nothing more, and end when what runs has ended, or after the grace. A second time: end now."""
        self._shift.stop()
