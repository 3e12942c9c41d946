"""The ASGI application: authentication, checks of every request, errors as problem+json, and the routes.

A request passes, in this order: the Host header, the identity and its role, for changes also Origin, content type and
CSRF token, the size and type of the body. Then its endpoint runs in a thread. Every response has the same security
headers.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import re
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping
from functools import partial
from typing import Any
from urllib.parse import quote, unquote, urlsplit

import anyio
import anyio.to_thread
import msgspec
from anyio import CapacityLimiter
from msgspec import Struct
from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .. import errors, validate
from ..codec import decoder
from ..errors import HoldfastError, InvalidInput
from ..failure import shorten
from .api import ENDPOINTS, Call, Endpoint, PayloadRules, Served, start_operation
from .auth import LOOPBACK_NAMES, Attempts, Authenticator, Identity, Role, RoleNeeded, Session, Sessions, Users
from .openapi import Problem, document
from .pages import StaticFiles
from .stream import TOPICS, EventStream, Hub, disconnected

log = logging.getLogger("holdfast.web")
PREFIX = "/api/v1"
COOKIE = "holdfast_session"
CSRF_HEADER = "x-holdfast-csrf"
MAX_BODY = 1024 * 1024
MAX_PATH = 4000  # characters
ESCAPED_SLASH = "\0"  # in the path of a request: no name has this character
MAX_DROPPED = 16 * 1024 * 1024  # bytes of a body that is refused
DROP_SECONDS = 2.0
BODY_WAS_READ = "holdfast.body_was_read"  # in the scope of a request
MAX_BODIES = 64  # that are read at a time
BODY_SECONDS = 30.0
THREADS = 8  # that read or write the database for this server
SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
OPEN = Identity("web", Role.admin)
"""Everyone, on a server without authentication. It listens on loopback only."""
STATS_AGE_SECONDS = 5
RETRY_SECONDS = 5.0  # after an error of the database, for bulk operations
MAX_SHARED = 100  # responses
MAX_SHARED_AGE = 5.0  # seconds

SECURITY_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; "
        "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}

# The status of an exception is that of its most specific class in this table.
STATUS_OF: dict[type[HoldfastError], int] = {
    HoldfastError: 500,
    errors.InvalidInput: 400,
    errors.PayloadTooLarge: 413,
    errors.JobNotFound: 404,
    errors.ScheduleNotFound: 404,
    errors.BatchNotFound: 404,
    errors.WorkerNotFound: 404,
    errors.OperationNotFound: 404,
    errors.BatchEnded: 409,
    errors.HasWaitingJobs: 409,
    errors.PartOfChain: 409,
    errors.LeaseLost: 409,
    errors.StoreError: 503,
}


class Refusal(Exception):
    """A request that is answered with a problem."""

    def __init__(self, status: int, code: str, detail: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(detail)
        self.status, self.code, self.detail, self.headers = status, code, detail, dict(headers or {})


def make_app(
    app: Served,
    *,
    auth: Authenticator | Users | None = None,
    hosts: Iterable[str] | None = None,
    hide_args: bool = False,
    redact: Iterable[str | re.Pattern[str]] = (),
    read_only: bool = False,
    max_body: int = MAX_BODY,
) -> Starlette:
    """Return the ASGI application, to run or to mount in another.

    auth: a `Users` file, or a function that is given a request and returns an `Identity` or None. Without it,
        everyone who can connect is an admin.
    hosts: the host names that requests may name. By default those of loopback, or all with `auth`.
    hide_args: viewers see no arguments, results and error messages.
    redact: patterns of names whose values nobody is shown.
    read_only: refuse all changes, for all users.
    """
    allowed = tuple(hosts) if hosts is not None else (LOOPBACK_NAMES if auth is None else None)
    patterns = tuple(one if isinstance(one, re.Pattern) else re.compile(one, re.IGNORECASE) for one in redact)
    rules = PayloadRules(hide_args, patterns)
    server = Server(app, auth, rules, read_only, validate.integer(max_body, "max_body", 1024, 2**31))
    pages = StaticFiles(lambda request: not isinstance(auth, Users) or COOKIE in request.cookies)
    routes = [Route(PREFIX + one.path, partial(server.handle, one), methods=[one.method]) for one in ENDPOINTS]
    routes += [
        Route(f"{PREFIX}/login", server.login, methods=["POST"]),
        Route(f"{PREFIX}/logout", server.logout, methods=["POST"]),
        Route(f"{PREFIX}/me", server.me),
        Route(f"{PREFIX}/stream", server.stream),
        Route(f"{PREFIX}/openapi.json", server.openapi),
        Route("/api/{path:path}", _no_endpoint),
        Route("/static/{path:path}", pages.static),
        Route("/{path:path}", pages.page),
    ]
    starlette = Starlette(routes=routes, exception_handlers=HANDLERS, lifespan=server.lifespan)
    starlette.add_middleware(Guard, hosts=allowed)
    return starlette


class Guard:
    """Checks the Host header, and adds the security headers to every response."""

    def __init__(self, app: ASGIApp, hosts: tuple[str, ...] | None) -> None:
        self._app = app
        self._hosts = None if hosts is None else frozenset(one.lower() for one in hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in SECURITY_HEADERS.items():
                    headers.setdefault(name, value)
                headers.setdefault("cache-control", "no-store")
            await send(message)

        if len(scope["path"]) > MAX_PATH:
            await _problem(414, "PathTooLong", f"the path must have at most {MAX_PATH} characters")(
                scope, receive, guarded
            )
            return
        if b"%2f" in scope.get("raw_path", b"").lower():
            scope = {**scope, "path": _path_with_slashes(scope["raw_path"])}
        host = Request(scope).headers.get("host", "")
        if self._hosts is not None and _without_port(host).lower() not in self._hosts:
            names = ", ".join(sorted(self._hosts))
            detail = (
                f"the Host header must be one of {names}: to allow others, pass --allow-host, or hosts= in Python"
            )
            await _problem(421, "WrongHost", detail)(scope, receive, guarded)
            return
        await self._app(scope, receive, guarded)


class Server:
    """Runs the endpoints."""

    def __init__(
        self, app: Served, auth: Authenticator | Users | None, rules: PayloadRules, is_read_only: bool, max_body: int
    ) -> None:
        self._app, self._auth, self._rules, self._max_body = app, auth, rules, max_body
        self._is_read_only = is_read_only
        self._sessions, self._attempts = Sessions(), Attempts()
        self._threads = CapacityLimiter(THREADS)
        self._bodies = CapacityLimiter(MAX_BODIES)
        self._hashing = CapacityLimiter(1)  # so that a flood of logins takes one core at most
        self._hub = Hub(app, self._in_thread)
        self._shared = SharedReads()
        self._operating: asyncio.Task[None] | None = None
        self._has_resumed = False
        self._document = msgspec.json.encode(document(ENDPOINTS, PREFIX))

    async def _in_thread(self, call: Callable[[], Any]) -> Any:
        return await anyio.to_thread.run_sync(call, limiter=self._threads)

    # --- bulk operations ---

    @contextlib.asynccontextmanager
    async def lifespan(self, app: Starlette) -> AsyncIterator[None]:
        """Continue at the start what an earlier process began. A mounted application does so at its first request."""
        del app
        self._resume_operations()
        yield
        if self._operating is not None:
            self._operating.cancel()

    def _resume_operations(self) -> None:
        self._has_resumed = True
        if self._is_read_only:
            return
        if self._operating is None or self._operating.done():
            self._operating = asyncio.create_task(self._operate())

    async def _operate(self) -> None:
        """Do steps of bulk operations until none is left. They are in threads, so no request waits for them."""
        while True:
            try:
                await asyncio.sleep(await self._in_thread(self._app.operations.do_some))
                if not await self._in_thread(self._app.operations.is_any_running):
                    return
            except HoldfastError as error:
                log.error("bulk operations stand still: %s", error)
                await asyncio.sleep(RETRY_SECONDS)

    # --- endpoints ---

    async def handle(self, endpoint: Endpoint, request: Request) -> Response:
        identity = await self._authorize(request, endpoint.role)
        if self._is_read_only and request.method not in SAFE_METHODS:
            raise Refusal(403, "ReadOnly", "this server was started with --read-only: nothing can be changed by it")
        if not self._has_resumed:
            self._resume_operations()
        if endpoint.is_stream and "text/event-stream" in request.headers.get("accept", ""):
            return self._stream(request, frozenset({"events"}))  # type: ignore[return-value]
        call = Call(
            app=self._app,
            identity=identity,
            rules=self._rules,
            path=_path(request.path_params),
            query=None if endpoint.query is None else _query(request, endpoint.query),
            body=None if endpoint.body is None else await self._body(request, endpoint.body),
            key=_idempotency_key(request) if endpoint.idempotent_key else None,
        )
        etag = await self._etag(call) if endpoint.has_etag else None
        if etag is not None and etag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers={"etag": etag})
        try:
            if endpoint.method == "GET" and (age := _max_age(request)) > 0:
                place = (endpoint.path, str(request.url), call.hides_payloads)
                content = await self._shared.read(place, age, lambda: self._encoded(endpoint, call))
            else:
                content = await self._encoded_for(request, endpoint, call)
        except HoldfastError as error:
            return _problem_of(error)
        except RoleNeeded as error:
            raise _needs(error.role, identity) from None
        if endpoint.method != "GET":
            self._shared.forget()
            if endpoint.run is start_operation:
                self._resume_operations()
        headers = {} if etag is None else {"etag": etag, "cache-control": "private, no-cache"}
        return Response(content, endpoint.status, headers, "application/json")

    async def _encoded_for(self, request: Request, endpoint: Endpoint, call: Call) -> bytes:
        """Do not wait for a client that has left: what it would receive stays for others."""
        if not endpoint.waits:
            return await self._encoded(endpoint, call)
        working = asyncio.create_task(self._encoded(endpoint, call))
        leaving = asyncio.create_task(disconnected(request.receive))
        try:
            await asyncio.wait([working, leaving], return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                raise Refusal(400, "ClientDisconnected", "the client has left")
            return working.result()
        finally:
            for task in (working, leaving):
                task.cancel()
            await asyncio.gather(working, leaving, return_exceptions=True)

    async def _encoded(self, endpoint: Endpoint, call: Call) -> bytes:
        return msgspec.json.encode(await self._run(endpoint, call))

    async def _run(self, endpoint: Endpoint, call: Call) -> Any:
        if endpoint.waits:
            return await endpoint.run(call)
        return await self._in_thread(lambda: endpoint.run(call))

    async def _etag(self, call: Call) -> str:
        """Statistics change with events, and ages with time: a response is good for some seconds.

        Whom payloads are hidden from must not be shown what a browser kept of another user.
        """
        last = await self._in_thread(self._app.observe.last_event)
        return (
            f'"{last}-{int(anyio.current_time() // STATS_AGE_SECONDS)}-{"hidden" if call.hides_payloads else "all"}"'
        )

    async def openapi(self, request: Request) -> Response:
        await self._authorize(request, Role.viewer)
        return Response(self._document, media_type="application/json")

    async def stream(self, request: Request) -> Response:
        await self._authorize(request, Role.viewer)
        topics = frozenset(request.query_params.get("topics", "events,stats").split(","))
        if not topics <= frozenset(TOPICS):
            raise Refusal(400, "InvalidInput", f"topics must be some of {', '.join(TOPICS)}")
        return self._stream(request, topics)  # type: ignore[return-value]

    def _stream(self, request: Request, topics: frozenset[str]) -> EventStream:
        if self._hub.is_full:
            raise Refusal(503, "TooManyStreams", "too many pages are open: try again later", {"retry-after": "30"})
        given = request.headers.get("last-event-id") or request.query_params.get("after", "")
        last = int(given) if given.isascii() and given.isdecimal() and len(given) < 19 else None

        async def is_allowed() -> bool:
            try:
                await self._authorize(request, Role.viewer)
            except Refusal:
                return False
            return True

        return EventStream(self._hub, self._app, self._in_thread, topics, last, is_allowed)

    # --- identity ---

    async def _authorize(self, request: Request, role: Role) -> Identity:
        """Return the identity, or refuse. Changes must come from our own page, or from no page at all."""
        identity, session = await self._identify(request)
        if request.method not in SAFE_METHODS:
            _check_origin(request)
            if session is not None and not _same(request.headers.get(CSRF_HEADER, ""), session.csrf):
                raise Refusal(403, "WrongCSRFToken", f"send the header {CSRF_HEADER} with the token of {PREFIX}/me")
        if identity.role < role:
            raise _needs(role, identity)
        return identity

    async def _identify(self, request: Request) -> tuple[Identity, Session | None]:
        if self._auth is None:
            return OPEN, None
        if not isinstance(self._auth, Users):
            found = await self._in_thread(lambda: self._auth(request))  # type: ignore[operator, misc]
            if not isinstance(found, Identity):
                raise Refusal(401, "LoginElsewhere", "log in to the application that this page is part of")
            return found, None
        users = self._auth
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        try:
            if scheme.lower() == "bearer":
                identity = users.check_token(token.strip())
                if identity is None:
                    raise _login_needed()
                return identity, None
            session = self._sessions.find(request.cookies.get(COOKIE, ""))
            current = None if session is None else users.current(session)
        except InvalidInput as error:
            log.error("%s", error)
            raise Refusal(
                503, "UsersUnreadable", "the users file cannot be read: see the log of the server"
            ) from None
        if session is None or current is None:
            raise _login_needed()
        return current, session

    async def login(self, request: Request) -> Response:
        if not isinstance(self._auth, Users):
            raise Refusal(404, "NotFound", "this server has no logins: start it with --auth")
        _check_origin(request)
        body = await self._body(request, Login)
        subjects = (f"name {body.name}", f"address {request.client.host if request.client else ''}")
        left = self._attempts.seconds_left(*subjects)
        if left > 0:
            headers = {"retry-after": str(int(left) + 1)}
            raise Refusal(429, "TooManyLogins", f"too many failed logins: try again in {int(left) + 1} s", headers)
        self._attempts.failed(*subjects)  # until it succeeded, so that parallel guesses count
        users = self._auth
        check = partial(users.check_password, body.name, body.password)
        identity = await anyio.to_thread.run_sync(check, limiter=self._hashing)
        if identity is None:
            raise Refusal(401, "WrongPassword", "the name or the password is wrong")
        self._attempts.succeeded(*subjects)
        value, session = self._sessions.open(identity, users.hash_of(identity.name))
        response = _json(self._me(identity, session))
        secure = request.url.scheme == "https"
        path = request.scope.get("root_path") or "/"
        response.set_cookie(COOKIE, value, httponly=True, samesite="strict", secure=secure, path=path)
        return response

    async def logout(self, request: Request) -> Response:
        await self._authorize(request, Role.viewer)
        self._sessions.close(request.cookies.get(COOKIE, ""))
        response = _json({"ok": True})
        response.delete_cookie(COOKIE, path=request.scope.get("root_path") or "/")
        return response

    async def me(self, request: Request) -> Response:
        identity, session = await self._identify(request)
        return _json(self._me(identity, session))

    def _me(self, identity: Identity, session: Session | None) -> dict[str, Any]:
        csrf = None if session is None else session.csrf
        return {"name": identity.name, "role": identity.role.name, "csrf": csrf, "read_only": self._is_read_only}

    # --- bodies ---

    async def _body(self, request: Request, kind: type[Struct]) -> Any:
        data = await self._read(request)
        if not data and request.method == "DELETE":
            data = b"{}"
        elif request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            raise Refusal(415, "WrongContentType", "the body must be JSON: send content-type: application/json")
        try:
            plain = _decode_any(data or b"{}")  # bounds the depth, and refuses NaN
            return msgspec.convert(plain, kind)
        except (msgspec.DecodeError, ValueError) as error:
            raise Refusal(400, "InvalidInput", f"the body is wrong: {shorten(str(error))}") from None

    async def _read(self, request: Request) -> bytes:
        """Read the body. Few are read at a time, and none for long, so that slow clients do not fill the memory.

        Of a body that is too large, some more is read and dropped: a client or proxy that is cut off while it sends
        often does not read the response.
        """
        request.scope[BODY_WAS_READ] = True
        found, size = bytearray(), 0
        try:
            with anyio.fail_after(BODY_SECONDS):
                async with self._bodies:
                    async for chunk in request.stream():
                        size += len(chunk)
                        if size <= self._max_body:
                            found += chunk
                        elif size > self._max_body + MAX_DROPPED:
                            break
            if size > self._max_body:
                detail = f"the body must have at most {self._max_body} bytes"
                raise Refusal(413, "PayloadTooLarge", detail, {"connection": "close"})
        except ClientDisconnect:
            raise Refusal(400, "ClientDisconnected", "the body is incomplete") from None
        except TimeoutError:
            detail = f"the body was not complete after {BODY_SECONDS:g} seconds"
            raise Refusal(408, "RequestTimeout", detail, {"connection": "close"}) from None
        return bytes(found)


class SharedReads:
    """Responses that several open pages ask for at the same moment are read once."""

    def __init__(self) -> None:
        self._found: OrderedDict[Any, tuple[float, asyncio.Task[bytes]]] = OrderedDict()

    async def read(self, place: Any, max_age: float, read: Callable[[], Coroutine[Any, Any, bytes]]) -> bytes:
        """Return a response that is at most `max_age` seconds old."""
        now = anyio.current_time()
        begun, task = self._found.get(place, (-math.inf, None))
        if task is None or now - begun > max_age or (task.done() and (task.cancelled() or task.exception())):
            task = asyncio.create_task(read())
            self._found[place] = (now, task)
            self._found.move_to_end(place)
            while len(self._found) > MAX_SHARED:
                self._found.popitem(last=False)
        return await asyncio.shield(task)  # a client that leaves does not take the others' response away

    def forget(self) -> None:
        """Forget all responses: something was changed."""
        self._found.clear()


def _max_age(request: Request) -> float:
    """Return how old a response may be, as the page says when it follows events: Cache-Control: max-age=1."""
    found = re.search(r"\bmax-age=(\d{1,9})\b", request.headers.get("cache-control", ""))
    return 0.0 if found is None else min(float(found[1]), MAX_SHARED_AGE)


class Login(Struct, forbid_unknown_fields=True):
    name: str
    password: str


_decode_any = decoder(Any)


def _needs(role: Role, identity: Identity) -> Refusal:
    return Refusal(403, "NotAllowed", f"this needs the role {role.name}, and {identity.name} is {identity.role.name}")


def _login_needed() -> Refusal:
    return Refusal(401, "LoginNeeded", "log in, or send a token", {"www-authenticate": 'Bearer realm="holdfast"'})


def _same(given: str, expected: str) -> bool:
    import hmac

    return hmac.compare_digest(given.encode(), expected.encode())


def _check_origin(request: Request) -> None:
    """Refuse changes that another site's page makes with the browser of a user."""
    site = request.headers.get("sec-fetch-site")
    origin = request.headers.get("origin")
    same = origin is None or urlsplit(origin).netloc.lower() == request.headers.get("host", "").lower()
    if not same or site not in (None, "same-origin", "none"):
        raise Refusal(403, "WrongOrigin", "changes must come from this site's own pages, or from a program")


def _without_port(host: str) -> str:
    return host.partition("]")[0] + "]" if host.startswith("[") else host.partition(":")[0]


def _path_with_slashes(raw: bytes) -> str:
    """Decode a path with names in it that have a slash, which must not look like one that separates names."""
    return unquote(re.sub("%2f", quote(ESCAPED_SLASH), raw.partition(b"?")[0].decode("ascii"), flags=re.IGNORECASE))


def _path(found: Mapping[str, Any]) -> dict[str, Any]:
    return {name: one.replace(ESCAPED_SLASH, "/") if isinstance(one, str) else one for name, one in found.items()}


def _query(request: Request, kind: type[Struct]) -> Any:
    try:
        return msgspec.convert(dict(request.query_params), kind, strict=False)
    except msgspec.ValidationError as error:
        raise Refusal(400, "InvalidInput", f"the query is wrong: {shorten(str(error))}") from None


def _idempotency_key(request: Request) -> str | None:
    return request.headers.get("idempotency-key") or None


# --- responses ------------------------------------------------------------------------------------


def _json(data: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(data), status, dict(headers or {}), "application/json")


def _problem(status: int, code: str, detail: str, headers: Mapping[str, str] | None = None) -> Response:
    title = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", code).capitalize()
    body = Problem(type=f"urn:holdfast:{code}", title=title, status=status, detail=detail, code=code)
    return Response(msgspec.json.encode(body), status, dict(headers or {}), "application/problem+json")


def _problem_of(error: HoldfastError) -> Response:
    status = next(STATUS_OF[kind] for kind in type(error).__mro__ if kind in STATUS_OF)
    headers = {"retry-after": "1"} if status == 503 else {}
    return _problem(status, type(error).__name__, str(error), headers)


async def _http_problem(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    is_endpoint: bool = request.scope.get("endpoint") is not _no_endpoint
    if error.status_code == 405 and not is_endpoint:
        return await _no_endpoint(request)
    if error.status_code == 405:
        detail = f"{request.url.path} does not take {request.method}: see {PREFIX}/openapi.json"
        return _problem(405, "MethodNotAllowed", detail, error.headers)
    return _problem(error.status_code, "NotFound" if error.status_code == 404 else "HTTPError", error.detail)


async def _no_endpoint(request: Request) -> Response:
    return _problem(404, "NotFound", f"there is no endpoint {request.url.path}: see {PREFIX}/openapi.json")


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, Refusal)
    if request.method not in SAFE_METHODS and BODY_WAS_READ not in request.scope:
        await _drop_body(request)
    return _problem(error.status, error.code, error.detail, error.headers)


async def _drop_body(request: Request) -> None:
    """Read the body of a refused request and drop it. A sender that is cut off may not see the response."""
    size = 0
    with contextlib.suppress(ClientDisconnect), anyio.move_on_after(DROP_SECONDS):
        async for chunk in request.stream():
            size += len(chunk)
            if size > MAX_DROPPED:
                return


async def _broken(request: Request, error: Exception) -> Response:
    log.error("%s %r failed", request.method, request.url.path, exc_info=error)
    detail = "this is a bug of Holdfast or of the app: see the log of the server"
    return _problem(
        500, "InternalError", detail, SECURITY_HEADERS | {"cache-control": "no-store"}
    )  # beyond the Guard


HANDLERS: dict[Any, Callable[[Request, Exception], Awaitable[Response]]] = {
    HTTPException: _http_problem,
    Refusal: _refused,
    Exception: _broken,
}
