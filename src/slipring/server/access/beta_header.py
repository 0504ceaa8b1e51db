"""Additions that a client asks for by name, in ``OpenAI-Beta: name=version, …``."""

from multidict import CIMultiDictProxy

from slipring.core.betas import Betas

_TIMING = "slipring_timing=v1"
_ROLLOUT = "slipring_rollout=v1"
_INJECT = "responses_multi_agent=v1"
_NO_RETENTION = "slipring_zero_retention=v1"


def of_exchange(headers: CIMultiDictProxy[str]) -> Betas:
    """What there is for a single request: nothing can be added to it."""
    return Betas(timing=_TIMING in _named(headers))


def of_socket(headers: CIMultiDictProxy[str]) -> Betas:
    """What there is for a connection that stays."""
    named = _named(headers)
    return Betas(timing=_TIMING in named, rollout=_ROLLOUT in named, inject=_INJECT in named)


def wants_no_retention(headers: CIMultiDictProxy[str]) -> bool:
    """Whether nothing of a connection may be kept once it is gone, not even for a moment."""
    return _NO_RETENTION in _named(headers)


def _named(headers: CIMultiDictProxy[str]) -> set[str]:
    return {beta.strip() for value in headers.getall("OpenAI-Beta", []) for beta in value.split(",")}
