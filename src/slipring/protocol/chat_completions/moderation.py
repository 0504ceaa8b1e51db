"""What safety checks found, as a chat completion reports it."""

from msgspec import Struct

from slipring.protocol.responses import (
    ResponseModeration,
    ResponseModerationError,
    ResponseModerationResult,
)


class ModerationResults(Struct, tag_field="type", tag="moderation_results"):
    model: str
    results: list[ResponseModerationResult]


class Moderation(Struct):
    input: ModerationResults | ResponseModerationError
    output: ModerationResults | ResponseModerationError


def moderation_of(found: ResponseModeration) -> Moderation:
    return Moderation(_side(found.input), _side(found.output))


def _side(
    found: ResponseModerationResult | ResponseModerationError,
) -> ModerationResults | ResponseModerationError:
    return found if isinstance(found, ResponseModerationError) else ModerationResults(found.model, [found])
