"""Proxies before a PostgreSQL server: one cuts connections at a chosen moment, one pools transactions."""

import socket
import struct
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal

import psycopg

Cut = Literal["before", "after"]
"""A message is not passed on, or its answer is not: then both connections are closed."""

SSL_REQUEST, GSS_REQUEST, CANCEL_REQUEST = 80877103, 80877104, 80877102
FIRST_FAKE_PID = 1_000_000_000


class Wire:
    """A connection that carries messages of PostgreSQL's protocol."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._file = sock.makefile("rb")

    def startup(self) -> bytes:
        """Read the first message of a client, and refuse encryption."""
        while True:
            head = self._exactly(8)
            length, code = struct.unpack("!ii", head)
            rest = self._exactly(length - 8)
            if code in (SSL_REQUEST, GSS_REQUEST):
                self.send(b"N")
            elif code == CANCEL_REQUEST:
                raise EOFError
            else:
                return head + rest

    def message(self) -> tuple[bytes, bytes]:
        """Read a message: its type, and all of it."""
        head = self._exactly(5)
        return head[:1], head + self._exactly(struct.unpack("!i", head[1:])[0] - 4)

    def _exactly(self, size: int) -> bytes:
        data = self._file.read(size)
        if len(data) != size:
            raise EOFError
        return data

    def send(self, data: bytes) -> None:
        self.sock.sendall(data)

    def close(self) -> None:
        with suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)
        with suppress(OSError):
            self.sock.close()


class Proxy:
    """Passes everything on. Listens on the loopback address."""

    def __init__(self, server_url: str) -> None:
        self._parts = psycopg.conninfo.conninfo_to_dict(server_url)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.is_away = False  # new connections are refused
        self.cut: Callable[[bytes], Cut | None] = lambda _: None
        self.cuts = 0
        self._wires: set[Wire] = set()
        self._lock = threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    def url(self, **options: str) -> str:
        parts = {"sslmode": "disable", "gssencmode": "disable", "user": self._parts.get("user", "")} | options
        if self._parts.get("password"):
            parts["password"] = self._parts["password"]
        query = "&".join(f"{name}={value}" for name, value in parts.items())
        return f"postgresql://127.0.0.1:{self.port}/{self._parts.get('dbname')}?{query}"

    def cut_once(self, text: str, how: Cut, skip: int = 0) -> None:
        """Cut the connection that sends the next message with this text, or a later one."""
        left = [skip + 1]

        def decide(message: bytes) -> Cut | None:
            if text.encode() in message:
                left[0] -= 1
                return how if left[0] == 0 else None
            return None

        self.cut = decide

    def cut_all(self) -> None:
        with self._lock:
            wires, self._wires = self._wires, set()
        for wire in wires:
            wire.close()

    def close(self) -> None:
        self.is_away = True
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut_all()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            if self.is_away:
                sock.close()
                continue
            threading.Thread(target=self._quietly, args=(self._serve, self._wire(sock)), daemon=True).start()

    def _quietly(self, serve: Callable[..., None], *wires: Wire) -> None:
        with suppress(OSError, EOFError, struct.error, ValueError):
            serve(*wires)
        for wire in wires:
            wire.close()

    def _wire(self, sock: socket.socket) -> Wire:
        if sock.family == socket.AF_INET:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        wire = Wire(sock)
        with self._lock:
            self._wires.add(wire)
        return wire

    def _to_server(self) -> Wire:
        host, port = str(self._parts.get("host") or "127.0.0.1"), int(self._parts.get("port") or 5432)
        if host.startswith("/"):
            sock = socket.socket(socket.AF_UNIX)
            sock.connect(str(Path(host) / f".s.PGSQL.{port}"))
        else:
            sock = socket.create_connection((host, port))
        return self._wire(sock)

    def _serve(self, client: Wire) -> None:
        startup = client.startup()
        server = self._to_server()
        server.send(startup)
        swallow = threading.Event()
        threading.Thread(target=self._quietly, args=(self._answer(swallow), server, client), daemon=True).start()
        try:
            while True:
                kind, data = client.message()
                how = self.cut(data) if kind in b"QPB" else None
                if how is not None:
                    self.cuts += 1
                if how == "before":
                    return
                if how == "after":
                    swallow.set()
                server.send(data)
        finally:
            if not swallow.is_set():
                server.close()

    def _answer(self, swallow: threading.Event) -> Callable[[Wire, Wire], None]:
        def answer(server: Wire, client: Wire) -> None:
            while True:
                kind, data = server.message()
                if not swallow.is_set():
                    client.send(data)
                elif kind == b"Z":
                    return

        return answer


class Pooler(Proxy):
    """Gives each transaction to another session of the server, as pgbouncer does with pool_mode = transaction."""

    def __init__(self, server_url: str, sessions: int = 3) -> None:
        super().__init__(server_url)
        self._sessions = sessions
        self._idle: defaultdict[bytes, deque[Wire]] = defaultdict(deque)
        self._greetings: dict[bytes, bytes] = {}
        self._changed = threading.Condition()
        self._fake_pid = FIRST_FAKE_PID
        self.transactions = 0

    def _serve(self, client: Wire) -> None:
        startup = client.startup()
        with self._changed:
            if startup not in self._greetings:
                for _ in range(self._sessions):
                    self._idle[startup].append(self._open(startup))
            self._fake_pid += 1
            key = b"K" + struct.pack("!iii", 12, self._fake_pid, 0)
            greeting = self._greetings[startup]
        client.send(b"R" + struct.pack("!ii", 8, 0) + greeting + key + b"Z" + struct.pack("!i", 5) + b"I")
        while True:
            self._serve_transaction(client, startup)

    def _open(self, startup: bytes) -> Wire:
        server = self._to_server()
        server.send(startup)
        parameters = b""
        while True:
            kind, data = server.message()
            if kind == b"S":
                parameters += data
            elif kind == b"E":
                raise EOFError
            elif kind == b"Z":
                self._greetings[startup] = parameters
                return server

    def _serve_transaction(self, client: Wire, startup: bytes) -> None:
        data = self._request(client)
        with self._changed:
            self._changed.wait_for(lambda: self._idle[startup])
            server = self._idle[startup].popleft()
            self.transactions += 1
        while True:
            server.send(data)
            status = b""
            while not status:
                kind, answer = server.message()
                client.send(answer)
                if kind == b"Z":
                    status = answer[5:6]
            if status == b"I":
                break
            data = self._request(client)
        with self._changed:
            self._idle[startup].append(server)
            self._changed.notify()

    def _request(self, client: Wire) -> bytes:
        """Read messages up to one that the server answers."""
        data = b""
        while True:
            kind, message = client.message()
            if kind == b"X":
                raise EOFError
            data += message
            if kind in b"QS":
                return data


@contextmanager
def proxied(server_url: str) -> Iterator[Proxy]:
    proxy = Proxy(server_url)
    try:
        yield proxy
    finally:
        proxy.close()


@contextmanager
def pooled(server_url: str) -> Iterator[Pooler]:
    pooler = Pooler(server_url)
    try:
        yield pooler
    finally:
        pooler.close()
