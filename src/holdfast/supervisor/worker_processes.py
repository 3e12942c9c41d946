"""Several worker processes, or one that starts anew when its code changes: started, watched and stopped from here."""

import logging
import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from time import monotonic

from ..worker.signals import StopSignals, WakeUp

log = logging.getLogger("holdfast.worker")
LIFELINE = "HOLDFAST_LIFELINE"
HOPELESS = (2, 3)  # wrong usage or an app that cannot be loaded; a database that cannot be used
LOOK_SECONDS = 0.25
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.5, 30.0
LONG_LIFE_SECONDS = 60.0
KILL_AFTER_GRACE_SECONDS = 10.0
NOT_SOURCES = {"__pycache__", "node_modules", "site-packages"}


class Member:
    """One of the processes, and what becomes of it."""

    def __init__(self, command: Sequence[str]) -> None:
        self._command = command
        self._process: subprocess.Popen[bytes] | None = None
        self._pause = 0.0
        self._started = self._start_at = 0.0
        self.code: int | None = None

    def start_if_due(self) -> None:
        if self._process is None and monotonic() >= self._start_at:
            self.code, self._started = None, monotonic()
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                env={**os.environ, LIFELINE: "1"},
                process_group=0,  # a Ctrl-C at the terminal reaches this process alone, which passes it on
            )

    def has_ended(self) -> bool:
        """Notices its end."""
        if self._process is not None and self._process.poll() is not None:
            self.code, self._process = self._process.returncode, None
            lived = monotonic() - self._started
            again = FIRST_PAUSE_SECONDS if lived > LONG_LIFE_SECONDS else self._pause * 2 or FIRST_PAUSE_SECONDS
            self._pause = min(again, LONGEST_PAUSE_SECONDS)
            self._start_at = monotonic() + self._pause
        return self._process is None

    def signal(self, number: int) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)

    def forgive(self) -> None:
        """Start again at once."""
        self._pause = self._start_at = 0.0


class Crew:
    def __init__(
        self, command: Sequence[str], size: int, reload: bool, grace: float, of_the_first: Sequence[str] = ()
    ) -> None:
        self._members = [Member([*command, *of_the_first]), *(Member(command) for _ in range(size - 1))]
        self._reload, self._grace = reload, grace
        self._until_idle = "--until-idle" in command
        self._wake_up = WakeUp()
        self._signals = 0

    def run(self) -> int:
        """Until told to stop. Returns the worst of their exit codes."""
        sources = Sources(Path.cwd()) if self._reload else None
        with StopSignals(self._hear):
            while not self._signals:
                for member in self._members:
                    member.start_if_due()
                self._wake_up.wait(LOOK_SECONDS)
                if sources is not None and (changed := sources.changed()):
                    log.info("%s changed: starting again", changed)
                    self._stop_all()
                    for member in self._members:
                        member.forgive()
                elif self._is_over():
                    break
            return self._stop_all()

    def _is_over(self) -> bool:
        ended = [member for member in self._members if member.has_ended()]
        if self._until_idle and all(member.code == 0 for member in ended):
            return len(ended) == len(self._members)
        for member in ended:
            if not self._reload and member.code in HOPELESS:
                return True
            if member.code is not None:
                log.error("a worker process %s; starting another", _ending(member.code))
                member.code = None
        return False

    def _stop_all(self) -> int:
        """Pass the signal on, and once more where there was a second one; kill what does not end."""
        passed = 0
        deadline = monotonic() + self._grace + KILL_AFTER_GRACE_SECONDS
        while sum(member.has_ended() for member in self._members) < len(self._members):
            wanted = max(1, min(self._signals, 2))
            if passed < wanted:
                passed += 1
                for member in self._members:
                    member.signal(signal.SIGTERM)
            elif monotonic() > deadline:
                for member in self._members:
                    member.signal(signal.SIGKILL)
            self._wake_up.wait(LOOK_SECONDS / 5)
        codes = [member.code for member in self._members if member.code]
        hopeless = [code for code in codes if code in HOPELESS]
        return max(hopeless or [code if code > 0 else 128 - code for code in codes], default=0)

    def _hear(self) -> None:
        self._signals += 1
        self._wake_up.notify()


class Sources:
    """The Python files below a folder, and when they were changed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._seen = self._look()

    def changed(self) -> str | None:
        """The name of a file that was changed, added or removed since the last time."""
        before, self._seen = self._seen, self._look()
        different = {file for file, _ in before.items() ^ self._seen.items()}
        return min(different, default=None)

    def _look(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for folder, folders, files in os.walk(self._folder):
            folders[:] = [name for name in folders if not name.startswith(".") and name not in NOT_SOURCES]
            if "pyvenv.cfg" in files:
                folders.clear()
                continue
            for name in files:
                if name.endswith(".py"):
                    path = Path(folder, name)
                    try:
                        found[str(path.relative_to(self._folder))] = path.stat().st_mtime_ns
                    except OSError:  # gone since
                        continue
        return found


def _ending(code: int) -> str:
    return f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
