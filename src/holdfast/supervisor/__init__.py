"""Everything put together: the app and what runs its jobs."""

from typing import TYPE_CHECKING

from ..lazy import late

if TYPE_CHECKING:
    from .holdfast import Holdfast


__all__ = ["Holdfast"]
if not TYPE_CHECKING:
    __getattr__, __dir__ = late(__name__, {"Holdfast": "holdfast"})
