"""Which requests are honoured: everything else is refused by name, and never dropped in silence."""

import pytest

from slipring.core.turn.request_validation import INCLUDABLE
from tests.core.stage import Stage, message, only_error

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
    "tool_choice": {"tool_choice": {"type": "web_search"}},
}


@pytest.mark.parametrize(("param", "fields"), UNSUPPORTED.items(), ids=UNSUPPORTED)
def test_what_cannot_be_honoured_is_refused_by_name(param, fields):
    stage = Stage()
    told = only_error(stage.create(**fields))
    assert told["status"] == 400
    assert (told["error"]["code"], told["error"]["param"]) == ("unsupported_parameter", param)
    assert stage.respond()["status"] == "completed"


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
def test_what_asks_for_nothing_is_let_through(fields):
    assert Stage().respond(**fields)["status"] == "completed"


def test_a_conversation_and_a_previous_response_exclude_each_other():
    stage = Stage()
    first = stage.respond()
    told = only_error(stage.create("b", previous=first["id"], conversation="conv_1"))
    assert told["error"]["param"] == "previous_response_id"
    assert "cannot be used together" in told["error"]["message"]


@pytest.mark.parametrize("value", sorted(INCLUDABLE))
def test_everything_that_can_be_included_is_taken(value):
    assert Stage().respond(model="able", include=[value])["status"] == "completed"


def test_what_cannot_be_included_is_named_by_its_place():
    told = only_error(Stage().create(include=["reasoning.encrypted_content", "everything"]))
    assert told["error"]["param"] == "include[1]"


@pytest.mark.parametrize(
    ("fields", "logprobs", "top"),
    [
        ({}, False, 0),
        ({"top_logprobs": 3}, True, 3),
        ({"include": ["message.output_text.logprobs"]}, True, 0),
    ],
)
def test_logprobs_are_asked_of_a_model_that_has_them(fields, logprobs, top):
    stage = Stage()
    stage.create(model="able", **fields)
    settings = stage.job().settings
    assert (settings.logprobs, settings.top_logprobs) == (logprobs, top)


def test_settings_reach_the_engine_as_they_were_asked():
    stage = Stage()
    stage.create(
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
    settings = stage.job().settings
    assert (settings.temperature, settings.top_p, settings.seed) == (0.5, 0.9, 7)
    assert (settings.presence_penalty, settings.frequency_penalty) == (1.5, -1.5)
    assert (settings.max_output_tokens, settings.parallel_tool_calls) == (99, False)
    assert (settings.effort, settings.truncation) == ("high", "auto")
    assert settings.format.kind == "json_object"


def test_settings_that_were_not_asked_are_left_to_the_engine():
    stage = Stage()
    stage.create()
    settings = stage.job().settings
    assert (settings.temperature, settings.top_p, settings.seed, settings.effort) == (None,) * 4
    assert (settings.format.kind, settings.parallel_tool_calls) == ("text", True)


def test_settings_are_not_inherited():
    stage = Stage()
    first = stage.respond(temperature=0.5, reasoning={"effort": "high"}, max_output_tokens=5)
    stage.create(previous=first["id"])
    settings = stage.job().settings
    assert (settings.temperature, settings.effort, settings.max_output_tokens) == (None, None, None)


# Content that a model cannot see.

IMAGE = {"type": "input_image", "image_url": "data:image/png;base64,AA==", "detail": "auto"}
FILE = {"type": "input_file", "file_id": "file_1"}
TEXT = {"type": "input_text", "text": "see"}


@pytest.mark.parametrize("part", [IMAGE, FILE])
def test_images_and_files_are_refused_by_their_place(part):
    told = only_error(Stage().create(input=[message("hi"), {"role": "user", "content": [TEXT, part]}]))
    assert (told["error"]["code"], told["error"]["param"]) == ("unsupported_parameter", "input[1].content[1]")


@pytest.mark.parametrize("part", [IMAGE, FILE])
def test_images_and_files_in_a_tool_output_are_refused_by_their_place(part):
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "c", "output": [part]}
    told = only_error(Stage().create(input=[call, output]))
    assert told["error"]["param"] == "input[1].output[0]"


def test_a_model_that_sees_gets_to_see():
    stage = Stage()
    stage.create(model="able", input=[{"role": "user", "content": [TEXT, IMAGE, FILE]}])
    content = stage.job().input[0].body().content
    assert isinstance(content, list)
    assert len(content) == 3


def test_text_that_speaks_of_images_is_only_text():
    assert Stage().respond(input='The type is "input_image".')["status"] == "completed"
