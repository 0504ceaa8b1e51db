"""Requests are honoured, or refused with the name of the unsupported field."""

import json

import pytest

from slipring.core.turn.request_validation import INCLUDABLE
from slipring.protocol.items.item_pictures import parts_of
from tests.core.connection import Connection, call_output, message, only_error
from tests.pictures import PIXEL

UNSUPPORTED = {
    "prompt": {"prompt": {"id": "pmpt_1"}},
    "moderation": {"moderation": {"model": "m"}},
    "background": {"background": True},
    "multi_agent": {"multi_agent": {"enabled": True}},
    "image.context_compression": {"image": {"context_compression": "enabled"}},
    "access_programs.cyber": {"access_programs": {"cyber": "daybreak_red"}},
    "top_logprobs": {"top_logprobs": 2},
    "include": {"include": ["message.output_text.logprobs"]},
    "stream": {"stream": False},
    "tool_choice": {"tool_choice": {"type": "image_generation"}},
}


@pytest.mark.parametrize(("param", "fields"), UNSUPPORTED.items(), ids=UNSUPPORTED)
def test_unsupported_fields_are_refused_by_name(param, fields):
    connection = Connection()
    sent = only_error(connection.create(**fields))
    assert sent["status"] == 400
    assert (sent["error"]["code"], sent["error"]["param"]) == ("unsupported_parameter", param)
    assert connection.respond()["status"] == "completed"


@pytest.mark.parametrize(
    "fields",
    [
        {"conversation": None, "prompt": None, "moderation": None, "context_management": []},
        {"background": False, "multi_agent": {"enabled": False}},
        {"image": {"context_compression": "auto"}, "access_programs": {"cyber": "standard"}},
        {"image": {"context_compression": "disabled"}, "access_programs": {}},
        {"top_logprobs": 0, "include": []},
        {"stream": True, "stream_options": {"include_obfuscation": False}},
        {"service_tier": "fast", "prompt_cache_key": "k", "prompt_cache_retention": "24h"},
        {"client_metadata": {"session_id": "s"}, "safety_identifier": "s", "user": "u"},
        {"multi_agent": None, "access_programs": None, "image": None, "prompt_cache_options": None},
    ],
)
def test_fields_with_neutral_values_pass(fields):
    assert Connection().respond(**fields)["status"] == "completed"


def test_a_conversation_and_a_previous_response_exclude_each_other():
    connection = Connection()
    first = connection.respond()
    sent = only_error(connection.create("b", previous=first["id"], conversation="conv_1"))
    assert sent["error"]["param"] == "previous_response_id"
    assert "cannot be used together" in sent["error"]["message"]


@pytest.mark.parametrize("value", sorted(INCLUDABLE))
def test_every_include_value_of_the_api_is_accepted(value):
    assert Connection().respond(model="able", include=[value])["status"] == "completed"


def test_an_error_names_the_index_of_an_unknown_include_value():
    sent = only_error(Connection().create(include=["reasoning.encrypted_content", "everything"]))
    assert sent["error"]["param"] == "include[1]"


@pytest.mark.parametrize(
    ("fields", "logprobs", "top"),
    [
        ({}, False, 0),
        ({"top_logprobs": 3}, True, 3),
        ({"include": ["message.output_text.logprobs"]}, True, 0),
    ],
)
def test_logprobs_need_a_model_that_returns_them(fields, logprobs, top):
    connection = Connection()
    connection.create(model="able", **fields)
    settings = connection.job().settings
    assert (settings.logprobs, settings.top_logprobs) == (logprobs, top)


def test_settings_are_passed_to_the_engine():
    connection = Connection()
    connection.create(
        temperature=0.5,
        top_p=0.9,
        presence_penalty=1.5,
        frequency_penalty=-1.5,
        seed=7,
        max_output_tokens=99,
        parallel_tool_calls=False,
        reasoning={"effort": "high"},
        text={"format": {"type": "json_object"}},
        truncation="auto",
    )
    settings = connection.job().settings
    assert (settings.temperature, settings.top_p, settings.seed) == (0.5, 0.9, 7)
    assert (settings.presence_penalty, settings.frequency_penalty) == (1.5, -1.5)
    assert (settings.max_output_tokens, settings.parallel_tool_calls) == (99, False)
    assert (settings.effort, settings.truncation) == ("high", "auto")
    assert settings.format.kind == "json_object"


def test_absent_settings_are_left_to_the_engine():
    connection = Connection()
    connection.create()
    settings = connection.job().settings
    assert (settings.temperature, settings.top_p, settings.seed, settings.effort) == (None,) * 4
    assert (settings.format.kind, settings.parallel_tool_calls) == ("text", True)


def test_settings_are_not_inherited():
    connection = Connection()
    first = connection.respond(temperature=0.5, reasoning={"effort": "high"}, max_output_tokens=5)
    connection.create(previous=first["id"])
    settings = connection.job().settings
    assert (settings.temperature, settings.effort, settings.max_output_tokens) == (None, None, None)


# Unsupported content.

IMAGE = {"type": "input_image", "image_url": PIXEL, "detail": "auto"}
FILE = {"type": "input_file", "file_id": "file_1"}
TEXT = {"type": "input_text", "text": "see"}


@pytest.mark.parametrize("part", [IMAGE, FILE])
def test_an_error_names_the_index_of_an_unsupported_image_or_file(part):
    sent = only_error(Connection().create(input=[message("hi"), {"role": "user", "content": [TEXT, part]}]))
    assert (sent["error"]["code"], sent["error"]["param"]) == ("unsupported_parameter", "input[1].content[1]")


@pytest.mark.parametrize("part", [IMAGE, FILE])
def test_an_error_names_the_index_of_an_unsupported_image_or_file_in_a_tool_output(part):
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "c", "output": [part]}
    sent = only_error(Connection().create(input=[call, output]))
    assert sent["error"]["param"] == "input[1].output[0]"


@pytest.mark.parametrize("detail", ["auto", "low", "high", "original", None])
def test_the_details_of_the_api_are_accepted(detail):
    connection = Connection()
    connection.create(model="able", input=[{"role": "user", "content": [IMAGE | {"detail": detail}]}])
    assert [getattr(part, "detail", "") for part in parts_of(connection.job().input[0])] == [detail]


@pytest.mark.parametrize(
    ("part", "detail"), [(IMAGE, "ultra"), (IMAGE, "LOW"), (IMAGE, ""), (FILE, "original"), (FILE, "no")]
)
def test_an_error_names_a_detail_that_the_api_does_not_have(part, detail):
    sent = only_error(
        Connection().create(
            model="able", input=[{"role": "user", "content": [TEXT, part | {"detail": detail}]}]
        )
    )
    assert sent["error"]["param"] == "input[0].content[1].detail"
    assert sent["status"] == 400


def test_an_error_names_the_detail_of_a_screenshot():
    shot = {"type": "computer_screenshot", "image_url": PIXEL, "detail": "ultra"}
    output = {"type": "computer_call_output", "call_id": "c", "output": shot}
    sent = only_error(Connection().create(model="able", input=[output]))
    assert (sent["status"], sent["error"]["param"]) == (400, "input[0].output.detail")


def test_a_capable_model_receives_images_and_files():
    connection = Connection()
    connection.create(model="able", input=[{"role": "user", "content": [TEXT, IMAGE, FILE]}])
    content = connection.job().input[0].body().content
    assert isinstance(content, list)
    assert len(content) == 3


def test_a_call_of_a_tool_that_is_named_like_an_image_is_no_image():
    connection = Connection()
    call = {"type": "function_call", "call_id": "call_own", "name": "input_image", "arguments": "{}"}
    connection.create(input=[message("look"), call, call_output("call_own")])
    assert [item.call_id for item in connection.job().input] == [None, "call_own", "call_own"]


def test_text_that_mentions_input_image_is_only_text():
    assert Connection().respond(input='The type is "input_image".')["status"] == "completed"


@pytest.mark.parametrize(
    ("name", "spelt"),
    [
        ("input_image", r"input\u005fimage"),
        ("input_image", r"\u0069nput_image"),
        ("input_file", r"input_fil\u0065"),
        ("input_file", r"input\u005Ffile"),
    ],
)
def test_an_image_or_file_whose_type_is_escaped_is_refused_like_any(name, spelt):
    part = IMAGE if name == "input_image" else FILE
    sent = {"type": "response.create", "model": "m", "input": [{"role": "user", "content": [TEXT, part]}]}
    frame = json.dumps(sent).replace(name, spelt)
    assert json.loads(frame) == sent
    error = only_error(Connection().receive(frame))["error"]
    assert (error["code"], error["param"]) == ("unsupported_parameter", "input[0].content[1]")


def test_escaped_letters_are_allowed_in_texts():
    sent = {"type": "response.create", "model": "m", "input": [{"role": "user", "content": "a_b"}]}
    connection = Connection()
    connection.receive(json.dumps(sent).replace("a_b", r"a\u005fb"))
    assert connection.job().input[0].body().content == "a_b"


@pytest.mark.parametrize("field", ["image_url", "file_id"])
def test_screenshots_are_images(field):
    call = {"type": "computer_call", "call_id": "c", "actions": [{"type": "screenshot"}]}
    screenshot = {"type": "computer_screenshot", field: PIXEL}
    output = {"type": "computer_call_output", "call_id": "c", "output": screenshot}
    if field == "image_url":
        assert Connection().respond(input=[call, output], model="able")["status"] == "completed"
    else:
        error = only_error(Connection().create(input=[call, output], model="able"))["error"]
        assert (error["code"], error["param"]) == ("unsupported_parameter", f"input[1].output.{field}")
    error = only_error(Connection().create(input=[call, output]))["error"]
    assert (error["code"], error["param"]) == ("unsupported_parameter", f"input[1].output.{field}")
