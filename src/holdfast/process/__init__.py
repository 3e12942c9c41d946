"""Everything put together: the app and what runs its jobs."""

from .holdfast import Holdfast

__all__ = ["Holdfast"]
