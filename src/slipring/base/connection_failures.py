"""Why a connection to a server failed, in words for the person who can mend it.

For every client of this package: engines, the terminal chat, ``slipring top``, the benchmark and ``slipring
launch``. Knows the exceptions of aiohttp, ``urllib`` and ``ssl``.
"""

import os
import re
import socket
import ssl
from collections.abc import Iterator
from http.client import BadStatusLine, RemoteDisconnected

import aiohttp

from slipring.base.aiohttp_internals import is_no_http

_ERRNO = re.compile(r"\[Errno (\d+)\]")
_TRUST = "set SSL_CERT_FILE to a file with the certificate of the authority that has signed it"
_CERTIFICATES = {
    9: "its certificate is not valid yet: check the clock of this machine",
    10: "its certificate has expired: the server needs a new one",
    18: "its certificate is self-signed: set SSL_CERT_FILE to a file with that certificate",
    19: f"its certificate is signed by an authority that is not trusted here: {_TRUST}",
    20: f"its certificate is signed by an authority that is not trusted here: {_TRUST}",
    21: f"its certificate is signed by an authority that is not trusted here: {_TRUST}",
    62: "its certificate is for another name: use the name in the certificate",
    64: "its certificate is for another address: use the name in the certificate",
}
"""By the codes of OpenSSL's verification."""
_ALERTS = {
    "WRONG_VERSION_NUMBER": "it does not answer in TLS there: the URL probably begins with http://",
    "HTTP_REQUEST": "it does not answer in TLS there: the URL probably begins with http://",
    "RECORD_LAYER_FAILURE": "it does not answer in TLS there: the URL probably begins with http://",
    "PACKET_LENGTH_TOO_LONG": "it does not answer in TLS there: the URL probably begins with http://",
    "TLSV1_ALERT_PROTOCOL_VERSION": "it speaks no version of TLS that is accepted here",
    "UNSUPPORTED_PROTOCOL": "it speaks no version of TLS that is accepted here",
    "NO_PROTOCOLS_AVAILABLE": "it speaks no version of TLS that is accepted here",
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": "it requires a client certificate, and slipring sends none",
    "TLSV1_ALERT_UNKNOWN_CA": "it does not accept the certificate of this client",
    "TLSV1_UNRECOGNIZED_NAME": "it has no certificate for this name",
    "UNEXPECTED_EOF_WHILE_READING": "it ended the connection during the TLS handshake",
}
"""By the names of OpenSSL's reasons."""
_DISCONNECTED = "it ended the connection without an answer: if it speaks TLS, the URL begins with https://"
_NOT_HTTP = "it does not answer in HTTP there: if it speaks TLS, the URL begins with https://"


def reason(error: BaseException) -> str:
    """Why a connection failed, as one line without the address. The word "it" in the line is the server."""
    causes = list(_causes(error))
    for cause in causes:
        if isinstance(cause, ssl.SSLError):
            return _tls_reason(cause)
    if isinstance(error, TimeoutError):
        return "timed out"
    if isinstance(error, aiohttp.InvalidURL | aiohttp.NonHttpUrlClientError):
        return "not a valid http:// or https:// URL"
    if isinstance(error, aiohttp.ServerDisconnectedError | RemoteDisconnected):
        return _DISCONNECTED
    if any(is_no_http(cause) or isinstance(cause, BadStatusLine) for cause in causes):
        return _NOT_HTTP
    for cause in causes:
        if isinstance(cause, OSError) and (words := _system_reason(cause)):
            return words
    return " ".join(str(causes[0]).split()) or type(causes[0]).__name__


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The exceptions that an HTTP client has wrapped into this one, then itself."""
    for name in ("certificate_error", "os_error", "reason", "__cause__"):
        if isinstance(inner := getattr(error, name, None), BaseException):
            yield from _causes(inner)
    yield error


def _tls_reason(error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        found = _CERTIFICATES.get(getattr(error, "verify_code", 0))
        reason = getattr(error, "verify_message", "") or "it cannot be verified"
        return found or f"its certificate is not accepted: {reason}"
    name = error.reason or ""
    return _ALERTS.get(name) or f"TLS failed: {name.replace('_', ' ').lower() or 'no reason given'}"


def _system_reason(error: OSError) -> str:
    """The system's text for an error, as in "Connection refused"; asyncio replaces it by one of its own that
    repeats the address, or loses the number."""
    if isinstance(error, socket.gaierror):
        return error.strerror or ""
    if error.errno is not None and error.errno > 0:
        return os.strerror(error.errno)
    found = _ERRNO.search(str(error))
    return os.strerror(int(found.group(1))) if found else error.strerror or ""
