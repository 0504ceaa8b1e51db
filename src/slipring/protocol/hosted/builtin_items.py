"""The items of built-in tools that the server runs: searches, and code.

Their ``shown_result`` is what clients can see of a result. It is all that is known of a call that comes back
in a history: the whole result stays with the server that made the call.
"""

from typing import Any, Literal

from msgspec import Struct

from slipring.protocol import wire

SearchStatus = Literal["in_progress", "searching", "completed", "incomplete", "failed"]
CodeStatus = Literal["in_progress", "interpreting", "completed", "incomplete", "failed"]


class Source(Struct):
    url: str | None = None


class SentAction(Struct):
    """What a web search did, as clients send it back."""

    type: str = "search"
    query: str | None = None
    queries: list[str] | None = None
    url: str | None = None
    sources: list[Source] | None = None


class WebSearchCall(Struct):
    """The body of ``web_search_call``."""

    action: SentAction | None = None
    status: str | None = None

    @property
    def argument(self) -> str:
        action = self.action or SentAction()
        return action.query or " ".join(action.queries or ()) or action.url or ""

    @property
    def shown_result(self) -> str | None:
        urls = [source.url for source in (self.action or SentAction()).sources or () if source.url]
        return "\n".join(urls) or None


class FileSearchCall(Struct):
    """The body of ``file_search_call``."""

    queries: list[str] = []
    results: list[dict[str, Any]] | None = None
    status: str | None = None

    @property
    def argument(self) -> str:
        return " ".join(self.queries)

    @property
    def shown_result(self) -> str | None:
        return wire.encode(self.results).decode() if self.results else None


class CodeOutput(Struct):
    logs: str | None = None


class CodeInterpreterCall(Struct):
    """The body of ``code_interpreter_call``."""

    code: str | None = None
    outputs: list[CodeOutput] | None = None
    status: str | None = None

    @property
    def argument(self) -> str:
        return self.code or ""

    @property
    def shown_result(self) -> str | None:
        logs = [output.logs for output in self.outputs or () if output.logs is not None]
        return "\n".join(logs) if logs else None


BuiltinCall = WebSearchCall | FileSearchCall | CodeInterpreterCall
