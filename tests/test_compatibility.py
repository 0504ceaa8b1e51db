"""Compares `docs/compatibility.md` and the pages below it with the openai package and with the server.

The package's types define what the pages must list. Their tables define what the server must do: every row is
tested, with the samples below, on a session without a network. A row without a sample fails, so every claim
on the pages is checked.
"""

import asyncio
import inspect
import json
import re
import types
import typing
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import openai
import pytest
import typing_extensions
from msgspec import Raw, Struct, structs
from openai.resources import beta, conversations, models, moderations, responses
from openai.types import responses as sdk
from openai.types.responses import (
    input_token_count_params,
    response_create_params,
    response_input_audio_param,
    response_input_item_param,
    response_reasoning_item_param,
    responses_client_event_param,
)
from openai.types.responses.response_steer_error_code import ResponseSteerErrorCode
from pydantic import BaseModel

import slipring
from slipring.base import errors
from slipring.base.errors import ApiError, UnsupportedParameter
from slipring.config import settings
from slipring.config.tables import CheckEntry
from slipring.core.betas import Betas
from slipring.core.byte_ledger import Ledger
from slipring.core.chain.hosted_items_in_context import HOSTED
from slipring.core.chain.instructions_and_tools import KnownHeads
from slipring.core.chain.resent_history import KnownContexts, KnownItems
from slipring.core.chain.state_cache import ConnectionCache
from slipring.core.checks.known_verdicts import KnownVerdicts
from slipring.core.checks.policies import NO_POLICY
from slipring.core.generation import Accepted, Begun, Delta, Finished, Job, Settings, Text
from slipring.core.hosted_tools import FetchedList, ResolvedBuiltin, ResolvedServer
from slipring.core.limits import Limits
from slipring.core.ports import Ports
from slipring.core.session.actions import (
    Action,
    CompileGrammars,
    CountTokens,
    Flush,
    Generate,
    ListTools,
    Load,
    Loaded,
    Resolved,
    ResolveTools,
    Send,
)
from slipring.core.session.session import Session
from slipring.core.turn.turn import Joined
from slipring.engines.catalog import Catalog, open_engine
from slipring.engines.constraints.grammar_compiler import IN_THREAD
from slipring.protocol import events, requests, wire
from slipring.protocol.endpoints.translation import RESPONSES
from slipring.protocol.items import items
from slipring.protocol.requests import TextFormat
from slipring.protocol.responses import OutputItem, Response
from slipring.protocol.tools.mcp_tools import ListedTool
from slipring.server.access.content_encryption import KeyedSeal
from tests import late
from tests.api import Api
from tests.core.connection import OnePolicy, emitted
from tests.engines.emitting import deltas_of
from tests.harness import WEATHER, Running, serve
from tests.pictures import PIXEL
from tests.recorded_shapes import SHAPES

Json = dict[str, Any]

ROOT = Path(__file__).parent.parent / "docs"
PAGES = (ROOT / "compatibility.md", *sorted((ROOT / "compatibility").glob("*.md")))
STATUSES = ("supported", "carried", "refused")

# The page ----------------------------------------------------------------------------------------

_CODE_SPAN = re.compile(r"`([^`]+)`")
_REFUSAL = re.compile(r"(\d{3}) `(\w+)`(?:, param `([^`]+)`)?")
_INDEX = re.compile(r"\[\w+\]")


@dataclass(frozen=True)
class Refusal:
    """The status, code and param of an error; indexes in the param do not count."""

    status: int
    code: str
    param: str | None

    @classmethod
    def read(cls, cell: str) -> "Refusal":
        match = _REFUSAL.fullmatch(cell)
        assert match, f"not a status, a code and a param: {cell!r}"
        return cls(int(match[1]), match[2], _without_indexes(match[3]))

    @classmethod
    def of(cls, frame: Json) -> "Refusal":
        error = frame["error"]
        return cls(frame["status"], error["code"], _without_indexes(error["param"]))


def _without_indexes(param: str | None) -> str | None:
    return param and _INDEX.sub("[]", param)


@dataclass(frozen=True)
class Row:
    """One row of a table on the page."""

    status: str
    cells: Json

    @property
    def refusal(self) -> Refusal | None:
        cell = self.cells["Refused with"]
        return Refusal.read(cell) if cell else None


def read_tables(text: str) -> dict[str, list[Json]]:
    """Return the table below each heading; each row maps column names to cells."""
    tables: dict[str, list[Json]] = {}
    heading, columns = "", []
    for line in text.splitlines():
        if line.startswith("#"):
            heading, columns = line.lstrip("# "), []
        elif line.startswith("|"):
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            if not columns:
                assert heading not in tables, f"two tables below '{heading}'"
                columns, tables[heading] = cells, []
            elif set(cells) != {"---"}:
                assert len(cells) == len(columns), f"'{heading}': a row of another length: {line}"
                tables[heading].append(dict(zip(columns, cells, strict=True)))
    return tables


TEXT = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
TABLES = read_tables(TEXT)


def listed(heading: str) -> dict[str, Row]:
    """Return the rows of a table, by the names in the first column. The second column is the status."""
    found: dict[str, Row] = {}
    for cells in TABLES[heading]:
        first, second = list(cells)[:2]
        names = _CODE_SPAN.findall(cells[first])
        assert names, f"'{heading}': a row without a name: {cells[first]}"
        for name in names:
            assert name not in found, f"'{heading}': '{name}' is listed twice"
            found[name] = Row(cells[second], cells)
    return found


ENDPOINTS = listed("Endpoints")
CLIENT_EVENTS = listed("Client events")
FIELDS = listed("Request fields")
FORMATS = listed("Text formats")
INCLUDES = listed("Include values")
ITEMS = listed("Input items")
PARTS = listed("Content parts")
TOOLS = listed("Tools")
TOOL_FIELDS = listed("Tool fields")
FORMAT_FIELDS = listed("Format fields")
ITEM_FIELDS = listed("Item fields")
PART_FIELDS = listed("Part fields")
TOOL_CHOICES = listed("Tool choice")
OUTPUT_ITEMS = listed("Output items")
SERVER_EVENTS = listed("Server events")
SETTINGS = listed("Simulated engine")


def test_the_page_names_the_version_of_the_tested_package() -> None:
    assert f"version {'.'.join(openai.__version__.split('.')[:2])} of the `openai`" in TEXT


def test_every_status_is_supported_carried_or_refused() -> None:
    with_status = {heading for heading, rows in TABLES.items() if "Status" in list(rows[0])[1:]}
    assert len(with_status) == 15
    for heading in with_status:
        for name, row in listed(heading).items():
            assert row.status in STATUSES, f"'{heading}', {name}"


def test_refused_rows_and_only_these_give_an_error() -> None:
    for heading, rows in TABLES.items():
        if {"Status", "Refused with"} <= rows[0].keys():
            for name, row in listed(heading).items():
                assert (row.refusal is not None) == (row.status == "refused"), f"'{heading}', {name}"


# What the openai package knows -------------------------------------------------------------------


def members(union: Any) -> list[Any]:
    """Return the members of a union, also inside annotations and iterables."""
    origin = typing.get_origin(union)
    if origin is None or origin is typing.Literal:
        return [union]
    arguments = typing.get_args(union)
    if origin is typing.Annotated:
        arguments = arguments[:1]
    elif origin not in (typing.Union, types.UnionType, list) and not issubclass(origin, Iterable):
        return [union]
    return [member for argument in arguments for member in members(argument)]


def keys(kind: Any) -> Json:
    """Return the keys of a model or a TypedDict, with their types."""
    if issubclass(kind, BaseModel):
        return {name: field.annotation for name, field in kind.model_fields.items()}
    return typing_extensions.get_type_hints(kind)


def literals(kind: Any) -> set[str]:
    if typing.get_origin(kind) is typing.Literal:
        return set(typing.get_args(kind))
    return set().union(*map(literals, typing.get_args(kind)))


def types_in(*unions: Any) -> set[str]:
    """Return every value that the `type` of a member can have."""
    found: set[str] = set()
    for member in (member for union in unions for member in members(union)):
        if member is not types.NoneType and member is not str:
            names = literals(keys(member)["type"])
            assert names, f"{member} has a type without a name"
            found |= names
    return found


TABLES_OF_THEIR_OWN = {"input", "tools", "tool_choice", "text.format"}


def objects_in(kind: Any, within: str = "") -> list[str]:
    """Return the nested keys of the request fields, except those that have their own table."""
    found = []
    for name, hint in keys(kind).items():
        place = f"{within}{name}"
        found += [place] if within else []
        if place not in TABLES_OF_THEIR_OWN:
            for option in members(hint):
                if typing_extensions.is_typeddict(option):
                    found += objects_in(option, f"{place}.")
    return found


def all_keys(*unions: Any, within: str = "") -> set[str]:
    """Return every key of every member that is an object."""
    known = (member for union in unions for member in members(union))
    return {
        f"{within}{key}" for member in known if typing_extensions.is_typeddict(member) for key in keys(member)
    }


SENT_AS_A_HEADER = {"betas"}


def known_creates() -> tuple[Any, ...]:
    return (
        response_create_params.ResponseCreateParamsBase,
        response_create_params.ResponseCreateParamsStreaming,
        responses_client_event_param.ResponseCreate,
        late.beta.response_create_params.ResponseCreateParamsBase,
        late.beta.beta_responses_client_event_param.ResponseCreate,
    )


def known_fields() -> set[str]:
    return {name for create in known_creates() for name in keys(create)} - SENT_AS_A_HEADER


def known_parts() -> set[str]:
    message = keys(sdk.ResponseOutputMessageParam)
    reasoning = keys(response_reasoning_item_param.ResponseReasoningItemParam)
    return types_in(
        sdk.ResponseInputContentParam,
        sdk.ResponseInputMessageContentListParam,
        sdk.ResponseFunctionCallOutputItemParam,
        response_input_audio_param.ResponseInputAudioParam,
        message["content"],
        reasoning["summary"],
        reasoning["content"],
        keys(response_input_item_param.ComputerCallOutput)["output"],
        keys(late.beta.beta_response_input_item_param.AgentMessage)["content"],
    )


def known_tool_choices() -> set[str]:
    words, *objects = members(response_create_params.ToolChoice)
    return literals(words) | types_in(*objects)


def known_tool_fields() -> set[str]:
    kinds = (sdk.FunctionToolParam, sdk.CustomToolParam, sdk.NamespaceToolParam, sdk.ToolSearchToolParam)
    return all_keys(*kinds) | all_keys(keys(sdk.CustomToolParam)["format"], within="format.")


def known_item_fields() -> set[str]:
    unions = (sdk.ResponseInputItemParam, late.beta.BetaResponseInputItemParam)
    known = [member for union in unions for member in members(union) if types_in(member) & supported(ITEMS)]
    return all_keys(*known)


def known_part_fields() -> set[str]:
    message = keys(sdk.ResponseOutputMessageParam)
    reasoning = keys(response_reasoning_item_param.ResponseReasoningItemParam)
    return all_keys(
        sdk.ResponseInputContentParam,
        sdk.ResponseInputMessageContentListParam,
        sdk.ResponseFunctionCallOutputItemParam,
        message["content"],
        reasoning["summary"],
        reasoning["content"],
    )


_REQUEST = re.compile(
    r"self\._(get|post|put|patch|delete|get_api_list)\(\s*(?:path_template\(\s*)?\"(/[^\"?]+)"
)
_ANY_REQUEST = re.compile(r"self\._(?:get|post|put|patch|delete|get_api_list)\(")


def known_endpoints() -> set[str]:
    """Return the endpoints that the methods of the package's resources call."""
    resources = (
        responses.Responses,
        responses.InputItems,
        responses.InputTokens,
        conversations.Conversations,
        conversations.Items,
        beta.responses.Responses,
        beta.responses.InputItems,
        beta.responses.InputTokens,
        models.Models,
        moderations.Moderations,
    )
    found = set()
    for resource in resources:
        source = inspect.getsource(resource)
        calls = _REQUEST.findall(source)
        assert len(calls) == len(_ANY_REQUEST.findall(source)) > 0, resource
        found |= {f"{verb.removesuffix('_api_list').upper()} /v1{path}" for verb, path in calls}
    assert inspect.getdoc(responses.Responses.connect)
    return found | {"GET /v1/responses"}


KNOWN: list[tuple[str, dict[str, Row], Callable[[], set[str]]]] = [
    ("endpoints", ENDPOINTS, known_endpoints),
    (
        "client events",
        CLIENT_EVENTS,
        lambda: types_in(sdk.ResponsesClientEventParam, late.beta.BetaResponsesClientEventParam),
    ),
    ("fields", FIELDS, known_fields),
    ("formats", FORMATS, lambda: types_in(sdk.ResponseFormatTextConfigParam)),
    ("includes", INCLUDES, lambda: literals(sdk.ResponseIncludable)),
    (
        "items",
        ITEMS,
        lambda: types_in(sdk.ResponseInputItemParam, late.beta.BetaResponseInputItemParam, sdk.ResponseItem),
    ),
    ("parts", PARTS, known_parts),
    ("tools", TOOLS, lambda: types_in(sdk.ToolParam, late.beta.BetaToolParam)),
    ("tool fields", TOOL_FIELDS, known_tool_fields),
    ("format fields", FORMAT_FIELDS, lambda: all_keys(sdk.ResponseFormatTextConfigParam)),
    ("item fields", ITEM_FIELDS, known_item_fields),
    ("part fields", PART_FIELDS, known_part_fields),
    ("tool choices", TOOL_CHOICES, known_tool_choices),
    (
        "output items",
        OUTPUT_ITEMS,
        lambda: types_in(sdk.ResponseOutputItem, late.beta.BetaResponseOutputItem),
    ),
    (
        "server events",
        SERVER_EVENTS,
        lambda: types_in(
            sdk.ResponsesServerEvent,
            sdk.ResponseStreamEvent,
            late.beta.BetaResponsesServerEvent,
        ),
    ),
]
OURS_ALONE = {
    "client events": {
        *("response.processed", "response.append"),
        *("response.tool_output.delta", "response.tool_output.done"),
    },
    "items": {"compaction_summary"},
    "fields": {
        "client_metadata",
        "rollout",
        "presence_penalty",
        "frequency_penalty",
        "seed",
        "stop",
        "top_k",
    },
}
"""Names that are specific to slipring."""


@pytest.mark.parametrize(("kind", "rows", "known"), KNOWN, ids=[kind for kind, _, _ in KNOWN])
def test_the_page_lists_everything_in_the_package(
    kind: str, rows: dict[str, Row], known: Callable[[], set[str]]
) -> None:
    names = known() | OURS_ALONE.get(kind, set())
    assert sorted(names - rows.keys()) == [], "missing on the page"
    whole = {name for name in rows if kind != "fields" or "." not in name}
    assert sorted(whole - names) == [], "on the page, but unknown"


def test_the_page_lists_the_keys_of_objects_that_are_not_refused() -> None:
    nested = {name for create in known_creates() for name in objects_in(create)}
    wanted = {name for name in nested if FIELDS[name.partition(".")[0]].status != "refused"}
    assert {"text.format", "conversation.id", "context_management.compact_threshold"} <= wanted
    assert wanted == {name for name in FIELDS if "." in name}


def test_the_page_lists_everything_in_the_server() -> None:
    assert set(requests.CreateRequest.__struct_fields__) <= FIELDS.keys()
    assert ITEMS.keys() == items.SUPPORTED_TYPES | items.CARRIED_TYPES


# What the server does ----------------------------------------------------------------------------

NOTE = {"type": "custom", "name": "take_note", "description": "Write it down"}
CATALOG = Catalog.of_engine(open_engine("simulated"))
CATALOG.look_up_models()
STORED_ITEM = items.read_item(b'{"type":"message","id":"msg_stored","role":"user","content":"x"}', "input[0]")
SEAL = KeyedSeal([b"k" * 32])
DOCS = {"type": "mcp", "server_label": "docs", "server_url": "https://docs.example"}
GOOD: Json = {"input": "hello", "store": False, "tools": [WEATHER, NOTE, DOCS]}


@dataclass
class Outcome:
    """The outcome of a frame: an error, or a job for the engine."""

    error: Json | None = None
    response: Json | None = None
    job: Job | None = None
    answer: Json | None = None
    """The answer to a frame that creates no response."""


def open_session() -> Session:
    """A session with the response `resp_1`, and a store with the item `msg_stored`."""
    made: dict[str, int] = {}

    def mint(prefix: str) -> str:
        made[prefix] = made.get(prefix, 0) + 1
        return f"{prefix}_{made[prefix]}"

    session = Session(
        tenant="tests",
        models=CATALOG,
        limits=Limits(),
        ports=Ports(
            mint=mint,
            clock=lambda: 0.0,
            seal=SEAL,
            requests=Ledger(2**40, 2**40),
            known=KnownContexts(0.0, 0),
            heads=KnownHeads(0.0, 0),
            items=KnownItems(0.0, 0),
            verdicts=KnownVerdicts(0),
        ),
        cache=ConnectionCache(2**20),
        now=0.0,
        betas=Betas(rollout=True, inject=True, tool_output=True),
        policies=OnePolicy(NO_POLICY),
    )
    frame = json.dumps({"type": "response.create", "input": "hello", "store": False})
    start = session.receive(frame, 0.0)[-1]
    assert isinstance(start, Generate)
    usage = Finished("stop", input_tokens=1, cached_tokens=0, output_tokens=1)
    emitted(session, start, [Text("Hello."), usage])
    flush = session.turns.done(start, None, 0.0)[-1]
    assert isinstance(flush, Flush)
    session.turns.done(flush, None, 0.0)
    return session


ADDITIONS = ("response.steer.", "response.append.", "response.inject.", "response.tool_output.")


def checked(session: Session, check: CompileGrammars) -> list[Action]:
    """Compile the grammars and schemas of a request."""
    try:
        asyncio.run(IN_THREAD.check("tenant", check.grammars))
    except ApiError as error:
        return session.turns.failed(check, error, 0.0)
    return session.turns.done(check, None, 0.0)


def with_tools(session: Session, action: ResolveTools | ListTools) -> list[Action]:
    """Each MCP server has a tool, and each built-in type is answered."""
    turns = session.turns
    if isinstance(action, ListTools):
        fetched = FetchedList((ListedTool("search", Raw(b'{"type":"object"}')),))
        listed = [each for label in action.servers for each in turns.listed(action, label, fetched, 0.0)]
        return listed + turns.done(action, None, 0.0)
    found = {each.server_label: ResolvedServer(None) for each in action.servers}
    answers = {kind: ResolvedBuiltin(ResolvedServer(None), "answer", "text") for kind in action.builtins}
    return turns.done(action, Resolved(found, answers), 0.0)


def send(frame: Json) -> Outcome:
    session = open_session()
    outcome = Outcome()
    pending: list[Action] = session.receive(json.dumps({"type": "response.create", **frame}), 0.0)
    while pending:
        action = pending.pop(0)
        if isinstance(action, Load):
            stored = {STORED_ITEM.id: STORED_ITEM} if STORED_ITEM.id in action.item_ids else {}
            joined = Joined(action.conversation_id, 1) if action.conversation_id is not None else None
            pending += session.turns.done(action, Loaded(items=stored, joined=joined), 0.0)
        elif isinstance(action, CompileGrammars):
            pending += checked(session, action)
        elif isinstance(action, ResolveTools | ListTools):
            pending += with_tools(session, action)
        elif isinstance(action, CountTokens):
            pending += session.turns.done(action, 0, 0.0)
        elif isinstance(action, Generate):
            outcome.job = action.job
            pending.append(Send(emitted(session, action, [Accepted()])))
        elif isinstance(action, Send):
            for event in action.events:
                decoded = json.loads(wire.encode(event))
                outcome.error = decoded if decoded["type"] == "error" else outcome.error
                if decoded["type"].startswith(ADDITIONS):
                    outcome.answer = decoded
                outcome.response = decoded.get("response", outcome.response)
    assert (outcome.error is None) != (outcome.job is None) or frame.get("type") in CLIENT_EVENTS
    return outcome


def check(row: Row, outcome: Outcome) -> None:
    """Require that a create was accepted, or refused as the row says."""
    if row.refusal is None:
        assert outcome.error is None
        assert outcome.job is not None
    else:
        assert outcome.error is not None
        assert Refusal.of(outcome.error) == row.refusal


# Request fields.

SCHEMA_FORMAT = {"type": "json_schema", "name": "answer", "schema": {"type": "object"}, "strict": True}
FIELD_SAMPLES: Json = {
    "type": "response.create",
    "stream_id": "agent.1",
    "generate": False,
    "model": "simulated",
    "input": [{"role": "user", "content": "hello"}],
    "previous_response_id": "resp_1",
    "instructions": "Be brief.",
    "tools": [WEATHER],
    "tool_choice": {"type": "function", "name": "get_weather"},
    "parallel_tool_calls": False,
    "max_tool_calls": 3,
    "reasoning": {"effort": "high", "summary": "auto", "context": "auto", "mode": "standard"},
    "reasoning.effort": "xhigh",
    "reasoning.summary": "concise",
    "reasoning.generate_summary": "detailed",
    "reasoning.context": "all_turns",
    "reasoning.mode": "pro",
    "text": {"format": {"type": "json_object"}, "verbosity": "low"},
    "text.format": SCHEMA_FORMAT,
    "text.verbosity": "high",
    "include": ["reasoning.encrypted_content"],
    "store": True,
    "rollout": True,
    "truncation": "auto",
    "max_output_tokens": 16,
    "temperature": 0.5,
    "top_p": 0.25,
    "presence_penalty": 0.5,
    "frequency_penalty": -0.5,
    "seed": 7,
    "top_k": 20,
    "stop": ["END"],
    "top_logprobs": 3,
    "metadata": {"run": "17"},
    "prompt_cache_key": "agents",
    "prompt_cache_options": {"mode": "explicit", "ttl": "30m"},
    "prompt_cache_options.prewarm": True,
    "prompt_cache_options.mode": "implicit",
    "prompt_cache_options.ttl": "12h",
    "prompt_cache_options.comparison_response_id": "resp_1",
    "prompt_cache_retention": "24h",
    "safety_identifier": "user-17",
    "user": "user-17",
    "service_tier": "priority",
    "image": {"context_compression": "auto"},
    "image.context_compression": "disabled",
    "access_programs": {"cyber": "standard"},
    "access_programs.cyber": "standard",
    "stream": True,
    "stream_options": {"include_obfuscation": False},
    "stream_options.include_obfuscation": True,
    "client_metadata": {"session_id": "17"},
    "background": True,
    "conversation": {"id": "conv_1"},
    "conversation.id": "conv_1",
    "prompt": {"id": "pmpt_1", "variables": {"city": "Paris"}},
    "moderation": {"model": "omni-moderation-latest"},
    "context_management": [{"type": "compaction", "compact_threshold": 1000}],
    "context_management.type": "compaction",
    "context_management.compact_threshold": 50_000,
    "multi_agent": {"enabled": True, "max_concurrent_subagents": 3},
}
ACCEPTED_WHEN_OFF: Json = {
    "background": False,
    "multi_agent": {"enabled": False},
    "top_logprobs": 0,
}


def with_field(name: str, value: object) -> Json:
    whole, _, key = name.partition(".")
    if whole == "context_management" and key:
        return {**GOOD, whole: [{**FIELD_SAMPLES[whole][0], key: value}]}
    return {**GOOD, whole: {key: value} if key else value}


NOT_OPTIONAL = {"type", "input", "conversation.id"}
NOT_OPTIONAL |= {"context_management.type", "context_management.compact_threshold"}
"""Fields whose absence is an error, at least for models with an unknown context size."""


@pytest.mark.parametrize("name", FIELDS)
def test_a_field_is_treated_as_the_page_says(name: str) -> None:
    row, sample = FIELDS[name], FIELD_SAMPLES[name]
    outcome = send(with_field(name, sample))
    check(row, outcome)
    echo: Any = outcome.response or {}
    for key in name.split("."):
        echo = echo.get(key) if isinstance(echo, dict) else None
    assert row.cells["Echo"] in ("yes", "no")
    assert (echo == sample) == (row.cells["Echo"] == "yes")


@pytest.mark.parametrize("name", [name for name in FIELDS if name not in NOT_OPTIONAL])
def test_null_counts_as_absent(name: str) -> None:
    assert send(with_field(name, None)).job is not None


@pytest.mark.parametrize("name", ACCEPTED_WHEN_OFF)
def test_a_refused_field_may_be_disabled_explicitly(name: str) -> None:
    assert FIELDS[name].status == "refused"
    assert send(with_field(name, ACCEPTED_WHEN_OFF[name])).job is not None


@pytest.mark.parametrize("name", sorted(FIELDS.keys() & set(Settings.__struct_fields__)))
def test_settings_are_passed_to_the_engine(name: str) -> None:
    job = send(with_field(name, FIELD_SAMPLES[name])).job
    if FIELDS[name].status == "supported":
        assert job is not None
        passed = getattr(job.settings, name)
        assert (list(passed) if isinstance(passed, tuple) else passed) == FIELD_SAMPLES[name]


def test_conversation_and_previous_response_id_exclude_each_other() -> None:
    error = send({**GOOD, "conversation": "conv_1", "previous_response_id": "resp_1"}).error
    assert error is not None
    assert Refusal.of(error) == Refusal(400, "invalid_value", "previous_response_id")
    assert "`invalid_value`, param `previous_response_id`" in FIELDS["conversation"].cells["Notes"]


def test_lanes_exist_only_on_websockets() -> None:
    with pytest.raises(UnsupportedParameter) as caught:
        RESPONSES.read(json.dumps({**GOOD, "stream_id": "agent.1"}).encode())
    stated = FIELDS["stream_id"].cells["Notes"].partition("Over HTTP: ")[2].rstrip(".")
    error = caught.value
    assert Refusal(error.status, error.code, error.param) == Refusal.read(stated)
    assert RESPONSES.read(json.dumps({**GOOD, "stream": False}).encode()).stream is False


@pytest.mark.parametrize("example", TABLES["Refused values"], ids=lambda example: example["Example"])
def test_a_value_is_refused_as_the_page_says(example: Json) -> None:
    (sample,) = _CODE_SPAN.findall(example["Example"])
    error = send({**GOOD, **json.loads(sample)}).error
    assert error is not None
    assert Refusal.of(error) == Refusal.read(example["Refused with"])


FORMAT_SAMPLES: Json = {
    "text": {"type": "text"},
    "json_object": {"type": "json_object"},
    "json_schema": SCHEMA_FORMAT,
}


@pytest.mark.parametrize("name", FORMATS)
def test_a_text_format_is_treated_as_the_page_says(name: str) -> None:
    outcome = send({**GOOD, "text": {"format": FORMAT_SAMPLES[name]}})
    check(FORMATS[name], outcome)
    assert outcome.response is not None
    assert outcome.response["text"]["format"] == FORMAT_SAMPLES[name]


FORMAT_FIELD_SAMPLES: Json = {
    "type": {"type": "text"},
    "name": SCHEMA_FORMAT,
    "schema": SCHEMA_FORMAT,
    "strict": SCHEMA_FORMAT,
    "description": {**SCHEMA_FORMAT, "description": "What to say"},
}


@pytest.mark.parametrize("name", FORMAT_FIELDS)
def test_a_format_field_is_read_and_echoed(name: str) -> None:
    sample = FORMAT_FIELD_SAMPLES[name]
    assert name in sample
    response = send({**GOOD, "text": {"format": sample}}).response
    assert response is not None
    assert response["text"]["format"] == sample


@pytest.mark.parametrize("name", INCLUDES)
def test_an_include_value_is_treated_as_the_page_says(name: str) -> None:
    check(INCLUDES[name], send({**GOOD, "include": [name]}))


# Items and parts.

SCREENSHOT = {"type": "computer_screenshot", "image_url": PIXEL}
SHELL_OUTPUT = {"stdout": "", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}
FUNCTION_CALL = [
    {"type": "function_call", "call_id": "call_1", "name": "get_weather", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "call_1", "output": "rain"},
]
CUSTOM_CALL = [
    {"type": "custom_tool_call", "call_id": "call_1", "name": "take_note", "input": "rain"},
    {"type": "custom_tool_call_output", "call_id": "call_1", "output": "noted"},
]
COMPUTER_CALL = [
    {
        "type": "computer_call",
        "id": "cu_1",
        "call_id": "call_1",
        "action": {"type": "screenshot"},
        "pending_safety_checks": [],
        "status": "completed",
    },
    {"type": "computer_call_output", "call_id": "call_1", "output": SCREENSHOT},
]
SAFETY_CHECKS = [{"id": "cu_sc_1", "code": "malicious_instructions", "message": "Careful."}]
ACTIONS_WITH_ALL: list[Json] = [
    {
        "type": "computer_call",
        "call_id": "call_1",
        "actions": [{"type": "click", "button": "left", "x": 1, "y": 2}, {"type": "wait"}],
        "pending_safety_checks": SAFETY_CHECKS,
    },
    {**COMPUTER_CALL[1], "acknowledged_safety_checks": SAFETY_CHECKS},
]
SHELL_CALL = [
    {"type": "shell_call", "call_id": "call_1", "action": {"commands": ["true"]}},
    {"type": "shell_call_output", "call_id": "call_1", "output": [SHELL_OUTPUT]},
]
PATCH_CALL = [
    {
        "type": "apply_patch_call",
        "call_id": "call_1",
        "operation": {"type": "delete_file", "path": "a"},
        "status": "completed",
    },
    {"type": "apply_patch_call_output", "call_id": "call_1", "status": "completed"},
]
LOCAL_SHELL_CALL = [
    {
        "type": "local_shell_call",
        "id": "lsh_1",
        "call_id": "call_1",
        "action": {"type": "exec", "command": ["true"], "env": {}},
        "status": "completed",
    },
    {"type": "local_shell_call_output", "call_id": "call_1", "output": "{}"},
]
AGENT_MESSAGE = {
    "type": "agent_message",
    "author": "/root",
    "recipient": "/root/child",
    "content": [{"type": "encrypted_content", "encrypted_content": "…"}],
}
SEALED = SEAL.seal("tests", (STORED_ITEM,))
APPROVAL = {"name": "search", "server_label": "docs", "arguments": "{}"}
TOOL_SEARCH: list[Any] = [
    {
        "type": "tool_search_call",
        "call_id": "call_1",
        "execution": "client",
        "arguments": {"query": "weather"},
    },
    {"type": "tool_search_output", "call_id": "call_1", "execution": "client", "tools": [WEATHER]},
]
ITEM_SAMPLES: dict[str, list[Json]] = {
    "message": [{"type": "message", "role": "developer", "content": "Be brief."}],
    "function_call": FUNCTION_CALL,
    "function_call_output": FUNCTION_CALL,
    "custom_tool_call": CUSTOM_CALL,
    "custom_tool_call_output": CUSTOM_CALL,
    "reasoning": [{"type": "reasoning", "id": "rs_1", "summary": []}],
    "item_reference": [{"type": "item_reference", "id": "msg_stored"}],
    "additional_tools": [{"type": "additional_tools", "role": "developer", "tools": [WEATHER]}],
    "configuration_update": [
        {
            "type": "configuration_update",
            "reasoning": {"effort": "low"},
            "text": {"format": {"type": "json_object"}},
        }
    ],
    "compaction": [{"type": "compaction", "encrypted_content": SEALED}],
    "compaction_summary": [{"type": "compaction_summary", "encrypted_content": SEALED}],
    "compaction_trigger": [
        {"type": "message", "role": "user", "content": "x"},
        {"type": "compaction_trigger"},
    ],
    "computer_call": COMPUTER_CALL,
    "computer_call_output": COMPUTER_CALL,
    "shell_call": SHELL_CALL,
    "shell_call_output": SHELL_CALL,
    "apply_patch_call": PATCH_CALL,
    "apply_patch_call_output": PATCH_CALL,
    "local_shell_call": LOCAL_SHELL_CALL,
    "local_shell_call_output": LOCAL_SHELL_CALL,
    "tool_search_call": TOOL_SEARCH,
    "tool_search_output": TOOL_SEARCH,
    "mcp_list_tools": [{"type": "mcp_list_tools", "id": "mcpl_1", "server_label": "docs", "tools": []}],
    "mcp_call": [{"type": "mcp_call", "id": "mcp_1", **APPROVAL}],
    "mcp_approval_request": [
        {"type": "mcp_approval_request", "id": "mcpr_1", **APPROVAL},
        {"type": "message", "role": "user", "content": "No."},
    ],
    "mcp_approval_response": [
        {"type": "mcp_approval_request", "id": "mcpr_1", **APPROVAL},
        {"type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": False},
    ],
    "file_search_call": [{"type": "file_search_call", "id": "fs_1", "queries": ["x"], "status": "completed"}],
    "web_search_call": [
        {
            "type": "web_search_call",
            "id": "ws_1",
            "action": {"type": "search", "query": "x"},
            "status": "completed",
        }
    ],
    "code_interpreter_call": [
        {
            "type": "code_interpreter_call",
            "id": "ci_1",
            "code": "1",
            "container_id": "cntr_1",
            "outputs": None,
            "status": "completed",
        }
    ],
    "image_generation_call": [
        {"type": "image_generation_call", "id": "ig_1", "result": None, "status": "completed"}
    ],
    "program": [{"type": "program", "id": "prog_1", "call_id": "call_1", "code": "", "fingerprint": "x"}],
    "program_output": [
        {
            "type": "program_output",
            "id": "prog_2",
            "call_id": "call_1",
            "result": "",
            "status": "completed",
        }
    ],
    "agent_message": [AGENT_MESSAGE],
    "multi_agent_call": [
        {"type": "multi_agent_call", "call_id": "call_1", "action": "wait_agent", "arguments": "{}"}
    ],
    "multi_agent_call_output": [
        {"type": "multi_agent_call_output", "call_id": "call_1", "action": "wait_agent", "output": []}
    ],
}


STANDING_FOR_THE_STORED = ("item_reference", "compaction", "compaction_summary")


@pytest.mark.parametrize("name", ITEMS)
def test_an_item_is_treated_as_the_page_says(name: str) -> None:
    sample = ITEM_SAMPLES[name]
    assert name in {item["type"] for item in sample}
    outcome = send({**GOOD, "input": sample})
    check(ITEMS[name], outcome)
    if outcome.job is not None:
        kept = [json.loads(item.raw) for item in outcome.job.input]
        if name in HOSTED:
            # Models see a call and its output, or nothing.
            assert {item["type"] for item in kept} <= {"function_call", "function_call_output", "message"}
        elif name == "compaction_trigger":
            assert kept[:-1] == sample[:-1]  # and then the question for a summary
        else:
            assert kept == ([json.loads(STORED_ITEM.raw)] if name in STANDING_FOR_THE_STORED else sample)


SPOKEN = {
    "type": "message",
    "role": "assistant",
    "content": "hi",
    "status": "completed",
    "phase": "commentary",
}
BROKEN = [{**ITEM_SAMPLES["mcp_call"][0], "error": "It broke."}]
DENIAL = [
    ITEM_SAMPLES["mcp_approval_response"][0],
    {**ITEM_SAMPLES["mcp_approval_response"][1], "reason": "Not now."},
]
SHELL_WITH_ALL: list[Json] = [
    {**SHELL_CALL[0], "environment": {"type": "local"}},
    {**SHELL_CALL[1], "max_output_length": 100},
]
FOUND_FILES = [{**ITEM_SAMPLES["file_search_call"][0], "results": [{"text": "x"}]}]
ITEM_FIELD_SAMPLES: dict[str, list[Json]] = {
    **{name: [SPOKEN] for name in ("type", "role", "content", "status", "phase")},
    **dict.fromkeys(("call_id", "name", "arguments", "output"), FUNCTION_CALL),
    **dict.fromkeys(("execution", "tools"), TOOL_SEARCH),
    **dict.fromkeys(("reasoning", "text"), ITEM_SAMPLES["configuration_update"]),
    **dict.fromkeys(("server_label", "error"), BROKEN),
    **dict.fromkeys(("approval_request_id", "approve", "reason"), DENIAL),
    **dict.fromkeys(("id", "summary"), ITEM_SAMPLES["reasoning"]),
    "namespace": [{**FUNCTION_CALL[0], "namespace": "home"}, *FUNCTION_CALL[1:]],
    "caller": [{**FUNCTION_CALL[0], "caller": {"type": "direct"}}, *FUNCTION_CALL[1:]],
    "async": [{**FUNCTION_CALL[0], "async": True}],
    "input": CUSTOM_CALL,
    **dict.fromkeys(("action", "environment", "max_output_length"), SHELL_WITH_ALL),
    "operation": PATCH_CALL,
    **dict.fromkeys(("actions", "pending_safety_checks", "acknowledged_safety_checks"), ACTIONS_WITH_ALL),
    **dict.fromkeys(("queries", "results"), FOUND_FILES),
    **dict.fromkeys(("code", "outputs", "container_id"), ITEM_SAMPLES["code_interpreter_call"]),
    "encrypted_content": ITEM_SAMPLES["compaction"],
    "agent": [{**SPOKEN, "agent": {"agent_name": "root"}}],
}


@pytest.mark.parametrize("name", ITEM_FIELDS)
def test_an_item_field_is_accepted_and_kept(name: str) -> None:
    sample = ITEM_FIELD_SAMPLES[name]
    assert any(name in item for item in sample)
    job = send({**GOOD, "input": sample}).job
    assert job is not None
    if name != "encrypted_content" and not any(item["type"] in HOSTED for item in sample):
        assert [json.loads(item.raw) for item in job.input] == sample


IMAGE = {"type": "input_image", "image_url": PIXEL, "file_id": None, "detail": "low"}
FILE = {"type": "input_file", "file_url": "https://a.example", "file_data": "x", "filename": "x.txt"}
WORDS = {"type": "output_text", "text": "hi", "annotations": [], "logprobs": []}
PART_FIELD_SAMPLES: dict[str, Json] = {
    **dict.fromkeys(("image_url", "file_id", "detail"), IMAGE),
    **dict.fromkeys(("file_url", "file_data", "filename"), FILE),
    **dict.fromkeys(("type", "text", "annotations", "logprobs"), WORDS),
    "refusal": {"type": "refusal", "refusal": "no"},
    "prompt_cache_breakpoint": {**IMAGE, "prompt_cache_breakpoint": {"mode": "explicit"}},
}


@pytest.mark.parametrize("name", PART_FIELDS)
def test_a_part_field_is_accepted_and_kept(name: str) -> None:
    part = PART_FIELD_SAMPLES[name]
    assert name in part
    role = "user" if part["type"].startswith("input") else "assistant"
    job = send({**GOOD, "input": message(part, role)}).job
    assert job is not None
    assert json.loads(job.input[0].raw)["content"] == [part]


def test_unknown_keys_of_items_are_kept() -> None:
    sample = [{"type": "message", "role": "user", "content": "hello", "x-trace": {"id": 17}}]
    job = send({**GOOD, "input": sample}).job
    assert job is not None
    assert json.loads(job.input[0].raw) == sample[0]


def test_an_update_and_additional_tools_take_effect() -> None:
    update, more = ITEM_SAMPLES["configuration_update"], ITEM_SAMPLES["additional_tools"]
    job = send({"store": False, "input": [*update, *more]}).job
    assert job is not None
    assert job.settings.effort == "low"
    assert job.settings.format.kind == "json_object"
    assert [tool.name for tool in job.offer.tools] == ["get_weather"]


def message(part: Json, role: str = "user") -> list[Json]:
    return [{"type": "message", "role": role, "content": [part]}]


PART_SAMPLES: dict[str, list[Json]] = {
    "input_text": message({"type": "input_text", "text": "hello"}),
    "input_image": message({"type": "input_image", "image_url": PIXEL, "detail": "auto"}),
    "input_file": message({"type": "input_file", "file_id": "file_1"}),
    "output_text": message({"type": "output_text", "text": "hello", "annotations": []}, "assistant"),
    "refusal": message({"type": "refusal", "refusal": "no"}, "assistant"),
    "summary_text": [
        {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "so"}]}
    ],
    "reasoning_text": [
        {
            "type": "reasoning",
            "id": "rs_1",
            "summary": [],
            "content": [{"type": "reasoning_text", "text": "so"}],
        }
    ],
    "computer_screenshot": COMPUTER_CALL,
    "encrypted_content": [AGENT_MESSAGE],
    "input_audio": message({"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}),
}


@pytest.mark.parametrize("name", PARTS)
def test_a_content_part_is_treated_as_the_page_says(name: str) -> None:
    sample = PART_SAMPLES[name]
    assert f'"type": "{name}"' in json.dumps(sample)
    check(PARTS[name], send({**GOOD, "input": sample}))


# Tools.

FULL_FUNCTION = {**WEATHER, "strict": False}
TOOL_SAMPLES: dict[str, Json] = {
    "function": WEATHER,
    "custom": {**NOTE, "format": {"type": "grammar", "syntax": "regex", "definition": "a+"}},
    "namespace": {"type": "namespace", "name": "home", "description": "At home", "tools": [WEATHER, NOTE]},
    "web_search": {"type": "web_search"},
    "web_search_2025_08_26": {"type": "web_search_2025_08_26", "search_context_size": "low"},
    "web_search_preview": {"type": "web_search_preview"},
    "web_search_preview_2025_03_11": {"type": "web_search_preview_2025_03_11"},
    "file_search": {"type": "file_search", "vector_store_ids": ["vs_1"]},
    "code_interpreter": {"type": "code_interpreter", "container": {"type": "auto"}},
    "image_generation": {"type": "image_generation", "size": "1024x1024"},
    "computer": {"type": "computer"},
    "computer_use_preview": {
        "type": "computer_use_preview",
        "display_height": 768,
        "display_width": 1024,
        "environment": "browser",
    },
    "shell": {"type": "shell", "environment": {"type": "local"}},
    "local_shell": {"type": "local_shell"},
    "apply_patch": {"type": "apply_patch"},
    "mcp": {
        "type": "mcp",
        "server_label": "docs",
        "server_url": "https://docs.example",
        "allowed_tools": ["search"],
        "headers": None,
        "require_approval": "never",
        "server_description": "Documents.",
    },
    "tool_search": {"type": "tool_search", "execution": "client"},
    "programmatic_tool_calling": {"type": "programmatic_tool_calling"},
}
GRAMMAR_NOTE = TOOL_SAMPLES["custom"]
TOOL_FIELD_SAMPLES: dict[str, Json] = {
    "type": WEATHER,
    "name": WEATHER,
    "description": WEATHER,
    "parameters": WEATHER,
    "strict": FULL_FUNCTION,
    "format": {**NOTE, "format": {"type": "text"}},
    "tools": TOOL_SAMPLES["namespace"],
    "output_schema": {**WEATHER, "output_schema": {"type": "string"}},
    "defer_loading": {**WEATHER, "defer_loading": True},
    "async": {**NOTE, "async": True},
    "execution": {"type": "tool_search", "execution": "client"},
    **{f"format.{key}": GRAMMAR_NOTE for key in GRAMMAR_NOTE["format"]},
    "allowed_callers": {**WEATHER, "allowed_callers": ["programmatic"]},
}


def check_tool(row: Row, sample: Json) -> None:
    outcome = send({**GOOD, "tools": [sample]})
    check(row, outcome)
    if row.refusal is not None:
        return
    assert outcome.response is not None
    assert outcome.response["tools"] == [sample]
    assert outcome.job is not None
    assert bool(outcome.job.offer.tools) == (sample.get("defer_loading") is not True)


@pytest.mark.parametrize("name", TOOLS)
def test_a_tool_is_treated_as_the_page_says(name: str) -> None:
    assert TOOL_SAMPLES[name]["type"] == name
    check_tool(TOOLS[name], TOOL_SAMPLES[name])


@pytest.mark.parametrize("name", TOOL_FIELDS)
def test_a_tool_field_is_treated_as_the_page_says(name: str) -> None:
    sample: Any = TOOL_FIELD_SAMPLES[name]
    for key in name.split("."):
        assert key in sample
        sample = sample[key]
    check_tool(TOOL_FIELDS[name], TOOL_FIELD_SAMPLES[name])


def test_tools_of_any_other_type_are_refused() -> None:
    outcome = send({**GOOD, "tools": [{"type": "teleport", "range_km": 17}]})
    assert outcome.error is not None
    assert Refusal.of(outcome.error) == TOOLS["image_generation"].refusal


TOOL_CHOICE_SAMPLES: Json = {
    "auto": "auto",
    "none": "none",
    "required": "required",
    "function": {"type": "function", "name": "get_weather"},
    "custom": {"type": "custom", "name": "take_note"},
    "allowed_tools": {
        "type": "allowed_tools",
        "mode": "required",
        "tools": [{"type": "custom", "name": "take_note"}, {"type": "web_search"}],
    },
    "file_search": {"type": "file_search"},
    "web_search_preview": {"type": "web_search_preview"},
    "web_search_preview_2025_03_11": {"type": "web_search_preview_2025_03_11"},
    "computer": {"type": "computer"},
    "computer_use": {"type": "computer_use"},
    "computer_use_preview": {"type": "computer_use_preview"},
    "image_generation": {"type": "image_generation"},
    "code_interpreter": {"type": "code_interpreter"},
    "mcp": {"type": "mcp", "server_label": "docs", "name": "search"},
    "shell": {"type": "shell"},
    "apply_patch": {"type": "apply_patch"},
    "programmatic_tool_calling": {"type": "programmatic_tool_calling"},
}


@pytest.mark.parametrize("name", TOOL_CHOICES)
def test_a_tool_choice_is_treated_as_the_page_says(name: str) -> None:
    sample = TOOL_CHOICE_SAMPLES[name]
    assert name in (sample, sample["type"] if isinstance(sample, dict) else sample)
    tool = "computer" if name == "computer_use" else name
    is_builtin = tool in TOOL_SAMPLES and TOOLS[tool].status == "supported"
    own = [TOOL_SAMPLES[tool]] if is_builtin and name not in ("function", "custom", "mcp") else []
    outcome = send({**GOOD, "tools": [*GOOD["tools"], *own], "tool_choice": sample})
    check(TOOL_CHOICES[name], outcome)
    if outcome.response is not None:
        assert outcome.response["tool_choice"] == sample


# Events, endpoints, errors, limits.


ANSWER = {"type": "function_call_output", "call_id": "call_1", "output": "42"}
PIECE = {"response_id": "resp_1", "call_id": "call_1"}
CLIENT_EVENT_SAMPLES: Json = {
    "response.append": {"response_id": "resp_1", "input": [ANSWER]},
    "response.inject": {"response_id": "resp_1", "input": [ANSWER]},
    "response.tool_output.delta": {**PIECE, "delta": "4"},
    "response.tool_output.done": PIECE,
}


@pytest.mark.parametrize("name", CLIENT_EVENTS)
def test_a_client_event_is_treated_as_the_page_says(name: str) -> None:
    row = CLIENT_EVENTS[name]
    outcome = send({"type": name, **CLIENT_EVENT_SAMPLES.get(name, GOOD)})
    answered = outcome.job is not None or outcome.answer is not None
    assert answered == (row.status == "supported")
    assert (outcome.error and Refusal.of(outcome.error)) == row.refusal


def test_the_page_lists_every_error_code_of_steering() -> None:
    known = set(typing.get_args(events.SteerErrorCode))
    assert listed("Steering").keys() == known == literals(ResponseSteerErrorCode)


def test_the_page_lists_every_error_code_of_appending() -> None:
    assert listed("Rollouts").keys() == set(typing.get_args(events.AppendErrorCode))


def test_the_page_lists_every_error_code_of_pieces_of_outputs() -> None:
    assert listed("Outputs of running tools").keys() == set(typing.get_args(events.ToolOutputErrorCode))


def tags(kind: type[Struct]) -> set[str]:
    """Return the wire names of an event class and its subclasses."""
    tag = kind.__struct_config__.tag
    own = {tag} if isinstance(tag, str) and tag in SERVER_EVENTS else set()
    return own.union(*map(tags, kind.__subclasses__()))


def supported(rows: dict[str, Row]) -> set[str]:
    return {name for name, row in rows.items() if row.status == "supported"}


def test_the_supported_events_are_those_that_the_server_can_send() -> None:
    assert supported(SERVER_EVENTS) == tags(events.Event)


def test_the_supported_output_items_are_those_that_the_server_can_create() -> None:
    made = {item.__struct_config__.tag for item in typing.get_args(OutputItem)}
    assert supported(OUTPUT_ITEMS) == made


def code_spans(start: str) -> set[str]:
    """Return the code spans of the paragraph that begins with ``start``."""
    paragraph = re.search(rf"^{re.escape(start)}.+?\n\n", TEXT, re.MULTILINE | re.DOTALL)
    assert paragraph, start
    return set(_CODE_SPAN.findall(paragraph[0]))


def wire_keys(kind: Any) -> set[str]:
    """Return the keys of a model as they are sent."""
    return {field.alias or name for name, field in kind.model_fields.items()}


def test_the_page_names_the_keys_that_output_items_lack() -> None:
    made = {
        item.__struct_config__.tag: set(item.__struct_encode_fields__) for item in typing.get_args(OutputItem)
    }
    lacking: set[str] = set()
    for member in members(sdk.ResponseOutputItem) + members(late.beta.BetaResponseOutputItem):
        for name in types_in(member) & made.keys():
            lacking |= wire_keys(member) - made[name] - {"type"}
    assert code_spans("Items that slipring creates have no") == lacking
    assert set(SHAPES) == made.keys() - {"computer_call"}


def test_the_page_names_the_keys_that_events_lack() -> None:
    sent: dict[str, set[str]] = {}

    def collect(kind: type[Struct]) -> None:
        if (tag := str(kind.__struct_config__.tag)) in SERVER_EVENTS:
            sent.setdefault(tag, set()).update(kind.__struct_encode_fields__)
        for below in kind.__subclasses__():
            collect(below)

    collect(events.Event)
    unions = (
        sdk.ResponsesServerEvent,
        sdk.ResponseStreamEvent,
        late.beta.BetaResponsesServerEvent,
    )
    lacking: set[tuple[str, str]] = set()
    for member in (member for union in unions for member in members(union)):
        for name in types_in(member) & sent.keys() - {"error"}:
            lacking |= {(name, key) for key in wire_keys(member) - sent[name] - {"type", "agent"}}
    assert lacking == {("response.reasoning_summary_part.done", "status")}
    stated = code_spans("The same over WebSocket and SSE, except")
    assert stated == {"error", "agent", *(word for pair in lacking for word in pair)}


def test_the_page_names_the_keys_that_a_response_lacks() -> None:
    paragraph = re.search(r"^The response object .+?\n\n", TEXT, re.MULTILINE | re.DOTALL)
    assert paragraph
    lacking = sdk.Response.model_fields.keys() - set(Response.__struct_fields__)
    assert set(_CODE_SPAN.findall(paragraph[0])) == lacking


def models_in(hint: Any) -> list[type[BaseModel]]:
    if isinstance(hint, type) and issubclass(hint, BaseModel):
        return [hint]
    return [found for argument in typing.get_args(hint) for found in models_in(argument)]


def structs_in(hint: Any) -> list[type[Struct]]:
    if isinstance(hint, type) and issubclass(hint, Struct):
        return [hint]
    return [found for argument in typing.get_args(hint) for found in structs_in(argument)]


def keys_that_lack(theirs: list[type[BaseModel]], ours: list[type[Struct]], within: str) -> set[str]:
    """The keys of the package's objects that none of ours has, at any depth."""
    known: dict[str, list[type[Struct]]] = {}
    for own in ours:
        hints = typing.get_type_hints(own)
        known |= {own.__struct_config__.tag_field or "": []}
        for name in own.__struct_fields__:
            known.setdefault(name, []).extend(structs_in(hints[name]))
    lacking: set[str] = set()
    for model in theirs:
        for name, field in model.model_fields.items():
            place, nested = f"{within}{field.alias or name}", models_in(field.annotation)
            if name not in known:
                lacking.add(place)
            elif nested and known[name]:
                lacking |= keys_that_lack(nested, known[name], f"{place}.")
    return lacking


def test_the_page_names_the_keys_that_objects_in_a_response_lack() -> None:
    lacking = keys_that_lack([sdk.Response], [Response], "")
    assert code_spans("Objects in the response") == {name for name in lacking if "." in name}


def test_the_page_says_what_becomes_of_fields_that_only_counts_have() -> None:
    params = input_token_count_params.InputTokenCountParams
    only_there = keys(params).keys() - FIELDS.keys()
    assert only_there == {"personality"}
    note = ENDPOINTS["POST /v1/responses/input_tokens"].cells["Notes"]
    assert all(f"`{name}` is accepted and has no effect" in note for name in only_there)


async def fresh_ids(server: Running) -> dict[str, str]:
    """Create one of each thing that a path can name; return their ids."""
    api = Api(server)
    response = await api.begin(input="hello")
    await api.ended(response["id"])
    body = {"items": [{"role": "user", "content": "hello"}]}
    _, conversation = await api.call("POST", "/conversations", json=body)
    _, page = await api.call("GET", f"/conversations/{conversation['id']}/items")
    return {
        "model": "simulated",
        "response_id": response["id"],
        "conversation_id": conversation["id"],
        "item_id": page["first_id"],
    }


async def test_the_endpoints_behave_as_the_page_says() -> None:
    message = {"role": "user", "content": "hello"}
    body = {"model": "simulated", "input": "hello", "items": [message], "metadata": {}}
    body["personality"] = "friendly"
    check = CheckEntry("simulated", "patterns", '{"secrets":true}')
    async with serve(checks=(check,)) as server:
        for name, row in ENDPOINTS.items():
            for prefix in ("/v1", ""):
                method, path = name.format(**await fresh_ids(server)).split()
                url = server.url.removesuffix("/v1") + prefix + path.removeprefix("/v1")
                if name == "GET /v1/responses":
                    async with server.http.ws_connect(url):
                        continue
                async with server.http.request(
                    method, url, json=body if method == "POST" else None
                ) as answer:
                    content = await answer.json()
                    refused = answer.status != 200 and Refusal.of({**content, "status": answer.status})
                    assert (refused or None) == row.refusal, name


_CODE_ARGUMENT = re.compile(r'\bcode="(\w+)"|^ +code = "(\w+)"', re.MULTILINE)
NEVER_SENT: set[str] = set()
"""Codes of error classes of which only subclasses are raised."""


def error_classes(kind: type[ApiError] = ApiError) -> set[type[ApiError]]:
    return {kind}.union(*map(error_classes, kind.__subclasses__()))


def test_the_page_lists_every_error_code() -> None:
    rows = listed("Errors")
    for kind in error_classes():
        if kind.__module__.startswith("slipring") and kind.code not in NEVER_SENT:
            assert rows[kind.code].cells["HTTP status"] == str(kind.status), kind
    sources = Path(slipring.__file__).parent.rglob("*.py")
    written = {
        argument or attribute
        for source in sources
        for argument, attribute in _CODE_ARGUMENT.findall(source.read_text(encoding="utf-8"))
    }
    assert {"unknown_url", "upgrade_required"} <= written, "the sources are no longer read"
    assert sorted(written - NEVER_SENT - rows.keys()) == []
    assert errors.RateLimited.type == "rate_limit_error"


def test_error_codes_have_the_same_status_everywhere_on_the_page() -> None:
    rows = listed("Errors")
    mentioned = re.findall(r"(\d{3}) `(\w+)`", TEXT)
    assert mentioned
    for status, code in mentioned:
        assert rows[code].cells["HTTP status"] == status, code


UNITS = {"": 1, "s": 1, "KiB": 2**10, "MiB": 2**20}


def test_the_limits_have_the_values_on_the_page() -> None:
    rows = listed("Limits")
    defaults = {field.name: field.default for field in fields(Limits)}
    for name, row in rows.items():
        amount, _, unit = row.status.partition(" ")
        assert float(amount) * UNITS[unit] == defaults[name], name
    assert rows.keys() == defaults.keys()


def test_the_limits_bound_what_the_page_says() -> None:
    bounds = {each.name: each.help for each in settings.SETTINGS if each.is_limit}
    assert {name: row.cells["What it bounds"] for name, row in listed("Limits").items()} == bounds


# The simulated engine.

PARALLEL = open_engine("simulated:tokens_per_s=0,output_tokens=4,parallel_calls=2")
SETTING_SAMPLES: Json = {
    "format": TextFormat(kind="json_object", echo=wire.raw({"type": "json_object"})),
    "max_output_tokens": 1,
    "parallel_tool_calls": False,
    "max_tool_calls": 1,
    "temperature": 0.0,
    "top_p": 0.1,
    "top_k": 1,
    "stop": ("the",),
    "presence_penalty": 2.0,
    "frequency_penalty": 2.0,
    "seed": 7,
    "effort": "max",
    "reasoning_context": "current_turn",
    "truncation": "auto",
}


async def play(job: Job) -> list[Delta]:
    deltas = await deltas_of(PARALLEL, job)
    return [delta for delta in deltas if not isinstance(delta, Accepted | Begun)]


def shown(deltas: list[Delta]) -> list[Any]:
    """Return deltas without what only the engine sees, and without the effects of its prefix cache."""
    plain = [
        structs.replace(delta, position=None, cached_tokens=0) if isinstance(delta, Finished) else delta
        for delta in deltas
    ]
    return [structs.astuple(delta) for delta in plain]


@pytest.mark.parametrize("name", SETTINGS)
async def test_the_simulated_engine_treats_a_setting_as_the_page_says(name: str) -> None:
    if SETTINGS[name].status == "refused":
        assert not CATALOG.find(None).capabilities.logprobs
        assert FIELDS["top_logprobs"].status == INCLUDES["message.output_text.logprobs"].status == "refused"
        return
    differs = False
    for offered in ([], [WEATHER]):
        job = send({"input": "hello", "store": False, "tools": offered}).job
        assert job is not None
        changed = structs.replace(job.settings, **{name: SETTING_SAMPLES[name]})
        assert changed != job.settings
        plain, other = await asyncio.gather(play(job), play(structs.replace(job, settings=changed)))
        differs |= shown(plain) != shown(other)
    assert differs == (SETTINGS[name].status == "honoured")


async def test_a_schema_without_values_fails_as_the_page_says() -> None:
    schema = {"type": "integer", "minimum": 2, "maximum": 1}
    async with serve() as server:
        text = {"format": {"type": "json_schema", "name": "none", "schema": schema}}
        status, body = await server.post(input="hello", text=text)
    assert status == 400
    code, param = body["error"]["code"], body["error"]["param"]
    assert f"400 `{code}`, param `{param}`" in SETTINGS["format"].cells["Notes"]


def test_the_page_lists_every_engine_setting() -> None:
    assert SETTINGS.keys() == set(Settings.__struct_fields__) - {"pattern"}  # of no request
    assert {row.status for row in SETTINGS.values()} == {"honoured", "ignored", "refused"}


def test_the_page_lists_every_setting_of_the_llama_engine() -> None:
    described = {name for row in listed("Llama engine") for name in row.replace("`", "").split(", ")}
    assert described == {field.name for field in structs.fields(Settings)} - {"pattern"}
