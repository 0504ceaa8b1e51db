"""``POST /v1/moderations``: what the server's own safety checks say about texts, in the API's form."""

import asyncio
from collections.abc import Sequence

from aiohttp import web

from slipring.base.errors import NotFound, Unavailable, quoted
from slipring.core.checks.policies import Check
from slipring.core.checks.verdicts import Subject, Verdict
from slipring.protocol.endpoints.moderations import (
    ModerationAnswer,
    ModerationResult,
    read_moderation,
    read_moderation_texts,
)
from slipring.server.access.auth import Caller
from slipring.server.connections.request_bodies import read_body
from slipring.server.endpoints.replies import json_response
from slipring.server.random_ids import mint
from slipring.server.service import Service

ALL_CHECKS = "omni-moderation-latest"
"""The model that stands for all checks of the caller's policy: clients send it by default."""


async def moderate(service: Service, request: web.Request, caller: Caller) -> web.StreamResponse:
    body = await read_body(service, request, caller)
    asked = await service.decoder.body(caller.tenant, body, read_moderation)
    texts = read_moderation_texts(asked.input)
    model = asked.model or ALL_CHECKS
    checks = _checks(service, caller, model)
    await service.admit_turn(caller)
    subjects = [Subject(side="input", kind="message", text=text, role="user") for text in texts]
    verdicts = await asyncio.gather(
        *(service.inspector.inspect(check.name, subjects, caller.tenant) for check in checks)
    )
    by_text = zip(*verdicts, strict=True)
    return json_response(ModerationAnswer(mint("modr"), model, [_result(each) for each in by_text]))


def _checks(service: Service, caller: Caller, model: str) -> tuple[Check, ...]:
    """The checks that a model's name stands for: one, or all of the caller's default policy."""
    known = service.inspector.checks
    if model in known:
        return (known[model],)
    default = service.catalog.find(None).name
    key_id = caller.key.id if caller.key is not None else None
    policy = service.inspector.policy_of(model=default, tenant=caller.tenant, key_id=key_id)
    if model == ALL_CHECKS and policy.checks:
        return policy.checks
    has = f"it has: {', '.join(known)}" if known else "it has none"
    raise NotFound(
        f"The model {quoted(model)} is not a safety check of this server; {has}.",
        param="model",
        code="model_not_found",
    )


def _result(verdicts: Sequence[Verdict]) -> ModerationResult:
    """The verdicts of all checks about one text, together."""
    scores: dict[str, float] = {}
    flagged: set[str] = set()
    for verdict in verdicts:
        if verdict.failed is not None:
            raise Unavailable(f"The check '{verdict.check}' gave no answer: {verdict.failed}.")
        flagged.update(verdict.categories)
        for category, score in verdict.scores.items():
            scores[category] = max(score, scores.get(category, 0.0))
    return ModerationResult.of(scores, flagged)
