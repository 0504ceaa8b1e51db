"""Why a connection failed: every client names what is wrong with a server, its certificate or its URL, and
what to do. The servers are real, and their certificates too.
"""

import ipaddress
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import StreamRequestHandler, ThreadingTCPServer
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from slipring.base.connection_failures import reason
from slipring.commands.cli import main


class _Quiet(BaseHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: object, client_address: object) -> None:
        """Print nothing: clients hang up."""


@contextmanager
def listening(certificate: Path | None) -> Iterator[int]:
    """An HTTP server in a thread, over TLS if it has a certificate; yields its port."""
    server = _Server(("127.0.0.1", 0), _Quiet)
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def certificate(
    directory: Path, *, address: str = "127.0.0.1", begins: timedelta, ends: timedelta, signed: bool = False
) -> tuple[Path, Path]:
    """The file of a new certificate with its key, and that of the authority that has signed it: the
    certificate itself, unless ``signed``."""
    now = datetime.now(UTC)
    key, issuer_key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    subject, issuer = (
        x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]) for name in ("server", "authority")
    )

    def built(name: x509.Name, by: x509.Name, public: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        constraints = x509.BasicConstraints(ca=name == by, path_length=None)
        names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(address))])
        return (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(by)
            .public_key(public.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now + begins)
            .not_valid_after(now + ends)
            .add_extension(names, critical=False)
            .add_extension(constraints, critical=True)
        )

    authority = built(issuer, issuer, issuer_key).sign(issuer_key, hashes.SHA256())
    if signed:
        made = built(subject, issuer, key).sign(issuer_key, hashes.SHA256())
    else:
        made = authority = built(subject, subject, key).sign(key, hashes.SHA256())
    encoding = serialization.Encoding.PEM
    private = key.private_bytes(encoding, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    own, other = directory / "own.pem", directory / "authority.pem"
    own.write_bytes(made.public_bytes(encoding) + private)
    other.write_bytes(authority.public_bytes(encoding))
    return own, other


DAY = timedelta(days=1)
TODAY: dict[str, Any] = {"begins": -DAY, "ends": DAY}
CERTIFICATES: dict[str, tuple[dict[str, Any], bool, str]] = {
    "self-signed": (TODAY, False, "its certificate is self-signed: set SSL_CERT_FILE"),
    "unknown authority": (
        {**TODAY, "signed": True},
        False,
        "signed by an authority that is not trusted here: set SSL_CERT_FILE",
    ),
    "expired": ({"begins": -2 * DAY, "ends": -DAY}, True, "its certificate has expired"),
    "too new": ({"begins": DAY, "ends": 2 * DAY}, True, "its certificate is not valid yet: check the clock"),
    "other address": ({**TODAY, "address": "127.0.0.9"}, True, "its certificate is for another address"),
}


@pytest.mark.parametrize("name", CERTIFICATES)
def test_what_is_wrong_with_a_certificate_is_named(name: str, tmp_path: Path) -> None:
    fields, is_trusted, expected = CERTIFICATES[name]
    own, authority = certificate(tmp_path, **fields)
    context = ssl.create_default_context(cafile=str(authority) if is_trusted else None)
    with (
        listening(own) as port,
        pytest.raises(ssl.SSLError) as caught,
        socket.create_connection(("127.0.0.1", port)) as connection,
    ):
        context.wrap_socket(connection, server_hostname="127.0.0.1")
    assert expected in reason(caught.value)


COMMANDS = {
    "chat": ["chat", "--url", "{url}/v1", "hello"],
    "top": ["top", "--url", "{url}", "--once"],
    "bench": ["bench", "--url", "{url}/v1", "--mode", "websocket", "--repeats", "1"],
    "load": ["bench", "load", "--url", "{url}/v1", "--connections", "1", "--hold-s", "0.1"],
    "launch": ["launch", "codex", "--url", "{url}/v1"],
    "inspect": ["inspect", "vllm:{url}"],
    "chat engine": ["serve", "--port", "0", "--engine", "chat:{url}/v1"],
    "vllm engine": ["serve", "--port", "0", "--engine", "vllm:{url}"],
    "responses engine": ["serve", "--port", "0", "--engine", "responses:{url}/v1"],
    "llama engine": ["serve", "--port", "0", "--engine", "llama:{url}"],
}


@pytest.fixture
def installed_codex(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "codex"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")


@pytest.mark.usefixtures("installed_codex")
@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize(
    ("scheme", "has_tls", "expected"),
    [
        ("https", True, "its certificate is self-signed: set SSL_CERT_FILE to a file with that certificate"),
        ("https", False, "it does not answer in TLS there: the URL probably begins with http://"),
        ("http", None, "Connection refused"),
    ],
)
def test_every_command_says_in_one_line_why_it_cannot_connect(
    name: str,
    scheme: str,
    *,
    has_tls: bool | None,
    expected: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with listening(certificate(tmp_path, **TODAY)[0] if has_tls else None) as port:
        reached = 9 if has_tls is None else port
        command = [word.format(url=f"{scheme}://127.0.0.1:{reached}") for word in COMMANDS[name]]
        assert main(command) != 0
    out, err = capsys.readouterr()
    assert out == ""
    (line,) = err.splitlines()
    assert line.startswith("slipring: ")
    assert line.endswith(expected)


@contextmanager
def answering(answer: bytes) -> Iterator[int]:
    """A server in a thread that reads from a connection, answers with these bytes and closes it; yields its
    port."""

    class Handler(StreamRequestHandler):
        def handle(self) -> None:
            while self.rfile.readline().strip():  # the whole head: a close would reset the connection
                pass
            self.wfile.write(answer)

    with ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()


TLS_ALERT = bytes.fromhex("15030100020246")


@pytest.mark.usefixtures("installed_codex")
@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("answer", [TLS_ALERT, b""], ids=["alert", "end"])
def test_a_server_that_speaks_tls_is_not_taken_for_one_that_is_down(
    name: str, answer: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    with answering(answer) as port:
        assert main([word.format(url=f"http://127.0.0.1:{port}") for word in COMMANDS[name]]) != 0
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("if it speaks TLS, the URL begins with https://")
