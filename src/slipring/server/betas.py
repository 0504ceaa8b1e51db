"""Additions that a client asks for by name, in ``OpenAI-Beta: name=version, …``."""

from multidict import CIMultiDictProxy

_TIMING = "slipring_timing=v1"


def wants_timing(headers: CIMultiDictProxy[str]) -> bool:
    """Whether a ``slipring.timing`` event is to follow each response."""
    return _TIMING in {
        beta.strip() for value in headers.getall("OpenAI-Beta", []) for beta in value.split(",")
    }
