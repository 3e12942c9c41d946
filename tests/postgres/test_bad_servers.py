"""Servers, roles and URLs that do not fit: a typed error that says what to do, and shows no password."""

import shutil
import socket
import ssl
import struct
import subprocess
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from click.testing import CliRunner

from holdfast import Holdfast
from holdfast.cli import main as command_line
from holdfast.errors import CannotOpen, HoldfastError, InvalidInput, ReadOnlyDatabase
from support.postgres_backend import PostgresBackend
from support.postgres_server import start_server, stop_server
from support.running_worker import eventually

PASSWORD = "hunter2"


def with_role(url: str, role: str, password: str = PASSWORD) -> str:
    return url.replace("user=holdfast", f"user={role}").replace("password=", f"password={password}")


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://ada:hunter2@nowhere.invalid/app",
        "postgresql://ada:hunter2@127.0.0.1:1,nowhere.invalid:2/app",
        "postgresql://ada:hunter2@127.0.0.1:99999/app",
        "postgresql://ada:hunter2@127.0.0.1:1/app?sslmode=nonsense",
        "postgresql://ada:hunter2@127.0.0.1:1/app?target_session_attrs=nonsense",
        "postgresql://ada:hunter2@127.0.0.1:1/app?connect_timeout=soon",
        "postgresql://ada@127.0.0.1:1/app?password=hunter2",
        "postgresql://ada:?hunter2#@127.0.0.1:1/app",
    ],
)
def test_a_server_that_cannot_be_reached_is_a_typed_error(url: str) -> None:
    with pytest.raises(CannotOpen, match=r"cannot connect to postgresql://.*: check that the server runs") as caught:
        Holdfast(url)
    assert PASSWORD not in str(caught.value) and caught.value.__suppress_context__


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://ada:hun@ter2@127.0.0.1/app",
        "postgresql://ada:hun/ter2@127.0.0.1/app",
        "postgresql://ada:hun%zzter2@127.0.0.1/app",
        "postgresql://ada:hunter2@[::1/app",
        "postgresql://ada:hunter2@127.0.0.1:port/app",
        "postgresql://ada:hunter2@127.0.0.1/app?hunter2",
    ],
)
def test_a_url_that_cannot_be_read_says_how_to_write_it_and_shows_nothing(url: str) -> None:
    with pytest.raises(HoldfastError) as caught:
        Holdfast(url)
    assert isinstance(caught.value, InvalidInput), caught.value
    assert "%40 for @" in str(caught.value)
    for part in ("hun", "ter2"):
        assert part not in str(caught.value)


def test_no_representation_shows_the_password(backend: PostgresBackend) -> None:
    with Holdfast(with_role(backend.url, "holdfast")) as app:
        database = app.store.database  # type: ignore[attr-defined]
        shown = [app, app.store, database, database.options, database.where, database.sessions, app.store.location]
        assert PASSWORD not in " ".join(map(repr, shown))


def test_a_wrong_password_is_a_typed_error_that_does_not_show_it() -> None:
    server = start_server()
    try:
        with psycopg.connect(server.url, autocommit=True) as connection:
            connection.execute("CREATE ROLE ada LOGIN PASSWORD 'the right one'")
            rules = server.folder / "data" / "pg_hba.conf"
            rules.write_text(f"local all ada scram-sha-256\n{rules.read_text()}")
            connection.execute("SELECT pg_reload_conf()")
            url = server.url.replace("user=holdfast", f"user=ada&password={PASSWORD}")
            eventually(lambda: not connects(url), "the server has read its rules")
        with pytest.raises(CannotOpen, match="password authentication failed") as caught:
            Holdfast(url)
        told = "".join(traceback.format_exception(caught.value))
        for command in ("stats", "doctor"):
            told += CliRunner().invoke(command_line, [command, "--db", url]).output
        assert told.count("password authentication failed") == 3 and PASSWORD not in told
    finally:
        stop_server(server)


def connects(url: str) -> bool:
    try:
        psycopg.connect(url).close()
    except psycopg.OperationalError:
        return False
    return True


def test_a_database_that_does_not_exist_is_a_typed_error(backend: PostgresBackend) -> None:
    (name,) = backend.sql("SELECT current_database()")[0]
    with pytest.raises(CannotOpen, match='database "nosuch" does not exist'):
        Holdfast(backend.url.replace(name, "nosuch"))


def test_a_role_that_does_not_exist_is_a_typed_error(backend: PostgresBackend) -> None:
    with pytest.raises(CannotOpen, match='role "nobody_knows" does not exist') as caught:
        Holdfast(with_role(backend.url, "nobody_knows"))
    assert PASSWORD not in str(caught.value)


@pytest.fixture
def stranger(backend: PostgresBackend) -> Iterator[str]:
    """The URL of a role without rights."""
    backend.sql("CREATE ROLE stranger LOGIN")
    yield with_role(backend.url, "stranger")
    backend.sql("DROP OWNED BY stranger")
    backend.sql("DROP ROLE stranger")


def test_a_role_that_may_not_create_tables_is_told_so(backend: PostgresBackend, stranger: str) -> None:
    for options in ({"prefix": "mine_"}, {"schema": "mine"}):
        with pytest.raises(CannotOpen, match=r"permission denied .*rights"):
            Holdfast(stranger, **options)  # type: ignore[arg-type]


def test_a_role_that_may_not_use_the_tables_is_told_so(backend: PostgresBackend, stranger: str) -> None:
    with pytest.raises(CannotOpen, match=r"permission denied .*rights"):
        Holdfast(stranger)


def test_a_role_that_owns_nothing_can_be_given_the_rights_that_a_worker_needs(
    backend: PostgresBackend, stranger: str
) -> None:
    """The server tells its start, its crashes and its timeline to any role."""
    backend.sql("GRANT ALL ON ALL TABLES IN SCHEMA public TO stranger")
    backend.sql("GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO stranger")
    with Holdfast(stranger) as app, Holdfast(backend.url) as owner:
        app.queue("inbox").send(1)
        here = {one.store.database.locks._look(1).incarnation for one in (app, owner)}  # type: ignore[attr-defined]
        assert len(here) == 1


def test_a_server_that_takes_no_writes_is_a_typed_error(backend: PostgresBackend) -> None:
    with Holdfast(f"{backend.url}&options=-c%20default_transaction_read_only%3Don") as app:
        assert app.queue("inbox").stats().ready == 0
        with pytest.raises(ReadOnlyDatabase, match="primary"):
            app.queue("inbox").send(1)


def test_a_server_without_free_connections_is_a_typed_error(backend: PostgresBackend, stranger: str) -> None:
    """A role may be limited as the whole server is."""
    backend.sql("ALTER ROLE stranger CONNECTION LIMIT 0")
    with pytest.raises(CannotOpen, match="too many connections"):
        Holdfast(stranger)


@contextmanager
def server_of_version(version: str) -> Iterator[int]:
    """Something that greets as a server of this version does. Yields its port."""

    def message(kind: bytes, body: bytes) -> bytes:
        return kind + struct.pack("!i", len(body) + 4) + body

    def greet() -> None:
        client, _ = listener.accept()
        with client:
            client.recv(4096)
            parameters = {"server_version": version, "client_encoding": "UTF8", "integer_datetimes": "on"}
            told = b"".join(message(b"S", f"{name}\0{value}\0".encode()) for name, value in parameters.items())
            client.sendall(message(b"R", struct.pack("!i", 0)) + told + message(b"Z", b"I"))
            client.recv(4096)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        greeting = threading.Thread(target=greet, daemon=True)
        greeting.start()
        yield listener.getsockname()[1]
        greeting.join()


def test_an_old_server_is_a_typed_error() -> None:
    with server_of_version("13.14") as port, pytest.raises(CannotOpen, match="is PostgreSQL 13, Holdfast needs 14"):
        Holdfast(f"postgresql://ada@127.0.0.1:{port}/app?sslmode=disable&gssencmode=disable")


# --- encryption ---

SSL_REQUEST = struct.pack("!ii", 8, 80877103)
ENCRYPTED = "gssencmode=disable&sslmode"


@contextmanager
def server_that_answers(greet: Callable[[socket.socket], object]) -> Iterator[tuple[int, list[bytes]]]:
    """Something that takes a request for encryption. Yields its port, and what it can read of all that follows."""
    heard: list[bytes] = []

    def serve() -> None:
        client, _ = listener.accept()
        with client:
            assert client.recv(8) == SSL_REQUEST
            try:
                greet(client)
                heard.append(client.recv(4096))
            except OSError:  # the client gave up
                return

    with socket.create_server(("127.0.0.1", 0)) as listener:
        serving = threading.Thread(target=serve, daemon=True)
        serving.start()
        yield listener.getsockname()[1], heard
        serving.join()


def test_nothing_is_told_to_a_server_that_does_not_encrypt_as_the_url_demands() -> None:
    with server_that_answers(lambda client: client.sendall(b"N")) as (port, heard):
        with pytest.raises(CannotOpen, match="does not support SSL") as caught:
            Holdfast(f"postgresql://ada:{PASSWORD}@127.0.0.1:{port}/app?{ENCRYPTED}=require")
        assert PASSWORD not in str(caught.value)
    assert heard == [b""]


@pytest.mark.skipif(shutil.which("openssl") is None, reason="makes the certificates")
def test_nothing_is_told_to_a_server_whose_certificate_another_authority_has_signed(tmp_path: Path) -> None:
    for name in ("ours", "theirs"):
        made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost"]
        files = ["-keyout", str(tmp_path / f"{name}.key"), "-out", str(tmp_path / f"{name}.pem")]
        subprocess.run([*made, *files], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "theirs.pem", tmp_path / "theirs.key")

    def encrypt(client: socket.socket) -> None:
        client.sendall(b"S")
        with context.wrap_socket(client, server_side=True) as encrypted:
            heard.append(encrypted.recv(4096))

    heard: list[bytes] = []
    with server_that_answers(encrypt) as (port, _):
        trusted = f"{ENCRYPTED}=verify-full&sslrootcert={tmp_path / 'ours.pem'}"
        with pytest.raises(CannotOpen, match="certificate verify failed") as caught:
            Holdfast(f"postgresql://ada:{PASSWORD}@localhost:{port}/app?{trusted}")
        assert PASSWORD not in str(caught.value)
    assert heard in ([], [b""])


def test_several_hosts_are_shown_with_their_ports() -> None:
    with pytest.raises(CannotOpen, match=r"postgresql://127\.0\.0\.1:1,127\.0\.0\.1:2/app"):
        Holdfast("postgresql://127.0.0.1:1,127.0.0.1:2/app")
