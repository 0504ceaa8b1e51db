"""The shapes of output items in recordings of OpenAI's service: which keys they have, and which may be null.

The SDK's types cannot judge this: they allow a null wherever they allow a missing key, and lack some keys.
Clients are stricter. The AI SDK, for example, refuses a whole answer for a null where it knows a key as
absent.

Read off these recordings, as of 2026-11: vercel/ai `packages/openai/src/responses/__fixtures__`,
pydantic/pydantic-ai `tests/models/cassettes/test_openai_responses`, langchain-ai/langchain
`libs/partners/openai/tests/cassettes`, and vllm-project/agentic-api `tests/cassettes/*/*openai-reference*`.
`tests.wire` checks every item that any test receives against this table. `computer_call` is not in it: none
is recorded.

This module has no `assert` statements, for the reason that `tests.wire` gives.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

Json = dict[str, Any]


@dataclass(frozen=True)
class Shape:
    """The keys of an object."""

    always: frozenset[str]
    """Present, and never null."""
    nullable: frozenset[str] = frozenset()
    """Present, and null where there is nothing."""
    optional: frozenset[str] = frozenset()
    """Absent where there is nothing, and never null."""
    later: frozenset[str] = frozenset()
    """Absent when the item is added, and from then on as in ``always``."""
    within: dict[str, "Shape"] = field(default_factory=dict)
    """The shapes of objects in it, or in its lists, by key."""


def keys(names: str) -> frozenset[str]:
    return frozenset(names.split())


_PART = Shape(keys("type"), optional=keys("text annotations logprobs refusal"))
_TOOL = Shape(
    keys("name input_schema annotations"),
    optional=keys("description"),
    within={"annotations": Shape(keys("read_only"))},
)
_FOUND = Shape(keys("attributes file_id filename score text"), optional=keys("vector_store_id"))
_ACTION = Shape(keys("type"), optional=keys("query queries sources url pattern"))
_COMMANDS = Shape(keys("commands"), nullable=keys("max_output_length timeout_ms"))
_PROGRAM = Shape(keys("type command env"), optional=keys("timeout_ms user working_directory"))
_CALL = keys("id type status call_id name")

SHAPES: dict[str, Shape] = {
    "message": Shape(keys("id type status role content"), optional=keys("phase"), within={"content": _PART}),
    "reasoning": Shape(keys("id type summary"), optional=keys("content encrypted_content")),
    "function_call": Shape(_CALL | {"arguments"}, optional=keys("namespace caller")),
    "custom_tool_call": Shape(_CALL | {"input"}, optional=keys("namespace caller")),
    "mcp_list_tools": Shape(
        keys("id type server_label tools"), optional=keys("error"), within={"tools": _TOOL}
    ),
    "mcp_call": Shape(
        keys("id type status server_label name arguments"),
        nullable=keys("approval_request_id error output"),
    ),
    "mcp_approval_request": Shape(keys("id type server_label name arguments")),
    "web_search_call": Shape(keys("id type status"), later=keys("action"), within={"action": _ACTION}),
    "file_search_call": Shape(
        keys("id type status queries"), nullable=keys("results"), within={"results": _FOUND}
    ),
    "code_interpreter_call": Shape(keys("id type status code container_id"), nullable=keys("outputs")),
    "tool_search_call": Shape(keys("id type status arguments execution"), nullable=keys("call_id")),
    "shell_call": Shape(
        keys("id type status call_id action"), optional=keys("environment"), within={"action": _COMMANDS}
    ),
    "local_shell_call": Shape(keys("id type status call_id action"), within={"action": _PROGRAM}),
    "apply_patch_call": Shape(
        keys("id type status call_id operation"),
        within={"operation": Shape(keys("type path"), optional=keys("diff"))},
    ),
    "compaction": Shape(keys("id type encrypted_content")),
}


def check_item(item: Json, *, added: bool) -> None:
    """Require that an output item has the shape of recorded ones. ``added``: it has just begun."""
    shape = SHAPES.get(item["type"])
    if shape is None:
        return
    complaints = list(_complaints(item, shape, item["type"], added=added))
    if complaints:
        raise AssertionError(f"not the shape of recorded items: {'; '.join(complaints)}")


def _complaints(document: Json, shape: Shape, where: str, *, added: bool) -> Iterator[str]:
    present = shape.always | shape.nullable | (frozenset() if added else shape.later)
    for key in sorted(present - document.keys()):
        yield f"{where}.{key} is missing"
    for key in sorted(document.keys() - present - shape.optional):
        yield f"{where}.{key} is not recorded"
    for key in sorted(document.keys() - shape.nullable):
        if document[key] is None:
            yield f"{where}.{key} is null"
    for key, inner in shape.within.items():
        value = document.get(key)
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, dict):
                yield from _complaints(each, inner, f"{where}.{key}", added=False)
