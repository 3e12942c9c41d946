"""For tests of programs that use Holdfast."""

from .clock import FakeClock

__all__ = ["FakeClock"]
