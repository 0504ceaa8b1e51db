"""Seals: what clients keep for us, encrypted and bound to their tenant.

A blob is ``slr1.`` and, in URL-safe base64, a key's id, a nonce and what AES-256-GCM made of the items' JSON.
The first key seals and every key opens, so that keys can be changed without breaking what is out there. A
nonce is 96 random bits: one key is good for billions of seals.
"""

import base64
import binascii
import hashlib
import secrets
from collections.abc import Sequence
from pathlib import Path

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from slipring.core.chain.sealed_items import BrokenSeal
from slipring.errors import ApiError, StartupError
from slipring.protocol.items import Item, read_item
from slipring.stores.base import Store

KEY_BYTES = 32
_VERSION = "slr1."
_ID_BYTES = 4
_NONCE_BYTES = 12
_items = msgspec.json.Decoder(list[msgspec.Raw])


class KeyedSeal:
    """Seals with the first of its keys, opens with any."""

    def __init__(self, keys: Sequence[bytes]) -> None:
        """Keys of 32 bytes, at least one."""
        self._ciphers = {_key_id(key): AESGCM(key) for key in keys}
        self._newest = _key_id(keys[0])

    def seal(self, tenant: str, items: tuple[Item, ...]) -> str:
        payload = b"[" + b",".join(item.raw for item in items) + b"]"
        nonce = secrets.token_bytes(_NONCE_BYTES)
        sealed = self._ciphers[self._newest].encrypt(nonce, payload, _bound(tenant, self._newest))
        return _VERSION + base64.urlsafe_b64encode(self._newest + nonce + sealed).decode().rstrip("=")

    def open(self, tenant: str, blob: str) -> tuple[Item, ...]:
        data = _decoded(blob)
        key_id, rest = data[:_ID_BYTES], data[_ID_BYTES:]
        cipher = self._ciphers.get(key_id)
        if cipher is None or len(rest) <= _NONCE_BYTES:
            raise BrokenSeal
        try:
            payload = cipher.decrypt(rest[:_NONCE_BYTES], rest[_NONCE_BYTES:], _bound(tenant, key_id))
            return tuple(read_item(bytes(raw), "") for raw in _items.decode(payload))
        except (InvalidTag, msgspec.DecodeError, ApiError):
            raise BrokenSeal from None


async def open_seal(key_file: str, store: Store) -> KeyedSeal:
    """The seal of a server: by the keys in a file, else by one that all nodes on its store share."""
    shared = await store.cluster.secret("seal", new_key())
    # With a file, the store's key still opens what it has sealed before there was one.
    return KeyedSeal([*read_keys(key_file), shared] if key_file else [shared])


def new_key() -> bytes:
    return secrets.token_bytes(KEY_BYTES)


def read_keys(path: str) -> list[bytes]:
    """The keys in a file: one a line, in base64, the one that seals first."""
    try:
        lines = Path(path).read_text(encoding="ascii").split()
        keys = [base64.b64decode(line, validate=True) for line in lines]
    except OSError as error:
        raise StartupError(f"seal_key_file: cannot read {path}: {error.strerror}") from None
    except ValueError:
        raise StartupError(f"seal_key_file: {path} holds something that is not base64") from None
    if not keys or any(len(key) != KEY_BYTES for key in keys):
        raise StartupError(
            f"seal_key_file: {path} must hold keys of {KEY_BYTES} bytes in base64, one a line"
            " (openssl rand -base64 32)"
        )
    return keys


def _key_id(key: bytes) -> bytes:
    return hashlib.sha256(b"slipring seal\0" + key).digest()[:_ID_BYTES]


def _bound(tenant: str, key_id: bytes) -> bytes:
    """What a seal is bound to beside its content."""
    return _VERSION.encode() + key_id + tenant.encode()


def _decoded(blob: str) -> bytes:
    """The bytes of a blob that is written just as we write them: of several spellings, one is ours."""
    if not blob.startswith(_VERSION):
        raise BrokenSeal
    text = blob.removeprefix(_VERSION)
    try:
        data = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raise BrokenSeal from None
    if base64.urlsafe_b64encode(data).decode().rstrip("=") != text:
        raise BrokenSeal
    return data
