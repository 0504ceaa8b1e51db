"""Output formats of model families whose chat template does not show them, by marks in the template's source.

``format_detection`` finds all other formats by rendering the template.
"""

import re
from typing import Final

from msgspec import Struct

from slipring.prompts.parsing.output_format import (
    BracedCalls,
    JsonCalls,
    NamedJsonCalls,
    NestedTagCalls,
    OutputFormat,
    PythonCalls,
    TaggedCalls,
)

_SUFFIX: Final = re.compile(r":[^:<>]*>$")

HERMES = OutputFormat(
    calls=JsonCalls(open="<tool_call>\n", close="\n</tool_call>", between="\n", is_bare=True),
    think_open="<think>\n",
    think_close="\n</think>\n\n",
    calls_end_thoughts=True,
)
"""``<tool_call>{"name": …, "arguments": …}</tool_call>``: Hermes, Qwen2.5, Qwen3, Granite 4, SmolLM2."""

LLAMA3_JSON = OutputFormat(
    calls=JsonCalls(arguments_key="parameters", is_bare=True, announcement="<|python_tag|>")
)
"""``{"name": …, "parameters": …}``, with or without ``<|python_tag|>`` before it: Llama 3.x."""

KIMI_K2 = OutputFormat(
    calls=NamedJsonCalls(
        section_open="<|tool_calls_section_begin|>",
        section_close="<|tool_calls_section_end|>",
        open="<|tool_call_begin|>",
        close="<|tool_call_end|>",
        name_prefix="functions.",
        id_separator=":",
        id_is_index=True,
        arguments_open="<|tool_call_argument_begin|>",
    ),
    think_open="<think>",
    think_close="</think>",
    calls_end_thoughts=True,
)
"""``<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{…}<|tool_call_end|>``: Kimi K2 to K2.6."""

DEEPSEEK_V3 = OutputFormat(
    calls=NamedJsonCalls(
        section_open="<｜tool▁calls▁begin｜>",
        section_close="<｜tool▁calls▁end｜>",
        open="<｜tool▁call▁begin｜>function<｜tool▁sep｜>",
        close="\n```<｜tool▁call▁end｜>",
        between="\n",
        arguments_open="\n```json\n",
    ),
    think_open="<think>\n",
    think_close="\n</think>\n\n",
)
"""``<｜tool▁call▁begin｜>function<｜tool▁sep｜>f`` and the arguments in a fenced block: DeepSeek V3, R1."""

KIMI_K3 = OutputFormat(
    calls=TaggedCalls(
        section_open="<|open|>tools<|sep|>",
        section_close="<|close|>tools<|sep|>",
        name_open='<|open|>call tool="',
        index_attribute='" index="{index}"',
        name_close="<|sep|>",
        arguments_close="<|close|>call<|sep|>",
        key_open='<|open|>argument key="',
        string_attribute='" type="{type}"',
        key_close="<|sep|>",
        value_close="<|close|>argument<|sep|>",
        object_open='<|open|>json type="object"<|sep|>',
        object_close="<|close|>json<|sep|>",
        has_escapes=True,
    ),
    think_open="<|open|>think<|sep|>",
    think_close="<|close|>think<|sep|>",
    calls_end_thoughts=True,
    ignored=("<|open|>response<|sep|>", "<|close|>response<|sep|>", "<|close|>message<|sep|>"),
    text_open="<|open|>response<|sep|>",
    text_close="<|close|>response<|sep|>",
    stops=("<|end_of_msg|>",),
)
"""``<|open|>call tool="f" index="1"<|sep|><|open|>argument key="k" type="string"<|sep|>v``: Kimi K3."""

MINIMAX_M3 = OutputFormat(
    calls=NestedTagCalls(
        section_open="]<]minimax[>[<tool_call>\n",
        section_close="\n]<]minimax[>[</tool_call>",
        between="\n",
        tag_prefix="]<]minimax[>[",
    ),
    think_open="<mm:think>",
    think_close="</mm:think>",
    stops=("[e~[",),
)
"""Trees of tags, each after ``]<]minimax[>[``: MiniMax M3."""

LFM2 = OutputFormat(
    calls=PythonCalls(section_open="<|tool_call_start|>", section_close="<|tool_call_end|>"),
    think_open="<think>",
    think_close="</think>",
)
"""``<|tool_call_start|>[f(a=1)]<|tool_call_end|>``: LFM2, LFM2.5."""

OLMO3 = OutputFormat(
    calls=PythonCalls(
        section_open="<function_calls>", section_close="</function_calls>", between="\n", is_list=False
    ),
    think_open="<think>",
    think_close="</think>",
)
"""``<function_calls>f(a=1)`` and further calls, each on its line: OLMo 3."""

STEP3 = OutputFormat(
    calls=TaggedCalls(
        section_open="<｜tool_calls_begin｜>",
        section_close="<｜tool_calls_end｜>",
        open="<｜tool_call_begin｜>function<｜tool_sep｜>",
        close="<｜tool_call_end｜>",
        name_open='<steptml:invoke name="',
        name_close='">\n',
        arguments_close="</steptml:invoke>",
        key_open='<steptml:parameter name="',
        key_close='">',
        value_close="</steptml:parameter>\n",
    ),
    think_open="<think>",
    think_close="</think>",
)
"""``<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="f">`` and tagged arguments: Step 3."""

GEMMA4 = OutputFormat(
    calls=BracedCalls(open="<|tool_call>", close="<tool_call|>"),
    think_open="<|channel>thought\n",
    think_close="<channel|>",
    calls_end_thoughts=True,
    stops=("<turn|>", "<|tool_response>"),
)
"""``<|tool_call>call:f{k:<|"|>v<|"|>}<tool_call|>``: Gemma 4."""

FUNCTION_GEMMA = OutputFormat(
    calls=BracedCalls(open="<start_function_call>", close="<end_function_call>", quote="<escape>"),
    stops=("<end_of_turn>", "<start_function_response>"),
)
"""``<start_function_call>call:f{k:<escape>v<escape>}<end_function_call>``: FunctionGemma."""

LONGCAT = OutputFormat(
    calls=JsonCalls(open="<longcat_tool_call>\n", close="\n</longcat_tool_call>", between="\n"),
    think_open="<longcat_think>\n",
    think_close="\n</longcat_think>\n",
)
"""Hermes' calls in marks of their own: LongCat."""

INTERNLM2 = OutputFormat(
    calls=JsonCalls(
        open="<|action_start|><|plugin|>\n", close="<|action_end|>", arguments_key="parameters", between="\n"
    )
)
"""``<|action_start|><|plugin|>{"name": …, "parameters": …}<|action_end|>``: InternLM 2 and 2.5."""

PHI4_MINI = OutputFormat(calls=JsonCalls(section_open="functools", is_array=True))
"""``functools[{"name": …, "arguments": …}, …]``: Phi-4-mini, whose template writes calls otherwise."""

DOTS = OutputFormat(
    calls=TaggedCalls(
        section_open="<dots_function_call>\n",
        section_close="</dots_function_call>",
        open="<invoke name=",
        name_close=">\n",
        key_open="<parameter name=",
        key_close=">",
        value_close="</parameter>\n",
        close="</invoke>\n",
    )
)
"""``<invoke name=f><parameter name=k>v</parameter></invoke>``: dots."""

MUSE = OutputFormat(
    calls=TaggedCalls(
        open="<|message|><atem:function_calls>\n",
        close="</atem:function_calls>",
        name_open='<atem:invoke name="',
        name_close='">\n',
        arguments_close="</atem:invoke>\n",
        key_open='<atem:parameter name="',
        key_close='">',
        value_close="</atem:parameter>\n",
    ),
    think_open=" to=self<|message|>",
    think_close="<|eom|>",
    ignored=("<|start|>assistant to=user<|message|>", "to=user<|message|>"),
    is_addressed=True,
    stops=("<|eot|>",),
)
"""Messages with recipients, calls as ``<atem:invoke name="f"><atem:parameter name="k">v``: Muse."""

HARMONY = OutputFormat(is_harmony=True, stops=("<|return|>", "<|call|>"))
"""Messages with channels and recipients: gpt-oss."""


class KnownFormat(Struct, frozen=True):
    """The format of a family, which is known by marks in its template's source."""

    marks: tuple[str, ...]
    family: str
    format: OutputFormat


NOT_RENDERED = (
    KnownFormat(("<|channel|>analysis", "<|message|>"), "gpt-oss", HARMONY),
    KnownFormat(("<|tool_call>call:", "<tool_call|>"), "Gemma 4", GEMMA4),
    KnownFormat(("<|open|>", "<|sep|>", "<|close|>"), "Kimi K3", KIMI_K3),
    KnownFormat(("]<]minimax[>[", "<invoke"), "MiniMax M3", MINIMAX_M3),
    KnownFormat(
        ("<start_function_call>", "<end_function_call>", "<escape>"), "FunctionGemma", FUNCTION_GEMMA
    ),
    KnownFormat(('functools[{"name"',), "Phi-4-mini", PHI4_MINI),
    KnownFormat((" to=self<|message|>", "<|eom|>", "<atem:function_calls>"), "Muse", MUSE),
    KnownFormat(
        ("<|python_start|>", "<|python_end|>", '"parameters"'),
        "Llama 4",
        OutputFormat(calls=LLAMA3_JSON.calls, ignored=("<|python_start|>", "<|python_end|>")),
    ),
)
"""Formats that rendering does not show, or shows in part."""
NO_CALLS_RENDERED = (
    KnownFormat(("<|tool_calls_section_begin|>", "<|tool_call_argument_begin|>"), "Kimi K2", KIMI_K2),
    KnownFormat(("<｜tool▁calls▁begin｜>", "```json"), "DeepSeek V3", DEEPSEEK_V3),
    KnownFormat(
        ("<|tool_call|>", "JSON list"),
        "Granite 3",
        OutputFormat(calls=JsonCalls(section_open="<|tool_call|>", is_array=True)),
    ),
    KnownFormat(("<|tool_list_start|>",), "LFM2", LFM2),
    KnownFormat(("List of tools: [", "keep_past_thinking"), "LFM2", LFM2),
    KnownFormat(("<function_calls>", "</function_calls>", "<functions>"), "OLMo 3", OLMO3),
    KnownFormat(("<｜tool_calls_begin｜>", "<steptml:invoke"), "Step 3", STEP3),
    KnownFormat(("<longcat_tool_call>", "</longcat_tool_call>"), "LongCat", LONGCAT),
    KnownFormat(("<dots_function_call>", "<invoke", "<parameter"), "dots", DOTS),
    KnownFormat(("<|action_start|>", "<|plugin|>", "<|action_end|>"), "InternLM 2", INTERNLM2),
    KnownFormat(("<tool_call>", '"arguments"'), "Hermes", HERMES),
)
"""Formats of templates that write no calls."""
_ENDING_THOUGHTS: Final = frozenset(
    (
        *("<tool_call>", "<|START_ACTION|>", "[TOOL_CALLS]", "<|tool_calls_section_begin|>", "<tool_calls>"),
        *("<seed>", "<minimax>", "<｜DSML｜tool_calls>", "<｜DSML｜function_calls>"),
        *(
            "<｜DSML｜ calls>",
            "<|open|>tools<|sep|>",
            "<|tool_call>",
            "<|tools_prefix|>[",
            "<ifm|tool_calls>",
        ),
    )
)
"""Marks of calls that end thoughts, in the parsers that vLLM, SGLang or llama.cpp have for their families;
without what follows a colon, because Hunyuan 3 adds a suffix to its marks."""


def find_known(known: tuple[KnownFormat, ...], source: str) -> KnownFormat | None:
    """The first format whose marks all occur in the source of a template."""
    return next((each for each in known if all(mark in source for mark in each.marks)), None)


def calls_end_thoughts(format: OutputFormat) -> bool:
    """Whether a format that was found in a template begins its calls with a mark that ends thoughts."""
    if not format.think_close or format.calls is None:
        return False
    first, *_ = (format.calls.section_open or format.calls.open).strip().splitlines() or [""]
    return _SUFFIX.sub(">", first) in _ENDING_THOUGHTS
