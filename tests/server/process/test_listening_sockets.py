"""Listening sockets: failures are reported in one line that names the remedy."""

import errno
import os
import socket

import pytest

from slipring.base.errors import StartupError
from slipring.server.process.listening_sockets import listen


def test_a_port_in_use_is_reported() -> None:
    with listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(StartupError) as caught:
            listen("127.0.0.1", port)
    assert str(caught.value) == (
        f"cannot listen on 127.0.0.1:{port}: the port is in use; stop the other server, or choose another"
        " port with --port"
    )


def test_the_flag_that_names_another_listeners_address_is_named() -> None:
    with listen("127.0.0.1", 0) as taken, pytest.raises(StartupError, match="another port with --admin"):
        listen("127.0.0.1", taken.getsockname()[1], flag="--admin")
    with pytest.raises(StartupError, match="choose another one with --admin"):
        listen("192.0.2.1", 0, flag="--admin")


def test_an_address_of_another_machine_is_reported() -> None:
    with pytest.raises(StartupError, match="does not have that address; choose another one with --host"):
        listen("192.0.2.1", 0)  # reserved for documentation by RFC 5737


@pytest.mark.parametrize(
    ("number", "reason"),
    [
        (errno.EACCES, "this port needs privileges; choose one from 1024 up with --port"),
        (errno.ENOBUFS, os.strerror(errno.ENOBUFS)),
    ],
)
def test_a_port_that_cannot_be_bound_is_reported(
    number: int, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Patched, because tests may run with the privilege to bind any port."""

    def bind(self: socket.socket, address: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(socket.socket, "bind", bind)
    with pytest.raises(StartupError) as caught:
        listen("127.0.0.1", 80)
    assert str(caught.value) == f"cannot listen on 127.0.0.1:80: {reason}"
