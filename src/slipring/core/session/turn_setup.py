"""How a turn begins: its parent is bound, its request is checked, what it defines is collected.

Errors that are raised here name fields of the request as its client sent it.
"""

from msgspec import UNSET

from slipring.core.chain import lineage, sealed_items
from slipring.core.chain.state_cache import ConnectionCache
from slipring.core.generation import Job, Models
from slipring.core.limits import Limits
from slipring.core.ports import Means
from slipring.core.session import error_paths
from slipring.core.session.actions import Load
from slipring.core.session.loaded import Loaded
from slipring.core.session.succession import Succession
from slipring.core.turn import request_validation
from slipring.core.turn.turn import Turn
from slipring.errors import ApiError, PreviousResponseNotFound
from slipring.protocol.intake import Compilable, Intake


def pin(turn: Turn, cache: ConnectionCache) -> None:
    """Hold a fork's parent from now on, whatever its own lane does while the fork waits."""
    previous = turn.request.previous_response_id
    if previous is not None and previous in cache and cache.lane_of(previous) != turn.lane:
        turn.parent = cache.find(previous)
        turn.forks = True


def bind(turn: Turn, cache: ConnectionCache, succession: Succession) -> Load:
    """Read what a turn begins with and find its parent and the items that it refers to, as far as the
    connection remembers them. What is returned asks for the others."""
    if turn.error is not None:
        raise turn.error
    turn.input = turn.request.items
    turn.request.input = UNSET  # read and copied: let go of the frame
    conversation_id = request_validation.read_conversation(turn.request)
    previous = turn.request.previous_response_id
    succession.lead(turn)
    if turn.parent is None and previous is not None:
        turn.parent = cache.find(previous)
    missing = lineage.references(turn.input)
    if missing and turn.parent is not None:
        turn.found = turn.parent.find_items(missing)
        missing -= turn.found.keys()
    return Load(turn, previous if turn.parent is None else None, frozenset(missing), conversation_id)


def take(turn: Turn, loaded: Loaded) -> None:
    """Give a turn what a store has found for it."""
    previous = turn.request.previous_response_id
    if turn.parent is None and previous is not None:
        if loaded.state is None:
            raise PreviousResponseNotFound(previous)
        turn.parent = loaded.state
        turn.found = loaded.state.find_items(lineage.references(turn.input))
    turn.found = {**loaded.items, **turn.found}
    if loaded.joined is not None:
        turn.join(loaded.joined, loaded.state)


def begin(
    turn: Turn, models: Models, means: Means, limits: Limits, now: float
) -> tuple[Job, list[Compilable]]:
    """The job of a turn whose parent is bound, and what has to be compiled before it may be started."""
    intake = intake_of(limits)
    try:
        items = lineage.resolve(turn.input, turn.found)
        items = sealed_items.opened(items, means.seal, turn.tenant)
        model = models.find(turn.request.model)
        job = turn.begin(means.mint("resp"), model, items, now, intake)
    except ApiError as error:
        raise relocated(turn, error) from None
    return job, intake.grammars


def relocated(turn: Turn, error: ApiError) -> ApiError:
    """An error about a turn's input, which may begin with items that its client has not sent with it."""
    if turn.steered_by is not None:
        return error_paths.relocated(error, len(turn.steered_by.items), "previous_response_id")
    return error_paths.relocated(error, len(turn.joined.items) if turn.joined is not None else 0)


def intake_of(limits: Limits) -> Intake:
    """What takes the definitions of one request."""
    return Intake(
        max_grammars=limits.max_grammars,
        max_grammar_bytes=limits.max_grammar_bytes,
        max_schema_bytes=limits.max_schema_bytes,
    )
