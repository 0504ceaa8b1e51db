"""Logprobs of a chat completion."""

from collections.abc import Sequence

from msgspec import Struct

from slipring.protocol.events import EventLogprob
from slipring.protocol.responses import Logprob

_REPLACED = "\ufffd"


class TokenAlternative(Struct):
    token: str
    logprob: float
    bytes: list[int] | None


class TokenLogprob(Struct):
    token: str
    logprob: float
    bytes: list[int] | None
    top_logprobs: list[TokenAlternative]


class ChoiceLogprobs(Struct):
    content: list[TokenLogprob]
    refusal: None = None


def of_tokens(logprobs: Sequence[Logprob]) -> list[TokenLogprob]:
    return [
        TokenLogprob(
            each.token,
            each.logprob,
            each.bytes,
            [TokenAlternative(top.token, top.logprob, top.bytes) for top in each.top_logprobs],
        )
        for each in logprobs
    ]


def of_event(logprobs: Sequence[EventLogprob]) -> ChoiceLogprobs:
    """The logprobs of a delta, whose tokens come without their bytes."""
    return ChoiceLogprobs(
        [
            TokenLogprob(
                each.token,
                each.logprob,
                _bytes_of(each.token),
                [TokenAlternative(top.token, top.logprob, _bytes_of(top.token)) for top in each.top_logprobs],
            )
            for each in logprobs
        ]
    )


def _bytes_of(token: str) -> list[int] | None:
    """The bytes of a token; None if it is a part of a character, which its text does not show."""
    return None if _REPLACED in token else list(token.encode())
