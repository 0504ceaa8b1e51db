"""Encryption of items: blobs that were changed, or belong to another tenant or key, are rejected."""

import base64

import pytest

from slipring.base.errors import StartupError
from slipring.core.chain.sealed_items import BrokenSeal
from slipring.protocol.items.items import Item, user_message
from slipring.server.access.content_encryption import KeyedSeal, new_key, open_seal, read_keys
from slipring.stores.store import Store

ITEMS = (user_message("one"), Item(type="reasoning", raw=b'{"type":"reasoning","id":"rs_1"}', id="rs_1"))
KEY, OTHER = bytes(range(32)), bytes(range(1, 33))


def is_rejected(seal: KeyedSeal, blob: str, tenant: str = "alice") -> bool:
    try:
        seal.open(tenant, blob)
    except BrokenSeal:
        return True
    return False


def test_decryption_returns_the_encrypted_items() -> None:
    seal = KeyedSeal([KEY])
    assert seal.open("alice", seal.seal("alice", ITEMS)) == ITEMS
    assert seal.open("alice", seal.seal("alice", ())) == ()


def test_a_blob_hides_its_content_and_is_never_repeated() -> None:
    seal = KeyedSeal([KEY])
    blob, again = (seal.seal("alice", ITEMS) for _ in range(2))
    assert blob != again
    assert b"one" not in base64.urlsafe_b64decode(blob.removeprefix("slr1.") + "==")


def test_a_change_anywhere_is_rejected() -> None:
    seal = KeyedSeal([KEY])
    blob = seal.seal("alice", ITEMS)
    for index, letter in enumerate(blob):
        for other in {"A", "B", "-", "=", " ", "é"} - {letter}:
            assert is_rejected(seal, blob[:index] + other + blob[index + 1 :]), index
        assert is_rejected(seal, blob[:index]), index
        assert is_rejected(seal, blob[:index] + blob[index + 1 :]), index


def test_another_base64_spelling_of_the_same_bytes_is_rejected() -> None:
    seal = KeyedSeal([KEY])
    blobs = (seal.seal("alice", (user_message("x" * length),)) for length in range(3))
    for blob in blobs:
        assert all(is_rejected(seal, f"{blob}{end}") for end in ("=", "==", "\n", "A"))


@pytest.mark.parametrize(
    "garbage", ["", "slr1.", "slr1.AAAA", "slr2." + "A" * 80, "gAAAAABh", "slr1.\ud800", "…"]
)
def test_garbage_is_rejected(garbage: str) -> None:
    assert is_rejected(KeyedSeal([KEY]), garbage)


def test_a_blob_of_another_tenant_is_rejected() -> None:
    seal = KeyedSeal([KEY])
    assert is_rejected(seal, seal.seal("alice", ITEMS), tenant="bob")


def test_a_blob_of_another_key_is_rejected() -> None:
    assert is_rejected(KeyedSeal([OTHER]), KeyedSeal([KEY]).seal("alice", ITEMS))


def test_the_first_key_encrypts_and_older_keys_decrypt() -> None:
    old, both, new = KeyedSeal([KEY]), KeyedSeal([OTHER, KEY]), KeyedSeal([OTHER])
    assert both.open("alice", old.seal("alice", ITEMS)) == ITEMS
    assert new.open("alice", both.seal("alice", ITEMS)) == ITEMS
    assert is_rejected(old, both.seal("alice", ITEMS))


def test_keys_are_read_from_a_file_in_order(tmp_path) -> None:
    path = tmp_path / "keys"
    path.write_text("".join(f"{base64.b64encode(key).decode()}\n" for key in (OTHER, KEY)))
    assert read_keys(str(path)) == [OTHER, KEY]


@pytest.mark.parametrize("content", ["", "not base64!", "c2hvcnQ=", "schlüssel"])
def test_a_file_without_valid_keys_is_an_error(tmp_path, content: str) -> None:
    path = tmp_path / "keys"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(StartupError, match="seal_key_file"):
        read_keys(str(path))


def test_a_missing_file_is_an_error(tmp_path) -> None:
    with pytest.raises(StartupError, match="No such file"):
        read_keys(str(tmp_path / "keys"))


class _Cluster:
    """Keeps the first secret proposed for a name, like all stores."""

    def __init__(self) -> None:
        self._secrets: dict[str, bytes] = {}

    async def secret(self, name: str, proposal: bytes) -> bytes:
        return self._secrets.setdefault(name, proposal)


class _Shared:
    cluster = _Cluster()


async def test_without_a_file_servers_share_a_key_in_the_store() -> None:
    shared: Store = _Shared()  # type: ignore[assignment]
    one, other = await open_seal("", shared), await open_seal("", shared)
    assert other.open("alice", one.seal("alice", ITEMS)) == ITEMS


def test_new_keys_differ() -> None:
    assert len({new_key() for _ in range(8)}) == 8
