"""The job that will probably continue a finished response, before its request is known."""

from slipring.core.chain.state import ResponseState
from slipring.core.generation import Job, Models, Settings
from slipring.protocol import requests
from slipring.protocol.requests import TEXT, effective_context
from slipring.protocol.tools import Offer


def foreseen_job(state: ResponseState, tenant: str, models: Models) -> Job:
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
