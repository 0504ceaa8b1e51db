"""Errors in the terms of the Chat Completions API: the client's own fields, and the types of failures.

The core names ``input[3].arguments``; the client has sent ``messages[2].tool_calls[0].function.arguments``.
"""

import re
from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct, structs

from slipring.protocol.events import ErrorBody
from slipring.protocol.responses import ResponseError

Fields = Mapping[str, str]
MESSAGE: Fields = {"content": "content", "role": "role"}
OUTPUT: Fields = {"output": "content", "call_id": "tool_call_id"}
CALL: Fields = {"name": "function.name", "arguments": "function.arguments", "call_id": "id"}
CUSTOM_CALL: Fields = {"name": "custom.name", "input": "custom.input", "call_id": "id"}
LEGACY_CALL: Fields = {"name": "name", "arguments": "arguments"}
THOUGHT: Fields = {}
"""The fields of items, and what they are called in messages. All others are called by the item's place."""

FUNCTION: Fields = {
    "type": "type",
    "name": "function.name",
    "description": "function.description",
    "parameters": "function.parameters",
    "strict": "function.strict",
}
LEGACY_FUNCTION: Fields = {"name": "name", "description": "description", "parameters": "parameters"}
CUSTOM: Fields = {"type": "type", "name": "custom.name", "format": "custom.format"}

_FIELD = re.compile(r"\.(\w+)(.*)")
_ENTRY = re.compile(r"(input|tools)\[(\d+)\]((?:[.\[].*)?)")
_PARTS = (
    (re.compile(r"(\[\d+\])\.image_url$"), r"\1.image_url.url"),
    (re.compile(r"(\[\d+\])\.(file_\w+|filename)$"), r"\1.file.\2"),
    (re.compile(r"^custom\.format\.(syntax|definition)$"), r"custom.format.grammar.\1"),
)
_QUOTED = re.compile(r"'([^']*)'")
_NUMBERED = re.compile(r"\bcall_(\d+)\b")
_FORMAT = "text.format"
_ERROR_TYPES = {
    "invalid_prompt": "invalid_request_error",
    "context_length_exceeded": "invalid_request_error",
    "model_not_found": "invalid_request_error",
    "insufficient_quota": "rate_limit_error",
    "rate_limit_exceeded": "rate_limit_error",
}
"""By the code of a failed response; all others are faults of the server."""


class Place(Struct, frozen=True):
    """Where an item or a tool stands in the request."""

    path: str
    fields: Fields

    def named(self, rest: str) -> str:
        """The client's name of a field of it; ``rest``: what follows the item in the core's name."""
        match = _FIELD.match(rest)
        field = self.fields.get(match[1]) if match is not None else None
        if match is None or field is None:
            return self.path
        inner = field + match[2]
        for pattern, replacement in _PARTS:
            inner = pattern.sub(replacement, inner)
        return f"{self.path}.{inner}"


class Places:
    """The places of a request's items and tools, and the names of its other fields."""

    def __init__(
        self,
        item: Callable[[int], Place | None],
        tools: Sequence[Place],
        fields: Fields,
        sent_id: Callable[[int], str | None],
    ) -> None:
        """``item``: tells the place of the item with an index, if there is one. ``fields``: the core's names
        of other fields, and the client's. ``sent_id``: the client's id of the call with a number."""
        self._item = item
        self._tools = tools
        self._fields = {"input": "messages", **fields}
        self._sent_id = sent_id

    def named(self, param: str) -> str:
        """The client's name of a field."""
        entry = _ENTRY.fullmatch(param)
        if entry is not None:
            place = self._item(int(entry[2])) if entry[1] == "input" else self._tool(int(entry[2]))
            return self._fields.get(entry[1], param) if place is None else place.named(entry[3])
        if param.startswith(f"{_FORMAT}."):
            inner = param.removeprefix(f"{_FORMAT}.")
            return f"response_format.{inner if inner == 'type' else f'json_schema.{inner}'}"
        return self._fields.get(param, param)

    def _tool(self, index: int) -> Place | None:
        return self._tools[index] if index < len(self._tools) else None

    def renamed(self, error: ErrorBody) -> ErrorBody:
        """The error in the client's terms."""

        def in_client_terms(found: re.Match[str]) -> str:
            # Beside the param, only places in lists are fields for certain: other words may be the client's.
            path = found[1]
            is_field = path == error.param or _ENTRY.fullmatch(path) is not None
            return f"'{self.named(path)}'" if is_field else found[0]

        param = None if error.param is None else self.named(error.param)
        message = _QUOTED.sub(in_client_terms, error.message)
        message = _NUMBERED.sub(lambda match: self._sent_id(int(match[1])) or match[0], message)
        if error.code == "context_length_exceeded":
            message = message.replace(" input", " messages").replace(", or set truncation to 'auto'", "")
        return structs.replace(error, message=message, param=param)


def failure_of(error: ResponseError) -> ErrorBody:
    """The error of a failed response, as a stream ends with it."""
    kind = _ERROR_TYPES.get(error.code, "server_error")
    return ErrorBody(kind, error.code, error.message, None)
