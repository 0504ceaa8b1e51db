"""Prepares a turn for its engine: validates its request against parent and model, and makes its job."""

from collections.abc import Iterator

from msgspec import structs

from slipring.base.errors import InvalidPrompt
from slipring.core.chain import input_items
from slipring.core.chain.head import Head
from slipring.core.chain.input_items import OpenCarry
from slipring.core.chain.state import Carry, ResponseState
from slipring.core.checks.known_verdicts import KnownVerdicts
from slipring.core.checks.policies import Policy
from slipring.core.checks.subjects import definition_text
from slipring.core.generation import Job, Model, Settings
from slipring.core.turn import response_object
from slipring.core.turn.compaction import Compaction, read_plan
from slipring.core.turn.output.hosted_calls import HostedCalls
from slipring.core.turn.request_validation import (
    ENCRYPTED_REASONING,
    read_settings,
    refuse_unseen_content,
    require_something,
)
from slipring.core.turn.steps.rollout import Rollout, require_possible
from slipring.core.turn.steps.steps import Steps
from slipring.core.turn.turn import Draft, Joined, Turn
from slipring.core.turn.turn_checks import TurnChecks
from slipring.protocol import wire
from slipring.protocol.definitions import Definitions
from slipring.protocol.items import Item
from slipring.protocol.requests import TEXT
from slipring.protocol.responses import ConversationEcho
from slipring.protocol.tools import ToolChoice, merged


def join(turn: Turn, joined: Joined, tip: ResponseState | None) -> None:
    """Continue a conversation: ``tip`` is its last response, ``joined`` holds the items added since."""
    references = input_items.references(turn.input)
    if references:
        known = tip.find_items(references) if tip is not None else {}
        named = {item.id: item for item in joined.items if item.id in references}
        turn.found = {**turn.found, **known, **{key: item for key, item in named.items() if key}}
    turn.joined, turn.parent = joined, tip
    turn.input = joined.items + turn.input


def begin(
    turn: Turn,
    response_id: str,
    model: Model,
    items: tuple[Item, ...],
    now: float,
    definitions: Definitions,
    *,
    recognise: bool = True,
) -> Job | None:
    """Validate the request against its parent and the model; returns the job. None if that depends on lists
    of tools which are still to be fetched: ``complete`` returns it then.

    With ``recognise``, the job of a request without a parent continues the context that its items repeat.
    Adds the request's grammars to ``definitions``; they are compiled before the engine starts. Raises
    ``ApiError`` for an invalid request.
    """
    request, parent = turn.asked.request, turn.parent
    generate = not request.warms_up
    plan = read_plan(request, items, model)
    if request.rollout:
        require_possible(request, compacts=plan is not None)
    alone = plan is not None and plan.alone
    if alone:
        items = items[:-1]  # the compaction_trigger is not part of the context
    if generate and parent is None:
        require_something(request, items)
    carry = _read_input(turn, items, definitions, complete=generate and not alone)
    settings = read_settings(request, carry, model, definitions, detached=turn.asked.detached)
    refuse_unseen_content(turn.input, model.capabilities)
    turn.hosted.accept_unanswered_tools(definitions, model)
    passes_on = turn.hosted.upstream_tools is not None
    choice = (ToolChoice.passed_on if passes_on else ToolChoice.read)(request.tool_choice)
    brought = definitions if not turn.hosted.awaited else definitions.copy()
    draft = Draft(response_id, model, carry, settings, choice, plan, now, brought, recognise)
    if not turn.hosted.awaited:
        return _make_job(turn, draft)
    turn.draft, turn.carry = draft, OpenCarry(carry)
    turn.head = Head.read(request, _known_head(turn, parent, carry), definitions)
    choice.require_possible(merged(turn.head.tools.callables, carry.tools), turn.hosted.awaited)
    _open_response(turn, draft)
    return None


def complete(turn: Turn) -> Job:
    """All lists of tools are there: returns the job. Raises ``ApiError`` if the request does not fit them."""
    draft, turn.draft = turn.draft, None
    assert draft is not None
    assert turn.output.hosted is not None
    turn.output.hosted.tools = turn.hosted.take_lists(turn.asked.request)
    return _make_job(turn, draft)


def _make_job(turn: Turn, draft: Draft) -> Job:
    request, parent, carry, plan = turn.asked.request, turn.parent, draft.carry, draft.plan
    continued = _continued(turn, draft)
    head = Head.read(request, _known_head(turn, continued, carry), draft.definitions)
    offer = draft.choice.offer(merged(head.tools.callables, carry.tools))
    turn.head, turn.carry = head, OpenCarry(carry)
    turn.history_bytes = parent.context_bytes if parent is not None else 0
    if turn.response is None:
        _open_response(turn, draft)
    job = Job(
        response_id=draft.response_id,
        tenant=turn.asked.tenant,
        model=draft.model,
        head=head,
        parent=continued,
        input=turn.new_input(),
        offer=offer,
        settings=draft.settings,
        generate=not request.warms_up,
        fork=turn.asked.forks or turn.recognition.match is not None,
        recognised=turn.recognition.match is not None,
        cache_key=request.prompt_cache_key,
        upstream_tools=turn.hosted.upstream_tools,
        stop=turn.stop,
    )
    turn.job = job
    if plan is not None and not turn.hosted.approved:
        turn.compaction = Compaction(plan, job, carry, continues=parent is not None)
    _allow_steps(turn, job, draft.choice)
    return job


def _allow_steps(turn: Turn, job: Job, choice: ToolChoice) -> None:
    """Let a rollout, or a response that may call hosted tools, continue after its calls."""
    if turn.asked.request.rollout or turn.output.hosted is not None:
        turn.steps = Steps(job, choice)
    if turn.asked.request.rollout and turn.steps is not None:
        turn.rollout = Rollout(turn.steps, turn.carry, job.model.capabilities)


def _read_input(turn: Turn, items: tuple[Item, ...], definitions: Definitions, *, complete: bool) -> Carry:
    """Set the input, and offer the hosted tools of the request; returns the carry of the context with the
    input. ``complete``: a response will be generated."""
    request, before = turn.asked.request, input_items.carried(turn.parent)
    turn.input = turn.hosted.read_input(before, items, complete=complete)
    carry = input_items.join(before, turn.input, complete=complete, definitions=definitions)
    if complete and carry.approvals:
        carry = structs.replace(carry, approvals={})
    if (offered := turn.hosted.offer(request, carry)) is not None:
        includes = frozenset(request.include or ())
        turn.output.hosted = HostedCalls(offered.tools, request.max_tool_calls, includes)
        turn.output.sign = turn.hosted.sign
    return carry


def withhold(
    turn: Turn, items: tuple[Item, ...], verdicts: KnownVerdicts, policy: Policy
) -> tuple[Item, ...]:
    """Set the checks of a turn; returns the items of its request, with placeholders for what was refused
    before."""
    if not policy.checks:
        return items
    turn.checks = TurnChecks(policy, verdicts, turn.asked.tenant)
    request = turn.asked.request
    digests = dict(zip(map(id, request.items), request.content_digests, strict=True))
    return turn.checks.withhold(turn.parent, items, digests)


def inspect(turn: Turn) -> None:
    """Have the input of a validated turn inspected. Raises if it is known to be refused."""
    if turn.parent is not None and (check := turn.parent.refused_by) is not None:
        raise InvalidPrompt(f"The response to continue was blocked by the safety check '{check}'.")
    if turn.checks is not None:
        context = turn.draft or turn.job
        assert context is not None
        writes_json = context.settings.format.kind != TEXT.kind
        definitions = list(_definitions(turn, context.settings))
        turn.checks.begin(turn.parent, turn.head, turn.input, definitions, writes_json=writes_json)


def _definitions(turn: Turn, settings: Settings) -> Iterator[str]:
    """Texts of a request that neither its head nor its items contain: what the model reads of them, and stop
    sequences, which the response repeats."""
    yield from settings.stop
    if settings.format.kind == "json_schema":
        yield definition_text(settings.format.echo)
    choice = turn.response.tool_choice if turn.response is not None else wire.NULL
    if bytes(choice).startswith(b"{"):
        yield definition_text(choice)


def _open_response(turn: Turn, draft: Draft) -> None:
    """Make the response object, and prepare the output for it."""
    response_id = turn.output.response_id = draft.response_id
    if ENCRYPTED_REASONING in (turn.asked.request.include or ()):
        turn.output.conceal = turn.conceal
    turn.response = response_object.new_response(
        turn.asked.request,
        turn.head,
        draft.choice,
        draft.settings,
        response_id=response_id,
        model=draft.model.name,
        now=draft.now,
    )
    if turn.asked.detached:
        turn.response = structs.replace(turn.response, status="queued", background=True)
    if turn.joined is not None:
        conversation = ConversationEcho(turn.joined.conversation_id)
        turn.response = structs.replace(turn.response, conversation=conversation)


def _continued(turn: Turn, draft: Draft) -> ResponseState | None:
    """The state that the job continues: the parent, or a context that the items repeat."""
    # What approved calls return will be part of the context, and is not known yet. Another Responses server
    # keeps reasoning that no item contains, so its contexts are never known by their items.
    model, items = draft.model, turn.input
    is_known = not turn.hosted.approved and not model.is_upstream
    if turn.parent is not None:
        if is_known:
            turn.recognition.follow(turn.parent, turn.asked.request, items)
        return turn.parent
    if draft.recognise and is_known:
        turn.recognition.look_up(turn.asked.request, items, model.name, draft.now, turn.known_head)
    return turn.recognition.parent(items, draft.response_id)


def _known_head(turn: Turn, continued: ResponseState | None, carry: Carry) -> Head | None:
    """The head that need not be read again if the request has the same.

    In a history that the client sends itself, tools that items bring count towards the same limits as
    those of the head, so all are read.
    """
    if turn.parent is None and carry.tools:
        return None
    return continued.head if continued is not None else turn.known_head
