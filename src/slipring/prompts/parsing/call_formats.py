"""Call formats: how model families mark thoughts and tool calls in their output.

A family that writes calls as JSON needs a ``CallFormat`` here and nothing else: ``parser.Parser`` reads it.
``detect_call_format`` chooses one for a model that is prompted by its own chat template.
"""

from msgspec import Struct, structs


class CallFormat(Struct, frozen=True, kw_only=True):
    """The markers around thoughts and calls. An empty marker is never searched for."""

    call_open: str = ""
    call_close: str = ""
    """If empty, a call ends where the JSON after ``call_open`` ends."""
    think_open: str = ""
    think_close: str = ""
    prefix: str = ""
    """Announces a call as bare JSON, at any place in the output."""
    arguments_key: str = "arguments"
    """The key of a call's arguments in grammars. The parser accepts ``arguments`` and ``parameters``."""
    bare_json: bool = False
    """Whether output that begins with a JSON object (or an array of objects) of a call's form is a call."""


HERMES = CallFormat(
    call_open="<tool_call>",
    call_close="</tool_call>",
    think_open="<think>",
    think_close="</think>",
    bare_json=True,
)
"""``<tool_call>{"name": …, "arguments": …}</tool_call>``: Hermes, Qwen, SmolLM2."""

LLAMA3_JSON = CallFormat(prefix="<|python_tag|>", arguments_key="parameters", bare_json=True)
"""``{"name": …, "parameters": …}``, with or without ``<|python_tag|>`` before it: Llama 3.x."""


def detect_call_format(template_source: str) -> CallFormat:
    """Choose the call format whose markers occur in the source of a chat template."""
    if "<tool_call>" in template_source:
        return HERMES
    if "<|python_tag|>" in template_source or '"parameters"' in template_source.replace('\\"', '"'):
        call_format = LLAMA3_JSON
    else:
        call_format = CallFormat(bare_json=True)
    if "<think>" in template_source:
        call_format = structs.replace(call_format, think_open="<think>", think_close="</think>")
    return call_format
