"""Everything put together: the app and what runs its jobs."""

from typing import TYPE_CHECKING

from ..lazy import lazy_exports

if TYPE_CHECKING:
    from .holdfast import Holdfast


__all__ = ["Holdfast"]
if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_exports(__name__, {"Holdfast": "holdfast"})
