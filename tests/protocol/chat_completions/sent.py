"""Requests of the Chat Completions API, as tests write them."""

import json
from typing import Any

import pytest

from slipring.base.errors import ApiError
from slipring.protocol.chat_completions.requests import ChatTranslation
from slipring.protocol.requests import CreateRequest

Json = dict[str, Any]
USER: Json = {"role": "user", "content": "hello"}
FINGERPRINT = "fp_test"


def translated(*messages: Json, **fields: Any) -> tuple[ChatTranslation, CreateRequest]:
    translation = ChatTranslation(FINGERPRINT)
    body = {"model": "m", "messages": messages or (USER,), **fields}
    return translation, translation.read(json.dumps(body).encode())


def create(*messages: Json, **fields: Any) -> CreateRequest:
    """The create request that a chat request becomes."""
    return translated(*messages, **fields)[1]


def items(*messages: Json, **fields: Any) -> list[Json]:
    """The items that the messages of a request become."""
    return [json.loads(raw) for raw in written(*messages, **fields)]


def written(*messages: Json, **fields: Any) -> list[bytes]:
    """The same as they are written."""
    return [item.raw for item in create(*messages, **fields).items]


def refusal(*messages: Json, **fields: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        create(*messages, **fields)
    return caught.value
