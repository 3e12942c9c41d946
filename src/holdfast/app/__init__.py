"""The façade: what a program imports and calls."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .app import App

__all__ = ["App"]


def __getattr__(name: str) -> Any:
    """Imported when it is asked for: what only checks arguments needs no app."""
    if name != "App":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .app import App

    return App
