"""What is sent to an MCP server to authenticate: credentials, and the headers that clients may set."""

import hashlib
import re
from collections.abc import Mapping

from slipring.mcp.failures import RequestRefused

_MAX_HEADERS = 32
_MAX_HEADER_BYTES = 32 * 1024
_HEADER_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]{1,128}")
_HEADER_VALUE = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?")
_REFUSED_HEADERS = frozenset(
    "host connection keep-alive te trailer trailers transfer-encoding upgrade expect via cookie cookie2"
    " set-cookie origin referer forwarded x-real-ip x-original-url x-rewrite-url x-http-method"
    " x-http-method-override x-method-override last-event-id http2-settings date max-forwards range".split()
)

_REFUSED_PREFIXES = ("accept", "content-", "proxy-", "sec-", "mcp-", "x-forwarded-", "x-envoy-", "x-amz-")


class Credential:
    """What authenticates one caller at one server. Never shown: ``repr`` has the digest only."""

    __slots__ = ("_digest", "headers")

    def __init__(self, authorization: str | None = None, headers: Mapping[str, str] | None = None) -> None:
        """``authorization``: an OAuth access token. Raises ``RequestRefused`` if a header is not allowed."""
        sent = check_headers(headers or {})
        if authorization is not None:
            if any(name.lower() == "authorization" for name in sent):
                raise RequestRefused("both 'authorization' and an Authorization header are given")
            scheme, _, rest = authorization.partition(" ")
            token = rest.strip() if scheme.lower() == "bearer" else authorization
            check_headers({"Authorization": token})
            sent["Authorization"] = f"Bearer {token}"
        self.headers: Mapping[str, str] = sent
        text = "\n".join(f"{name.lower()}:{value}" for name, value in sorted(sent.items()))
        self._digest = hashlib.sha256(text.encode()).hexdigest()

    @property
    def digest(self) -> str:
        """Equal for equal credentials, and tells nothing about them."""
        return self._digest

    def secrets(self) -> list[str]:
        """The texts that must not appear anywhere: values, and tokens without their scheme."""
        found = [piece for value in self.headers.values() for piece in (value, value.partition(" ")[2])]
        return sorted((piece for piece in found if piece), key=len, reverse=True)

    def __repr__(self) -> str:
        return f"<Credential {self._digest[:8]}>"


def check_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Return headers that may be sent. Raises ``RequestRefused`` for one that belongs to HTTP, to MCP or to a
    proxy. The message names the header and never its value.
    """
    if len(headers) > _MAX_HEADERS:
        raise RequestRefused(f"more than {_MAX_HEADERS} headers")
    if sum(len(name) + len(value) for name, value in headers.items()) > _MAX_HEADER_BYTES:
        raise RequestRefused(f"headers of more than {_MAX_HEADER_BYTES} bytes")
    seen: set[str] = set()
    for name, value in headers.items():
        if not _HEADER_NAME.fullmatch(name):
            raise RequestRefused("a header's name is not valid")
        lower = name.lower()
        if lower in _REFUSED_HEADERS or lower.startswith(_REFUSED_PREFIXES):
            raise RequestRefused(f"the header '{name}' cannot be set")
        if lower in seen:
            raise RequestRefused(f"the header '{name}' is given twice")
        seen.add(lower)
        if not _HEADER_VALUE.fullmatch(value):
            raise RequestRefused(
                f"the value of the header '{name}' is empty or has characters that are not allowed"
            )
    return dict(headers)


NO_CREDENTIAL = Credential()
