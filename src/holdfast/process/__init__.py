"""Everything put together: the app and what runs its jobs."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .holdfast import Holdfast

__all__ = ["Holdfast"]


def __getattr__(name: str) -> Any:
    """Imported when it is asked for: what only looks at a database needs no app."""
    if name != "Holdfast":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .holdfast import Holdfast

    return Holdfast
