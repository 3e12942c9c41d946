"""The façade: what a program imports and calls."""

from typing import TYPE_CHECKING

from ..lazy import late

if TYPE_CHECKING:
    from .app import App


__all__ = ["App"]
if not TYPE_CHECKING:
    __getattr__, __dir__ = late(__name__, {"App": "app"})
