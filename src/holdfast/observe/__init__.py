"""How it is doing: the five questions of whoever is on call."""

from .observe import Observe

__all__ = ["Observe"]
