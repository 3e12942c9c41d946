"""The files of the web page, read and compressed once. Every path that is no file is the page itself."""

from __future__ import annotations

import gzip
import hashlib
import html
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from starlette.requests import Request
from starlette.responses import Response

FOLDER = Path(__file__).parent / "static"
KINDS = {
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".html": "text/html; charset=utf-8",
    ".txt": "text/plain; charset=utf-8",
}


class Asset(NamedTuple):
    kind: str
    data: bytes
    compressed: bytes
    etag: str


class StaticFiles:
    """Serves the static files, and the page for all paths that are no file."""

    def __init__(self, is_known: Callable[[Request], bool]) -> None:
        """is_known: whether the data of the first page can be loaded at once, because no login is needed for it."""
        self._is_known = is_known
        self._assets = {
            str(file.relative_to(FOLDER)): _asset(file.read_bytes(), file.suffix)
            for file in FOLDER.rglob("*")
            if file.suffix in KINDS
        }
        self._page = (FOLDER / "index.html").read_text(encoding="utf-8")

    async def static(self, request: Request) -> Response:
        found = self._assets.get(request.path_params["path"])
        if found is None:
            return Response("There is no such file.", 404, media_type="text/plain")
        return _response(request, found)

    async def page(self, request: Request) -> Response:
        root = request.scope.get("root_path", "").rstrip("/")
        # `first` has {{root}} in it, too.
        text = self._page.replace("{{first}}", self._first(request))
        text = text.replace("{{root}}", html.escape(root, quote=True))
        return _response(request, _asset(text.encode(), ".html"))

    def _first(self, request: Request) -> str:
        """Return links to what the page asks for first, so that it comes with the scripts and not after them."""
        name = page_name(request.path_params["path"])
        links = []
        if f"pages/{name}.js" in self._assets:
            links.append(f'  <link rel="modulepreload" href="{{{{root}}}}/static/pages/{name}.js">\n')
        if self._is_known(request):
            data = ("/me", "/stats") if name == "overview" else ("/me",)
            links += [
                f'  <link rel="preload" as="fetch" crossorigin href="{{{{root}}}}/api/v1{one}">\n' for one in data
            ]
        return "".join(links)


def page_name(path: str) -> str:
    """Return the name of the module that shows a path, if there is one: as main.js does."""
    first, _, rest = path.partition("/")
    return "overview" if not path else "job" if first == "jobs" and rest.isdecimal() else first if not rest else ""


def _asset(data: bytes, suffix: str) -> Asset:
    etag = f'"{hashlib.sha256(data).hexdigest()[:16]}"'
    return Asset(KINDS[suffix], data, gzip.compress(data, 9, mtime=0), etag)


def _response(request: Request, asset: Asset) -> Response:
    headers = {"etag": asset.etag, "cache-control": "no-cache", "vary": "accept-encoding"}
    if asset.etag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    if "gzip" in request.headers.get("accept-encoding", ""):
        return Response(asset.compressed, headers=headers | {"content-encoding": "gzip"}, media_type=asset.kind)
    return Response(asset.data, headers=headers, media_type=asset.kind)
