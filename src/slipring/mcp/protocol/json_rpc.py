"""JSON-RPC 2.0 messages: decoding what a server sends, encoding what slipring sends."""

from typing import Any

import msgspec

from slipring.base.surrogates import repaired
from slipring.mcp.failures import Malformed

METHOD_NOT_FOUND = -32601
INTERNAL_ERROR = -32603
HEADER_MISMATCH = -32020
MISSING_CAPABILITY = -32021
UNSUPPORTED_VERSION = -32022

_MAX_BATCH = 1000
_MAX_ERROR_CHARACTERS = 2000


class JsonRpcError(msgspec.Struct):
    """The ``error`` of a response."""

    code: int
    message: str = ""
    data: msgspec.Raw = msgspec.Raw(b"null")

    @property
    def text(self) -> str:
        """The message, bounded."""
        return self.message[:_MAX_ERROR_CHARACTERS] or f"error {self.code}"


class Message(msgspec.Struct):
    """A request, notification or response of a server. Parameters and results stay encoded."""

    id: int | str | msgspec.UnsetType | None = msgspec.UNSET
    method: str | None = None
    params: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    result: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    error: JsonRpcError | None = None

    @property
    def is_response(self) -> bool:
        return self.method is None


_message = msgspec.json.Decoder(Message)
_batch = msgspec.json.Decoder(list[msgspec.Raw])
_encoder = msgspec.json.Encoder()


def decode_messages(data: bytes) -> list[Message]:
    """Decode one message, or the batch that revision 2025-03-26 allowed. Raises ``Malformed``."""
    try:
        return _decoded(data)
    except Malformed:
        whole = repaired(data)
        if whole == data:
            raise
        return _decoded(whole)


def _decoded(data: bytes) -> list[Message]:
    try:
        data.decode()  # msgspec does not check the text inside raw fields
        if data.lstrip()[:1] != b"[":
            return [_valid(_message.decode(data))]
        pieces = _batch.decode(data)
        if len(pieces) > _MAX_BATCH:
            raise Malformed(f"the MCP server sent a batch of more than {_MAX_BATCH} messages")
        return [_valid(_message.decode(piece)) for piece in pieces]
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        raise Malformed("the MCP server sent something that is not a JSON-RPC message") from None


def _valid(message: Message) -> Message:
    if message.is_response and message.error is None and message.result is msgspec.UNSET:
        raise Malformed("the MCP server sent a message that is no request, notification or response")
    return message


def encode(**fields: Any) -> bytes:
    """A message with these fields, and the version of the protocol."""
    return _encoder.encode({"jsonrpc": "2.0", **fields})
