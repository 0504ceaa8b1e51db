"""Jobs that will probably come: which responses an engine may read ahead for, and as what."""

from slipring.base.errors import ApiError
from slipring.core.chain.state import ResponseState
from slipring.core.generation import Job, Models, Settings
from slipring.core.turn.turn import Turn
from slipring.protocol import requests
from slipring.protocol.requests import TEXT, effective_context
from slipring.protocol.tools.tool_choice import Offer


def after(turn: Turn, state: ResponseState, models: Models) -> Job | None:
    """What will probably continue a response that has just ended, up to the user's message; None if nothing
    is certain. After a request for approval, the client answers with something else than a message."""
    if state.response.status != "completed" or state.carry.approvals or turn.asked.request.warms_up:
        return None
    try:
        return continuing(state, turn.asked.tenant, models)
    except ApiError:
        return None  # its model is not served any more


def continuing(state: ResponseState, tenant: str, models: Models) -> Job:
    """A warmup that continues a response with the same model, head, format and reasoning, and adds no items.

    Raises ``ModelNotFound`` if the model is not served any more.
    """
    response = state.response
    return Job(
        response_id=state.id,
        tenant=tenant,
        model=models.find(response.model),
        head=state.head,
        parent=state,
        input=state.unread,
        offer=Offer(forbidden=True),
        settings=Settings(
            format=requests.read_format(response.text.format) or TEXT,
            effort=response.reasoning.effort,
            reasoning_context=effective_context(response.reasoning.context),
        ),
        generate=False,
        cache_key=response.prompt_cache_key,
    )
