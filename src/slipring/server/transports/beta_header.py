"""Reads the ``OpenAI-Beta: name=version, …`` header: the beta features that a client enables."""

from collections.abc import Mapping

from multidict import CIMultiDictProxy

from slipring.core.betas import Betas

_OF_RETENTION = {"slipring_zero_retention=v1": "keeps_nothing"}
_OF_EXCHANGES = {
    **_OF_RETENTION,
    "slipring_timing=v1": "timing",
    "slipring_tool_progress=v1": "tool_progress",
    "slipring_short_events=v1": "short_events",
}
_OF_SOCKETS = {
    **_OF_EXCHANGES,
    "slipring_rollout=v1": "rollout",
    "responses_multi_agent=v1": "inject",
    "slipring_tool_output=v1": "tool_output",
}
"""The fields of ``Betas`` by their names in the header."""


def of_exchange(headers: CIMultiDictProxy[str]) -> Betas:
    """Betas of a single HTTP request, which cannot be steered or appended to."""
    return _enabled(headers, _OF_EXCHANGES)


def retention_of(headers: CIMultiDictProxy[str]) -> Betas:
    """Of an HTTP request that is not answered with the events of its turn: only whether anything of it is
    kept."""
    return _enabled(headers, _OF_RETENTION)


def of_socket(headers: CIMultiDictProxy[str]) -> Betas:
    """Betas of a WebSocket connection."""
    return _enabled(headers, _OF_SOCKETS)


def _enabled(headers: CIMultiDictProxy[str], known: Mapping[str, str]) -> Betas:
    named = {beta.strip() for value in headers.getall("OpenAI-Beta", []) for beta in value.split(",")}
    return Betas(**{known[beta]: True for beta in named if beta in known})
