"""Grammars that would block llama.cpp are refused before they are sent to it; it enforces all others."""

from typing import Any

import pytest

from tests.harness import serve
from tests.model import SharedModel

AMBIGUOUS = 'start: ("a"?){20000} "a"{20000}'
OPTIONAL = "a?" * 2000 + "a" * 2000
PATTERN = "^(?:a?){2000}a{2000}$"


def custom(definition: str, syntax: str) -> dict[str, Any]:
    format = {"type": "grammar", "syntax": syntax, "definition": definition}
    return {"type": "custom", "name": "t", "format": format}


def pattern(source: str) -> dict[str, Any]:
    """A schema in which a pattern comes late in the document."""
    return {
        "type": "object",
        "properties": {
            "lead": {"type": "string", "minLength": 80},
            "a": {"type": "string", "pattern": source},
        },
        "required": ["lead", "a"],
        "additionalProperties": False,
    }


async def test_expensive_grammars_are_refused_with_the_field_that_defines_them(
    tiny_model: SharedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = tiny_model.engine(slots=1, context=512)
    sent: list[bytes] = []
    complete = engine._api.complete

    def recorded(body: bytes, consumer: Any) -> Any:
        sent.append(body)
        return complete(body, consumer)

    monkeypatch.setattr(engine._api, "complete", recorded)
    strict = {"type": "function", "name": "f", "strict": True}
    schema = {"type": "json_schema", "name": "n", "strict": True}
    attacks: list[tuple[dict[str, Any], str]] = [
        ({"tools": [custom(AMBIGUOUS, "lark")], "tool_choice": "required"}, "tools[0].format.definition"),
        ({"tools": [custom(OPTIONAL, "regex")], "tool_choice": "required"}, "tools[0].format.definition"),
        ({"tools": [{**strict, "parameters": pattern(PATTERN)}]}, "tools[0].parameters"),
        ({"text": {"format": {**schema, "schema": pattern(PATTERN)}}}, "text.format.schema"),
    ]
    async with serve(engine) as server, server.connect() as socket:
        for fields, param in attacks:
            refused = await socket.error(input="x", store=False, **fields)
            assert (refused["status"], refused["error"]["param"]) == (400, param)
            assert "max_grammar_states" in refused["error"]["message"]
        assert not sent
        small = {"temperature": 0, "max_output_tokens": 16, "store": False}
        tools = [custom("[a-c]{3}", "regex")]
        await socket.response(input="x", tools=tools, tool_choice="required", **small)
        assert len(sent) == 1


async def test_every_format_of_strings_is_enforced(tiny_model: SharedModel) -> None:
    formats = ("date", "date-time", "time", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri")
    async with serve(tiny_model.engine(slots=1, context=1024)) as server, server.connect() as socket:
        for format in formats:
            parameters = {
                "type": "object",
                "properties": {"a": {"type": "string", "format": format, "minLength": 1}},
                "required": ["a"],
                "additionalProperties": False,
            }
            tool = {"type": "function", "name": "f", "strict": True, "parameters": parameters}
            small = {"temperature": 0, "max_output_tokens": 60, "store": False}
            response = await socket.response(input="x", tools=[tool], tool_choice="required", **small)
            assert [item["type"] for item in response["output"]] == ["function_call"], format
