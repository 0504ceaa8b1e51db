"""Create requests: unknown fields pass, known fields are validated."""

import json
from typing import cast

import pytest
from msgspec import UNSET, Raw

from slipring.base.errors import InvalidJson, InvalidRequest, InvalidStreamId, UnsupportedParameter
from slipring.protocol import requests
from slipring.protocol.requests import TEXT, CreateRequest, read_create, read_format, read_lane
from slipring.protocol.tools.grammars_and_schemas import Definitions

RAW = {"input", "tools", "tool_choice", "conversation"}


def create(**fields: object) -> CreateRequest:
    return read_create(json.dumps(fields))


def refusal(**fields: object) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        create(**fields)
    return caught.value


# Fields.


def test_an_empty_request_is_read():
    request = create()
    assert (request.model, request.store, request.generate) == (None, None, None)
    assert request.input is UNSET


def test_null_is_the_same_as_absent_for_every_field():
    fields = CreateRequest.__struct_fields__
    request = create(**dict.fromkeys(fields))
    for field in RAW:
        assert bytes(getattr(request, field)) == b"null"
    assert all(getattr(request, field) is None for field in set(fields) - RAW)


def test_what_codex_sends_is_read():
    request = create(
        type="response.create",
        model="m",
        previous_response_id="resp_1",
        input=[],
        tools=[],
        tool_choice="auto",
        parallel_tool_calls=False,
        reasoning={"effort": "medium", "summary": "auto", "context": "all_turns"},
        store=False,
        stream=True,
        stream_options={"reasoning_summary_delivery": "sequential_cutoff"},
        include=["reasoning.encrypted_content"],
        service_tier="priority",
        prompt_cache_key="k",
        text={"verbosity": "low"},
        generate=False,
        client_metadata={"session_id": "s", "x-codex-turn-metadata": "{}"},
    )
    assert request.warms_up
    assert request.reasoning is not None
    assert request.reasoning.context == "all_turns"


def test_unknown_fields_are_ignored():
    assert create(model="m", from_the_future={"a": [1]}).model == "m"


def test_input_and_tools_stay_raw():
    request = read_create('{"input": [ 1.0 ], "tools": {"a":  1}, "tool_choice": "x" }')
    assert bytes(cast(Raw, request.input)) == b"[ 1.0 ]"
    assert bytes(cast(Raw, request.tools)) == b'{"a":  1}'
    assert bytes(cast(Raw, request.tool_choice)) == b'"x"'


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1),
        ("temperature", 2.1),
        ("top_p", 1.1),
        ("top_logprobs", -1),
        ("top_logprobs", 21),
        ("presence_penalty", 2.1),
        ("frequency_penalty", -2.1),
        ("max_output_tokens", 0),
        ("max_tool_calls", 0),
        ("truncation", "sometimes"),
        ("service_tier", "platinum"),
        ("safety_identifier", "x" * 129),
        ("prompt_cache_retention", "1h"),
        ("generate", "no"),
        ("parallel_tool_calls", 1),
        ("metadata", {f"k{n}": "v" for n in range(17)}),
        ("metadata", []),
        ("instructions", ["a"]),
        ("include", "all"),
        ("seed", "x"),
        ("client_metadata", "x"),
    ],
)
def test_a_value_out_of_range_names_its_field(field, value):
    assert refusal(**{field: value}).param == field


@pytest.mark.parametrize("metadata", [{"k": 1}, {"k": "v" * 513}, {"k" * 65: "v"}])
def test_metadata_is_bounded(metadata):
    assert refusal(metadata=metadata).param == "metadata"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"reasoning": {"effort": "huge"}}, "reasoning.effort"),
        ({"reasoning": {"summary": "long"}}, "reasoning.summary"),
        ({"text": {"verbosity": "loud"}}, "text.verbosity"),
        ({"prompt_cache_options": {"prewarm": 1}}, "prompt_cache_options.prewarm"),
        ({"stream_options": {"include_obfuscation": "x"}}, "stream_options.include_obfuscation"),
        ({"include": ["a", 1]}, "include[1]"),
    ],
)
def test_a_nested_field_is_named_by_its_path(fields, param):
    assert refusal(**fields).param == param


@pytest.mark.parametrize(
    ("fields", "warms_up"),
    [
        ({}, False),
        ({"generate": True}, False),
        ({"generate": False}, True),
        ({"prompt_cache_options": {"prewarm": True}}, True),
        ({"prompt_cache_options": {"prewarm": False}}, False),
        ({"prompt_cache_options": {}}, False),
    ],
)
def test_generate_false_and_prewarm_are_warmups(fields, warms_up):
    assert create(**fields).warms_up is warms_up


@pytest.mark.parametrize("field", ["type", "stream_id", "include", "metadata", "client_metadata", "prompt"])
def test_a_field_that_should_be_short_is_refused_before_it_is_decoded(field):
    assert refusal(**{field: "x" * 70_000}).param == field


@pytest.mark.parametrize(
    ("value", "conversation_id"),
    [(UNSET, None), (None, None), ("conv_1", "conv_1"), ({"id": "conv_1"}, "conv_1")],
)
def test_a_conversation_is_named_by_a_string_or_an_object(value, conversation_id):
    data = UNSET if value is UNSET else Raw(json.dumps(value).encode())
    assert requests.read_conversation(data) == conversation_id


@pytest.mark.parametrize(("value", "param"), [({}, "conversation.id"), (5, "conversation")])
def test_an_invalid_conversation_is_refused_by_name(value, param):
    with pytest.raises(InvalidRequest) as caught:
        requests.read_conversation(Raw(json.dumps(value).encode()))
    assert caught.value.param == param


# Routing.


def test_an_outline_is_read_though_other_fields_are_invalid():
    outline = requests.read_reply_routing('{"type": 5, "stream_id": [], "temperature": "hot"}')
    assert (outline.type, outline.stream_id, outline.previous_response_id) == (5, [], None)


@pytest.mark.parametrize("frame", ["", "[]", "nope"])
def test_an_outline_needs_a_json_object(frame):
    with pytest.raises(InvalidJson):
        requests.read_reply_routing(frame)


def test_no_stream_id_is_the_default_lane():
    assert read_lane(None) is None


@pytest.mark.parametrize("stream_id", ["a", "A.b-c_9", "x" * 256])
def test_a_stream_id_is_its_lane(stream_id):
    assert read_lane(stream_id) == stream_id


@pytest.mark.parametrize("stream_id", ["", "x" * 257, "a b", "a/b", "é", "a\n", 0, 123, False, [], {}])
def test_other_stream_ids_are_refused(stream_id):
    with pytest.raises(InvalidStreamId):
        read_lane(stream_id)


@pytest.mark.parametrize("stream", [None, True])
def test_a_socket_accepts_stream_true_and_absent(stream):
    requests.require_streaming(CreateRequest(stream=stream))


def test_a_socket_refuses_stream_false():
    with pytest.raises(UnsupportedParameter) as caught:
        requests.require_streaming(CreateRequest(stream=False))
    assert caught.value.param == "stream"


@pytest.mark.parametrize("body", [b"", b"  \n"])
def test_an_empty_body_is_refused(body):
    with pytest.raises(InvalidJson, match="no body"):
        requests.require_body(body)


def test_a_body_must_be_utf8():
    assert requests.require_body(b"{}") == b"{}"
    with pytest.raises(InvalidJson, match="UTF-8"):
        requests.require_body(b"\xff")


# Formats.


def text_format(value: object) -> requests.TextFormat | None:
    return read_format(Raw(json.dumps(value).encode()))


@pytest.mark.parametrize("value", [UNSET, Raw(b"null")])
def test_no_format_is_none(value):
    assert read_format(value) is None


@pytest.mark.parametrize(("strict", "is_strict"), [(True, True), (False, False), (None, False)])
def test_a_strict_schema_must_be_enforced(strict, is_strict):
    found = text_format({"type": "json_schema", "name": "n", "schema": {}, "strict": strict})
    assert found is not None
    assert found.is_strict is is_strict
    assert not TEXT.is_strict


def test_all_text_formats_are_the_same_object():
    assert text_format({"type": "text"}) is TEXT


def test_a_schema_is_kept_as_sent():
    raw = b'{"type":"json_schema","name":"n","schema":{ "a" : 1.0 },"strict":null}'
    found = read_format(Raw(raw))
    assert found is not None
    assert (found.kind, found.schema) == ("json_schema", b'{ "a" : 1.0 }')
    assert json.loads(bytes(found.echo)) == json.loads(raw)


@pytest.mark.parametrize(
    ("value", "param"),
    [
        ({"type": "xml"}, "text.format.type"),
        ({}, "text.format.type"),
        ("text", "text.format"),
        ({"type": "json_schema", "name": "n"}, "text.format.schema"),
        ({"type": "json_schema", "name": "n", "schema": None}, "text.format.schema"),
        ({"type": "json_schema", "name": "n", "schema": []}, "text.format.schema"),
        ({"type": "json_schema", "schema": {}}, "text.format.name"),
        ({"type": "json_schema", "name": "a b", "schema": {}}, "text.format.name"),
        ({"type": "json_schema", "name": "x" * 65, "schema": {}}, "text.format.name"),
    ],
)
def test_an_error_names_the_invalid_format(value, param):
    with pytest.raises(InvalidRequest) as caught:
        text_format(value)
    assert caught.value.param == param


def test_a_json_object_format_has_no_schema():
    found = text_format({"type": "json_object", "unknown": 1})
    assert found is not None
    assert (found.kind, found.schema, bytes(found.echo)) == ("json_object", None, b'{"type":"json_object"}')


def test_the_schema_of_a_format_is_bounded():
    bounds = Definitions(max_grammars=1, max_grammar_bytes=1, max_schema_bytes=8)
    sent = Raw(b'{"type":"json_schema","name":"n","schema":{"a": 12}}')
    with pytest.raises(InvalidRequest, match="max_schema_bytes") as caught:
        read_format(sent, definitions=bounds)
    assert caught.value.param == "text.format.schema"


# Input and context management.


def test_the_items_of_a_request_are_decoded_once():
    request = create(input="hi")
    assert [item.type for item in request.items] == ["message"]
    assert request.items is request.items


def test_context_management_is_read_entry_by_entry():
    entries = create(
        context_management=[{"type": "compaction"}, {"type": "compaction", "compact_threshold": 5}]
    )
    assert [entry.compact_threshold for entry in requests.read_management(entries.context_management)] == [
        None,
        5,
    ]
    assert requests.read_management(None) == []


def test_an_error_names_the_invalid_entry_of_context_management():
    request = create(
        context_management=[{"type": "compaction"}, {"type": "compaction", "compact_threshold": 0}]
    )
    with pytest.raises(InvalidRequest) as caught:
        requests.read_management(request.context_management)
    assert caught.value.param == "context_management[1].compact_threshold"
