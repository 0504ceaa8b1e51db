"""Additions that a client asks for by name, in ``OpenAI-Beta: name=version, …``."""

from multidict import CIMultiDictProxy

_TIMING = "slipring_timing=v1"
_NO_RETENTION = "slipring_zero_retention=v1"


def wants_timing(headers: CIMultiDictProxy[str]) -> bool:
    """Whether a ``slipring.timing`` event is to follow each response."""
    return _TIMING in _named(headers)


def wants_no_retention(headers: CIMultiDictProxy[str]) -> bool:
    """Whether nothing of a connection may be kept once it is gone, not even for a moment."""
    return _NO_RETENTION in _named(headers)


def _named(headers: CIMultiDictProxy[str]) -> set[str]:
    return {beta.strip() for value in headers.getall("OpenAI-Beta", []) for beta in value.split(",")}
