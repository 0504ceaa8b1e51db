"""JSON schemas of requests, answers and events, derived from the types that decode and encode them.

Some fields stay raw JSON when they are decoded or encoded, so their type says nothing about their content.
Their schemas are defined here, from the types that later code decodes them with.
"""

from collections.abc import Iterator
from typing import Any, Literal, get_args

import msgspec
from msgspec import UNSET, Struct, inspect, structs

from slipring.protocol.chat_completions.completion import ChatChunk, ChatCompletion
from slipring.protocol.chat_completions.history import ChatMessage, Part, Role
from slipring.protocol.chat_completions.requests import (
    ChatFormat,
    ChatFunction,
    ChatRequest,
    ChatTool,
    ChatToolChoice,
    ChatToolName,
    FunctionChoices,
    LogitBias,
    ToolChoices,
)
from slipring.protocol.decisions import (
    MOST_QUESTIONS,
    ChoiceQuestion,
    Decision,
    DecisionRequest,
    PredicateQuestion,
    QuestionJson,
    ScoreQuestion,
)
from slipring.protocol.endpoints.compact import CompactRequest, Window
from slipring.protocol.endpoints.conversations import (
    AddItems,
    ConversationObject,
    CreateConversation,
    UpdateConversation,
)
from slipring.protocol.endpoints.moderations import (
    ImagePart,
    Inputs,
    ModerationAnswer,
    ModerationRequest,
    Parts,
    TextPart,
)
from slipring.protocol.endpoints.reply_bodies import (
    DeletedConversation,
    DeletedResponse,
    Health,
    InputTokens,
    ItemPage,
    ModelList,
    ModelObject,
    Readiness,
    TurnList,
)
from slipring.protocol.events import (
    AppendFailed,
    ErrorAnswer,
    Event,
    InjectFailed,
    OutputItemDone,
    SteerRef,
)
from slipring.protocol.items.hosted_items import ToolError
from slipring.protocol.items.items import (
    CARRIED_TYPES,
    FORMS,
    MOST_ITEMS,
    AdditionalTools,
    ItemId,
    TextUpdate,
    ToolSearchCall,
    ToolSearchOutput,
)
from slipring.protocol.messages.answer import AppliedEdits, MessageAnswer, MessagesEvent
from slipring.protocol.messages.content import (
    AssistantBlock,
    CodeResult,
    ImageBlock,
    InnerContent,
    McpToolResultBlock,
    ResultBlock,
    SearchResultBlock,
    TextBlock,
    ToolResultBlock,
    UserBlock,
    WebSearchToolResultBlock,
)
from slipring.protocol.messages.history import SentMessage
from slipring.protocol.messages.requests import Counted, CountRequest, Edit, Edits, MessagesRequest
from slipring.protocol.messages.tools import McpServer, MessagesTool
from slipring.protocol.requests import (
    ConversationRef,
    CreateRequest,
    JsonSchemaFormat,
    Management,
    Metadata,
    ModerationConfig,
    StopSequence,
    StopSequences,
    TextConfig,
)
from slipring.protocol.responses import OutputItem, OutputTextPart, Response, TextEcho, ToolSearchCallItem
from slipring.protocol.tools.mcp_tools import McpTool
from slipring.protocol.tools.tool_choice import ChoiceObject, NamedTool
from slipring.protocol.tools.toolset import CustomTool, FunctionTool, NamespaceTool

Schema = dict[str, Any]
EVENT = "ServerEvent"
MESSAGES_EVENT = "MessagesEvent"

_TEMPLATE = "#/components/schemas/{name}"
_OBJECT: Schema = {"type": "object"}
_MAY_LEAVE_OUT_TYPE = ("message", "item_reference")
_Choice = Literal["none", "auto", "required"] | ChoiceObject
_ITEM_BODIES = tuple(dict.fromkeys(FORMS.values()))
_REQUEST_TYPES: tuple[Any, ...] = (
    *(CreateRequest, CompactRequest, CreateConversation, UpdateConversation, AddItems, ModerationRequest),
    *(TextPart, ImagePart),
    *(FunctionTool, CustomTool, NamespaceTool, McpTool, NamedTool, ChoiceObject),
    *(ConversationRef, Management, JsonSchemaFormat),
    *(ChatRequest, ChatMessage, ChatTool, ChatFunction, ChatToolChoice, ChatToolName, ChatFormat),
    *(DecisionRequest, PredicateQuestion, ChoiceQuestion, ScoreQuestion),
    *(MessagesRequest, CountRequest, SentMessage, MessagesTool, McpServer, Edits),
    *dict.fromkeys(block for role in (UserBlock, AssistantBlock, ResultBlock) for block in get_args(role)),
    *_ITEM_BODIES,
)
_ANSWER_TYPES: tuple[Any, ...] = (
    *(Response, Window, ItemPage, DeletedResponse, DeletedConversation, ConversationObject, InputTokens),
    *(ModelObject, ModelList, TurnList, Health, Readiness, ModerationAnswer, ErrorAnswer),
    *(ChatCompletion, ChatChunk, Decision),
    *(MessageAnswer, Counted, *get_args(MessagesEvent)),
)

_OTHER_TOOL = (
    "A built-in tool. The client runs calls of shell, local_shell, apply_patch, computer,"
    " computer_use_preview and tool_search. The server runs web_search, file_search and code_interpreter if"
    " its operator has registered tools that answer them. A web_search that nothing answers is returned, and"
    " not called. Others are refused."
)


def ref(name: str | type) -> Schema:
    """Return a reference to the schema of a type, or to a schema that has a name only in this module."""
    return {"$ref": _TEMPLATE.format(name=name if isinstance(name, str) else name.__name__)}


def components() -> dict[str, Schema]:
    """Return all schemas by name."""
    requests = _generated(_REQUEST_TYPES)
    events = tuple(_wire_classes(Event))
    answers = _generated((*_ANSWER_TYPES, *events))
    for type_ in _structs((*_ANSWER_TYPES, *events)):
        _require_all(answers[type_.__name__], type_)
    found = answers | requests  # what clients send too may lack fields that the server always sends
    known = _raw_fields()
    for type_ in _structs((*_REQUEST_TYPES, *_ANSWER_TYPES, *events)):
        properties = found[type_.__name__]["properties"]
        # Replaces the generated schemas, except for their defaults.
        for name, schema in (_objects(type_) | known.get(type_, {})).items():
            properties[name] = schema | {
                key: value for key, value in properties[name].items() if key == "default"
            }
    found |= _unions(found) | _messages_by_role(found)
    for body in _ITEM_BODIES:
        del found[body.__name__]  # included in the item of each type that has it
    found[MESSAGES_EVENT] = {"anyOf": [ref(event) for event in get_args(MessagesEvent)]}
    found[EVENT] = {"anyOf": [ref(event) for event in events]}
    return found


def _objects(type_: type[Struct]) -> dict[str, Schema]:
    """Return the schemas of raw fields that are objects: all whose content is not described elsewhere."""
    raw = (field for field in inspect.type_info(type_).fields if isinstance(field.type, inspect.RawType))  # type: ignore[attr-defined]
    return {field.encode_name: _OBJECT if field.required else _or_null(_OBJECT) for field in raw}


def _raw_fields() -> dict[type[Struct], dict[str, Schema]]:
    """Return the schemas of the other raw fields, by type and field name."""
    new_items = _list_of(ref("Item"), maxItems=20)
    tools, format_, input_ = (_or_null(ref(name)) for name in ("Tools", "TextFormat", "Input"))
    choice, output_item = _inline(_Choice), _inline(OutputItem)
    return {
        CreateRequest: {
            "input": input_,
            "conversation": _inline(str | ConversationRef | None),
            "tools": tools,
            "tool_choice": _or_null(choice),
            "context_management": _or_null(_list_of(ref(Management))),
        },
        CompactRequest: {"input": input_, "tools": tools},
        **_raw_chat_fields(),
        **_raw_messages_fields(),
        **_raw_decision_fields(),
        CreateConversation: {"items": _or_null(new_items)},
        AddItems: {"items": new_items},
        ModerationRequest: {"input": {"anyOf": [_inline(Inputs), _inline(Parts)]}},
        TextConfig: {"format": format_},
        TextUpdate: {"format": format_},
        AdditionalTools: {"tools": tools},
        ToolSearchCall: {"arguments": {"description": "The arguments that the model generated."}},
        ToolSearchCallItem: {"arguments": {"description": "The arguments that the model generated."}},
        SteerRef: {"input": {"description": "As it was sent."}},
        AppendFailed: {"input": {"description": "As it was sent."}},
        InjectFailed: {"input": {"description": "As it was sent."}},
        ToolSearchOutput: {"tools": tools},
        ToolError: {"content": _list_of(_OBJECT)},
        ChoiceObject: {"tools": _or_null(_list_of(ref(NamedTool)))},
        Response: {
            "instructions": {"type": ["string", "null"]},
            "tools": ref("Tools"),
            "tool_choice": choice,
            "output": _list_of(output_item),
        },
        TextEcho: {"format": ref("TextFormat")},
        OutputTextPart: {"annotations": _list_of(_OBJECT)},
        OutputItemDone: {"item": output_item},
        Window: {"output": _list_of(ref("ShownItem"))},
        ItemPage: {"data": _list_of(ref("ShownItem"))},
    }


def _raw_decision_fields() -> dict[type[Struct], dict[str, Schema]]:
    """Return those of the Decisions API."""
    question: Schema = {"anyOf": [ref(PredicateQuestion), ref(ChoiceQuestion), ref(ScoreQuestion)]}
    objects = _list_of(_OBJECT)
    return {
        DecisionRequest: {
            "input": {"anyOf": [{"type": "string"}, objects]},
            "questions": _list_of(question, minItems=1, maxItems=MOST_QUESTIONS),
        },
        QuestionJson: {"data": {"anyOf": [_OBJECT, objects]}},
    }


def _raw_chat_fields() -> dict[type[Struct], dict[str, Schema]]:
    """Return those of the Chat Completions API."""
    return {
        ChatRequest: {
            "messages": _list_of(ref(ChatMessage), minItems=1, maxItems=MOST_ITEMS),
            "tools": _or_null(_list_of(ref(ChatTool))),
            "tool_choice": _or_null(_inline(ToolChoices)),
            "functions": _or_null(_list_of(ref(ChatFunction))),
            "function_call": _or_null(_inline(FunctionChoices)),
            "response_format": _or_null(ref(ChatFormat)),
            "stop": _inline(StopSequence | StopSequences | None),
            "logit_bias": _inline(LogitBias | None),
            "metadata": _inline(Metadata | None),
            "moderation": _or_null(ref(ModerationConfig)),
        },
    }


def _raw_messages_fields() -> dict[type[Struct], dict[str, Schema]]:
    """Return those of the Messages API."""
    return {
        **dict.fromkeys((MessagesRequest, CountRequest), _of_messages()),
        SentMessage: {"content": {}},
        MessagesTool: {"input_schema": _OBJECT, "input_examples": _or_null(_list_of(_OBJECT))},
        Edit: {"keep": {"anyOf": [{"type": "string"}, _OBJECT]}},
        InnerContent: {"content": _texts_or(TextBlock | ImageBlock)},
        SearchResultBlock: {"content": _list_of(ref(TextBlock))},
        ToolResultBlock: {"content": _texts_or(ResultBlock)},
        McpToolResultBlock: {"content": _texts_or(TextBlock)},
        WebSearchToolResultBlock: {"content": {"anyOf": [_list_of(_OBJECT), _OBJECT]}},
        CodeResult: {"content": _list_of(_OBJECT)},
        AppliedEdits: {"applied_edits": _list_of(_OBJECT)},
    }


def _of_messages() -> dict[str, Schema]:
    """Return the schemas of the raw fields of requests of the Messages API."""
    refused: Schema = {"type": "null"}
    return {
        "messages": _list_of(ref(SentMessage), minItems=1, maxItems=MOST_ITEMS),
        "system": _or_null(_texts_or(TextBlock)),
        "tools": _or_null(_list_of(ref(MessagesTool))),
        "mcp_servers": _or_null(_list_of(ref(McpServer))),
        "context_management": _or_null(ref(Edits)),
        "stop_sequences": _inline(StopSequences | None),
        **dict.fromkeys(("container", "fallbacks", "thread", "compaction"), refused),
    }


def _texts_or(block: Any) -> Schema:
    return {"anyOf": [{"type": "string"}, _list_of(_inline(block))]}


def _unions(found: dict[str, Schema]) -> dict[str, Schema]:
    """Return the schemas of unions that have no type in the code: a field selects the member."""
    callable_tools = (FunctionTool, CustomTool, NamespaceTool, McpTool)
    their_types = [inspect.type_info(tool).tag for tool in callable_tools]  # type: ignore[attr-defined]
    items = {f"{kind}_input": _item(kind, found[body.__name__]) for kind, body in FORMS.items()}
    carried = {
        "type": "object",
        "properties": _outline({"enum": sorted(CARRIED_TYPES)}),
        "required": ["type"],
    }
    other_tool = {
        "type": "object",
        "properties": {"type": {"type": "string", "not": {"enum": their_types}}},
        "required": ["type"],
    }
    plain = {
        "type": "object",
        "properties": {"type": {"enum": ["text", "json_object"]}},
        "required": ["type"],
    }
    return {
        **items,
        "carried_input": carried,
        "Item": {"anyOf": [ref(name) for name in (*items, "carried_input")]},
        "Input": {"anyOf": [{"type": "string"}, _list_of(ref("Item"), maxItems=MOST_ITEMS)]},
        "ShownItem": {
            "type": "object",
            "properties": {"id": {"type": "string"}, "type": {"enum": sorted({*FORMS, *CARRIED_TYPES})}},
            "required": ["id", "type"],
        },
        "OtherTool": {"description": _OTHER_TOOL, **other_tool},
        "Tools": _list_of({"anyOf": [*map(ref, callable_tools), ref("OtherTool")]}),
        "TextFormat": {"anyOf": [plain, ref(JsonSchemaFormat)]},
    }


def _messages_by_role(found: dict[str, Schema]) -> dict[str, Schema]:
    """Return the schemas of the messages of Chat Completions and Messages: the role decides what the content
    may be."""
    chat = found[ChatMessage.__name__]
    chat_roles = get_args(Role)
    blocks: dict[str, Any] = {"user": UserBlock, "assistant": AssistantBlock, "system": TextBlock}
    needed = {**chat, "required": ["role", "content"]}
    return {
        ChatMessage.__name__: {
            "anyOf": [
                _with(chat, role={"const": "assistant"}),
                _with(
                    needed,
                    role={"enum": [role for role in chat_roles if role != "assistant"]},
                    content=_inline(str | list[Part]),
                ),
            ]
        },
        SentMessage.__name__: {
            "anyOf": [
                _with(found[SentMessage.__name__], role={"const": role}, content=_texts_or(block))
                for role, block in blocks.items()
            ]
        },
    }


def _with(schema: Schema, **properties: Schema) -> Schema:
    return {**schema, "properties": schema["properties"] | properties}


def _item(kind: str, body: Schema) -> Schema:
    """Return the schema of one item type: the fields of its body and those that all items have."""
    required = body.get("required", [])
    may_be_untyped = kind in _MAY_LEAVE_OUT_TYPE
    return {
        "type": "object",
        "properties": _outline({"enum": [kind, None] if may_be_untyped else [kind]}) | body["properties"],
        "required": required if may_be_untyped else ["type", *required],
    }


def _outline(type_: Schema) -> Schema:
    return {"type": type_, "id": _inline(ItemId | None), "call_id": _inline(str | None)}


def _generated(types: tuple[Any, ...]) -> dict[str, Schema]:
    return msgspec.json.schema_components(types, ref_template=_TEMPLATE)[1]


def _inline(type_: Any) -> Schema:
    """Return the schema of an unnamed type, with references to the named types in it."""
    (schema,), _ = msgspec.json.schema_components([type_], ref_template=_TEMPLATE)
    return schema


def _require_all(schema: Schema, type_: type[Struct]) -> None:
    """Mark all fields as required that the server always sends: all except those that may be unset."""
    unset = {field.encode_name for field in structs.fields(type_) if field.default is UNSET}
    schema["required"] = [name for name in schema["properties"] if name not in unset]


def _wire_classes(parent: type[Struct]) -> Iterator[type[Struct]]:
    """Yield the event classes that have a wire name; the others are only base classes."""
    for child in parent.__subclasses__():
        if child.__struct_config__.tag != child.__name__:
            yield child
        yield from _wire_classes(child)


def _structs(types: tuple[Any, ...]) -> set[type[Struct]]:
    """Return all structs that these types contain."""
    found: set[type[Struct]] = set()
    left: list[inspect.Type] = list(inspect.multi_type_info(types))
    while left:
        info = left.pop()
        if isinstance(info, inspect.StructType) and info.cls not in found:
            found.add(info.cls)
            left += [field.type for field in info.fields]
        elif isinstance(info, inspect.UnionType):
            left += info.types
        elif isinstance(info, inspect.ListType):
            left.append(info.item_type)
    return found


def _or_null(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


def _list_of(schema: Schema, **more: object) -> Schema:
    return {"type": "array", "items": schema, **more}
