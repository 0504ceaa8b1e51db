"""What the llama engine asks of llama-server: a job's settings as the body of ``/completion``.

Choices are constraints, not requests: a required call, named tools and formats become a grammar that the
model cannot leave. The ids of the context are spliced in as ready bytes, one piece per earlier step.
"""

from typing import Any

from msgspec import Raw

from slipring.core.generation import Job, Settings
from slipring.engines.llama.slots import Slot
from slipring.prompts.parser import flat_name
from slipring.prompts.rendering import Rendered
from slipring.prompts.schemas import parameters_of
from slipring.protocol import wire
from slipring.protocol.tools import Offer

_ANY_OBJECT = Raw(b'{"type":"object"}')


def completion_body(job: Job, prompt: Rendered, slot: Slot, max_tokens: int) -> bytes:
    """The body of a request that continues after ``prompt`` in a slot."""
    body: dict[str, Any] = {
        "n_predict": max_tokens,
        "stream": True,
        "return_tokens": True,
        "id_slot": slot.number,
        "cache_prompt": slot.tenant == job.tenant,
        **_sampling(job.settings),
    }
    if (schema := constraint(job.offer, job.settings)) is not None:
        body["json_schema"] = schema
    return b'{"prompt":' + prompt.json() + b"," + wire.encode(body)[1:]


def constraint(offer: Offer, settings: Settings) -> Raw | None:
    """The JSON schema that the whole answer has to follow, if it has to follow one."""
    if offer.required:
        return _calls_schema(offer)
    if settings.format.kind == "json_schema":
        return Raw(settings.format.schema or b"{}")
    if settings.format.kind == "json_object":
        return _ANY_OBJECT
    return None


def _calls_schema(offer: Offer) -> Raw:
    """One call of one of the tools on offer."""
    calls = [
        {
            "type": "object",
            "properties": {"name": {"const": flat_name(tool)}, "arguments": parameters_of(tool)},
            "required": ["name", "arguments"],
            "additionalProperties": False,
        }
        for tool in offer.tools
    ]
    return wire.raw(calls[0] if len(calls) == 1 else {"anyOf": calls})


def _sampling(settings: Settings) -> dict[str, Any]:
    """Sampling as the API means it: nothing is narrowed but by what the client asked for."""
    asked: dict[str, Any] = {
        "temperature": settings.temperature if settings.temperature is not None else 1.0,
        "top_p": settings.top_p if settings.top_p is not None else 1.0,
        "top_k": 0,
        "min_p": 0.0,
        "presence_penalty": settings.presence_penalty or 0.0,
        "frequency_penalty": settings.frequency_penalty or 0.0,
    }
    if settings.seed is not None:
        asked["seed"] = settings.seed
    if settings.logprobs:
        asked["n_probs"] = max(settings.top_logprobs, 1)
    return asked
