"""The HTTP API, and the web page that uses it: `holdfast web`, `app.web()`, `holdfast worker --web-port`."""

from .app import make_app
from .auth import Identity, Role, Users, identity, trusted_header

__all__ = ["Identity", "Role", "Users", "identity", "make_app", "trusted_header"]
