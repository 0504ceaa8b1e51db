"""Seals: what is tampered with, meant for others or made elsewhere does not open."""

import base64

import pytest

from slipring.core.chain.sealed_items import BrokenSeal
from slipring.errors import StartupError
from slipring.protocol.items import Item, user_message
from slipring.server.access.seal_keys import KeyedSeal, new_key, open_seal, read_keys
from slipring.stores.base import Store

ITEMS = (user_message("one"), Item(type="reasoning", raw=b'{"type":"reasoning","id":"rs_1"}', id="rs_1"))
KEY, OTHER = bytes(range(32)), bytes(range(1, 33))


def broken(seal: KeyedSeal, blob: str, tenant: str = "alice") -> bool:
    try:
        seal.open(tenant, blob)
    except BrokenSeal:
        return True
    return False


def test_what_is_sealed_opens_as_it_was() -> None:
    seal = KeyedSeal([KEY])
    assert seal.open("alice", seal.seal("alice", ITEMS)) == ITEMS
    assert seal.open("alice", seal.seal("alice", ())) == ()


def test_a_blob_tells_nothing_and_is_never_the_same_twice() -> None:
    seal = KeyedSeal([KEY])
    blob, again = (seal.seal("alice", ITEMS) for _ in range(2))
    assert blob != again
    assert b"one" not in base64.urlsafe_b64decode(blob.removeprefix("slr1.") + "==")


def test_a_change_anywhere_breaks_the_seal() -> None:
    seal = KeyedSeal([KEY])
    blob = seal.seal("alice", ITEMS)
    for place, letter in enumerate(blob):
        for other in {"A", "B", "-", "=", " ", "é"} - {letter}:
            assert broken(seal, blob[:place] + other + blob[place + 1 :]), place
        assert broken(seal, blob[:place]), place
        assert broken(seal, blob[:place] + blob[place + 1 :]), place


def test_another_spelling_of_the_same_bytes_is_not_ours() -> None:
    seal = KeyedSeal([KEY])
    blobs = (seal.seal("alice", (user_message("x" * length),)) for length in range(3))
    for blob in blobs:
        assert all(broken(seal, f"{blob}{end}") for end in ("=", "==", "\n", "A"))


@pytest.mark.parametrize(
    "garbage", ["", "slr1.", "slr1.AAAA", "slr2." + "A" * 80, "gAAAAABh", "slr1.\ud800", "…"]
)
def test_garbage_does_not_open(garbage: str) -> None:
    assert broken(KeyedSeal([KEY]), garbage)


def test_a_seal_is_for_one_tenant() -> None:
    seal = KeyedSeal([KEY])
    assert broken(seal, seal.seal("alice", ITEMS), tenant="bob")


def test_another_key_does_not_open() -> None:
    assert broken(KeyedSeal([OTHER]), KeyedSeal([KEY]).seal("alice", ITEMS))


def test_an_old_key_opens_and_the_new_one_seals() -> None:
    old, both, new = KeyedSeal([KEY]), KeyedSeal([OTHER, KEY]), KeyedSeal([OTHER])
    assert both.open("alice", old.seal("alice", ITEMS)) == ITEMS
    assert new.open("alice", both.seal("alice", ITEMS)) == ITEMS
    assert broken(old, both.seal("alice", ITEMS))


def test_keys_are_read_from_a_file_the_newest_first(tmp_path) -> None:
    path = tmp_path / "keys"
    path.write_text("".join(f"{base64.b64encode(key).decode()}\n" for key in (OTHER, KEY)))
    assert read_keys(str(path)) == [OTHER, KEY]


@pytest.mark.parametrize("content", ["", "not base64!", "c2hvcnQ=", "schlüssel"])
def test_a_file_without_keys_is_named(tmp_path, content: str) -> None:
    path = tmp_path / "keys"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(StartupError, match="seal_key_file"):
        read_keys(str(path))


def test_a_file_that_is_not_there_is_named(tmp_path) -> None:
    with pytest.raises(StartupError, match="No such file"):
        read_keys(str(tmp_path / "keys"))


class _Cluster:
    """Keeps the first proposal, as all stores do."""

    def __init__(self) -> None:
        self._secrets: dict[str, bytes] = {}

    async def secret(self, name: str, proposal: bytes) -> bytes:
        return self._secrets.setdefault(name, proposal)


class _Shared:
    cluster = _Cluster()


async def test_without_a_file_the_store_holds_the_key() -> None:
    shared: Store = _Shared()  # type: ignore[assignment]
    one, other = await open_seal("", shared), await open_seal("", shared)
    assert other.open("alice", one.seal("alice", ITEMS)) == ITEMS


def test_new_keys_are_new() -> None:
    assert len({new_key() for _ in range(8)}) == 8
