"""The headers that every answer carries."""

from collections.abc import MutableMapping

from slipring.server.cluster.ids import mint


def sign(headers: MutableMapping[str, str]) -> None:
    """Say who answers, without a version: whoever looks for a known fault gets no help. Name the request."""
    headers["Server"] = "slipring"
    headers["X-Request-Id"] = mint("req")
