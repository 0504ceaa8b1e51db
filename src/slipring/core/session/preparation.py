"""Prepares a turn for its engine: binds what its request continues, validates it, and plans its jobs.

Each step returns a complete value, which the turn's program sets: ``bind`` what the turn continues,
``prepare`` its response, ``plan`` its jobs.
"""

from collections.abc import Collection, Iterator

from msgspec import UNSET, structs

from slipring.base.errors import PreviousResponseNotFound
from slipring.core import attachments
from slipring.core.attachments import AttachmentRules
from slipring.core.chain import hosted_items_in_context, input_items, sealed_items
from slipring.core.chain.hosted_items_in_context import HOSTED
from slipring.core.chain.input_items import OpenCarry
from slipring.core.chain.instructions_and_tools import Head
from slipring.core.chain.state import Carry, ResponseState
from slipring.core.chain.state_cache import ConnectionCache
from slipring.core.checks.policies import NO_POLICY, Policy, continuation_error, policy_of_turn
from slipring.core.generation import Job, Model
from slipring.core.session.actions import FetchImages, Load, Loaded, ReadDocuments, Work
from slipring.core.session.session_state import SessionState
from slipring.core.turn import response_object
from slipring.core.turn.compaction import TRIGGER, Compaction, read_plan
from slipring.core.turn.output.hosted_calls import HostedCalls
from slipring.core.turn.request_validation import (
    ENCRYPTED_REASONING,
    in_clients_terms,
    new_definitions,
    read_conversation,
    read_settings,
    require_something,
)
from slipring.core.turn.steps.rollout import Rollout, require_possible
from slipring.core.turn.steps.step_jobs import Steps
from slipring.core.turn.turn import UNPLANNED, Bound, Draft, Inserted, Planned, Prepared, Turn
from slipring.core.turn.turn_checks import TurnChecks
from slipring.protocol.items.item_digests import content_digest
from slipring.protocol.items.items import Item, may_have_images, shown
from slipring.protocol.requests import NOTHING_KNOWN, CreateRequest
from slipring.protocol.responses import ConversationEcho, Response
from slipring.protocol.tools.grammars_and_schemas import Definitions
from slipring.protocol.tools.tool_choice import ToolChoice
from slipring.protocol.tools.tool_types import CLIENT_TYPES
from slipring.protocol.tools.toolset import merged

# Bind.


def forked_state(request: CreateRequest, lane: str | None, cache: ConnectionCache) -> ResponseState | None:
    """Return the cached state that the request forks: it continues a response of another lane."""
    previous = request.previous_response_id
    if previous is not None and previous in cache and cache.lane_of(previous) != lane:
        return cache.find(previous)
    return None


def look_up(turn: Turn, shared: SessionState) -> tuple[Bound, Load | None]:
    """Decode the input, and look up the parent and references in the cache: returns what a turn is bound to
    as far as the connection knows it, and a ``Load`` for the rest; None if nothing is missing and the driver
    need not be asked."""
    request, parent, cache = turn.asked.request, turn.asked.parent, shared.cache
    previous, inserted = request.previous_response_id, Inserted()
    # What follows a response in its chain is new.
    known = shared.ports.items.of(turn.asked.tenant) if previous is None else NOTHING_KNOWN
    items = request.read_items(known)
    request.input = UNSET  # decoded and copied: release the frame
    conversation_id = read_conversation(request)
    if turn.asked.follows or shared.successors.waiting:
        items, inserted = shared.successors.add_steers(turn, items)
    if parent is None and previous is not None:
        parent = cache.find(previous)
    if parent is not None:
        cache.count_hit()
    missing = input_items.references(items)
    found = parent.find_items(missing) if missing and parent is not None else {}
    wanted = frozenset(missing - found.keys())
    compared_id = request.compared_id
    compared = cache.find(compared_id) if compared_id is not None else None
    bound = Bound(parent, items, found, inserted, compared=compared)
    lost_id, unseen_id = previous if parent is None else None, compared_id if compared is None else None
    absent = (lost_id, conversation_id, unseen_id) != (None, None, None)
    if not (absent or wanted or shared.asks_each_turn):
        return bound, None
    return bound, Load(turn, lost_id, wanted, conversation_id, unseen_id)


def bind(turn: Turn, known: Bound, loaded: Loaded, shared: SessionState) -> Bound:
    """What a turn is bound to: ``known``, from the connection, with what the store has found, and with the
    items that its input refers to. Raises ``PreviousResponseNotFound``, and ``InvalidRequest`` for a
    reference that is not found."""
    request, parent, joined = turn.asked.request, known.parent, loaded.joined
    items, inserted, found = known.input, known.inserted, {**loaded.items, **known.found}
    previous = request.previous_response_id
    if parent is None:
        parent = loaded.state
        if previous is not None and parent is None:
            raise PreviousResponseNotFound(previous, shared.cache.why_forgotten(previous))
        if parent is not None and (references := input_items.references(items)):
            found |= parent.find_items(references)
    if joined is not None:
        references = input_items.references(items)
        found |= {item.id: item for item in joined.items if item.id is not None and item.id in references}
        items, inserted = joined.items + items, Inserted(len(joined.items), 0, "conversation")
    heads = shared.ports.heads
    head = parent.head if parent is not None else heads.find(turn.asked.tenant, request)
    compared = known.compared or loaded.compared
    with in_clients_terms(inserted):
        items = input_items.resolve(items, found)
    return Bound(parent, items, {}, inserted, joined, head, compared, loaded.is_comparable)


# Prepare.


def unopened_attachments(turn: Turn, shared: SessionState) -> Iterator[Work[tuple[Item, ...]]]:
    """The work that opens images and documents of the input, piece by piece: the second is found after the
    first is done. Raises ``ApiError`` if something beside documents is refused: afterwards, their pages stand
    there."""
    if not any(map(may_have_images, turn.bound.input)):
        return
    model = shared.models.find(turn.asked.request.model)
    sees, ports = model.capabilities, shared.ports
    if ports.fetches_images and (urls := attachments.urls_to_fetch(turn.bound.input, sees)):
        yield FetchImages(turn, turn.bound.input, urls)
    if ports.reads_documents and attachments.has_documents_to_read(turn.bound.input, sees):
        rules = AttachmentRules(sees, shared.limits, _policy(turn, shared, model))
        rules.refuse_beside_documents(turn.bound.input)
        yield ReadDocuments(turn, turn.bound.input, rules.shows_pages, sees.image_roles)


def with_added(turn: Turn, shared: SessionState, items: tuple[Item, ...]) -> Bound:
    """What a turn is bound to, with the same items and what the server has added to them, which is charged to
    the tenant like what a client sends. Raises ``RateLimited`` or ``Unavailable``."""
    added = _size(items) - _size(turn.bound.input)  # less than 0 if pages are smaller than their file
    shared.charges.require_room(added)
    shared.charges.take(turn, added)
    return structs.replace(turn.bound, input=items)


def _size(items: tuple[Item, ...]) -> int:
    return sum(item.size_bytes for item in items)


def prepare(turn: Turn, shared: SessionState) -> tuple[Prepared, Planned]:
    """Validate the request of a bound turn against its parent and the model. Nothing is planned yet if lists
    of tools must be fetched before (``plan``). Raises ``ApiError`` for an invalid request.

    A turn that only counts tokens is inspected by no check.
    """
    asked, bound, hosted = turn.asked, turn.bound, turn.hosted
    request, parent, generates = asked.request, bound.parent, not asked.request.warms_up
    types = {item.type for item in bound.input}  # opened items and placeholders keep theirs
    model, checks, items = _read_items(turn, shared, types)
    response_id = shared.ports.mint("resp")
    compaction = None
    if request.context_management is not None or TRIGGER in types:
        compaction = read_plan(request, items, model)
    if request.rollout:
        require_possible(request, compacts=compaction is not None)
    alone = compaction is not None and compaction.alone
    if alone:
        items = items[:-1]  # the compaction_trigger is not part of the context
    if generates and parent is None:
        require_something(request, items)
    definitions = new_definitions(shared.limits, shared.ports.ignored_tools)
    items, carry, calls = _read_input(
        turn, model, items, types, definitions, complete=generates and not alone
    )
    settings = read_settings(request, carry, model, definitions, detached=asked.detached)
    policy = checks.policy if checks is not None else NO_POLICY
    rules = AttachmentRules(model.capabilities, shared.limits, policy)
    if carry.has_attachments:
        rules.refuse_unseen(items)
        rules.refuse_context(carry)
    if model.is_upstream:  # its server answers such tools, or makes calls of them that the client answers
        ignored = shared.ports.ignored_tools | CLIENT_TYPES
        definitions.ignored_tools = None if model.runs_hosted_tools else ignored
    passes_on = hosted.upstream_tools is not None
    choice = (ToolChoice.passed_on if passes_on else ToolChoice.read)(request.tool_choice)
    brought = definitions.copy() if hosted.awaited else definitions
    draft = Draft(response_id, model, items, settings, choice, compaction, brought, rules)
    open_carry, planned = OpenCarry(carry), UNPLANNED
    if hosted.awaited:
        head = Head.read(request, _known_head(bound, parent, carry), definitions)
        choice.require_possible(merged(head.tools.callables, carry.tools), hosted.awaited)
    else:
        planned, head = _plan(turn, draft, open_carry, shared, has_steps=calls is not None)
    conceals = ENCRYPTED_REASONING in (request.include or ())
    turn.output.begin(
        response_id, calls, hosted.sign if calls is not None else None, turn.conceal if conceals else None
    )
    response = _new_response(turn, draft, head, shared.now)
    return Prepared(draft, response, head, open_carry, checks, definitions.grammars), planned


def _read_items(
    turn: Turn, shared: SessionState, types: Collection[str]
) -> tuple[Model, TurnChecks | None, tuple[Item, ...]]:
    """The model of a turn, its checks, and the items of its input: sealed items opened, and placeholders for
    what the checks have refused before. ``types``: of these items."""
    asked, bound, ports = turn.asked, turn.bound, shared.ports
    items = bound.input
    if not sealed_items.TYPES.isdisjoint(types):
        items = sealed_items.opened(items, ports.seal, asked.tenant)
    model = shared.models.find(asked.request.model)
    policy = _policy(turn, shared, model)
    if not policy.checks:
        return model, None, items
    checks = TurnChecks(policy, ports.verdicts, asked.tenant)
    digests = {id(item): content_digest(item) for item in asked.request.items}
    return model, checks, checks.items.withhold(bound.parent, items, digests)


def _policy(turn: Turn, shared: SessionState, model: Model) -> Policy:
    """What checks inspect a turn: none if it only counts tokens."""
    policies, moderation = shared.policies, turn.asked.request.moderation
    may_check = not shared.counts_only and (bool(policies.checks) or moderation is not None)
    return policy_of_turn(policies, model.name, moderation) if may_check else NO_POLICY


def _read_input(
    turn: Turn,
    model: Model,
    items: tuple[Item, ...],
    types: Collection[str],
    definitions: Definitions,
    *,
    complete: bool,
) -> tuple[tuple[Item, ...], Carry, HostedCalls | None]:
    """Read the input, and offer the hosted tools of the request. Returns the input as the model reads it, the
    carry of the context with it, and the hosted calls of the response if it may make any. ``types``: of the
    items; ``complete``: a response will be generated."""
    request, hosted, before = turn.asked.request, turn.hosted, input_items.carried(turn.bound.parent)
    read = items
    are_hosted = before.approvals or not HOSTED.isdisjoint(types) or shown(items) is not items
    if are_hosted and not model.runs_hosted_tools:
        read = hosted.read_input(before, items, complete=complete)
    carry = input_items.join(before, items, complete=complete, definitions=definitions)
    if complete and carry.approvals:
        carry = hosted_items_in_context.denied(carry)
    offers = hosted.servers or hosted.builtins or hosted.approved
    if not offers or (offered := hosted.offer(request, carry)) is None:
        return read, carry, None
    calls = HostedCalls(offered.tools, request.max_tool_calls, frozenset(request.include or ()))
    return read, carry, calls


def _new_response(turn: Turn, draft: Draft, head: Head, now: float) -> Response:
    response = response_object.new_response(
        turn.asked.request,
        head,
        draft.choice,
        draft.settings,
        response_id=draft.response_id,
        model=draft.model.name,
        now=now,
    )
    if turn.asked.detached:
        response = structs.replace(response, background=True)
    if (joined := turn.bound.joined) is not None:
        response = structs.replace(response, conversation=ConversationEcho(joined.conversation_id))
    return response


def inspect(turn: Turn) -> None:
    """Have the input of a prepared turn inspected. Raises if it is known to be refused."""
    parent, prepared = turn.bound.parent, turn.prepared
    assert prepared is not None
    if parent is not None and (check := parent.refused_by) is not None:
        raise continuation_error(check)
    if prepared.checks is not None:
        settings, choice = prepared.draft.settings, prepared.response.tool_choice
        prepared.checks.begin(parent, turn.head, turn.input, settings, choice)


# Plan.


def plan(turn: Turn, shared: SessionState) -> Planned:
    """All lists of tools for a prepared turn have been fetched: returns its jobs. Raises ``ApiError`` if the
    request does not fit them."""
    prepared, calls = turn.prepared, turn.output.hosted
    assert prepared is not None
    assert calls is not None
    calls.offer(turn.hosted.take_lists(turn.asked.request))
    return _plan(turn, prepared.draft, prepared.carry, shared, has_steps=True)[0]


def _plan(
    turn: Turn, draft: Draft, open_carry: OpenCarry, shared: SessionState, *, has_steps: bool
) -> tuple[Planned, Head]:
    """The jobs of a turn, and the head that all of them have. ``has_steps``: it may make hosted calls."""
    request, bound, hosted, carry = turn.asked.request, turn.bound, turn.hosted, open_carry.current
    continued = _continued(turn, draft, shared)
    head = Head.read(request, _known_head(bound, continued, carry), draft.definitions)
    job = Job(
        response_id=draft.response_id,
        tenant=turn.asked.tenant,
        model=draft.model,
        head=head,
        parent=continued,
        input=turn.new_input(draft.input),
        offer=draft.choice.offer(merged(head.tools.callables, carry.tools)),
        settings=draft.settings,
        generate=not request.warms_up,
        fork=turn.asked.forks,
        recognised=turn.recognition.match is not None,
        cache_key=request.prompt_cache_key,
        upstream_tools=hosted.upstream_tools,
        stop=turn.progress.stop,
    )
    compaction = steps = rollout = None
    if draft.compaction is not None and not hosted.approved:
        compaction = Compaction(draft.compaction, job, carry, continues=bound.parent is not None)
    # A rollout, or a response that may call hosted tools, continues after its calls.
    if request.rollout or has_steps:
        steps = Steps(job, draft.choice)
        rollout = Rollout(steps, open_carry) if request.rollout else None
    return Planned(job, compaction, steps, rollout), head


def _continued(turn: Turn, draft: Draft, shared: SessionState) -> ResponseState | None:
    """The state that the job continues: the parent, or a context that the items repeat.

    A job that is only counted does not continue a context that the input repeats, because tokens of an answer
    are to be those that its text has now.
    """
    # What approved calls return will be part of the context, and is not known yet. Another Responses server
    # keeps reasoning that no item contains, so its contexts are never known by their items.
    bound, request, model, items = turn.bound, turn.asked.request, draft.model, draft.input
    is_known = not turn.hosted.approved and not model.is_upstream
    if bound.parent is not None:
        if is_known:
            turn.recognition.follow(bound.parent, request, items)
        return bound.parent
    if is_known and bound.joined is None and not shared.counts_only:
        turn.recognition.look_up(request, items, model.name, shared.now, bound.known_head)
    return turn.recognition.parent(items, draft.response_id)


def _known_head(bound: Bound, continued: ResponseState | None, carry: Carry) -> Head | None:
    """The head that need not be read again if the request has the same.

    In a history that the client sends itself, tools that items bring count towards the same limits as
    those of the head, so all are read.
    """
    if bound.parent is None and carry.tools:
        return None
    return continued.head if continued is not None else bound.known_head
