"""Statistics for operators: `app.observe`."""

from .observe import Observe

__all__ = ["Observe"]
