"""How much the longest tests try: a part in `make test`, all of it in `make storm`, which sets STORM_SECONDS."""

import os
from typing import TypeVar

THOROUGH = "STORM_SECONDS" in os.environ

T = TypeVar("T", int, float)


def a_part(usual: T, thorough: T) -> T:
    return thorough if THOROUGH else usual


def storm_seconds(usual: float) -> float:
    return float(os.environ.get("STORM_SECONDS", usual))
