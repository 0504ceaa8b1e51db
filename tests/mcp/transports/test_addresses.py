"""Where registered servers are: names that are looked up again and again, and all spellings of an address."""

import asyncio
import socket
from typing import Any

import pytest
from yarl import URL

from slipring.mcp.failures import Unreachable
from slipring.mcp.transports import addresses
from slipring.mcp.transports.addresses import AddressIsRegistered, RegisteredAddresses, canonical

Answer = list[str] | Exception


class Names:
    """A name server with an answer for each name, until it is given another one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **answers: Answer) -> None:
        self.answers = answers
        self.asked = 0
        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", self.getaddrinfo, raising=False)

    async def getaddrinfo(self, host: str, port: object, **_: Any) -> list[tuple[Any, ...]]:
        self.asked += 1
        answer = self.answers[host]
        if isinstance(answer, Exception):
            raise answer
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 0)) for address in answer]


def is_reserved(places: RegisteredAddresses, address: str, port: int = 9000) -> bool:
    try:
        places.require_free(address, port)
    except AddressIsRegistered:
        return True
    return False


@pytest.fixture(autouse=True)
def always_stale(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(addresses, "_FRESH_S", -1.0)


async def test_all_addresses_of_a_name_are_reserved_and_those_that_it_had_before_are_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = Names(monkeypatch, inside=["192.0.2.1", "192.0.2.2"])
    places = RegisteredAddresses([URL("http://inside:9000/mcp")])
    await places.look_up()
    assert [is_reserved(places, f"192.0.2.{number}") for number in (1, 2, 3)] == [True, True, False]
    assert not is_reserved(places, "192.0.2.1", 9001)
    names.answers["inside"] = ["192.0.2.3"]
    await places.look_up()
    assert [is_reserved(places, f"192.0.2.{number}") for number in (1, 2, 3)] == [False, False, True]


async def test_names_are_looked_up_once_for_all_who_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(addresses, "_FRESH_S", 60.0)
    names = Names(monkeypatch, inside=["192.0.2.1"])
    places = RegisteredAddresses([URL("http://inside:9000/mcp"), URL("http://inside:9000/other")])
    await asyncio.gather(*(places.look_up() for _ in range(3)))
    await places.look_up()
    assert names.asked == 1


async def test_a_name_that_cannot_be_looked_up_keeps_its_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without any, no URL of a client is connected to: it could lead there."""
    names = Names(monkeypatch, inside=socket.gaierror(socket.EAI_AGAIN, "try again"))
    places = RegisteredAddresses([URL("http://inside:9000/mcp")])
    with pytest.raises(Unreachable):
        await places.look_up()
    names.answers["inside"] = ["192.0.2.1"]
    await places.look_up()
    names.answers["inside"] = TimeoutError()
    await places.look_up()
    assert is_reserved(places, "192.0.2.1")


async def test_a_name_that_does_not_exist_reserves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    Names(monkeypatch, inside=socket.gaierror(socket.EAI_NONAME, "unknown"))
    places = RegisteredAddresses([URL("http://inside:9000/mcp")])
    await places.look_up()
    assert not is_reserved(places, "192.0.2.1")


def test_an_address_has_one_spelling() -> None:
    for same in ("192.0.2.1", "::ffff:192.0.2.1", "64:ff9b::c000:201", "2002:c000:201::"):
        assert canonical(same) == "192.0.2.1"
    assert canonical("fe80::1%eth0") == canonical("FE80:0::1")
    here = {
        canonical(each) for each in ("127.0.0.1", "127.8.9.1", "0.0.0.0", "::1", "::", "::ffff:127.0.0.1")
    }
    assert len(here) == 1


def test_all_addresses_of_this_machine_are_one() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            pytest.skip("this machine has no way to other networks")
        own = probe.getsockname()[0]
    assert canonical(own) == canonical("127.0.0.1")
