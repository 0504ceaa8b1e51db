"""Token usage of a chat completion."""

from collections.abc import Sequence

from msgspec import Struct

from slipring.protocol.responses import Usage


class PromptTokensDetails(Struct):
    cached_tokens: int
    cache_write_tokens: int
    audio_tokens: int = 0


class CompletionTokensDetails(Struct):
    reasoning_tokens: int
    audio_tokens: int = 0
    accepted_prediction_tokens: int = 0
    rejected_prediction_tokens: int = 0


class CompletionUsage(Struct):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails


def usage_of(choices: Sequence[Usage], prompt: Usage | None = None) -> CompletionUsage:
    """The usage of a completion with these choices, which have the same prompt. ``prompt``: of the job that
    processed it for all of them, if that was one of its own: what it found in a cache is what the whole
    completion found there."""
    asked = choices[0] if prompt is None else prompt
    written = sum(choice.output_tokens for choice in choices)
    return CompletionUsage(
        prompt_tokens=choices[0].input_tokens,
        completion_tokens=written,
        total_tokens=choices[0].input_tokens + written,
        prompt_tokens_details=PromptTokensDetails(
            cached_tokens=asked.input_tokens_details.cached_tokens,
            cache_write_tokens=asked.input_tokens_details.cache_write_tokens,
        ),
        completion_tokens_details=CompletionTokensDetails(
            reasoning_tokens=sum(choice.output_tokens_details.reasoning_tokens for choice in choices)
        ),
    )
