"""Reads the ``OpenAI-Beta: name=version, …`` header: the beta features that a client enables."""

from multidict import CIMultiDictProxy

from slipring.core.ports import Betas

_TIMING = "slipring_timing=v1"
_ROLLOUT = "slipring_rollout=v1"
_INJECT = "responses_multi_agent=v1"
_TOOL_OUTPUT = "slipring_tool_output=v1"
_TOOL_PROGRESS = "slipring_tool_progress=v1"
_SHORT_EVENTS = "slipring_short_events=v1"
_NO_RETENTION = "slipring_zero_retention=v1"


def of_exchange(headers: CIMultiDictProxy[str]) -> Betas:
    """Betas of a single HTTP request, which cannot be steered or appended to."""
    named = _named(headers)
    return Betas(
        timing=_TIMING in named,
        tool_progress=_TOOL_PROGRESS in named,
        short_events=_SHORT_EVENTS in named,
        keeps_nothing=_NO_RETENTION in named,
    )


def retention_of(headers: CIMultiDictProxy[str]) -> Betas:
    """Of an HTTP request that is not answered with the events of its turn: only whether anything of it is
    kept."""
    return Betas(keeps_nothing=_NO_RETENTION in _named(headers))


def of_socket(headers: CIMultiDictProxy[str]) -> Betas:
    """Betas of a WebSocket connection."""
    named = _named(headers)
    return Betas(
        timing=_TIMING in named,
        rollout=_ROLLOUT in named,
        inject=_INJECT in named,
        tool_output=_TOOL_OUTPUT in named,
        tool_progress=_TOOL_PROGRESS in named,
        short_events=_SHORT_EVENTS in named,
        keeps_nothing=_NO_RETENTION in named,
    )


def _named(headers: CIMultiDictProxy[str]) -> set[str]:
    return {beta.strip() for value in headers.getall("OpenAI-Beta", []) for beta in value.split(",")}
