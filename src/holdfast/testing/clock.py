"""A clock that moves only when the test moves it."""

from ..clock import SECOND


class FakeClock:
    """A wall clock and a boot clock for tests. Pass it as `Holdfast(clock=…)`."""

    def __init__(self, now: int = 1_700_000_000 * SECOND, boot_id: str = "boot-1") -> None:
        self._now, self._boot_now, self._boot_id = now, 1000 * SECOND, boot_id

    def now(self) -> int:
        return self._now

    def boot_now(self) -> int:
        return self._boot_now

    def boot_id(self) -> str:
        return self._boot_id

    def advance(self, seconds: float) -> None:
        """Let time pass on both clocks."""
        self._now += round(seconds * SECOND)
        self._boot_now += round(seconds * SECOND)

    def step(self, seconds: float) -> None:
        """Set the wall clock forwards or backwards. No time passes."""
        self._now += round(seconds * SECOND)

    def reboot(self, boot_id: str = "boot-2") -> None:
        """Reboot the machine: the boot clock restarts, the wall clock goes on."""
        self._boot_now, self._boot_id = 10 * SECOND, boot_id
