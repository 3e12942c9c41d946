"""Start a command as a process of its own."""

import sys
from typing import Any


def command(*args: Any) -> list[str]:
    return [sys.executable, "-m", "holdfast", *map(str, args)]
