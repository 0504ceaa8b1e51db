"""ChatML with Hermes tool calls: Hermes, Qwen, SmolLM2 and others."""

from collections.abc import Iterable

from slipring.prompts.dialects.dialect import Control, Dialect, Fragment, Mark, Phrase
from slipring.prompts.parsing.known_formats import HERMES
from slipring.prompts.tool_definitions import describe, quoted
from slipring.protocol.tools import CallableTool

_START, _END = Control("<|im_start|>"), Control("<|im_end|>")
_CALL, _CALL_END = Mark("<tool_call>"), Mark("</tool_call>")
_OUTPUT, _OUTPUT_END = Mark("<tool_response>"), Mark("</tool_response>")


class ChatMl(Dialect):
    """``<|im_start|>role`` … ``<|im_end|>``, calls in ``<tool_call>``, outputs in ``<tool_response>``."""

    name = "chatml"
    stop = ("<|im_end|>", "<|endoftext|>")
    tool_role = "user"
    output_format = HERMES

    def preamble(self) -> list[Fragment]:
        return []

    def open(self, role: str) -> list[Fragment]:
        return [_START, f"{role}\n"]

    def close(self) -> list[Fragment]:
        return [_END, "\n"]

    def describe_tools(self, tools: Iterable[CallableTool]) -> tuple[str | Mark, ...]:
        lines = "\n".join(describe(tool) for tool in tools)
        return (
            "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
            f"You are provided with function signatures within <tools></tools> XML tags:\n<tools>\n{lines}\n"
            "</tools>\n\nFor each function call, return a json object with function name and arguments"
            " within ",
            *(_CALL, _CALL_END, " XML tags:\n"),
            *(_CALL, '\n{"name": <function-name>, "arguments": <args-json-object>}\n', _CALL_END),
        )

    def write_call(self, name: str, arguments: str, *, first: bool) -> Fragment:
        lead = "" if first else "\n"
        call = f'\n{{"name": {quoted(name)}, "arguments": {arguments}}}\n'
        return Phrase((lead, _CALL, call, _CALL_END))

    def write_output(self, text: str, *, first: bool) -> Fragment:
        lead = "" if first else "\n"
        return Phrase((lead, _OUTPUT, f"\n{text}\n", _OUTPUT_END))
