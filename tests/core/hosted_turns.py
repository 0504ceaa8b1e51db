"""What tests of hosted turns share: calls as models write them, and contexts in few words."""

from typing import Any

from slipring.core.generation import CallArguments, CallEnded, CallStarted, Delta, Job
from slipring.protocol.items.hosted_items import CallError
from tests.core.connection import Connection, Json, context_of, mcp

HOSTED = [mcp()]


def hosted(name: str = "f", arguments: str = "{}", label: str = "s") -> list[Delta]:
    """A call of a hosted tool."""
    return [CallStarted("function", name, label), CallArguments(arguments), CallEnded()]


def begin(connection: Connection, lane: str | None = None, previous: str | None = None, **fields: Any) -> str:
    """Start a response with hosted tools; returns its id."""
    connection.create(lane, previous, **{"tools": HOSTED, **fields})
    connection.resolve(lane)
    return connection.starts[connection._at(connection.starts, lane)].job.response_id


def told(job: Job) -> list[str]:
    """A job's context, each item in a few words: calls by name, everything else by its text."""
    return [_told(item) for item in context_of(job)]


def _told(item: Json) -> str:
    if item["type"] == "function_call":
        return f"call {item['name']}{item['arguments']}" + "…" * (item.get("status") == "incomplete")
    if item["type"] == "function_call_output":
        return f"output {item['output']}"
    content = item["content"]
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


def kinds(response: Json) -> list[str]:
    return [item["type"] for item in response["output"]]


def running(connection: Connection) -> list[str]:
    """The ids of the hosted calls that run, in the order in which they began."""
    return list(connection.calls)


def end_only(connection: Connection, output: str = "42", error: CallError | None = None) -> list[Json]:
    """End the only hosted call that runs."""
    (call_id,) = connection.calls
    return connection.end_call(call_id, output, error)
