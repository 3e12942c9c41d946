"""What every part of the store has: its options, clock and statements, and the way to an open engine."""

from typing import TYPE_CHECKING

from ...clock import Clock
from ..statements import Statements

if TYPE_CHECKING:
    from .engine import Engine, Options


class Part:
    _options: "Options"
    _clock: Clock
    _sql: Statements
    _actor: str

    def _ready(self) -> "Engine":
        raise NotImplementedError
