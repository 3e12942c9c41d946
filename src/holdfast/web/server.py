"""Serve the web page and the API with uvicorn, from a process of its own or from a thread of a worker."""

from __future__ import annotations

import asyncio
import ipaddress
import resource
import socket
import threading
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from .. import validate
from ..errors import InvalidInput

DEFAULT_PORT = 8520
LOOPBACK = "127.0.0.1"
MAX_CONNECTIONS = 2_000  # requests on further ones are answered with 503
MAX_REFUSED = 200  # connections that are told so at a time; still further ones are closed at once
FILES_PER_CONNECTION = (
    4  # of the files that the process may open, connections get a quarter: a worker needs them, too
)
HEADER_SECONDS = 15.0
KEEP_ALIVE_SECONDS = 10
STOP_SECONDS = 3
BACKLOG = 512


def is_loopback(host: str) -> bool:
    """Whether only this machine can connect to the address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def require_authentication(host: str, auth: object) -> None:
    """Raise InvalidInput if other machines could connect without authentication."""
    if auth is None and not is_loopback(host):
        raise InvalidInput(
            f"{host} can be reached from other machines, so the server needs authentication: make a users file with "
            "'holdfast web-user add NAME --auth users.json' and pass --auth users.json, or listen on 127.0.0.1"
        )


def max_connections() -> int:
    """Return how many clients may be connected, given how many files this process may open."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MAX_CONNECTIONS if files == resource.RLIM_INFINITY else min(MAX_CONNECTIONS, files // FILES_PER_CONNECTION)


class _Protocol(H11Protocol):
    """Disconnects clients that do not finish the head of a request, and those beyond the limit."""

    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        if self.limit_concurrency is not None and len(self.connections) > self.limit_concurrency + MAX_REFUSED:
            transport.abort()
            return
        self._timer = self.loop.call_later(HEADER_SECONDS, self._give_up)

    def handle_events(self) -> None:
        super().handle_events()
        if self.cycle is not None and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(exc)

    def _give_up(self) -> None:
        if self.transport is not None and not self.transport.is_closing():
            self.transport.close()


class WebServer:
    """A server that listens. `run` serves until a signal, `start` serves from a thread until `close`."""

    def __init__(self, application: Any, host: str = LOOPBACK, port: int = DEFAULT_PORT) -> None:
        validate.name(host, "host", 255)  # an empty host would listen on all interfaces
        self._socket = _listen(host, validate.integer(port, "port", 0, 65535))
        self.host, self.port = host, int(self._socket.getsockname()[1])
        config = uvicorn.Config(
            application,
            log_level="warning",
            access_log=False,
            lifespan="on",
            server_header=False,
            http=_Protocol,
            ws="none",
            limit_concurrency=max_connections(),
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=STOP_SECONDS,
            backlog=BACKLOG,
            log_config=None,
        )
        self._server = uvicorn.Server(config)
        self._thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}/"

    def run(self) -> None:
        """Serve in this thread until SIGINT or SIGTERM."""
        try:
            asyncio.run(self._server.serve(sockets=[self._socket]))
        except KeyboardInterrupt:
            pass
        finally:
            self._socket.close()

    def start(self) -> WebServer:
        """Serve from a thread of this process."""
        self._thread = threading.Thread(target=self.run, name="holdfast-web", daemon=True)
        self._thread.start()
        return self

    def close(self) -> None:
        self._server.should_exit = True
        if self._thread is not None:
            self._thread.join(STOP_SECONDS * 2)


def _listen(host: str, port: int) -> socket.socket:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        listening = socket.socket(family, kind, protocol)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(address)
            listening.listen(BACKLOG)
        except BaseException:
            listening.close()
            raise
    except (OSError, UnicodeError) as error:
        raise InvalidInput(
            f"the web page cannot be served at {host} port {port} ({error}): choose another port, or stop the "
            "process that uses it"
        ) from None
    return listening
