"""Items in the form in which list endpoints return them.

Requests may use short forms and contain unknown fields, but listed items must match the types of the SDKs:
each gets an id and a status, short forms are expanded, fields that the API does not define are dropped. Only
content that the API has no form for (such as an image in an assistant message) is returned as sent.
Conversation lists differ from response lists in one field.
"""

from typing import Literal

from msgspec import Raw, json

from slipring.protocol import wire
from slipring.protocol.items.items import AdditionalTools, Item
from slipring.protocol.tools.toolset import Toolset

ListKind = Literal["response", "conversation"]

_STATUSES = (b'"in_progress"', b'"completed"', b'"incomplete"')
_HAVE_STATUS = frozenset(
    "apply_patch_call apply_patch_call_output code_interpreter_call computer_call computer_call_output"
    " custom_tool_call custom_tool_call_output file_search_call function_call function_call_output"
    " image_generation_call local_shell_call message program_output shell_call shell_call_output"
    " tool_search_call tool_search_output web_search_call".split()
)
_WITHOUT_IN_CONVERSATIONS = frozenset({"custom_tool_call", "custom_tool_call_output"})
"""Types that have no status in conversation lists."""
_CALL = frozenset({"call_id", "name", "namespace", "async", "caller", "created_by", "status"})
_OUTPUT = frozenset({"call_id", "output", "caller", "created_by", "status"})
_FIELDS: dict[str, frozenset[str]] = {
    "message": frozenset({"role", "content", "status", "phase"}),
    "function_call": _CALL | {"arguments"},
    "function_call_output": _OUTPUT | {"name", "namespace"},
    "custom_tool_call": _CALL | {"input"},
    "custom_tool_call_output": _OUTPUT,
    "reasoning": frozenset({"summary", "content", "encrypted_content", "status"}),
    "compaction": frozenset({"encrypted_content", "created_by"}),
    "additional_tools": frozenset({"role", "tools"}),
    "tool_search_call": frozenset({"call_id", "arguments", "execution", "status", "created_by"}),
    "tool_search_output": frozenset({"call_id", "tools", "execution", "status", "created_by"}),
    "configuration_update": frozenset({"reasoning", "text"}),
}
"""The listed fields of interpreted item types. Items of other types are listed as sent."""
_PART_FIELDS: dict[str, frozenset[str]] = {
    "input_text": frozenset({"text", "prompt_cache_breakpoint"}),
    "input_image": frozenset({"detail", "file_id", "image_url", "prompt_cache_breakpoint"}),
    "input_file": frozenset(
        {"detail", "file_data", "file_id", "file_url", "filename", "prompt_cache_breakpoint"}
    ),
    "output_text": frozenset({"text", "annotations", "logprobs"}),
    "refusal": frozenset({"refusal"}),
    "summary_text": frozenset({"text"}),
    "reasoning_text": frozenset({"text"}),
}
_NAMES = {"compaction_summary": "compaction"}
"""Older names of types."""
_DEFAULT_ROLE = "developer"
_Fields = dict[str, Raw]
_Shown = dict[str, object]


_fields = json.Decoder(_Fields)
_text = json.Decoder(str)
_parts = json.Decoder(list[Raw])


def present(item: Item, item_id: str, within: ListKind) -> Raw:
    """The JSON of an item in a list of this kind, with ``item_id`` as its id."""
    kind = _NAMES.get(item.type, item.type)
    fields = _fields.decode(item.raw)
    known = _FIELDS.get(kind)
    shown: _Shown = {"id": item_id, "type": kind}
    shown |= {
        name: value
        for name, value in fields.items()
        if name not in shown and (known is None or name in known)
    }
    _present_content(kind, item, fields, shown)
    if within == "conversation" and kind in _WITHOUT_IN_CONVERSATIONS:
        for name in ("status", "created_by"):
            shown.pop(name, None)
    elif kind in _HAVE_STATUS:
        shown["status"] = _status(fields, strict=known is not None)
    return wire.raw(shown)


def _present_content(kind: str, item: Item, fields: _Fields, shown: _Shown) -> None:
    """Replace the fields that differ between what clients may send and what lists show."""
    if kind == "message":
        _present_message(fields, shown)
    elif kind in ("function_call_output", "custom_tool_call_output"):
        shown["output"] = _output(fields["output"])
    elif kind == "reasoning":
        _present_reasoning(fields, shown)
    elif kind == "additional_tools":
        _present_tools(item, fields, shown)
    elif kind == "configuration_update":
        _present_update(fields, shown)
    elif kind in ("tool_search_call", "tool_search_output"):
        _present_search(fields, shown)
    elif kind == "computer_call" and not _is_given(fields, "pending_safety_checks"):
        shown["pending_safety_checks"] = []


def _is_given(fields: _Fields, name: str) -> bool:
    return bytes(fields.get(name, wire.NULL)) != b"null"


def _status(fields: _Fields, *, strict: bool) -> object:
    """The status of an item; ``completed`` if the client sent none."""
    given = fields.get("status", wire.NULL)
    if bytes(given) in _STATUSES or (not strict and _is_given(fields, "status")):
        return given
    return "completed"


def _present_message(fields: _Fields, shown: _Shown) -> None:
    from_assistant = bytes(fields["role"]) == b'"assistant"'
    if not from_assistant:
        shown.pop("phase", None)
    content = fields["content"]
    if bytes(content).startswith(b'"'):
        shown["content"] = [_text_part(_text.decode(content), from_assistant=from_assistant)]
    else:
        parts = _parts.decode(content)
        shown["content"] = [_message_part(part, from_assistant=from_assistant) for part in parts]


def _text_part(text: object, *, from_assistant: bool) -> _Shown:
    if from_assistant:
        return {"type": "output_text", "text": text, "annotations": []}
    return {"type": "input_text", "text": text}


def _message_part(raw: Raw, *, from_assistant: bool) -> object:
    """A part with the type that the message's role requires: ``output_text`` or ``input_text``."""
    kind, part = _read_part(raw)
    if from_assistant and kind in ("input_text", "summary_text", "reasoning_text"):
        return _text_part(part["text"], from_assistant=True)
    if not from_assistant and kind in ("output_text", "summary_text", "reasoning_text"):
        return _text_part(part["text"], from_assistant=False)
    if not from_assistant and kind == "refusal":
        return _text_part(part["refusal"], from_assistant=False)
    return part


def _output(output: Raw) -> object:
    """The output of a tool: a string, or parts in the form of a user message."""
    if bytes(output).startswith(b'"'):
        return output
    return [_message_part(part, from_assistant=False) for part in _parts.decode(output)]


def _read_part(raw: Raw) -> tuple[str, _Shown]:
    kind = wire.type_of(raw)
    fields = _fields.decode(raw)
    part: _Shown = {"type": kind}
    part |= {name: value for name, value in fields.items() if name in _PART_FIELDS[kind]}
    if kind == "input_image" and not _is_given(fields, "detail"):
        part["detail"] = "auto"
    if kind == "output_text" and not _is_given(fields, "annotations"):
        part["annotations"] = []
    return kind, part


def _present_reasoning(fields: _Fields, shown: _Shown) -> None:
    for name in ("summary", "content"):
        if _is_given(fields, name):
            shown[name] = [_read_part(part)[1] for part in _parts.decode(fields[name])]
    shown.setdefault("summary", [])
    if bytes(fields.get("status", wire.NULL)) not in _STATUSES:
        shown.pop("status", None)


def _present_tools(item: Item, fields: _Fields, shown: _Shown) -> None:
    if not _is_given(fields, "role"):
        shown["role"] = _DEFAULT_ROLE
    body = item.body()
    assert isinstance(body, AdditionalTools)
    shown["tools"] = Toolset.brought(body.tools).echo


def _present_search(fields: _Fields, shown: _Shown) -> None:
    if not _is_given(fields, "execution"):
        # Only searches that the client runs have a call_id.
        shown["execution"] = "client" if _is_given(fields, "call_id") else "server"
    if "tools" in fields:
        shown["tools"] = Toolset.brought(fields["tools"]).echo


def _present_update(fields: _Fields, shown: _Shown) -> None:
    """Keep only the settings that the update changes."""
    for name, inner in (("reasoning", "effort"), ("text", "format")):
        shown.pop(name, None)
        if _is_given(fields, name):
            setting = _fields.decode(fields[name])
            if _is_given(setting, inner):
                shown[name] = {inner: setting[inner]}
