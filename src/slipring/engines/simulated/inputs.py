"""Inputs of custom tools that follow a grammar: some text that fits, always the same."""

from collections import Counter
from typing import Literal

from slipring.engines.constraints.compiler import Compiler
from slipring.engines.constraints.tool_grammars import matcher
from slipring.protocol.grammars import Grammar

_LONGEST = 4096
_FIRST = b'\n")]};,. ' + bytes(range(97, 123)) + bytes(range(48, 58)) + bytes(range(32, 127))
_ORDER = bytes(dict.fromkeys(_FIRST + bytes(range(256))))
"""What ends things comes before what goes on with them."""


async def input_for(compiler: Compiler, tenant: str, grammar: Grammar) -> str | None:
    """A text that fits; None where none is found."""
    found: str | None = await compiler.run(
        tenant, "draft_input", grammar.syntax, grammar.definition, compiler.max_states
    )
    return found


def draft_input(syntax: Literal["lark", "regex"], definition: str, max_states: int) -> str | None:
    """A text that fits; None where none is found. Takes any time and memory: a task of the sandbox.

    Of the bytes that may come next it takes the one that has followed the last byte least often, so that
    whatever can be repeated soon gives way to what can follow.
    """
    reader = matcher(Grammar(syntax, definition), max_states)
    if reader is None:
        return None
    written = bytearray()
    taken: Counter[tuple[int, int]] = Counter()
    last = -1
    while len(written) < _LONGEST:
        if written and reader.is_accepting():
            return written.decode("utf-8", "replace")
        mask = reader.compute_bitmask()
        allowed = [byte for byte in _ORDER if mask[byte >> 3] >> (byte & 7) & 1]
        if not allowed:
            break
        last, byte = min(((last, byte) for byte in allowed), key=taken.__getitem__)
        taken[last, byte] += 1
        last = byte
        written.append(byte)
        reader.consume_token(byte)
    return "" if not written and reader.is_accepting() else None
