"""The fields of a request."""

import json
from typing import Any

import pytest

from slipring.base.errors import InvalidJson
from slipring.protocol.chat_completions.requests import ChatRequest, ChatTranslation
from slipring.protocol.requests import ModerationConfig
from tests.protocol.chat_completions.sent import FINGERPRINT, USER, create, refusal, translated


def test_a_short_request_is_read() -> None:
    translation, request = translated(USER)
    assert (request.model, request.store, request.stream) == ("m", False, None)
    assert (translation.streams, translation.form.choices, translation.form.usage) == (False, 1, False)


def test_null_is_the_same_as_absent_for_every_field() -> None:
    null = dict.fromkeys(set(ChatRequest.__struct_fields__) - {"messages", "model"})
    assert create(USER, **null) == create(USER)


def test_unknown_fields_pass() -> None:
    assert create(USER, prediction={"type": "content", "content": "x"}, cache_prompt=True) == create(USER)


def test_settings_have_the_same_names_in_a_create_request() -> None:
    same = {
        "temperature": 0.5,
        "top_p": 0.9,
        "presence_penalty": 0.1,
        "frequency_penalty": 0.2,
        "seed": 7,
        "parallel_tool_calls": False,
        "metadata": {"a": "b"},
        "prompt_cache_key": "k",
        "safety_identifier": "s",
    }
    request = create(USER, **same)
    assert {name: getattr(request, name) for name in same} == same


def test_logprobs_are_asked_for() -> None:
    request = create(USER, logprobs=True, top_logprobs=2)
    assert (request.include, request.top_logprobs) == (["message.output_text.logprobs"], 2)
    assert refusal(USER, top_logprobs=2).param == "top_logprobs"
    assert create(USER, top_logprobs=0).include is None


def test_the_newer_limit_of_the_answer_s_length_counts() -> None:
    assert create(USER, max_tokens=3).max_output_tokens == 3
    assert create(USER, max_tokens=3, max_completion_tokens=4).max_output_tokens == 4


def test_checks_are_asked_for() -> None:
    assert create(USER, moderation={"model": "m"}).moderation == ModerationConfig("m")


def test_a_stream_may_be_padded_and_end_with_its_usage() -> None:
    translation, request = translated(
        USER, stream=True, stream_options={"include_usage": True, "include_obfuscation": True}
    )
    assert (translation.streams, translation.form.usage) == (True, True)
    assert request.stream_options is not None
    assert request.stream_options.include_obfuscation is True
    assert create(USER, stream=True, stream_options={"include_usage": True}).stream_options is None


@pytest.mark.parametrize(
    "fields",
    [
        {"reasoning_effort": "none"},
        {"enable_thinking": False, "reasoning_effort": "high"},
        {"thinking": {"type": "disabled"}},
        {"chat_template_kwargs": {"enable_thinking": False}},
        {"chat_template_kwargs": {"thinking": False, "enable_thinking": True}},
    ],
)
def test_any_switch_turns_reasoning_off(fields: dict[str, Any]) -> None:
    reasoning = create(USER, **fields).reasoning
    assert reasoning is not None
    assert reasoning.effort == "none"


@pytest.mark.parametrize(
    "fields",
    [
        {"enable_thinking": True},
        {"thinking": {"type": "enabled", "budget_tokens": 100}},
        {"chat_template_kwargs": {"enable_thinking": True}},
        {"chat_template_kwargs": {}},
    ],
)
def test_a_switch_that_is_on_leaves_the_effort_as_it_is(fields: dict[str, Any]) -> None:
    assert create(USER, **fields).reasoning is None
    reasoning = create(USER, **fields, reasoning_effort="low").reasoning
    assert reasoning is not None
    assert reasoning.effort == "low"


def test_a_schema_becomes_a_text_format() -> None:
    schema = {"type": "object", "properties": {}}
    given = {"name": "n", "schema": schema, "strict": True, "description": "d"}
    text = create(USER, response_format={"type": "json_schema", "json_schema": given}).text
    assert text is not None
    assert json.loads(bytes(text.format)) == {"type": "json_schema", **given}  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["text", "json_object"])
def test_formats_without_a_schema_are_their_type(kind: str) -> None:
    text = create(USER, response_format={"type": kind}).text
    assert text is not None
    assert json.loads(bytes(text.format)) == {"type": kind}  # type: ignore[arg-type]


def test_what_a_schema_s_format_leaves_out_is_left_out() -> None:
    given = {"name": "n", "strict": None, "description": None}
    text = create(USER, response_format={"type": "json_schema", "json_schema": given}).text
    assert text is not None
    assert json.loads(bytes(text.format)) == {"type": "json_schema", "name": "n"}  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("sent", "stop"), [("END", ["END"]), (["a", "b"], ["a", "b"]), ([], None), (None, None)]
)
def test_the_answer_may_be_stopped(sent: Any, stop: list[str] | None) -> None:
    assert create(USER, stop=sent).stop == stop


@pytest.mark.parametrize(("sent", "top_k"), [(40, 40), (0, None), (-1, None), (None, None)])
def test_the_choice_of_tokens_may_be_narrowed(sent: int | None, top_k: int | None) -> None:
    assert create(USER, top_k=sent).top_k == top_k


NEUTRAL: list[dict[str, Any]] = [
    {"logit_bias": {}},
    {"min_p": 0},
    {"min_p": 0.0},
    {"repetition_penalty": 1.0},
    {"modalities": ["text"]},
    {"audio": None},
    {"stop_token_ids": []},
]


@pytest.mark.parametrize("fields", NEUTRAL)
def test_values_that_change_nothing_pass(fields: dict[str, Any]) -> None:
    assert create(USER, **fields) == create(USER)


REFUSED: dict[str, Any] = {
    "audio": {"voice": "alloy", "format": "wav"},
    "modalities": ["text", "audio"],
    "web_search_options": {},
    "min_p": 0.1,
    "repetition_penalty": 1.1,
    "guided_json": {"type": "object", "properties": {"a": {"type": "integer"}}},
    "chat_template": "{{ messages }}",
}


@pytest.mark.parametrize("name", REFUSED)
def test_fields_that_no_engine_is_given_are_refused_by_name(name: str) -> None:
    error = refusal(USER, **{name: REFUSED[name]})
    assert (error.status, error.code, error.param) == (400, "unsupported_parameter", name)
    assert f"'{name}'" in error.message


def test_tokens_may_be_made_likelier_by_their_ids() -> None:
    found = create(USER, logit_bias={"50256": -100, "7": 1})
    assert found.token_bias == {50256: -100.0, 7: 1.0}
    assert create(USER).token_bias is None


INVALID: dict[str, tuple[dict[str, Any], str]] = {
    "a bias of no id": ({"logit_bias": {"a": 1}}, "logit_bias"),
    "a bias of a negative id": ({"logit_bias": {"-1": 1}}, "logit_bias"),
    "a large bias": ({"logit_bias": {"1": 101}}, "logit_bias"),
    "many biases": ({"logit_bias": {str(number): 1 for number in range(1025)}}, "logit_bias"),
    "n of zero": ({"n": 0}, "n"),
    "a large n": ({"n": 9}, "n"),
    "temperature": ({"temperature": 3}, "temperature"),
    "max_tokens": ({"max_tokens": 0}, "max_tokens"),
    "metadata": ({"metadata": {"a": 1}}, "metadata"),
    "effort": ({"reasoning_effort": "huge"}, "reasoning_effort"),
    "an argument of the template": ({"chat_template_kwargs": {"date": "x"}}, "chat_template_kwargs.date"),
    "a switch that is no boolean": (
        {"chat_template_kwargs": {"thinking": "no"}},
        "chat_template_kwargs.thinking",
    ),
    "a format": ({"response_format": {"type": "xml"}}, "response_format.type"),
    "no schema": ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
    "stream": ({"stream": "yes"}, "stream"),
    "an empty stop": ({"stop": ""}, "stop"),
    "an empty stop among others": ({"stop": ["a", ""]}, "stop[1]"),
    "too many stops": ({"stop": ["a"] * 17}, "stop"),
    "top_k": ({"top_k": -2}, "top_k"),
}


@pytest.mark.parametrize("case", INVALID)
def test_errors_name_the_field(case: str) -> None:
    fields, param = INVALID[case]
    error = refusal(USER, **fields)
    assert error.status == 400
    assert error.param == param


def test_a_huge_metadata_is_refused_before_it_is_decoded() -> None:
    error = refusal(USER, metadata={"a": "x" * 300_000})
    assert "more than" in error.message


def test_messages_are_required() -> None:
    with pytest.raises(Exception, match="'messages'"):
        ChatTranslation(FINGERPRINT).read(b"{}")
    with pytest.raises(InvalidJson):
        ChatTranslation(FINGERPRINT).read(b"[]")
