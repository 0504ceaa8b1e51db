"""ChatML, with tools as Hermes and Qwen describe and call them."""

from collections.abc import Iterable, Sequence

from slipring.prompts.dialects.dialect import Control, Dialect, Fragment, Mark, Phrase
from slipring.prompts.parsing.known_formats import HERMES
from slipring.prompts.tool_definitions import quoted, tool_instructions
from slipring.protocol.items import Item, Message
from slipring.protocol.tools import CallableTool

_START, _END = Control("<|im_start|>"), Control("<|im_end|>")
_CALL, _CALL_END = Mark("<tool_call>"), Mark("</tool_call>")
_OUTPUT, _OUTPUT_END = Mark("<tool_response>"), Mark("</tool_response>")


class ChatMl(Dialect):
    """``<|im_start|>role`` … ``<|im_end|>``, calls in ``<tool_call>``, outputs in ``<tool_response>``.

    ``default_system``: the system message of contexts that begin without one.
    """

    name = "chatml"
    stop = ("<|im_end|>", "<|endoftext|>")
    tool_role = "user"
    output_format = HERMES

    def __init__(self, default_system: str = "") -> None:
        self._default_system = default_system

    def preamble(self) -> list[Fragment]:
        return []

    def write_default_system(self, items: Sequence[Item]) -> list[Fragment]:
        body = items[0].body() if items else None
        if not self._default_system or (isinstance(body, Message) and body.role in ("system", "developer")):
            return []
        return [*self.open("system"), self._default_system, *self.close()]

    def open(self, role: str) -> list[Fragment]:
        return [_START, f"{role}\n"]

    def close(self) -> list[Fragment]:
        return [_END, "\n"]

    def describe_tools(self, tools: Iterable[CallableTool]) -> tuple[str | Mark, ...]:
        # The last two pairs of marks are the form of a call; the definitions before them are the clients'.
        lead, *rest = tool_instructions(tools).rsplit(_CALL.token, 2)
        parts: list[str | Mark] = [lead]
        for part in rest:
            inner, _, after = part.partition(_CALL_END.token)
            parts += [_CALL, inner, _CALL_END, after]
        return tuple(filter(None, parts))

    def write_call(self, name: str, arguments: str, *, first: bool) -> Fragment:
        lead = "" if first else "\n"
        call = f'\n{{"name": {quoted(name)}, "arguments": {arguments}}}\n'
        return Phrase((lead, _CALL, call, _CALL_END))

    def write_output(self, text: str, *, first: bool) -> Fragment:
        lead = "" if first else "\n"
        return Phrase((lead, _OUTPUT, f"\n{text}\n", _OUTPUT_END))
