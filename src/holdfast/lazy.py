"""Names that are imported when they are asked for: who runs `holdfast health` every few seconds needs few of them."""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def late(package: str, places: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a package. places: by name, the module in it that has it."""

    def getattr_late(name: str) -> Any:
        if name not in places:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f"{package}.{places[name]}"), name)

    return getattr_late, lambda: sorted(places)
