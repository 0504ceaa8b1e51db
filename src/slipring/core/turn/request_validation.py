"""Validates a request against this server's and the model's capabilities, and says in its client's terms what
is wrong with it.

A field that is not supported is refused by name. ``docs/compatibility`` lists the same for users. Errors name
the item that the client sent, even where there are other items (of a conversation, or of steers) in its
input.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar

from slipring.base.errors import ApiError, InvalidRequest, UnsupportedParameter, quoted
from slipring.core.chain.state import Carry
from slipring.core.generation import Capabilities, Model, Settings
from slipring.core.limits import Limits
from slipring.core.turn.turn import Inserted, Turn
from slipring.protocol import requests
from slipring.protocol.items.items import Item
from slipring.protocol.requests import TEXT, CreateRequest
from slipring.protocol.tools.grammars_and_schemas import Definitions

T = TypeVar("T", int, float)
_INPUT_INDEX = re.compile(r"input\[(\d+)\]")
LOGPROBS = "message.output_text.logprobs"
ENCRYPTED_REASONING = "reasoning.encrypted_content"
INCLUDABLE = frozenset(
    {
        LOGPROBS,
        "code_interpreter_call.outputs",
        "computer_call_output.output.image_url",
        "file_search_call.results",
        "message.input_image.image_url",
        ENCRYPTED_REASONING,
        "web_search_call.action.sources",
        "web_search_call.results",
    }
)


def read_settings(
    request: CreateRequest, carry: Carry, model: Model, definitions: Definitions, *, detached: bool = False
) -> Settings:
    """The settings of a job: from the request, else the chain's carry, else the model's defaults."""
    capabilities, defaults = model.capabilities, model.defaults
    refuse_unsupported(request, detached=detached)
    include = read_include(request.include or [])
    logprobs = LOGPROBS in include or bool(request.top_logprobs)
    if logprobs and not capabilities.logprobs:
        param = "top_logprobs" if request.top_logprobs else "include"
        raise UnsupportedParameter.at(param, "this model does not return logprobs")
    text = request.text
    text_format = requests.read_format(text.format, definitions=definitions) if text is not None else None
    reasoning = request.reasoning or requests.ReasoningConfig()
    parallel = request.parallel_tool_calls
    return Settings(
        format=text_format or carry.format or TEXT,
        max_output_tokens=_or(request.max_output_tokens, defaults.max_output_tokens),
        temperature=_or(request.temperature, defaults.temperature),
        top_p=_or(request.top_p, defaults.top_p),
        presence_penalty=request.presence_penalty,
        frequency_penalty=request.frequency_penalty,
        seed=request.seed,
        top_k=request.top_k,
        stop=tuple(request.stop or ()),
        logit_bias=_read_bias(request, capabilities),
        logprobs=logprobs,
        top_logprobs=request.top_logprobs or 0,
        parallel_tool_calls=True if parallel is None else parallel,
        max_tool_calls=request.max_tool_calls,
        effort=reasoning.effort or carry.effort or defaults.effort,
        reasoning_context=requests.effective_context(reasoning.context),
        truncation=request.truncation or "disabled",
        pattern=request.answer_pattern,
    )


def _read_bias(request: CreateRequest, capabilities: Capabilities) -> Mapping[int, float]:
    bias = request.token_bias
    if not bias:
        return {}
    if not capabilities.biased_ids:
        raise UnsupportedParameter.at("logit_bias", "this model does not take it")
    if (unknown := max(bias)) >= capabilities.biased_ids:
        raise InvalidRequest.at("logit_bias", f"this model has no token with the id {unknown}")
    return bias


def read_conversation(request: CreateRequest) -> str | None:
    """The id of the request's conversation, or None. Raises if the request also continues a response."""
    conversation_id = requests.read_conversation(request.conversation)
    if conversation_id is not None and request.previous_response_id is not None:
        raise InvalidRequest(
            "'previous_response_id' and 'conversation' cannot be used together.",
            param="previous_response_id",
        )
    return conversation_id


def _or(value: T | None, default: T | None) -> T | None:
    return default if value is None else value


def refuse_unsupported(request: CreateRequest, *, detached: bool = False) -> None:
    """Refuse fields that this server does not support; ``detached``: the response runs in the background."""
    if detached:
        _require_storage(request)
    elif request.background is True:
        raise UnsupportedParameter(
            "Unsupported parameter: 'background' is supported by POST /v1/responses only.", param="background"
        )
    image, programs, agents = request.image, request.access_programs, request.multi_agent
    unsupported = {
        "prompt": request.prompt is not None,
        "multi_agent": agents is not None and agents.enabled is True,
        "image.context_compression": image is not None and image.context_compression == "enabled",
        "access_programs.cyber": programs is not None and programs.cyber not in (None, "standard"),
    }
    for param, present in unsupported.items():
        if present:
            raise UnsupportedParameter(
                f"Unsupported parameter: '{param}' is not supported by this server.", param=param
            )


def _require_storage(request: CreateRequest) -> None:
    """A background response is retrieved later, so it must be stored and must generate something."""
    if request.store is False:
        raise InvalidRequest("'background' requires 'store' to be true.", param="store")
    if request.warms_up:
        raise InvalidRequest("'background' cannot be used with 'generate': false.", param="generate")


def require_something(request: CreateRequest, items: tuple[Item, ...]) -> None:
    """Refuse to start a chain without input or instructions."""
    if not items and request.instructions is None:
        raise InvalidRequest(
            "Missing required parameter: 'input' (or 'previous_response_id' to continue).",
            param="input",
            code="missing_required_parameter",
        )


def read_include(include: list[str]) -> list[str]:
    """Validate ``include``. Raises for values that the API does not define."""
    for index, value in enumerate(include):
        if value not in INCLUDABLE:
            param = f"include[{index}]"
            raise InvalidRequest.at(param, f"{quoted(value)} cannot be included")
    return include


def new_definitions(limits: Limits, ignored_tools: frozenset[str]) -> Definitions:
    """An empty collection for the definitions of one request, with the server's limits."""
    return Definitions(
        max_grammars=limits.max_grammars,
        max_grammar_bytes=limits.max_grammar_bytes,
        max_schema_bytes=limits.max_schema_bytes,
        ignored_tools=ignored_tools,
    )


# Errors, in the client's terms.


@contextmanager
def in_clients_terms(inserted: Inserted) -> Iterator[None]:
    """Correct the input index in an error's param for the items that are not the client's own.

    An error about one of those items names the field through which they came in: ``conversation`` or
    ``previous_response_id``.
    """
    try:
        yield
    except ApiError as error:
        _shift(error, inserted)
        raise


def in_terms_of_input(turn: Turn, error: ApiError) -> ApiError:
    """An error that the engine raised about an item of its job, in the client's terms."""
    _shift(error, Inserted(-turn.recognition.items, 0, "input"))
    _shift(error, turn.bound.inserted)
    return error


def _shift(error: ApiError, inserted: Inserted) -> None:
    if inserted.count and error.param is not None and (place := _INPUT_INDEX.match(error.param)) is not None:
        found = int(place.group(1))
        if found < inserted.at:
            return
        index = found - inserted.count
        param = f"input[{index}]{error.param[place.end() :]}" if index >= inserted.at else inserted.source
        error.message = error.message.replace(error.param, param)
        error.args = (error.message,)
        error.param = param
