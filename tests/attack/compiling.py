"""Attacks on compilation: grammars of custom tools, schemas, and patterns within schemas."""

import asyncio
import json
import time
from typing import Any

from tests.attack.limits import PATIENCE_S
from tests.attack.sockets import Json
from tests.attack.stage import Registry, Stage

attack = Registry("compiling")

OPTIONAL_REGEX = "a?" * 20_000 + "a" * 20_000
OPTIONAL_LARK = 'start: ("a"?){20000} "a"{20000}'
_DEFINITION = r"tools"
_SCHEMA = r"text\.format"


def custom_tool(definition: str, syntax: str = "regex", name: str = "tool") -> Json:
    return {
        "type": "custom",
        "name": name,
        "format": {"type": "grammar", "syntax": syntax, "definition": definition},
    }


def with_grammars(*tools: Json, model: str = "simulated") -> Json:
    return {
        "model": model,
        "input": "go",
        "tools": list(tools),
        "tool_choice": "required",
        "max_output_tokens": 16,
        "store": False,
    }


def with_schema(schema: Json | str, model: str = "simulated") -> bytes:
    written = schema if isinstance(schema, str) else json.dumps(schema)
    head = json.dumps({"model": model, "input": "go", "max_output_tokens": 64, "store": False})[:-1]
    form = f'"type":"json_schema","name":"answer","strict":true,"schema":{written}'
    return f'{head},"text":{{"format":{{{form}}}}}}}'.encode()


def with_parameters(schema: Json, model: str = "simulated") -> Json:
    tool = {"type": "function", "name": "tool", "strict": True, "parameters": schema}
    return with_grammars(tool, model=model)


async def everywhere(stage: Stage, create: Json | bytes, statuses: tuple[int, ...], param: str) -> None:
    """Send a create on each transport at once, and require that each is refused."""
    body = create if isinstance(create, bytes) else json.dumps(create).encode()
    fields: dict[str, Any] = json.loads(body)
    streamed = json.dumps({**fields, "stream": True}).encode()

    async def over_socket() -> Any:
        socket = await stage.websocket()
        try:
            return await stage.turn(socket, **fields)
        finally:
            socket.reset()

    answers = await asyncio.gather(stage.post(body), stage.post(streamed), over_socket())
    for answer in answers:
        stage.refused(answer, statuses, param=param)


@attack(quick=True)
async def optional_regex(stage: Stage) -> None:
    """A regex of 20,000 optional and as many required letters in a tool that must be called is refused by its
    field, on every transport."""
    await everywhere(stage, with_grammars(custom_tool(OPTIONAL_REGEX)), (400,), _DEFINITION)


@attack()
async def repeated_regex(stage: Stage) -> None:
    """The same explosion in a few bytes, `(a?){9999}a{9999}`, is refused by its field."""
    await everywhere(stage, with_grammars(custom_tool("(a?){9999}a{9999}")), (400,), _DEFINITION)


@attack(quick=True)
async def many_grammars(stage: Stage) -> None:
    """6,000 tools with a grammar of one letter each are refused by their field."""
    tools = [custom_tool(chr(97 + number % 26), name=f"tool_{number}") for number in range(6000)]
    stage.refused(await stage.post(with_grammars(*tools)), (400,), param=_DEFINITION)


@attack(quick=True)
async def huge_enum(stage: Stage) -> None:
    """A schema with an enum of 300,000 values is refused by its field."""
    values = {"type": "string", "enum": [f"v{number}" for number in range(300_000)]}
    schema = {"type": "object", "properties": {"a": values}, "required": ["a"], "additionalProperties": False}
    stage.refused(await stage.post(with_schema(schema)), (400, 413), param=_SCHEMA)


@attack()
async def huge_enum_in_parameters(stage: Stage) -> None:
    """The same enum in the parameters of a strict function that must be called is refused by its field."""
    values = {"type": "string", "enum": [f"v{number}" for number in range(300_000)]}
    schema = {"type": "object", "properties": {"a": values}, "required": ["a"], "additionalProperties": False}
    stage.refused(
        await stage.post(with_parameters(schema)), (400, 413), param=r"tools\[0\]\.parameters|tools"
    )


@attack(quick=True)
async def lark_repetition(stage: Stage) -> None:
    """31 bytes of Lark that ask for 40,000 letters are refused by their field."""
    create = with_grammars(custom_tool(OPTIONAL_LARK, "lark"))
    stage.refused(await stage.post(create), (400,), param=_DEFINITION)


@attack(engine="llama")
async def lark_repetition_on_llama(stage: Stage) -> None:
    """The same Lark text to the embedded model: refused by its field, and another client's response
    continues."""
    create = with_grammars(custom_tool(OPTIONAL_LARK, "lark"), model="llama")
    await everywhere(stage, create, (400,), _DEFINITION)


@attack(engine="llama")
async def optional_regex_on_llama(stage: Stage) -> None:
    """The regex of 20,000 optional letters to the embedded model: refused by its field."""
    create = with_grammars(custom_tool(OPTIONAL_REGEX), model="llama")
    await everywhere(stage, create, (400,), _DEFINITION)


@attack(engine="llama")
async def huge_enum_on_llama(stage: Stage) -> None:
    """A schema with an enum of 300,000 values to the embedded model is refused by its field."""
    schema = {"type": "string", "enum": [f"v{number}" for number in range(300_000)]}
    stage.refused(await stage.post(with_schema(schema, "llama")), (400, 413), param=_SCHEMA)


@attack(quick=True)
async def deep_regex(stage: Stage) -> None:
    """A regex of 15,000 nested groups is refused, and the process stays alive."""
    create = with_grammars(custom_tool("(" * 15_000 + "a" + ")" * 15_000))
    stage.refused(await stage.post(create), (400,), param=_DEFINITION)


@attack(quick=True)
async def deep_lark(stage: Stage) -> None:
    """A Lark rule of 15,000 nested groups is refused, and the process stays alive."""
    create = with_grammars(custom_tool("start: " + "(" * 15_000 + '"a"' + ")" * 15_000, "lark"))
    stage.refused(await stage.post(create), (400,), param=_DEFINITION)


@attack(quick=True)
async def deep_schema(stage: Stage) -> None:
    """A schema with objects nested 900 deep, as deep as JSON is read here, is answered or refused by name."""
    schema = '{"type":"object","properties":{"a":' * 400 + '{"type":"string"}' + "}}" * 400
    stage.answered(await stage.post(with_schema(schema)))


@attack()
async def doubling_references(stage: Stage) -> None:
    """A schema of forty definitions, each twice the one before, is answered or refused within the limit."""
    definitions: Json = {"d40": {"type": "string", "minLength": 3}}
    for depth in range(40):
        twice = {"$ref": f"#/$defs/d{depth + 1}"}
        definitions[f"d{depth}"] = {
            "type": "object",
            "properties": {"a": twice, "b": twice},
            "required": ["a", "b"],
            "additionalProperties": False,
        }
    schema = {"$ref": "#/$defs/d0", "$defs": definitions}
    for body in (with_schema(schema), json.dumps(with_parameters({"type": "object", **schema})).encode()):
        stage.answered(await stage.post(body))


@attack()
async def alternatives_in_schema(stage: Stage) -> None:
    """A schema of `anyOf` within `allOf` within `anyOf` that asks for an exponential search is answered or
    refused within the limit."""
    leaf: Json = {"type": "object", "properties": {}, "additionalProperties": False}
    schema = leaf
    for depth in range(24):
        schema = {
            "allOf": [
                {"anyOf": [{"properties": {f"p{depth}": {"const": 1}}, "required": [f"p{depth}"]}, schema]},
                {"anyOf": [schema, {"not": {"required": [f"p{depth}"]}}]},
            ]
        }
        if len(json.dumps(schema)) > 200_000:
            break
    stage.answered(await stage.post(with_schema(schema)))


@attack(quick=True)
async def pattern_in_schema(stage: Stage) -> None:
    """A pattern of 5,000 optional letters within a schema is answered or refused within the limit."""
    pattern = {"type": "string", "pattern": "^(a?){5000}a{5000}$"}
    schema = {
        "type": "object",
        "properties": {"a": pattern},
        "required": ["a"],
        "additionalProperties": False,
    }
    stage.answered(await stage.post(with_schema(schema)))


@attack()
async def backtracking_pattern_in_schema(stage: Stage) -> None:
    """Patterns that a backtracking matcher never finishes, within schemas, are answered or refused."""
    for pattern in ("^(a+)+$", "^(a|a)*b$", "^(([a-z])+.)+[A-Z]([a-z])+$", "^(?=(a+)+b)a{30}$"):
        body = with_schema(
            {"type": "string", "pattern": pattern, "minLength": 40, "not": {"const": "a" * 40}}
        )
        stage.answered(await stage.post(body))


@attack()
async def large_counts_in_schema(stage: Stage) -> None:
    """A schema that asks for a million of something is answered or refused within the limit."""
    for schema in (
        {"type": "array", "items": {"type": "string"}, "minItems": 1_000_000},
        {"type": "string", "minLength": 10_000_000},
        {"type": "array", "items": {"type": "integer"}, "uniqueItems": True, "minItems": 200_000},
        {"type": "integer", "multipleOf": 1e-300, "minimum": 1e300},
    ):
        stage.answered(await stage.post(with_schema(schema)))


@attack(quick=True)
async def grammars_in_items(stage: Stage) -> None:
    """Tools in an item, in a namespace or in a later frame have the same limits as others: a hostile
    grammar is refused, and so are too many."""
    hostile = custom_tool(OPTIONAL_LARK, "lark")
    many = [custom_tool("[ab]", name=f"tool_{number}") for number in range(2000)]
    for tools in ([hostile], many):
        item = {"type": "additional_tools", "role": "developer", "tools": tools}
        create = {
            "input": [item, {"role": "user", "content": "go"}],
            "tool_choice": "required",
            "store": False,
        }
        stage.refused(await stage.post(create), (400,), param="input|tools")
        space = {"type": "namespace", "name": "space", "description": "d", "tools": tools}
        stage.refused(await stage.post(with_grammars(space)), (400,), param="tools")


@attack()
async def grammars_through_other_endpoints(stage: Stage) -> None:
    """The counting and compacting endpoints, and background runs, limit compilation as well."""
    create = with_grammars(custom_tool(OPTIONAL_LARK, "lark"))
    counted = {name: create[name] for name in ("model", "input", "tools", "tool_choice")}
    stage.refused(await stage.post(counted, "/responses/input_tokens"), (400,), param="tools")
    stage.refused(await stage.post({**create, "background": True, "store": True}), (400,), param="tools")


@attack()
async def many_small_grammars(stage: Stage) -> None:
    """100 different small grammars, one after the other on a WebSocket, are accepted, and none is kept for
    ever."""
    socket = await stage.websocket()
    for number in range(100):
        create = with_grammars(custom_tool(f"[a-z]{{{number % 7 + 1}}}x{number}"))
        event = await stage.turn(socket, **create)
        stage.check(event and event["type"] != "error", f"grammar {number} was not served: {event}")
        if event is None:
            break
    socket.close()


@attack(quick=True)
async def the_same_refused_again(stage: Stage) -> None:
    """A grammar that is refused is sent thirty times at once: refused each time, and compiled once."""
    body = json.dumps(with_grammars(custom_tool("(a?){3000}a{3000}" * 3))).encode()
    began = time.monotonic()
    for answer in await asyncio.gather(*(stage.post(body) for _ in range(30))):
        stage.refused(answer, (400, 429, 503))
    took = time.monotonic() - began
    stage.note(f"thirty refusals in {took:.1f} s")
    stage.check(
        took < 3 * stage.limit("compile_timeout_s") + PATIENCE_S, f"thirty refusals took {took:.1f} s"
    )


@attack()
async def many_different_refused(stage: Stage) -> None:
    """Twenty different grammars that each take as long as they may are sent at once: each is refused."""
    bodies = [with_grammars(custom_tool(f"(a?){{{2000 + number}}}a{{3000}}")) for number in range(20)]
    for answer in await asyncio.gather(*map(stage.post, bodies)):
        stage.answered(answer)


@attack()
async def compiling_on_many_sockets(stage: Stage) -> None:
    """Forty WebSockets send a hostile grammar and disconnect at once: no work continues for them."""
    create = with_grammars(custom_tool("(a?){4000}a{4000}"))
    sockets = [await stage.websocket() for _ in range(40)]
    for number, socket in enumerate(sockets):
        await socket.create(**{**create, "user": str(number)})
    for socket in sockets:
        socket.reset()
    await asyncio.sleep(1)
