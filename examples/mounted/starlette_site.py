"""The web page inside a Starlette site, for users of its own login. Run it with: uvicorn starlette_site:site"""

from jobs import app
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.sessions import SessionMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Mount, Route

from holdfast.web import Identity, identity

STAFF = {"ada": "admin", "kim": "viewer"}


def staff_only(request: Request) -> Identity | None:
    """Tell the page who the user is: None is refused."""
    name = request.session.get("user")
    return identity(name, STAFF[name]) if name in STAFF else None


async def home(request: Request) -> Response:
    return PlainTextResponse(f"Hello, {request.session.get('user', 'stranger')}. The jobs are at /jobs/")


async def log_in(request: Request) -> Response:
    request.session["user"] = request.path_params["name"]  # a real site checks a password first
    return RedirectResponse("/jobs/", 303)


site = Starlette(
    routes=[Route("/", home), Route("/login/{name}", log_in), Mount("/jobs", app.web(auth=staff_only))],
    middleware=[Middleware(SessionMiddleware, secret_key="change me", same_site="strict")],
)
