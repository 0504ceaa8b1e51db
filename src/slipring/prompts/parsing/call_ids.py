"""The ids that a model gives to its calls, in the text of its answer."""

import json
import re

from slipring.prompts.parsing.output_format import JsonCalls, NamedJsonCalls, OutputFormat


def has_call_ids(format: OutputFormat) -> bool:
    """Whether the model gives ids to its calls, other than their numbers."""
    calls = format.calls
    if isinstance(calls, NamedJsonCalls):
        return bool(calls.id_open or calls.id_separator) and not calls.id_is_index
    return isinstance(calls, JsonCalls) and bool(calls.id_key)


def written_call_ids(format: OutputFormat, answer: str) -> list[str]:
    """The ids that a model gave to the calls of its answer, in order; empty if the format has none, or they
    are unclear.

    slipring sends the client other ids. Where a model writes ids, the prompt for its next answer must name
    them beside the outputs, because the answer stays in the context as the model wrote it.
    """
    calls = format.calls
    if not has_call_ids(format):
        return []
    if isinstance(calls, NamedJsonCalls):
        if calls.id_open:
            return _between(calls.id_open, calls.open, answer)
        return _between(calls.id_separator, calls.arguments_open, answer)
    return _in_array(calls, answer) if isinstance(calls, JsonCalls) and calls.section_open else []


def _between(before: str, after: str, answer: str) -> list[str]:
    pattern = rf"{re.escape(before.strip())}\s*([\w-]+)\s*{re.escape(after.strip())}"
    return re.findall(pattern, answer)


def _in_array(layout: JsonCalls, answer: str) -> list[str]:
    text = answer.partition(layout.section_open.strip())[2].lstrip()
    try:
        calls, _ = json.JSONDecoder().raw_decode(text)
    except (ValueError, RecursionError):
        return []
    if not isinstance(calls, list):
        return []
    return [str(call.get(layout.id_key, "")) for call in calls if isinstance(call, dict)]
