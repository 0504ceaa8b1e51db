"""The items of a context as they are sent to an upstream: the client's bytes, without slipring's item ids.

The upstream would look up ids that it has never made. Calls and their outputs are matched by ``call_id``:
slipring's in a context that is sent whole, the upstream's in what continues one of its responses.
"""

from collections.abc import Iterator

import msgspec

from slipring.core.generation import Job
from slipring.engines.responses.positions import CALLS, own_position, steps_of, upstream_call_id
from slipring.protocol import wire
from slipring.protocol.items import Item

_NAMED = frozenset(
    {
        *("message", "reasoning", "function_call", "function_call_output"),
        *("custom_tool_call", "custom_tool_call_output", "tool_search_call", "tool_search_output"),
    }
)
"""Items whose ids slipring makes and upstreams do not need. Other items keep their ids."""
_OUTPUTS = frozenset({"function_call_output", "custom_tool_call_output", "tool_search_output"})
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])


def added(job: Job, home: object, *, keep_reasoning: bool) -> list[bytes]:
    """The new items, for an upstream that has the others."""
    own_calls = {item.call_id for item in job.input if item.type in CALLS}
    pieces = []
    for item in job.input:
        if item.type in _OUTPUTS and item.call_id is not None and item.call_id not in own_calls:
            there = upstream_call_id(job, home, item.call_id)
            if there != item.call_id:
                pieces.append(_rewritten(item.raw, call_id=there))
                continue
        pieces += _sent(item, keep_reasoning)
    return pieces


def everything(job: Job, home: object, *, keep_reasoning: bool, keep_encrypted: bool = True) -> list[bytes]:
    """All items of the context. ``keep_encrypted``: with encrypted reasoning, as far as it was kept."""
    pieces: list[bytes] = []
    nodes = list(job.parent.chain()) if job.parent is not None else []
    for node in reversed(nodes):
        position = own_position(node.position, home)
        if position is None or not (keep_encrypted and position.step.has_thoughts):
            _add(node.added, pieces, keep_reasoning)
            continue
        prompt = node.prompt
        _add(prompt[: len(prompt) - len(node.earlier_steps)], pieces, keep_reasoning)
        for answer, outputs, step in reversed(list(steps_of(node, home))):
            if step is not None and step.thoughts:
                pieces += _with_thoughts(answer, step.thoughts)
            else:
                _add(answer, pieces, keep_reasoning)
            _add(outputs, pieces, keep_reasoning)
    _add(job.input, pieces, keep_reasoning)
    return pieces


def without_id(raw: bytes) -> bytes:
    """An item without its id; the values of all other fields keep their bytes."""
    return _rewritten(raw, id=None)


def _with_thoughts(answer: tuple[Item, ...], thoughts: tuple[tuple[int, bytes], ...]) -> Iterator[bytes]:
    """An answer, with its encrypted reasoning items at their places instead of the readable ones."""
    rest = list(thoughts)
    others = [item for item in answer if item.type != "reasoning"]
    for number, item in enumerate(others):
        while rest and rest[0][0] <= number:
            yield rest.pop(0)[1]
        yield _without_our_id(item)
    # Reasoning at the end is left out: upstreams refuse reasoning without the item that follows it.


def _add(items: tuple[Item, ...], pieces: list[bytes], keep_reasoning: bool) -> None:
    for item in items:
        if item.id is None and item.type != "reasoning":
            pieces.append(item.raw)  # most of a long context
        else:
            pieces += _sent(item, keep_reasoning)


def _sent(item: Item, keep_reasoning: bool) -> list[bytes]:
    if item.type == "reasoning" and not keep_reasoning:
        return []
    return [_without_our_id(item)]


def _without_our_id(item: Item) -> bytes:
    if item.id is None or item.type not in _NAMED:
        return item.raw
    ours = f'{{"type":"{item.type}","id":"{item.id}",'.encode()
    if item.raw.startswith(ours):
        # Encoded by slipring: cut the id out without decoding.
        return b'{"type":"' + item.type.encode() + b'",' + item.raw[len(ours) :]
    return without_id(item.raw)


def _rewritten(raw: bytes, **changes: str | None) -> bytes:
    """An item with some fields changed, or removed if None; the values of the others keep their bytes."""
    fields = _fields.decode(raw)
    for name, value in {"id": None, **changes}.items():
        if value is None:
            fields.pop(name, None)
        else:
            fields[name] = wire.raw(value)
    return wire.encode(fields)
