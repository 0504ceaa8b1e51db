"""Encrypts items that clients keep (``encrypted_content``), bound to their tenant.

A blob is ``slr1.`` followed by URL-safe base64 of a key id, a nonce, and the items' JSON encrypted with
AES-256-GCM. The first key encrypts and every key decrypts, so that keys can be rotated while old blobs remain
readable. A nonce is 96 random bits, which suffices for billions of blobs per key.
"""

import base64
import binascii
import hashlib
import hmac
import secrets
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from slipring.base.errors import ApiError, StartupError
from slipring.core.chain.sealed_items import BrokenSeal
from slipring.protocol.items.items import Item, read_item
from slipring.stores.store import Store

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

KEY_BYTES = 32
_VERSION = "slr1."
_ID_BYTES = 4
_NONCE_BYTES = 12
_TAG_DIGITS = 32
_items = msgspec.json.Decoder(list[msgspec.Raw])


class KeyedSeal:
    """Encrypts with the first of its keys, decrypts with any of them."""

    def __init__(self, keys: Sequence[bytes]) -> None:
        """``keys``: at least one, of 32 bytes each."""
        self._keys = {_key_id(key): key for key in keys}
        self._newest = _key_id(keys[0])

    def seal(self, tenant: str, items: tuple[Item, ...]) -> str:
        payload = b"[" + b",".join(item.raw for item in items) + b"]"
        nonce = secrets.token_bytes(_NONCE_BYTES)
        cipher = _cipher(self._keys[self._newest])
        sealed = cipher.encrypt(nonce, payload, _additional_data(tenant, self._newest))
        return _VERSION + base64.urlsafe_b64encode(self._newest + nonce + sealed).decode().rstrip("=")

    def open(self, tenant: str, blob: str) -> tuple[Item, ...]:
        data = _decode(blob)
        key_id, rest = data[:_ID_BYTES], data[_ID_BYTES:]
        key = self._keys.get(key_id)
        if key is None or len(rest) <= _NONCE_BYTES:
            raise BrokenSeal
        from cryptography.exceptions import InvalidTag

        nonce, sealed = rest[:_NONCE_BYTES], rest[_NONCE_BYTES:]
        try:
            payload = _cipher(key).decrypt(nonce, sealed, _additional_data(tenant, key_id))
            return tuple(read_item(bytes(raw), "") for raw in _items.decode(payload))
        except (InvalidTag, msgspec.DecodeError, ApiError):
            raise BrokenSeal from None

    def tag(self, tenant: str, data: bytes) -> str:
        return _tag(self._keys[self._newest], tenant, data)

    def verify(self, tenant: str, data: bytes, tag: str) -> bool:
        given = tag.encode("utf-8", "surrogatepass")
        return any(
            hmac.compare_digest(_tag(key, tenant, data).encode(), given) for key in self._keys.values()
        )


async def open_seal(key_file: str, store: Store) -> KeyedSeal:
    """The seal of a server: with the keys of a file, or with the key that all nodes share in the store."""
    shared = await store.cluster.secret("seal", new_key())
    # The shared key stays last, for blobs that were made before there was a file.
    return KeyedSeal([*read_keys(key_file), shared] if key_file else [shared])


def new_key() -> bytes:
    return secrets.token_bytes(KEY_BYTES)


def read_keys(path: str) -> list[bytes]:
    """Read keys from a file: one per line, in base64, the encrypting key first. Raises ``StartupError``."""
    try:
        lines = Path(path).read_text(encoding="ascii").split()
        keys = [base64.b64decode(line, validate=True) for line in lines]
    except OSError as error:
        raise StartupError(f"seal_key_file: cannot read {path}: {error.strerror}") from None
    except ValueError:
        raise StartupError(f"seal_key_file: {path} contains a line that is not base64") from None
    if not keys or any(len(key) != KEY_BYTES for key in keys):
        raise StartupError(
            f"seal_key_file: {path} must contain keys of {KEY_BYTES} bytes in base64, one per line"
            " (openssl rand -base64 32)"
        )
    return keys


@lru_cache
def _cipher(key: bytes) -> "AESGCM":
    # Imported on first use: it takes 7 MB, and many servers never encrypt anything.
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    return AESGCM(key)


def _tag(key: bytes, tenant: str, data: bytes) -> str:
    message = b"slipring approval\0" + tenant.encode() + b"\0" + data
    return hmac.new(key, message, hashlib.sha256).hexdigest()[:_TAG_DIGITS]


def _key_id(key: bytes) -> bytes:
    return hashlib.sha256(b"slipring seal\0" + key).digest()[:_ID_BYTES]


def _additional_data(tenant: str, key_id: bytes) -> bytes:
    """The additional data that authenticates version, key and tenant."""
    return _VERSION.encode() + key_id + tenant.encode()


def _decode(blob: str) -> bytes:
    """Decode a blob, and reject any spelling of its base64 that ``seal`` would not produce."""
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
