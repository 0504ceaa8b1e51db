"""Llama 3.x: header tokens, calls as bare JSON, tool outputs under the role ``ipython``."""

from collections.abc import Iterable

from slipring.prompts.dialects.dialect import Control, Dialect, Fragment, Mark
from slipring.prompts.parsing.known_formats import LLAMA3_JSON
from slipring.prompts.tool_definitions import describe, quoted
from slipring.protocol.tools import CallableTool

_BEGIN = Control("<|begin_of_text|>")
_HEADER, _HEADER_END = Control("<|start_header_id|>"), Control("<|end_header_id|>")
_END = Control("<|eot_id|>")


class Llama3(Dialect):
    """``<|start_header_id|>role<|end_header_id|>`` … ``<|eot_id|>``."""

    name = "llama3"
    stop = ("<|eot_id|>", "<|eom_id|>", "<|end_of_text|>")
    tool_role = "ipython"
    output_format = LLAMA3_JSON

    def preamble(self) -> list[Fragment]:
        return [_BEGIN]

    def open(self, role: str) -> list[Fragment]:
        return [_HEADER, role, _HEADER_END, "\n\n"]

    def close(self) -> list[Fragment]:
        return [_END]

    def describe_tools(self, tools: Iterable[CallableTool]) -> tuple[str | Mark, ...]:
        lines = "\n\n".join(describe(tool) for tool in tools)
        return (
            "Given the following functions, please respond with a JSON for a function call with its proper"
            " arguments that best answers the given prompt.\n\nRespond in the format"
            ' {"name": function name, "parameters": dictionary of argument name and its value}. Do not use'
            f" variables.\n\n{lines}",
        )

    def write_call(self, name: str, arguments: str, *, first: bool) -> Fragment:
        lead = "" if first else "\n"
        return f'{lead}{{"name": {quoted(name)}, "parameters": {arguments}}}'

    def write_output(self, text: str, *, first: bool) -> Fragment:
        return text if first else f"\n\n{text}"
