"""Checks answers of the endpoints of Messages and Chat Completions by the types of their APIs' packages."""

import re

from tests import chat_wire, messages_wire, wire

_MESSAGES = re.compile(r"(/v1)?/messages([/?]|$)")
_CHAT = re.compile(r"(/v1)?/chat/completions([/?]|$)")
_BEFORE_THE_PATH = ("invalid_http", "unsupported_content_encoding")
"""Codes of what is refused before the path is known: such errors have the shape of the Responses API."""


def is_translated(path: str) -> bool:
    """Whether a path is one of those APIs'."""
    return _MESSAGES.match(path) is not None or _CHAT.match(path) is not None


def check(path: str, status: int, content_type: str, body: bytes) -> None:
    """Require that an answer of one of those paths is valid."""
    text = body.decode()
    if status in (400, 415) and wire.parse(text)["error"].get("code") in _BEFORE_THE_PATH:
        wire.check_http_error(wire.parse(text))
    elif _MESSAGES.match(path) is not None:
        messages_wire.check_answer(path, status, content_type, text)
    elif content_type == "text/event-stream":
        chat_wire.read_stream(text)
    elif status >= 400:
        wire.check_http_error(wire.parse(text))
    else:
        chat_wire.check_completion(wire.parse(text))
