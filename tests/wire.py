"""Validates every frame, SSE event and response body that slipring sends.

There are two kinds of check, both of which raise AssertionError. The `check_*` functions check one document:
they validate it strictly with the openai package's own types (the SDK itself builds its objects without
validation, so a real client would not notice an error) and check what other clients need beyond those types.
`Order` checks the sequence of events on one connection.

This module has no `assert` statements: pytest does not rewrite them here, so each check writes its own
message.
"""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple, get_args

from openai.types.responses import (
    CompactedResponse,
    Response,
    ResponseInputMessageItem,
    ResponseStreamEvent,
)
from openai.types.responses.responses_server_event import ResponsesServerEvent
from pydantic import BaseModel, ValidationError

from tests import late
from tests.recorded_shapes import check_item

Json = dict[str, Any]
NO_TYPES: frozenset[str] = frozenset()


def require(rule_holds: bool, complaint: str) -> None:
    if not rule_holds:
        raise AssertionError(complaint)


def require_equal(found: object, expected: object, what: str) -> None:
    require(found == expected, f"{what}: found {found!r}, expected {expected!r}")


# One document: JSON and the SDK's types ----------------------------------------------------------


def _unique_keys(pairs: list[tuple[str, Any]]) -> Json:
    keys = [key for key, _ in pairs]
    require(len(keys) == len(set(keys)), f"duplicate key in {keys}")
    return dict(pairs)


def _no_constant(name: str) -> None:
    raise AssertionError(f"{name} is not JSON")


def _decoded(raw: str | bytes) -> str:
    try:
        return raw.decode() if isinstance(raw, bytes) else raw
    except ValueError as error:
        raise AssertionError(f"not JSON in UTF-8: {error}: {raw[:200]!r}") from error


def parse(text: str) -> Json:
    """Parse one JSON object, stricter than Python's parser: no duplicate keys, no NaN or Infinity."""
    try:
        document = json.loads(text, object_pairs_hook=_unique_keys, parse_constant=_no_constant)
    except ValueError as error:
        raise AssertionError(f"not JSON: {error}: {text[:200]!r}") from error
    if not isinstance(document, dict):
        raise AssertionError(f"not a JSON object: {text[:200]}")
    return document


def _models_by_type(union: Any) -> dict[str, type[BaseModel]]:
    models: dict[str, type[BaseModel]] = {}
    for model in get_args(get_args(union)[0]):  # Annotated[Union[...], discriminator]
        literals = get_args(model.model_fields["type"].annotation)
        models.update(dict.fromkeys(literals, model))
    return models


# The events that contain a response then use its validator. Otherwise each would build another of the same,
# when it is first used.
Response.model_rebuild()

_WEBSOCKET_EVENTS = _models_by_type(ResponsesServerEvent)
_BETA_EVENTS = {
    "response.inject.created": "BetaResponseInjectCreatedEvent",
    "response.inject.failed": "BetaResponseInjectFailedEvent",
}
_SSE_EVENTS = _models_by_type(ResponseStreamEvent)


def _explain(error: ValidationError) -> str:
    """Format a validation error without the complaints of union members that the `type` rules out."""
    complaints = error.errors(include_url=False, include_input=False)
    ruled_out = [
        complaint["loc"][:-1]
        for complaint in complaints
        if complaint["type"] == "literal_error" and complaint["loc"][-1] == "type"
    ]
    telling = [
        complaint
        for complaint in complaints
        if not any(complaint["loc"][: len(prefix)] == prefix for prefix in ruled_out)
    ]
    return "; ".join(
        f"{'.'.join(map(str, complaint['loc']))}: {complaint['msg']}"
        for complaint in (telling or complaints)[:5]
    )


def validate(model: type[BaseModel], document: Json) -> None:
    """Require that a document matches the SDK's type and has no extra keys."""
    try:
        model.model_validate_json(json.dumps(document), strict=True, extra="forbid")
    except ValidationError as error:
        raise AssertionError(f"not a valid {model.__name__}: {_explain(error)}") from error


# One document: the response object ---------------------------------------------------------------

_NEVER_NULL = frozenset(
    {
        "id",
        "object",
        "created_at",
        "status",
        "model",
        "output",
        "tools",
        "tool_choice",
        "parallel_tool_calls",
        "truncation",
        "text",
        "temperature",
        "top_p",
        "top_logprobs",
        "presence_penalty",
        "frequency_penalty",
        "store",
        "background",
        "service_tier",
    }
)
_MAYBE_NULL = frozenset(
    {
        "completed_at",
        "error",
        "incomplete_details",
        "instructions",
        "max_output_tokens",
        "max_tool_calls",
        "metadata",
        "previous_response_id",
        "prompt_cache_key",
        "reasoning",
        "safety_identifier",
        "usage",
        "user",
    }
)
_KEYS_THE_SDK_LACKS: dict[str, tuple[type, ...]] = {
    "presence_penalty": (int, float),
    "frequency_penalty": (int, float),
    "store": (bool,),
}
_ADDED, _DONE = "response.output_item.added", "response.output_item.done"
_FUNCTION_TOOL_KEYS = frozenset({"description", "parameters", "strict"})


def _is_foreign(tool: object, foreign_tool_types: frozenset[str]) -> bool:
    return isinstance(tool, dict) and tool.get("type") in foreign_tool_types


_CODES_THE_SDK_LACKS = frozenset({"context_length_exceeded", "insufficient_quota", "model_not_found"})
"""Codes of failed responses that the API sends and Codex acts on."""


def _as_the_sdk_knows_it(response: Json, foreign_tool_types: frozenset[str]) -> Json:
    """Remove valid keys, codes and tools that the SDK's types do not have."""
    known = {key: value for key, value in response.items() if key not in _KEYS_THE_SDK_LACKS}
    if "stop_sequence" in known:
        require(isinstance(known.pop("stop_sequence"), str), "response.stop_sequence is no text")
    if isinstance(known.get("tools"), list):
        tools = known["tools"]
        known["tools"] = [tool for tool in tools if not _is_foreign(tool, foreign_tool_types)]
    if isinstance(known.get("output"), list):
        known["output"] = [_item_as_the_sdk_knows_it(item) for item in known["output"]]
    error = known.get("error")
    if isinstance(error, dict) and error.get("code") in _CODES_THE_SDK_LACKS:
        known["error"] = {**error, "code": "server_error"}
    return known


def _item_as_the_sdk_knows_it(item: Json) -> Json:
    """Its types of output items differ from recorded ones in two keys."""
    if item.get("type") == "custom_tool_call":
        return {key: value for key, value in item.items() if key != "status"}
    if item.get("type") == "web_search_call" and "action" not in item:
        return {**item, "action": {"type": "search", "query": ""}}
    return item


def _check_response_rules(response: Json) -> None:
    """Require what clients and other schemas need, but the SDK's types do not."""
    missing = sorted((_NEVER_NULL | _MAYBE_NULL) - response.keys())
    require(not missing, f"response lacks the keys {missing}")
    null = sorted(key for key in _NEVER_NULL if response[key] is None)
    require(not null, f"null in response: {null}")
    for key, types in _KEYS_THE_SDK_LACKS.items():
        value = response[key]
        is_right = isinstance(value, types) and isinstance(value, bool) == (types == (bool,))
        require(is_right, f"response.{key} has the wrong type: {value!r}")
    text = response["text"]
    require(text.get("format") is not None, "response.text.format is missing or null")
    require(text.get("verbosity", "medium") is not None, "response.text.verbosity is null")
    for tool in response["tools"]:
        missing = sorted(_FUNCTION_TOOL_KEYS - tool.keys()) if tool["type"] == "function" else []
        require(not missing, f"function tool lacks the keys {missing}")
    for item in response["output"]:
        check_item(item, added=False)
    _check_outcome(response)


def _check_outcome(response: Json) -> None:
    """Require that the fields which report the outcome agree with the status."""
    status = response["status"]
    reports = {"completed_at": "completed", "error": "failed", "incomplete_details": "incomplete"}
    for key, its_status in reports.items():
        is_set = response[key] is not None
        require(is_set == (status == its_status), f"{key} is {response[key]!r} when {status}")
    usage = response["usage"]
    if status in {"completed", "incomplete"}:
        require(usage is not None, f"usage is null when {status}")
    if status in {"in_progress", "queued"}:
        require(usage is None, f"usage is already set when {status}")
    if usage is not None:
        _check_usage(usage)


def _check_usage(usage: Json) -> None:
    read, written = usage["input_tokens"], usage["output_tokens"]
    require_equal(usage["total_tokens"], read + written, "usage.total_tokens")
    details = usage["input_tokens_details"]
    cached = details["cached_tokens"]
    require(0 <= cached <= read, f"{cached} cached of {read} input tokens")
    if by_lifetime := details.get("cache_write_tokens_details"):
        require_equal(sum(by_lifetime.values()), details["cache_write_tokens"], "tokens written to a cache")
    reasoning = usage["output_tokens_details"]["reasoning_tokens"]
    require(0 <= reasoning <= written, f"{reasoning} reasoning of {written} output tokens")


def check_response(body: Json | str | bytes, foreign_tool_types: frozenset[str] = NO_TYPES) -> Json:
    """Check a response object, as POST and GET return it."""
    response = body if isinstance(body, dict) else parse(_decoded(body))
    validate(Response, _as_the_sdk_knows_it(response, foreign_tool_types))
    _check_response_rules(response)
    return response


def check_window(body: Json) -> Json:
    """Check what `POST /v1/responses/compact` returns.

    The SDK's type has only assistant messages, but a window contains user messages.
    """
    *messages, last = body["output"]
    validate(CompactedResponse, {**body, "output": [last]})
    require_equal(last["type"], "compaction", "type of the last item of a window")
    require(bool(last["encrypted_content"]), "a compaction holds nothing")
    _check_usage(body["usage"])
    for message in messages:
        validate(ResponseInputMessageItem, message)
        require_equal(message["role"], "user", "role of a message in a window")
    ids = [item["id"] for item in body["output"]]
    require(len(ids) == len(set(ids)), f"items of a window share an id: {ids}")
    return body


# One document: frames, SSE events, errors --------------------------------------------------------

_STREAM_ID = re.compile(r"[A-Za-z0-9_.-]{1,256}")


def _check_event(
    event: Json,
    models: dict[str, type[BaseModel]],
    foreign_tool_types: frozenset[str],
) -> None:
    kind = event.get("type")
    model = models.get(kind) if isinstance(kind, str) else None
    if model is None:
        raise AssertionError(f"unknown event type {kind!r}")
    response = event.get("response")
    if not isinstance(response, dict):
        # Allowed in every delta, although the SDK's types have it in only one.
        padded = event["type"].endswith(".delta") and isinstance(event.get("obfuscation"), str)
        known = {key: event[key] for key in event if key != "obfuscation" or not padded}
        if kind in (_ADDED, _DONE):
            known["item"] = _item_as_the_sdk_knows_it(event["item"])
        validate(model, known)
        if kind in (_ADDED, _DONE):
            check_item(event["item"], added=kind == _ADDED)
        return
    known = _as_the_sdk_knows_it(response, foreign_tool_types)
    validate(model, {**event, "response": known})
    _check_response_rules(response)


def check_frame(raw: str | bytes, foreign_tool_types: frozenset[str] = NO_TYPES) -> Json:
    """Check one WebSocket message of the server and return it parsed.

    slipring echoes tools as they were sent, also of types that the SDK does not know: name those
    in `foreign_tool_types`.
    """
    text = _decoded(raw)
    _check_frame(text, foreign_tool_types)
    event: Json = json.loads(text)
    return event


@lru_cache(maxsize=4096)
def _check_frame(text: str, foreign_tool_types: frozenset[str]) -> None:
    """Check one message. The cache is for messages that the tap has seen and a test's client then reads."""
    event = parse(text)
    if event.get("type") == TIMING:
        _check_timing(event)
        return
    if str(event.get("type")) in _OWN_EVENTS:
        _check_own(event)
        return
    checked = event
    if event.get("type") == "response.steer.failed" and "input" in event.get("steer", {}):
        # The client's input is returned unchanged, and may be anything.
        checked = {**event, "steer": {**event["steer"], "input": ""}}
    if event.get("type") == "response.inject.failed":
        checked = {**event, "input": []}
    models = _WEBSOCKET_EVENTS
    if name := _BETA_EVENTS.get(str(event.get("type"))):
        models = {event["type"]: getattr(late.beta, name)}
    _check_event(checked, models, foreign_tool_types)
    _lane_of(event)
    if event["type"] == "error":
        _check_websocket_error(event)


def check_sse_event(
    event_name: str,
    data: str,
    foreign_tool_types: frozenset[str] = NO_TYPES,
) -> Json:
    """Check one server-sent event (not the closing `[DONE]`) and return its data parsed."""
    _check_sse_event(event_name, data, foreign_tool_types)
    event: Json = json.loads(data)
    return event


@lru_cache(maxsize=4096)
def _check_sse_event(event_name: str, data: str, foreign_tool_types: frozenset[str]) -> None:
    """Check one server-sent event. The cache is for events that the tap has seen and a client then reads."""
    event = parse(data)
    require("stream_id" not in event, "lanes exist on the WebSocket only: stream_id over SSE")
    if event.get("type") == TIMING:
        _check_timing(event)
        return
    if event.get("type") == "slipring.mcp_call.progress":
        _check_own(event)
        return
    _check_event(event, _SSE_EVENTS, foreign_tool_types)
    require_equal(event_name, event["type"], "name of the SSE event")
    if event["type"] == "error":
        missing = sorted({"code", "param"} - event.keys())
        require(not missing, f"error event lacks the keys {missing}")
        require(event["message"] != "", "error.message is empty")


TIMING = "slipring.timing"
_STAGES = ["decode", "queue", "resolve", "validate", "list", "weigh", "compact", "check", "render"]
_STAGES += ["engine_queue", "prefill", "held", "generate", "store", "terminal"]
_PAUSES = ("client", "tools")
"""Stages between two steps of a response."""
_OF_A_STEP = ["rollout", *_STAGES]
"""In a long rollout, one stage replaces those of all early steps."""


_OWN_EVENTS: dict[str, frozenset[str]] = {
    "response.done": frozenset({"response_id", "required_input"}),
    "response.append.failed": frozenset({"response_id", "input", "error"}),
    "response.tool_output.failed": frozenset({"response_id", "call_id", "error"}),
    "slipring.mcp_call.progress": frozenset({"item_id", "output_index", "progress", "total", "message"}),
}
"""Events that are specific to slipring, with their keys besides those of every event."""


def _check_own(event: Json) -> None:
    expected = {"type", "sequence_number", *_OWN_EVENTS[event["type"]]}
    require_equal(event.keys() - {"stream_id"}, expected, f"keys of {event['type']}")
    for stub in event.get("required_input", []):
        require(
            stub.keys() <= {"type", "call_id", "name", "execution"} and stub["call_id"] != "", f"stub {stub}"
        )
        require(stub["type"].endswith("_output"), f"type of the stub {stub}")
    if "error" in event:
        require_equal(set(event["error"]), {"type", "code", "message", "param"}, "keys of the error")


def _check_timing(event: Json) -> None:
    """Check `slipring.timing`: the stages are in order, and each begins where the previous one ended. A
    response of several steps repeats the stages for each of them."""
    timing = event["timing"]
    names = [stage["name"] for stage in timing["stages"]]
    while any(name in _PAUSES for name in names):
        end_of_step = next(index for index, name in enumerate(names) if name in _PAUSES)
        step, names = names[:end_of_step], names[end_of_step + 1 :]
        require_equal(step, [name for name in _OF_A_STEP if name in step], "order of the stages of a step")
    require_equal(names, [name for name in _STAGES if name in names], "order of the stages")
    end = 0.0
    for stage in timing["stages"]:
        begins_there = abs(stage["start_ms"] - end) < 0.01 and stage["duration_ms"] >= 0
        require(begins_there, f"stage {stage} does not follow one that ended at {end}")
        end = stage["start_ms"] + stage["duration_ms"]
    require(abs(timing["total_ms"] - end) < 0.1, f"total_ms {timing['total_ms']}, stages end at {end}")
    require(timing["response_id"].startswith("resp_"), "response_id of a timing")


def _check_websocket_error(event: Json) -> None:
    """Codex ignores an error without `status`, Open Responses one without `error.code`."""
    status = event.get("status")
    require(status is not None and 400 <= status <= 599, f"error has the status {status!r}")
    for key in ("type", "code", "message"):
        require(bool(event["error"].get(key)), f"error.{key} is missing, null or empty")


def check_http_error(body: Json | str | bytes) -> Json:
    """Check the body of an HTTP response with a status of 400 or more."""
    document = body if isinstance(body, dict) else parse(_decoded(body))
    require_equal(set(document), {"error"}, "keys of the error body")
    error = document["error"]
    require(isinstance(error, dict), f"error is not an object: {error!r}")
    require_equal(set(error), {"message", "type", "param", "code"}, "keys of the error")
    for key in ("message", "type"):
        require(isinstance(error[key], str) and error[key] != "", f"error.{key}: {error[key]!r}")
    for key in ("param", "code"):
        require(isinstance(error[key], str | None), f"error.{key}: {error[key]!r}")
    return document


# Many events: the order on one connection --------------------------------------------------------


def _lane_of(event: Json) -> str | None:
    """Return the lane of an event; the default lane has no key at all, and never a null."""
    if "stream_id" not in event:
        return None
    lane = event["stream_id"]
    if not isinstance(lane, str):
        raise AssertionError(f"stream_id is not a string: {lane!r}")
    require(_STREAM_ID.fullmatch(lane) is not None, f"no client can have sent stream_id {lane!r}")
    return lane


class _Stream(NamedTuple):
    """One kind of text that is sent in deltas: the item and part it belongs to, and the field with the whole
    text."""

    item_type: str
    part_type: str | None  # None: the text is a field of the item itself
    whole: str

    @property
    def place(self) -> str:
        return "summary" if self.part_type == "summary_text" else "content"


_STREAMS = {
    "response.output_text": _Stream("message", "output_text", "text"),
    "response.refusal": _Stream("message", "refusal", "refusal"),
    "response.reasoning_text": _Stream("reasoning", "reasoning_text", "text"),
    "response.reasoning_summary_text": _Stream("reasoning", "summary_text", "text"),
    "response.function_call_arguments": _Stream("function_call", None, "arguments"),
    "response.custom_tool_call_input": _Stream("custom_tool_call", None, "input"),
    "response.mcp_call_arguments": _Stream("mcp_call", None, "arguments"),
    "response.code_interpreter_call_code": _Stream("code_interpreter_call", None, "code"),
}
_STREAM_OF_PART = {stream.part_type: stream for stream in _STREAMS.values() if stream.part_type}
_STREAM_OF_ITEM = {s.item_type: s for s in _STREAMS.values() if s.part_type is None}
_ALWAYS_STREAMED = frozenset({"function_call", "custom_tool_call", "mcp_call"})

_PART_LISTS = {"response.content_part": "content", "response.reasoning_summary_part": "summary"}
_INDEX_KEYS = {"content": "content_index", "summary": "summary_index"}

# Hosted tools report progress in events named after their items.
_PROGRESS = frozenset(
    {
        "mcp_call",
        "mcp_list_tools",
        "web_search_call",
        "file_search_call",
        "code_interpreter_call",
        "image_generation_call",
        "compaction",
    }
)


_HOSTED = frozenset({"mcp_call", "mcp_list_tools"})


@dataclass
class _Text:
    """A text that is being streamed: deltas, then `.done` with the whole text."""

    deltas: list[str] = field(default_factory=list)
    is_done: bool = False

    @property
    def so_far(self) -> str:
        return "".join(self.deltas)

    def append(self, delta: str) -> None:
        require(not self.is_done, "delta after its .done")
        self.deltas.append(delta)

    def finish(self, whole: str) -> None:
        require(not self.is_done, "second .done for one text")
        require_equal(whole, self.so_far, "text of .done against its deltas")
        self.is_done = True


class _Part:
    """A content or summary part between its `.added` and its `.done`."""

    def __init__(self, part: Json, place: str, index: int) -> None:
        self.type, self.place, self.index = part["type"], place, index
        self.text = _Text()
        self.annotations: list[Json] = []
        self.stream = _STREAM_OF_PART[self.type]
        require_equal(part[self.stream.whole], "", "text of a part that was just added")

    def annotate(self, event: Json) -> None:
        require_equal(self.type, "output_text", "type of the part with an annotation")
        require_equal(event["annotation_index"], len(self.annotations), "annotation_index")
        self.annotations.append(event["annotation"])

    def check_done(self, part: Json) -> None:
        require_equal(part["type"], self.type, "type of the finished part")
        require(self.text.is_done, f"{self.type} part is done before its text is")
        require_equal(part[self.stream.whole], self.text.so_far, "text of the finished part")
        require_equal(part.get("annotations", []), self.annotations, "annotations of the part")


class _Item:
    """An output item between its `.added` and its `.done`."""

    def __init__(self, event: Json) -> None:
        self.added, self.index = event["item"], event["output_index"]
        self.type: str = self.added["type"]
        self.id: str = self.added.get("id") or ""
        self.text = _Text()
        self.progress: list[str] = []
        self.part: _Part | None = None
        self.parts: dict[str, list[Json]] = {"content": [], "summary": []}
        require(self.id != "", f"{self.type} item has no id")
        # Items that a client appends are complete from the beginning.
        status = self.added.get("status") or "in_progress"
        appended = self.type.endswith("_output")
        require_equal(status, "completed" if appended else "in_progress", "status of the added item")
        self._check_starts_empty()

    def _check_starts_empty(self) -> None:
        texts = {"content", "summary"} if self.type in {"message", "reasoning"} else set()
        if self.type in _ALWAYS_STREAMED:
            texts = {_STREAM_OF_ITEM[self.type].whole}
        filled = sorted(key for key in texts if self.added.get(key))
        require(not filled, f"{self.type} item is added with {filled} before any delta")

    def see(self, event: Json) -> None:
        self._check_identity(event)
        family, _, verb = event["type"].rpartition(".")
        if family in _PART_LISTS:
            self._see_part(_PART_LISTS[family], verb, event)
        elif family in _STREAMS:
            self._see_text(_STREAMS[family], verb, event)
        elif family == "response.output_text.annotation":
            self._open_part("content", event).annotate(event)
        else:
            self._see_progress(event["type"])

    def _check_identity(self, event: Json) -> None:
        require_equal(event.get("output_index"), self.index, f"output_index of {event['type']}")
        if not event["type"].startswith("response.shell_call_command."):  # these have no item_id
            require_equal(event.get("item_id"), self.id, f"item_id of {event['type']}")

    def _see_part(self, place: str, verb: str, event: Json) -> None:
        if verb == "done":
            self._open_part(place, event).check_done(event["part"])
            self.parts[place].append(event["part"])
            self.part = None
            return
        require(self.part is None, "a part is added while another one is open")
        require_equal(event[_INDEX_KEYS[place]], len(self.parts[place]), _INDEX_KEYS[place])
        stream = _STREAM_OF_PART[event["part"]["type"]]
        belongs = (stream.item_type, stream.place) == (self.type, place)
        require(belongs, f"{stream.part_type} part in the {place} of a {self.type} item")
        self.part = _Part(event["part"], place, event[_INDEX_KEYS[place]])

    def _open_part(self, place: str, event: Json) -> _Part:
        part = self.part
        if part is None or part.place != place:
            raise AssertionError(f"{event['type']} outside of an open {place} part")
        require_equal(event[_INDEX_KEYS[place]], part.index, _INDEX_KEYS[place])
        return part

    def _see_text(self, stream: _Stream, verb: str, event: Json) -> None:
        require_equal(self.type, stream.item_type, f"type of the item for {event['type']}")
        text = self.text
        if stream.part_type is not None:
            part = self._open_part(stream.place, event)
            require_equal(part.type, stream.part_type, f"type of the part for {event['type']}")
            text = part.text
        if verb == "delta":
            text.append(event["delta"])
        else:
            text.finish(event[stream.whole])

    def _see_progress(self, kind: str) -> None:
        subject, verb = kind.split(".")[1:3]
        if subject in _PROGRESS:
            require_equal(self.type, subject, f"type of the item for {kind}")
        if subject in _HOSTED:
            self._see_hosted_progress(verb)
        self.progress.append(kind)

    def _see_hosted_progress(self, verb: str) -> None:
        """A hosted call is in progress from the beginning, and reports so again while it runs; its end is its
        last event."""
        if not self.progress:
            require(verb == "in_progress" and not self.text.deltas, f"{verb} is the first event of an item")
            return
        require(not self.has_ended, f"{verb} after the end of a hosted call")
        # Of an approved call, the arguments are known as a whole; the repetition is before their end.
        is_approved = self.added.get("approval_request_id") is not None and bool(self.text.deltas)
        is_written = self.text.is_done or (is_approved and verb == "in_progress")
        require(self.type == "mcp_list_tools" or is_written, f"{verb} before the arguments are complete")

    @property
    def has_ended(self) -> bool:
        """Whether this is a hosted call or list whose end was reported."""
        return bool(self.progress) and self.progress[-1].endswith((".completed", ".failed"))

    @property
    def runs(self) -> bool:
        """Whether this is a hosted call that the model has written, or a list that is being fetched: other
        items may begin while it runs."""
        if self.type == "mcp_call":
            return self.text.is_done
        if self.type == "mcp_list_tools":
            return bool(self.progress)
        return bool(self.progress) and self.progress[-1].endswith((".searching", ".interpreting"))

    def check_done(self, item: Json) -> None:
        for key in ("id", "type", "call_id", "name"):
            require_equal(item.get(key), self.added.get(key), f"{key} of the finished item")
        if self.type.endswith("_output"):
            require_equal(item, self.added, "what was appended")
        # The API has no status for a patch that was cut off.
        is_patch = item["type"] == "apply_patch_call"
        require(is_patch or item.get("status") != "in_progress", "finished item is still in_progress")
        require(self.part is None, "item is done while one of its parts is open")
        if self.type in {"message", "reasoning"}:
            for place, parts in self.parts.items():
                require_equal(item.get(place) or [], parts, f"{place} of the finished item")
        elif self.type in _STREAM_OF_ITEM:
            self._check_done_text(item)
        if self.type in _HOSTED:
            self._check_done_hosted(item)
        elif self.type == "mcp_approval_request":
            require_equal(item, self.added, "what is to be approved")
        elif self.type == "compaction":
            require_equal(self.progress, ["response.compaction.compacting"], "progress of a compaction")
            require(bool(item["encrypted_content"]), "a finished compaction holds nothing")

    def _check_done_hosted(self, item: Json) -> None:
        """The item says what its last event said. A call that was broken off has not run, and has no end."""
        end = self.progress[-1].rpartition(".")[2] if self.progress else None
        if self.type == "mcp_list_tools":
            require_equal(end, "failed" if item.get("error") else "completed", "end of a list")
            return
        require_equal(end, {"incomplete": "in_progress"}.get(item["status"], item["status"]), "end of a call")
        require_equal(
            item.get("error") is not None, item["status"] == "failed", f"error when {item['status']}"
        )
        require_equal(
            item.get("output") is not None, item["status"] == "completed", f"output: {item['status']}"
        )

    def _check_done_text(self, item: Json) -> None:
        """An `incomplete` call may lack its `.done`, but must contain the streamed text."""
        is_streamed = self.text.is_done or bool(self.text.deltas)
        if not is_streamed and self.type not in _ALWAYS_STREAMED:
            return
        is_whole = self.text.is_done or item.get("status") == "incomplete"
        require(is_whole, f"{self.type} item is done before its text is")
        key = _STREAM_OF_ITEM[self.type].whole
        require_equal(item[key], self.text.so_far, f"{key} of the finished item")


_TERMINAL = {
    "response.completed": "completed",
    "response.failed": "failed",
    "response.incomplete": "incomplete",
}


class _Turn:
    """The events of one response, from `response.created` to its terminal event."""

    def __init__(self, event: Json, lane: str | None) -> None:
        self.response: Json = event["response"]
        self.lane = lane
        self.is_queued = False
        self.is_in_progress = False
        self.is_over = False
        self.next_number = 0
        self.item: _Item | None = None
        self.running: dict[int, _Item] = {}
        """Hosted calls that run on after the model has written them, by output index."""
        self.finished: dict[int, Json] = {}
        """Finished items, by output index."""
        self.count(event)
        self._check_fresh(event, "queued" if self.response["background"] else "in_progress")

    @property
    def done(self) -> list[Json]:
        """Finished items, in the order of the output."""
        return [self.finished[index] for index in sorted(self.finished)]

    def count(self, event: Json) -> None:
        require_equal(event.get("sequence_number"), self.next_number, "sequence_number")
        self.next_number += 1

    def _check_fresh(self, event: Json, status: str) -> None:
        require_equal(event["response"]["status"], status, f"status in {event['type']}")
        require_equal(event["response"]["output"], [], f"output in {event['type']}")

    def _check_same(self, event: Json) -> None:
        for key in ("id", "created_at", "previous_response_id"):
            require_equal(event["response"][key], self.response[key], f"{key} in {event['type']}")

    def see(self, event: Json) -> None:
        self.count(event)
        kind = event["type"]
        if kind in _TERMINAL:
            self._end(event)
        elif kind == "response.in_progress":
            require(not self.is_in_progress, "second response.in_progress")
            require(not self.finished and self.item is None, "an item before response.in_progress")
            require_equal(self.is_queued, self.response["background"], "queued before it is in progress")
            self._check_same(event)
            self._check_fresh(event, "in_progress")
            self.is_in_progress = True
        elif kind == "response.queued":
            require(not self.is_queued and not self.is_in_progress, "response.queued out of place")
            require(self.response["background"], "response.queued of a response that is waited for")
            self._check_same(event)
            self._check_fresh(event, "queued")
            self.is_queued = True
        else:
            # A warmup, which is never in progress, lists tools.
            is_list = event.get("item", {}).get("type") == "mcp_list_tools" or "mcp_list_tools." in kind
            require(self.is_in_progress or is_list, f"{kind} before response.in_progress")
            self._see_output(event)

    def _see_output(self, event: Json) -> None:
        if event["type"] == "response.done":
            self._see_pause(event)
            return
        if event["type"] == _ADDED:
            self._add_item(event)
            return
        item = self.running.get(event.get("output_index", -1), self.item)
        if item is None:
            raise AssertionError(f"{event['type']} outside of an open item")
        if event["type"] == "response.output_item.done":
            require_equal(event["output_index"], item.index, "output_index of the done item")
            item.check_done(event["item"])
            self.finished[item.index] = event["item"]
            self.running.pop(item.index, None)
            self.item = None if item is self.item else self.item
            return
        item.see(event)
        if item is self.item and item.runs:
            self.running[item.index], self.item = item, None

    def _see_pause(self, event: Json) -> None:
        """Check that a waiting rollout lists every call that its client has not answered."""
        require(self.item is None and not self.running, "response.done while an item is open")
        require_equal(event["response_id"], self.response["id"], "response_id of response.done")
        done = self.done
        answered = {item["call_id"] for item in done if item["type"].endswith("_output")}
        # A call that the model broke off needs no answer.
        calls = [
            item["call_id"]
            for item in done
            if item["type"].endswith("_call")
            and item["type"] != "mcp_call"
            and item.get("status") != "incomplete"
        ]
        owed = [call for call in calls if call not in answered]
        require_equal([stub["call_id"] for stub in event["required_input"]], owed, "calls of response.done")

    def _add_item(self, event: Json) -> None:
        require(self.item is None, "an item is added while another one is open")
        earlier = len(self.finished) + len(self.running)
        require_equal(event["output_index"], earlier, "output_index of the added item")
        item = _Item(event)
        known = {done["id"] for done in self.finished.values()} | {each.id for each in self.running.values()}
        require(item.id not in known, f"second item {item.id}")
        self.item = item

    def _end(self, event: Json) -> None:
        response, status = event["response"], _TERMINAL[event["type"]]
        self._check_same(event)
        if response["background"] and response["status"] == "cancelled":
            status = "cancelled" if status == "incomplete" else status
        require_equal(response["status"], status, f"status in {event['type']}")
        _check_outcome(response)
        if status == "failed" and response["usage"] is not None:
            # It can be continued: it has its finished steps, and no part of a later one is missing.
            kept = response["output"]
            require_equal(kept, self.done[: len(kept)], "output of a failed response that is kept")
        elif status in ("failed", "cancelled"):
            self._check_failed_output(response["output"])
        else:
            require(self.item is None and not self.running, f"{event['type']} while an item is open")
            require_equal(response["output"], self.done, f"output in {event['type']}")
        if not self.is_in_progress and not response["background"]:
            self._check_warmup(response)
        self.response = response
        self.is_over = True

    def _check_failed_output(self, output: list[Json]) -> None:
        """A failed response may lack finished items and have part of the open one, but nothing else."""
        # Calls whose server process died have no events that end them.
        lost = {item.id for item in self.running.values()}
        require(
            all(item["status"] == "failed" for item in output if item.get("id") in lost),
            "a lost call has not failed",
        )
        finished = output = [item for item in output if item.get("id") not in lost]
        if output and self.item is not None and output[-1].get("id") == self.item.id:
            finished = output[:-1]
            require_equal(output[-1]["type"], self.item.type, "type of the open item")
            require(output[-1].get("status") != "completed", "the open item is called completed")
        require(_is_sublist(finished, self.done), "output of response.failed has foreign items")

    def _check_warmup(self, response: Json) -> None:
        """Only a warmup skips `response.in_progress`, and a warmup generates nothing."""
        status = response["status"]
        require(status != "incomplete", "response.incomplete before response.in_progress")
        if status == "completed":
            require_equal(response["usage"]["output_tokens"], 0, "output tokens of a warmup")


def _is_sublist(some: Iterable[Json], whole: Iterable[Json]) -> bool:
    rest = iter(whole)
    return all(item in rest for item in some)


class Order:
    """Checks the order of the events of one connection.

    Feed every event to `see`, then call `finish`. An SSE stream is a connection with the default lane only.
    `Order` cannot check whether an `error` names the lane of the create that it rejects (an error without
    `stream_id` may concern the default lane or the connection): tests that provoke one on a named lane look
    into `errors`.
    """

    def __init__(self) -> None:
        self.responses: list[Json] = []
        """Finished response objects, in the order of their terminal events."""
        self.errors: list[Json] = []
        """Bare `error` frames, in the order of arrival."""
        self._open: dict[str | None, _Turn] = {}
        self._turns: dict[str, _Turn] = {}

    def see(self, event: Json) -> None:
        """Check the next event; raise AssertionError if it is not allowed at this point."""
        lane, kind = _lane_of(event), event["type"]
        if kind == "error":
            self._see_error(event)
        elif kind.startswith("response.steer."):
            self._see_steer(event, lane)
        elif kind.startswith(("response.append.", "response.inject.", "response.tool_output.")):
            self._see_appended(event, lane)
        elif kind == "response.created":
            self._see_created(event, lane)
        elif kind == TIMING:
            self._see_timing(event, lane)
        else:
            self._see_turn(event, lane)

    def finish(self, *, abandoned: bool = False) -> None:
        """Require that no response is open, unless the connection ended early."""
        left = {lane: turn.response["id"] for lane, turn in self._open.items()}
        require(abandoned or not left, f"responses without a terminal event: {left}")

    def _see_error(self, event: Json) -> None:
        number = event.get("sequence_number", 0)
        require(type(number) is int and number >= 0, f"sequence_number of an error: {number!r}")
        self.errors.append(event)

    def _see_created(self, event: Json, lane: str | None) -> None:
        require(lane not in self._open, f"response.created while lane {lane!r} is busy")
        response_id = event["response"]["id"]
        require(response_id not in self._turns, f"second response with the id {response_id}")
        self._open[lane] = self._turns[response_id] = _Turn(event, lane)

    def _see_timing(self, event: Json, lane: str | None) -> None:
        turn = self._turns.get(event["timing"]["response_id"])
        if turn is None or not turn.is_over:
            raise AssertionError("a timing of a response that is not over")
        require_equal(turn.lane, lane, "lane of a timing")
        turn.count(event)

    def _see_turn(self, event: Json, lane: str | None) -> None:
        turn = self._open.get(lane)
        if turn is None:
            raise AssertionError(f"{event['type']} while no response is open on lane {lane!r}")
        turn.see(event)
        if turn.is_over:
            del self._open[lane]
            self.responses.append(turn.response)

    def _see_appended(self, event: Json, lane: str | None) -> None:
        """The answer to an append, or to a piece of an output, does not wait in the lane's queue, and has the
        numbers of the open response."""
        turn = self._turns.get(event["response_id"])
        code = event.get("error", {}).get("code")
        if turn is None or turn.is_over:
            require(code is not None, f"{event['type']} of a response that is not being made")
            return
        require_equal(lane, turn.lane, "lane of the response")
        turn.count(event)

    def _see_steer(self, event: Json, lane: str | None) -> None:
        """The answer to a steer does not wait in the lane's queue, and has the numbers of the steered
        response.

        It may be sent after that response has ended. The server may then have discarded the count, so that
        failures may have any number; or the whole response, and with it the lane.
        """
        verb = event["type"].removeprefix("response.steer.")
        turn = self._turns.get(event["steer"]["previous_response_id"])
        if turn is None:
            require_equal(verb, "failed", "answer to steering an unknown response")
            return
        if turn.is_over and event.get("error", {}).get("code") == "response_not_found":
            return
        require_equal(lane, turn.lane, "lane of the steered response")
        if not turn.is_over:
            require(verb != "pending", "steering is pending before its response is over")
            turn.count(event)
        elif verb != "failed":
            require_equal(verb, "pending", "answer to steering a finished response")
            require(event["sequence_number"] >= turn.next_number, "sequence_number runs back")
            turn.next_number = event["sequence_number"] + 1
