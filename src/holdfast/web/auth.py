"""Who may do what: roles, the users file, passwords, tokens, sessions and slowed-down logins.

A users file is JSON. It holds scrypt hashes of passwords and SHA-256 hashes of tokens, which are long random texts,
never the secrets themselves. It is read again when it changes, so that a removed user loses access at once.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import os
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from enum import IntEnum
from pathlib import Path
from typing import Protocol

import msgspec
from msgspec import Struct

from .. import validate
from ..errors import InvalidInput

LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")
SCRYPT = {"n": 2**14, "r": 8, "p": 1, "maxmem": 64 * 1024 * 1024, "dklen": 32}  # about 50 ms
MIN_PASSWORD, MAX_PASSWORD = 10, 1024
TOKEN_PREFIX = "hf_"
SESSION_SECONDS = 12 * 3600
MAX_SESSIONS = 1000
MAX_FAILURES_KNOWN = 10_000
FREE_FAILURES, FIRST_DELAY, LONGEST_DELAY = 3, 1.0, 300.0


class Role(IntEnum):
    """What an identity may do. A higher role may do all that a lower one may."""

    viewer = 1
    operator = 2
    admin = 3


class Identity(Struct, frozen=True):
    """A person or program that was authenticated. The name is the actor in the event log."""

    name: str
    role: Role


class RoleNeeded(Exception):
    """A request that needs a higher role because of what is in it."""

    def __init__(self, role: Role) -> None:
        super().__init__(role.name)
        self.role = role


class Request(Protocol):
    """What an authenticator of your own is given: Starlette's request has these and more."""

    @property
    def headers(self) -> Mapping[str, str]: ...

    @property
    def cookies(self) -> Mapping[str, str]: ...


Authenticator = Callable[[Request], "Identity | None"]
"""Return the identity of a request, or None to refuse it."""


def identity(name: object, role: object = "viewer") -> Identity:
    """Return an identity, for an authenticator of your own. role: "viewer", "operator" or "admin"."""
    return Identity(validate.name(name, "user name"), parse_role(role))


def parse_role(value: object) -> Role:
    if isinstance(value, Role):
        return value
    if isinstance(value, str) and value in Role.__members__:
        return Role[value]
    raise InvalidInput(f"role must be 'viewer', 'operator' or 'admin', got {validate.shown(value)}")


def trusted_header(header: str, role: str = "viewer", *, role_header: str | None = None) -> Authenticator:
    """Return an authenticator that trusts a header with the user's name, set by a proxy in front of this server.

    The proxy must remove the header from requests of clients. role: of every user, unless role_header names a header
    with the role.
    """
    fallback = parse_role(role)

    def authenticate(request: Request) -> Identity | None:
        name = request.headers.get(header)
        if not name:
            return None
        given = request.headers.get(role_header) if role_header else None
        try:
            return Identity(validate.name(name, "user name"), parse_role(given) if given else fallback)
        except InvalidInput:
            return None

    return authenticate


# --- the users file -------------------------------------------------------------------------------


class User(Struct, omit_defaults=True):
    """A user in the users file."""

    role: str
    password: str | None = None
    """`scrypt$n$r$p$salt$hash`."""
    tokens: dict[str, str] = {}
    """SHA-256 hashes of tokens, by label."""


class Users:
    """A users file."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._lock = threading.Lock()
        self._seen: tuple[int, int, int] | None = None
        self._users: dict[str, User] = {}

    def read(self) -> dict[str, User]:
        """Return the users by name. The file is read again only if it changed."""
        with self._lock:
            try:
                found = self.path.stat()
                seen = (found.st_mtime_ns, found.st_size, found.st_ino)
                if seen != self._seen:
                    self._users, self._seen = self._load(), seen
            except OSError as error:
                raise InvalidInput(
                    f"the users file {self.path} cannot be read ({error.strerror}): make it with "
                    f"holdfast web-user add NAME --auth {self.path}"
                ) from None
            return self._users

    def _load(self) -> dict[str, User]:
        try:
            users = msgspec.json.decode(self.path.read_bytes(), type=dict[str, User])
            for user in users.values():
                parse_role(user.role)
        except (msgspec.DecodeError, InvalidInput) as error:
            raise InvalidInput(
                f"{self.path} is not a users file ({error}): restore it from a backup, or remove it and make another "
                f"with holdfast web-user add NAME --auth {self.path}"
            ) from None
        return users

    @contextlib.contextmanager
    def edit(self) -> Iterator[dict[str, User]]:
        """Change the users in the block. The file is replaced at its end, readable only by its owner."""
        users = dict(self._load()) if self.path.exists() else {}
        yield users
        data = msgspec.json.format(msgspec.json.encode(users, order="sorted"), indent=2)
        temporary = self.path.with_name(f".{self.path.name}.{secrets.token_hex(4)}")
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(data + b"\n")
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(self.path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise

    def check_password(self, name: str, password: str) -> Identity | None:
        """Return the identity if the password is right. Takes as long for an unknown name as for a known one."""
        user = self.read().get(name)
        stored = user.password if user is not None and user.password is not None else _NO_PASSWORD
        right = _matches(password, stored)
        return Identity(name, parse_role(user.role)) if right and user is not None and user.password else None

    def check_token(self, token: str) -> Identity | None:
        digest = token_hash(token)
        found = None
        for name, user in self.read().items():
            for stored in user.tokens.values():
                if hmac.compare_digest(stored, digest):
                    found = Identity(name, parse_role(user.role))
        return found

    def current(self, session: Session) -> Identity | None:
        """Return the identity of a session with its current role; None if the user was removed, or the password is
        another.
        """
        name = session.identity.name
        user = self.read().get(name)
        return None if user is None or user.password != session.password else Identity(name, parse_role(user.role))

    def hash_of(self, name: str) -> str | None:
        user = self.read().get(name)
        return None if user is None else user.password


def hash_password(password: object) -> str:
    if not isinstance(password, str) or not MIN_PASSWORD <= len(password) <= MAX_PASSWORD:
        raise InvalidInput(f"a password must have {MIN_PASSWORD} to {MAX_PASSWORD} characters")
    return _scrypt(password, secrets.token_bytes(16), SCRYPT["n"], SCRYPT["r"], SCRYPT["p"])


def new_token() -> str:
    return TOKEN_PREFIX + secrets.token_urlsafe(32)


def token_hash(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


def _scrypt(password: str, salt: bytes, n: int, r: int, p: int) -> str:
    limits = {"maxmem": SCRYPT["maxmem"], "dklen": SCRYPT["dklen"]}
    derived = hashlib.scrypt(password.encode("utf-8", "surrogatepass"), salt=salt, n=n, r=r, p=p, **limits)
    texts = (base64.b64encode(part).decode() for part in (salt, derived))
    return "$".join(["scrypt", str(n), str(r), str(p), *texts])


def _matches(password: str, stored: str) -> bool:
    try:
        kind, n, r, p, salt, _ = stored.split("$")
        again = _scrypt(password[:MAX_PASSWORD], base64.b64decode(salt), int(n), int(r), int(p))
    except ValueError:
        return False
    return kind == "scrypt" and hmac.compare_digest(again, stored)


_NO_PASSWORD = _scrypt(secrets.token_hex(16), bytes(16), SCRYPT["n"], SCRYPT["r"], SCRYPT["p"])


# --- sessions -------------------------------------------------------------------------------------


class Session(Struct, frozen=True):
    """A login of a browser. `csrf` must come back as a header with every change."""

    identity: Identity
    password: str | None
    """The hash of the password at the login."""
    csrf: str
    expires: float  # monotonic


class Sessions:
    """The logins of this server. They end after twelve hours, at a logout, with another password, and when the server
    stops.
    """

    def __init__(self) -> None:
        self._found: OrderedDict[str, Session] = OrderedDict()

    def open(self, identity: Identity, password: str | None) -> tuple[str, Session]:
        """Return the value of the cookie, and the session."""
        value = secrets.token_urlsafe(32)
        session = Session(identity, password, secrets.token_urlsafe(32), time.monotonic() + SESSION_SECONDS)
        self._found[token_hash(value)] = session
        while len(self._found) > MAX_SESSIONS:
            self._found.popitem(last=False)
        return value, session

    def find(self, value: str) -> Session | None:
        session = self._found.get(token_hash(value))
        if session is not None and session.expires < time.monotonic():
            self.close(value)
            return None
        return session

    def close(self, value: str) -> None:
        self._found.pop(token_hash(value), None)


class Attempts:
    """Slows down logins: after three failures of a name or an address, each further one doubles a delay."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._failures: OrderedDict[str, tuple[int, float]] = OrderedDict()  # number, time of the last

    def seconds_left(self, *subjects: str) -> float:
        """Return how long a login of any of these must wait."""
        return max(self._left(subject) for subject in subjects)

    def _left(self, subject: str) -> float:
        number, last = self._failures.get(subject, (0, 0.0))
        if number < FREE_FAILURES:
            return 0.0
        delay = min(LONGEST_DELAY, FIRST_DELAY * 2.0 ** min(number - FREE_FAILURES, 30))
        return float(max(0.0, last + delay - self._now()))

    def failed(self, *subjects: str) -> None:
        for subject in subjects:
            number, _ = self._failures.pop(subject, (0, 0.0))
            self._failures[subject] = (number + 1, self._now())
        while len(self._failures) > MAX_FAILURES_KNOWN:
            self._failures.popitem(last=False)

    def succeeded(self, *subjects: str) -> None:
        for subject in subjects:
            self._failures.pop(subject, None)
