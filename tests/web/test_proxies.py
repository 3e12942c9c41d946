"""The configurations of nginx and Caddy in the guide, with the real programs: TLS, streams, hosts and headers."""

import json
import re
import shutil
import socket
import ssl
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from holdfast import Holdfast
from holdfast.web import Users, trusted_header
from holdfast.web.server import WebServer
from support.running_worker import PATIENCE_SECONDS, eventually
from support.web_users import PASSWORD

GUIDE = Path(__file__).parents[2] / "docs/guides/web.md"
HOST = "jobs.example.org"
NGINX = """
daemon off; pid {folder}/pid; error_log {folder}/error.log;
events {{}}
http {{
    access_log off; client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi; uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
    {block}
}}
"""
CADDY = "{{\n    admin off\n    auto_https off\n    storage file_system {folder}\n}}\n{block}"


def block_of(name: str) -> str:
    """Return the configuration in the guide whose first line names the program."""
    found: str = re.findall(rf"```text\n(# {name}\b.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)[0]
    return found


def free_port() -> int:
    with closing(socket.socket()) as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


class Proxy:
    """One of the two programs, with the configuration of the guide and ports and files of this test."""

    def __init__(self, name: str, folder: Path, upstream: int) -> None:
        self.port = free_port()
        certificate, key = folder / "jobs.pem", folder / "jobs.key"
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
             "-keyout", key, "-out", certificate, "-days", "2", "-subj", f"/CN={HOST}",
             "-addext", f"subjectAltName=DNS:{HOST}"],
            check=True, capture_output=True,
        )  # fmt: skip
        block = block_of(name).replace("127.0.0.1:8520", f"127.0.0.1:{upstream}")
        config = folder / "config"
        if name == "nginx":
            block = block.replace("listen 443", f"listen 127.0.0.1:{self.port}").replace("/etc/ssl/", f"{folder}/")
            config.write_text(NGINX.format(folder=folder, block=block), encoding="utf-8")
            command = ["nginx", "-p", str(folder), "-c", str(config)]
        else:
            site = f"{HOST}:{self.port} {{\n    bind 127.0.0.1\n    tls {certificate} {key}"
            block = block.replace(f"{HOST} {{", site)
            config.write_text(CADDY.format(folder=folder, block=block), encoding="utf-8")
            command = ["caddy", "run", "--config", str(config), "--adapter", "caddyfile"]
        self.log = (folder / "proxy.log").open("wb")
        self.process = subprocess.Popen(command, stdout=self.log, stderr=self.log)
        eventually(self._listens, f"{name} listens, see {folder}")
        self._trusted = ssl.create_default_context(cafile=str(certificate))

    def _listens(self) -> bool:
        assert self.process.poll() is None, Path(self.log.name).read_text()
        with closing(socket.socket()) as one:
            return one.connect_ex(("127.0.0.1", self.port)) == 0

    @property
    def origin(self) -> str:
        return f"https://{HOST}:{self.port}"

    def client(self) -> httpx.Client:
        return httpx.Client(base_url=self.origin, transport=_ToLoopback(self.port, self._trusted))

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(PATIENCE_SECONDS)
        self.log.close()


class _ToLoopback(httpx.HTTPTransport):
    """Connects to loopback for the name of the host, as a name server would."""

    def __init__(self, port: int, verify: ssl.SSLContext) -> None:
        super().__init__(verify=verify)
        self._port = port

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        extensions = {"sni_hostname": HOST, "timeout": httpx.Timeout(PATIENCE_SECONDS).as_dict()}
        url = request.url.copy_with(host="127.0.0.1")
        return super().handle_request(
            httpx.Request(request.method, url, headers=request.headers, stream=request.stream, extensions=extensions)
        )


@pytest.fixture(params=["nginx", "Caddy"])
def behind(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[..., Proxy]]:
    """Serve an app behind a proxy."""
    if shutil.which(request.param.lower()) is None or shutil.which("openssl") is None:
        pytest.skip(f"{request.param} is not installed")
    started: list[Any] = []

    def serve(app: Holdfast, **options: Any) -> Proxy:
        server = WebServer(app.web(hosts=[HOST], **options), port=0).start()
        started.append(server)
        started.append(Proxy(request.param, tmp_path, server.port))
        return started[-1]

    yield serve
    for one in reversed(started):
        one.close()


def test_the_page_works_behind_a_proxy_with_tls(behind: Callable[..., Proxy], served: Holdfast, users: Users) -> None:
    proxy = behind(served, auth=users)
    with proxy.client() as client:
        assert "<title>Holdfast" in client.get("/jobs?q=status:failed").text
        own = {"origin": proxy.origin, "sec-fetch-site": "same-origin"}
        body = {"name": "operator", "password": PASSWORD}
        assert client.post("/api/v1/login", json=body, headers={"origin": "https://evil.example"}).status_code == 403
        login = client.post("/api/v1/login", json=body, headers=own)
        cookie = login.headers["set-cookie"].lower()
        assert "secure" in cookie and "httponly" in cookie and "samesite=strict" in cookie
        own["x-holdfast-csrf"] = login.json()["csrf"]
        with client.stream("GET", "/api/v1/stream?topics=events") as stream:
            lines = stream.iter_lines()
            assert next(line for line in lines if line.startswith("event:")) == "event: ready"
            sent = client.post("/api/v1/queues/q/messages", json={"body": 1}, headers=own)
            assert sent.status_code == 201
            told = next(json.loads(line[6:]) for line in lines if line.startswith("data:") and "job_id" in line)
            assert (told["event"], told["job_id"]) == ("enqueued", sent.json()["id"]), "at once, while it is open"
        large = client.post("/api/v1/queues/q/messages", content=b" " * 1_200_000, headers=own)
        assert large.status_code == 413
        assert "items" not in client.get("/api/v1/jobs", headers={"host": "other.example"}).text


def test_a_proxy_removes_the_header_that_is_trusted(behind: Callable[..., Proxy], served: Holdfast) -> None:
    proxy = behind(served, auth=trusted_header("x-user", "admin"))
    with proxy.client() as client:
        assert client.get("/api/v1/me", headers={"X-User": "mallory"}).status_code == 401
