"""What a server says when it refuses or fails a request, and the error for API clients that this means.

Servers write errors in many forms: OpenAI's object, a text, lists, FastAPI's details, plain text, HTML. All
are read here, from the body of an answer and from events within a stream alike. A client sees the message of
a refusal that it can do something about. Any other text is for operators alone: ``ApiError.detail``, which is
logged. Both are cut, and what looks like a key is removed.
"""

import html
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import quote

import msgspec
from msgspec import Struct

from slipring.base.errors import ApiError, InvalidRequest, NotFound, RateLimited, ServerError, StartupError
from slipring.base.surrogates import repaired
from slipring.engines.remote.http_connection import (
    BadStatus,
    HttpFailure,
    RedirectedElsewhere,
    TimedOut,
    Unreachable,
    Unreadable,
)
from slipring.engines.remote.retries_and_breaker import Retryable, retryable

_REMOVED = "(secret)"

_SHORTEST_CUT = 4
"""Characters of a key that are recognised where a text ends within it."""


_LONGEST_MESSAGE = 500
_LONGEST_SEARCHED = 2048
"""Characters that are searched for secrets: more than a message has, so that none of them is cut in two."""
_LONGEST_BODY = 2**16
"""Bytes of an error that are read. An error that says more is no error message."""
_LONGEST_WAIT_S = 24 * 3600.0
_SECRET = re.compile(
    r"\b(?:sk|pk|rk|gsk|xai|hf|key|api[-_]?key)[-_][\w*.…-]{6,}|\bAIza[\w-]{20,}|\beyJ[\w-]{10,}+\.[\w.-]+|(?i:bearer)\s+[^\s\"',]+"
)
_TAG = re.compile(r"<(/?\w*+)[^<>]*+>")
_HIDDEN = frozenset({"head", "script", "style"})
"""Elements of a page that are no text."""
_BOM = b"\xef\xbb\xbf"
_TOO_LONG = re.compile(
    r"context_length_exceeded|exceed_context_size|maximum context length|context[_ -]?(?:window|size|length) "
    r"(?:is )?(?:exceeded|overflow)|exceeds? the (?:\w+ ){0,2}context|longer than the model'?s context|"
    r"too large for model with|prompt is too long|prompt too long|input token count\b.{0,40}\bexceeds",
    re.IGNORECASE | re.DOTALL,
)
_NO_QUOTA = re.compile(
    r"insufficient_quota|insufficient[_ ](?:balance|credits|funds)|exceeded your current quota"
)
_NO_MODEL = re.compile(
    r"model_not_found|\bmodels?\b[^.]{0,200}?\b(?:not found|does not exist|not exist)|no such model",
    re.IGNORECASE,
)
_BUSY = re.compile(r"rate_?limit|too_many_requests|resource_exhausted", re.IGNORECASE)
_OVERLOADED = re.compile(r"overloaded|unavailable|slow_down|capacity", re.IGNORECASE)
_CLIENTS_FAULT = re.compile(
    r"invalid|bad_?request|unprocessable|unsupported|failed_precondition|out_of_range|policy|prompt|image|refused"
    r"|not_?found|missing",
    re.IGNORECASE,
)
_MESSAGES = ("message", "msg", "detail", "error_message", "title")
_NAMES = ("code", "type", "status", "status_code", "error_type")
_KNOWN = (*_NAMES, *_MESSAGES)


class UpstreamError(Struct, frozen=True):
    """An error as the server reports it."""

    status: int
    """Of HTTP, or what the error itself says; 500 if neither is known."""
    code: str = ""
    """The server's own names for it: code, type and status."""
    message: str = ""
    retry_after_s: float | None = None


def refusal(status: int, body: bytes, headers: Mapping[str, str]) -> ApiError:
    """The error for API clients that an answer without success means."""
    return api_error(read_error(body, status, headers))


def reported(payload: bytes) -> ApiError:
    """The error for API clients that an error after a success means: in a stream, or instead of one."""
    return api_error(read_error(payload))


def read_error(
    body: bytes, status: int | None = None, headers: Mapping[str, str] | None = None
) -> UpstreamError:
    """Read an error in any of the usual forms. ``status``: that of HTTP, if it says anything."""
    body = body[:_LONGEST_BODY].removeprefix(_BOM)
    try:
        parsed = msgspec.json.decode(repaired(body))
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        parsed = _plain(body)
    fields = _fields(parsed)
    named = [fields[name] for name in _NAMES if fields.get(name)]
    names = " ".join(str(name) for name in named if _status(name) is None)
    stated = next(filter(None, map(_status, named)), None)
    retry_after_s = _retry_after(headers or {})
    if retry_after_s is None:
        retry_after_s = _stated_delay(parsed)
    names = _cut(names)
    return UpstreamError(
        status or stated or _status_of_names(names), names, _cut(_message(fields)), retry_after_s
    )


def api_error(fault: UpstreamError) -> ApiError:
    """The error for API clients. Its ``detail`` has what the server said, for the log."""
    error = _api_error(fault)
    error.detail = f"{' '.join(filter(None, (str(fault.status), fault.code)))}: {fault.message}"
    if fault.retry_after_s is not None:
        error.retry_after_s = fault.retry_after_s
    return error


def _api_error(fault: UpstreamError) -> ApiError:
    status, message = fault.status, fault.message
    said = f"{fault.code} {message}"
    if status == 401:
        # The key that is wrong is ours, not the client's.
        return ServerError("The engine refuses this server's key.")
    if status == 402 or _NO_QUOTA.search(said):
        return RateLimited(message or "The engine's quota is used up.", code="insufficient_quota")
    if status == 403:
        return ServerError("The engine does not permit this request. The server's log has its reason.")
    if status == 429:
        return RateLimited(message or "The engine is busy.")
    if _TOO_LONG.search(fault.code):  # llama-server had it with 500
        return _too_long(message)
    if (failure := retryable(status)) is not None:
        return failure
    return _refused_request(status, message, said) if status >= 400 else ServerError()


def _refused_request(status: int, message: str, said: str) -> ApiError:
    text = f"The engine refused the request: {message or status}"
    if _TOO_LONG.search(said):
        return _too_long(message)
    if status == 404 and _NO_MODEL.search(said):
        return NotFound(text, code="model_not_found", param="model")
    error = InvalidRequest(text, code="engine_refused")
    error.status = status
    return error


def _too_long(message: str) -> ApiError:
    text = message or "the context is too long"
    return InvalidRequest(
        f"The engine refused the request: {text}", code="context_length_exceeded", param="input"
    )


def _fields(parsed: Any) -> dict[str, Any]:
    """The object that describes the error, wherever the document has it, with the names and the message that
    only the objects around it have."""
    around: dict[str, Any] = {}
    for _ in range(5):
        if isinstance(parsed, list):
            parsed = next(iter(parsed), None)
        elif isinstance(parsed, dict) and (name := _inner(parsed)) is not None:
            around |= {each: parsed[each] for each in _KNOWN if each != name and parsed.get(each)}
            parsed = parsed[name]
        else:
            break
    if isinstance(parsed, dict):
        return {**around, **parsed}
    return {**around, "message": parsed} if parsed else around


def _inner(parsed: Mapping[str, Any]) -> str | None:
    """The field of an object that describes the error; None if the object itself does."""
    if isinstance(parsed.get("error"), dict | list) and parsed["error"]:
        return "error"
    if _text(parsed):
        return None
    return next((each for each in ("error", "errors", "detail") if parsed.get(each)), None)


def _message(fields: Mapping[str, Any]) -> str:
    if text := _text(fields):
        return text
    found = next((fields[name] for name in _MESSAGES if fields.get(name)), fields)
    return msgspec.json.encode(found).decode() if found else ""


def _text(fields: Mapping[str, Any]) -> str:
    texts = (fields.get(name) for name in _MESSAGES)
    return next((text for text in texts if isinstance(text, str) and text), "")


def _plain(body: bytes) -> str:
    """The text of a body that is no JSON, such as a proxy's page, without its tags."""
    text = body.decode(errors="replace")
    shown: list[str] = []
    hidden, end = "", 0
    for tag in _TAG.finditer(text):
        name = tag[1].lower()
        if not hidden:
            shown.append(text[end : tag.start()])
            hidden = name if name in _HIDDEN else ""
        elif name in (f"/{hidden}", "body"):
            hidden = ""
        end = tag.end()
    if not hidden:
        shown.append(text[end:])
    return html.unescape(" ".join(shown))


def _cut(text: str) -> str:
    text = " ".join(text.split())
    text = _SECRET.sub("(secret)", text[:_LONGEST_SEARCHED])
    return text if len(text) <= _LONGEST_MESSAGE else f"{text[:_LONGEST_MESSAGE]}…"


def _status(value: object) -> int | None:
    """A status of HTTP that an error states: a number, or its digits."""
    text = str(value)
    return int(text) if len(text) == 3 and text.isascii() and text.isdigit() and text[0] in "45" else None


def _status_of_names(names: str) -> int:
    if _BUSY.search(names) or _NO_QUOTA.search(names):
        return 429
    if _OVERLOADED.search(names):
        return 503
    if _NO_MODEL.search(names):
        return 404
    return 400 if _CLIENTS_FAULT.search(names) or _TOO_LONG.search(names) else 500


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds after which to try again, by the headers: milliseconds, seconds, or a date."""
    found = {name.lower(): value for name, value in headers.items()}
    if (seconds := _number(found.get("retry-after-ms"))) is not None:
        return _bounded(seconds / 1000)
    text = found.get("retry-after")
    if (seconds := _number(text)) is not None:
        return _bounded(seconds)
    try:
        date = parsedate_to_datetime(text) if text else None
    except (ValueError, OverflowError):
        return None
    if date is None:
        return None
    return _bounded((date.replace(tzinfo=date.tzinfo or UTC) - datetime.now(UTC)).total_seconds())


def _stated_delay(parsed: Any) -> float | None:
    """Google's ``retryDelay``: among the details of an error, as in ``31s``."""
    for name, value in _walk(parsed, 6):
        if (
            name in ("retryDelay", "retry_after")
            and (seconds := _number(str(value).removesuffix("s"))) is not None
        ):
            return _bounded(seconds)
    return None


def _walk(value: Any, depth: int) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for name, inner in value.items():
            yield name, inner
            if depth:
                yield from _walk(inner, depth - 1)
    elif isinstance(value, list) and depth:
        for inner in value:
            yield from _walk(inner, depth - 1)


def _number(text: str | None) -> float | None:
    try:
        number = float(text) if text else None
    except ValueError:
        return None
    return number if number is not None and number == number else None


def _bounded(seconds: float) -> float:
    return min(max(seconds, 0.0), _LONGEST_WAIT_S)


def without_secret(text: str, secret: str) -> str:
    """A text of a server without a key of ours: as it is, in another case, encoded as in a URL, or cut off
    with the text's end."""
    if not secret or not text:
        return text
    forms = {secret, quote(secret), quote(secret, safe="")}
    text = re.sub("|".join(map(re.escape, forms)), _REMOVED, text, flags=re.IGNORECASE)
    cut = text.removesuffix("…")
    for length in range(min(len(secret), len(cut)), _SHORTEST_CUT - 1, -1):
        if cut.endswith(secret[:length]):
            return cut[:-length] + _REMOVED
    return text


def api_failure(failure: HttpFailure) -> ApiError:
    """The error for API clients that a failed request means. Its ``detail`` has the reason, for the log."""
    if isinstance(failure, BadStatus):
        return refusal(failure.status, failure.body, failure.headers)
    error: ApiError
    if isinstance(failure, Unreachable):
        error = Retryable("The engine cannot be reached.")
    elif isinstance(failure, TimedOut):
        error = ServerError("The engine has sent nothing for too long.")
    elif isinstance(failure, RedirectedElsewhere):
        error = ServerError("The engine cannot be reached. The server's log has the reason.")
    else:
        error = ServerError("The engine's answer cannot be read.")
    error.detail = str(failure)
    return error


@contextmanager
def startup_errors(kind: str, url: str, expected: str) -> Iterator[None]:
    """Raise what goes wrong while a server is queried at start as ``StartupError``, in one line.
    ``expected`` says what the server should be."""
    try:
        yield
    except BadStatus as error:
        is_key = error.status in (401, 403)
        remedy = "name a valid API key with key_env=" if is_key else f"expected {expected}"
        raise StartupError(f"--engine {kind}: {url} answers with {error}: {remedy}") from None
    except (Unreachable, TimedOut) as error:
        raise StartupError(f"--engine {kind}: cannot reach {url}: {error}") from None
    except RedirectedElsewhere as error:
        raise StartupError(f"--engine {kind}: {url} does not answer: {error}") from None
    except (Unreadable, ValueError, LookupError, TypeError, AttributeError):
        raise StartupError(f"--engine {kind}: {url} does not answer like {expected}") from None
