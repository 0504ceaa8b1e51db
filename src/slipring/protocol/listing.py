"""Items as lists show them: with an id and a status, and with the short forms of requests spelled out."""

from msgspec import Raw, json

from slipring.protocol import wire
from slipring.protocol.items import Item

_fields = json.Decoder(dict[str, Raw])
_text = json.Decoder(str)
_HAVE_STATUS = frozenset(
    {
        "message",
        "function_call",
        "function_call_output",
        "custom_tool_call_output",
        "computer_call",
        "computer_call_output",
    }
)


def present(item: Item, item_id: str) -> Raw:
    """The JSON of an item for a list."""
    fields = _fields.decode(item.raw)
    shown: dict[str, object] = {"id": item_id, **fields}
    if item.id is None or bytes(fields.get("id", wire.NULL)) == b"null":
        shown["id"] = item_id
    if item.type == "message":
        shown["content"] = _content(fields)
    if item.type == "reasoning":
        shown.setdefault("summary", [])
    if item.type in _HAVE_STATUS and bytes(fields.get("status", wire.NULL)) == b"null":
        shown["status"] = "completed"
    return wire.raw(shown)


def _content(fields: dict[str, Raw]) -> object:
    content = fields["content"]
    if not bytes(content).startswith(b'"'):
        return content
    text = _text.decode(content)
    if bytes(fields["role"]) == b'"assistant"':
        return [{"type": "output_text", "text": text, "annotations": []}]
    return [{"type": "input_text", "text": text}]
