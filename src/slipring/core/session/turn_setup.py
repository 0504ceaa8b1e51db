"""Prepares a turn for its engine: binds its parent and references, then validates its request.

Errors raised here name fields of the request as the client sent it, even where there are other items (of a
conversation, or of steers) in its input.
"""

import re

from msgspec import UNSET

from slipring.base.errors import ApiError, PreviousResponseNotFound
from slipring.core.chain import input_items, sealed_items
from slipring.core.chain.state import ResponseState
from slipring.core.chain.state_cache import ConnectionCache
from slipring.core.checks.turn_policy import policy_of_turn
from slipring.core.generation import Job
from slipring.core.limits import Limits
from slipring.core.session.actions import Load, Loaded
from slipring.core.session.session_state import SessionState
from slipring.core.turn import preparation, request_validation
from slipring.core.turn.turn import Turn
from slipring.protocol.definitions import Compilable, Definitions
from slipring.protocol.requests import CreateRequest

_INPUT_INDEX = re.compile(r"input\[(\d+)\]")


def forked_state(request: CreateRequest, lane: str | None, cache: ConnectionCache) -> ResponseState | None:
    """Return the cached state that the request forks: it continues a response of another lane."""
    previous = request.previous_response_id
    if previous is not None and previous in cache and cache.lane_of(previous) != lane:
        return cache.find(previous)
    return None


def bind(turn: Turn, shared: SessionState) -> Load:
    """Decode the input and bind the parent and references from the cache.

    Returns a ``Load`` for whatever the cache lacks; it is empty if nothing is missing.
    """
    cache = shared.cache
    turn.input = turn.asked.request.read_items(shared.ports.items.of(turn.asked.tenant))
    turn.asked.request.input = UNSET  # decoded and copied: release the frame
    conversation_id = request_validation.read_conversation(turn.asked.request)
    previous = turn.asked.request.previous_response_id
    shared.successors.add_steers(turn)
    if turn.parent is None and previous is not None:
        turn.parent = cache.find(previous)
    if turn.parent is not None:
        cache.count_hit()
    missing = input_items.references(turn.input)
    if missing and turn.parent is not None:
        turn.found = turn.parent.find_items(missing)
        missing -= turn.found.keys()
    return Load(turn, previous if turn.parent is None else None, frozenset(missing), conversation_id)


def bind_loaded(turn: Turn, loaded: Loaded, cache: ConnectionCache) -> None:
    """Bind what the store found. Raises ``PreviousResponseNotFound``."""
    previous = turn.asked.request.previous_response_id
    if turn.parent is None and previous is not None:
        if loaded.state is None:
            raise PreviousResponseNotFound(previous, cache.why_forgotten(previous))
        turn.parent = loaded.state
        turn.found = loaded.state.find_items(input_items.references(turn.input))
    turn.found = {**loaded.items, **turn.found}
    if loaded.joined is not None:
        preparation.join(turn, loaded.joined, loaded.state)


def begin(turn: Turn, shared: SessionState) -> tuple[Job | None, list[Compilable]]:
    """Validate a bound turn: its job, and the grammars to compile before the job starts. There is no job yet
    if lists of tools must be fetched before (``complete``).

    A job that is only counted does not continue a context that the input repeats, because tokens of an answer
    are to be those that its text has now; and no check inspects it.
    """
    ports, counts = shared.ports, shared.counts_only
    definitions = new_definitions(shared.limits, ports.ignored_tools)
    try:
        items = input_items.resolve(turn.input, turn.found)
        items = sealed_items.opened(items, ports.seal, turn.asked.tenant)
        model = shared.models.find(turn.asked.request.model)
        recognise = not counts and turn.joined is None
        if not counts:
            policy = policy_of_turn(shared.policies, model.name, turn.asked.request.moderation)
            items = preparation.withhold(turn, items, ports.verdicts, policy)
        response_id = ports.mint("resp")
        job = preparation.begin(turn, response_id, model, items, shared.now, definitions, recognise=recognise)
        if not counts:
            preparation.inspect(turn)
    except ApiError as error:
        raise in_clients_terms(turn, error) from None
    return job, definitions.grammars


def complete(turn: Turn) -> Job:
    """All lists of tools for a valid turn have been fetched: returns its job."""
    try:
        return preparation.complete(turn)
    except ApiError as error:
        raise in_clients_terms(turn, error) from None


def in_clients_terms(turn: Turn, error: ApiError) -> ApiError:
    """Correct the input index in an error's param for the items that are not the client's own.

    An error about one of those items names the field through which they came in: ``conversation`` or
    ``previous_response_id``.
    """
    if turn.steered_by is not None:
        steers = turn.steered_by
        return _shifted(error, len(steers.items), "previous_response_id", steers.at)
    return _shifted(error, len(turn.joined.items) if turn.joined is not None else 0, "conversation")


def of_job(turn: Turn, error: ApiError) -> ApiError:
    """An error that the engine raised about an item of its job, in the client's terms."""
    return in_clients_terms(turn, _shifted(error, -turn.recognition.items, "input"))


def _shifted(error: ApiError, count: int, source: str, first: int = 0) -> ApiError:
    """Correct the index for ``count`` items of another source, of which ``first`` is the first."""
    if count and error.param is not None and (place := _INPUT_INDEX.match(error.param)) is not None:
        found = int(place.group(1))
        if found < first:
            return error
        index = found - count
        param = f"input[{index}]{error.param[place.end() :]}" if index >= first else source
        error.message = error.message.replace(error.param, param)
        error.args = (error.message,)
        error.param = param
    return error


def new_definitions(limits: Limits, ignored_tools: frozenset[str]) -> Definitions:
    """An empty collection for the definitions of one request, with the server's limits."""
    return Definitions(
        max_grammars=limits.max_grammars,
        max_grammar_bytes=limits.max_grammar_bytes,
        max_schema_bytes=limits.max_schema_bytes,
        ignored_tools=ignored_tools,
    )
