"""Output formats of model families, written by hand from the families' chat templates.

``format_detection`` finds most of these in a template. The constants serve the built-in dialects, models
whose template does not show its format, and tests.
"""

import re
from typing import Final

from msgspec import structs

from slipring.prompts.parsing.output_format import (
    BracedCalls,
    JsonCalls,
    NamedJsonCalls,
    NestedTagCalls,
    OutputFormat,
    PythonCalls,
    TaggedCalls,
)

_APERTUS: Final = "<|tools_prefix|>["
"""Begins the calls of Apertus, which makes them within its thoughts."""
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

BARE_JSON = OutputFormat(calls=JsonCalls(is_bare=True))
"""``{"name": …, "arguments": …}`` without marks."""

MISTRAL_NEMO = OutputFormat(calls=JsonCalls(section_open="[TOOL_CALLS]", is_array=True, id_key="id"))
"""``[TOOL_CALLS][{"name": …, "arguments": …, "id": …}]``: Mistral up to Nemo and Small 3.1."""

NEMOTRON_NANO_2 = OutputFormat(
    calls=JsonCalls(section_open="<TOOLCALL>", section_close="</TOOLCALL>", is_array=True),
    think_open="<think>\n",
    think_close="</think>",
)
"""``<TOOLCALL>[{"name": …, "arguments": …}]</TOOLCALL>``: Nemotron Nano 2."""

COHERE = OutputFormat(
    calls=JsonCalls(
        section_open="<|START_ACTION|>",
        section_close="<|END_ACTION|>",
        is_array=True,
        name_key="tool_name",
        arguments_key="parameters",
        id_key="tool_call_id",
    ),
    think_open="<|START_THINKING|>",
    think_close="<|END_THINKING|>",
    calls_end_thoughts=True,
    ignored=("<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>"),
)
"""``<|START_ACTION|>[{"tool_call_id": …, "tool_name": …, "parameters": …}]<|END_ACTION|>``: Cohere."""

MISTRAL = OutputFormat(
    calls=NamedJsonCalls(open="[TOOL_CALLS]", arguments_open="[ARGS]"),
    think_open="[THINK]",
    think_close="[/THINK]",
    calls_end_thoughts=True,
)
"""``[TOOL_CALLS]f[ARGS]{…}``: Devstral, Magistral, Ministral 3."""

MISTRAL_CALL_ID = OutputFormat(
    calls=NamedJsonCalls(open="[TOOL_CALLS]", id_separator="[CALL_ID]", arguments_open="[ARGS]")
)
"""``[TOOL_CALLS]f[CALL_ID]id[ARGS]{…}``: Mistral Small 3.2."""

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

DEEPSEEK_V3_1 = OutputFormat(
    calls=NamedJsonCalls(
        section_open="<｜tool▁calls▁begin｜>",
        section_close="<｜tool▁calls▁end｜>",
        open="<｜tool▁call▁begin｜>",
        close="<｜tool▁call▁end｜>",
        arguments_open="<｜tool▁sep｜>",
    ),
    think_open="<think>",
    think_close="</think>",
)
"""``<｜tool▁call▁begin｜>f<｜tool▁sep｜>{…}<｜tool▁call▁end｜>``: DeepSeek V3.1."""

FUNCTIONARY = OutputFormat(calls=NamedJsonCalls(open="<function=", arguments_open=">", close="</function>"))
"""``<function=f>{…}</function>``: Functionary 3.1, Llama 3.1 with custom calls."""

QWEN3_CODER = OutputFormat(
    calls=TaggedCalls(
        open="<tool_call>\n",
        close="</tool_call>",
        between="\n",
        name_open="<function=",
        name_close=">\n",
        arguments_close="</function>\n",
        key_open="<parameter=",
        key_close=">\n",
        value_close="\n</parameter>\n",
    )
)
"""``<tool_call><function=f><parameter=k>v</parameter></function></tool_call>``: Qwen3-Coder."""

QWEN3_5 = OutputFormat(
    calls=QWEN3_CODER.calls,
    think_open="<think>\n",
    think_close="\n</think>\n\n",
    calls_end_thoughts=True,
)
"""Qwen3-Coder's calls, with thoughts: Qwen3.5 and later, Nemotron 3, Step 3.5."""

SEED_OSS = OutputFormat(
    calls=TaggedCalls(
        open="<seed:tool_call>\n",
        close="</seed:tool_call>",
        between="\n",
        name_open="<function=",
        name_close=">\n",
        arguments_close="</function>\n",
        key_open="<parameter=",
        key_close=">",
        value_close="</parameter>\n",
    ),
    think_open="<seed:think>",
    think_close="</seed:think>",
    calls_end_thoughts=True,
)
"""Qwen3-Coder's calls in marks of their own: Seed-OSS."""

MINICPM5 = OutputFormat(
    calls=TaggedCalls(
        name_open='<function name="',
        name_close='">',
        arguments_close="</function>",
        key_open='<param name="',
        key_close='">',
        value_close="</param>",
        has_cdata=True,
    ),
    think_open="<think>\n",
    think_close="\n</think>\n\n",
)
"""``<function name="f"><param name="k">v</param></function>``: MiniCPM5."""

GLM = OutputFormat(
    calls=TaggedCalls(
        open="<tool_call>",
        close="</tool_call>",
        between="\n",
        name_close="\n",
        key_open="<arg_key>",
        key_close="</arg_key>\n<arg_value>",
        value_close="</arg_value>\n",
    ),
    think_open="<think>",
    think_close="</think>",
    calls_end_thoughts=True,
)
"""``<tool_call>f<arg_key>k</arg_key><arg_value>v</arg_value></tool_call>``, by lines: GLM-4.5, GLM-4.6."""

GLM_4_7 = OutputFormat(
    calls=TaggedCalls(
        open="<tool_call>",
        close="</tool_call>",
        key_open="<arg_key>",
        key_close="</arg_key><arg_value>",
        value_close="</arg_value>",
    ),
    think_open="<think>",
    think_close="</think>",
    calls_end_thoughts=True,
)
"""As GLM-4.6 without line breaks: GLM-4.7, GLM-5, Laguna."""

HUNYUAN3 = OutputFormat(
    calls=TaggedCalls(
        section_open="<tool_calls>\n",
        section_close="</tool_calls>",
        open="<tool_call>",
        close="</tool_call>\n",
        name_close="<tool_sep>\n",
        key_open="<arg_key>",
        key_close="</arg_key>\n<arg_value>",
        value_close="</arg_value>\n",
    ),
    think_open="<think>",
    think_close="</think>",
    calls_end_thoughts=True,
)
"""GLM's arguments in a section, with a mark after the name: Hunyuan 3."""

MINIMAX_M2 = OutputFormat(
    calls=TaggedCalls(
        section_open="\n<minimax:tool_call>\n",
        section_close="</minimax:tool_call>",
        name_open='<invoke name="',
        name_close='">\n',
        arguments_close="</invoke>\n",
        key_open='<parameter name="',
        key_close='">',
        value_close="</parameter>\n",
    ),
    think_open="<think>\n",
    think_close="\n</think>\n\n",
    calls_end_thoughts=True,
)
"""``<minimax:tool_call><invoke name="f"><parameter name="k">v</parameter></invoke>``: MiniMax M2."""

_DSML = TaggedCalls(
    section_open="\n\n<｜DSML｜tool_calls>\n",
    section_close="</｜DSML｜tool_calls>",
    name_open='<｜DSML｜invoke name="',
    name_close='">\n',
    arguments_close="</｜DSML｜invoke>\n",
    key_open='<｜DSML｜parameter name="',
    string_attribute='" string="true"',
    json_attribute='" string="false"',
    key_close=">",
    value_close="</｜DSML｜parameter>\n",
)

DEEPSEEK_V4 = OutputFormat(calls=_DSML, think_open="<think>", think_close="</think>", calls_end_thoughts=True)
"""``<｜DSML｜invoke name="f">`` and ``<｜DSML｜parameter name="k" string="true">``: DeepSeek V4."""

DEEPSEEK_V3_2 = structs.replace(
    DEEPSEEK_V4,
    calls=structs.replace(
        _DSML,
        section_open="\n\n<｜DSML｜function_calls>\n",
        section_close="</｜DSML｜function_calls>",
    ),
)
"""As DeepSeek V4, with another name of the section: DeepSeek V3.2."""

DEEPSEEK_V4_1 = structs.replace(
    DEEPSEEK_V4,
    calls=structs.replace(
        _DSML,
        section_open="\n\n<｜DSML｜ calls>\n",
        section_close="</｜DSML｜ calls>",
        name_open='<｜DSML｜ invoke name="',
        arguments_close="</｜DSML｜ invoke>\n",
        key_open='<｜DSML｜ parameter name="',
        value_close="</｜DSML｜ parameter>\n",
    ),
)
"""As DeepSeek V4, with blanks before the names of tags: DeepSeek V4.1."""

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
)
"""Trees of tags, each after ``]<]minimax[>[``: MiniMax M3."""

LFM2 = OutputFormat(
    calls=PythonCalls(section_open="<|tool_call_start|>", section_close="<|tool_call_end|>"),
    think_open="<think>",
    think_close="</think>",
)
"""``<|tool_call_start|>[f(a=1)]<|tool_call_end|>``: LFM2, LFM2.5."""

PYTHON_LIST = OutputFormat(calls=PythonCalls(is_bare=True))
"""``[f(a=1)]`` without marks: Llama 4, Llama 3.2."""

GEMMA4 = OutputFormat(
    calls=BracedCalls(open="<|tool_call>", close="<tool_call|>"),
    think_open="<|channel>thought\n",
    think_close="<channel|>",
    calls_end_thoughts=True,
)
"""``<|tool_call>call:f{k:<|"|>v<|"|>}<tool_call|>``: Gemma 4."""

FUNCTION_GEMMA = OutputFormat(
    calls=BracedCalls(open="<start_function_call>", close="<end_function_call>", quote="<escape>")
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

_ENDING_THOUGHTS = (
    *(HERMES, COHERE, MISTRAL, KIMI_K2, QWEN3_5, SEED_OSS, GLM, HUNYUAN3, MINIMAX_M2, DEEPSEEK_V4),
    *(DEEPSEEK_V3_2, DEEPSEEK_V4_1, KIMI_K3, GEMMA4),
)


def calls_end_thoughts(format: OutputFormat) -> bool:
    """Whether a format that was found in a template begins its calls with a mark that ends thoughts, in the
    parsers that vLLM, SGLang or llama.cpp have for the family."""
    marks = {_APERTUS, *map(_first_mark, _ENDING_THOUGHTS)}
    return bool(format.think_close) and _first_mark(format) in marks


def _first_mark(format: OutputFormat) -> str:
    """The mark that begins calls; without the suffix that Hunyuan 3 adds to its marks."""
    if format.calls is None:
        return ""
    mark = (format.calls.section_open or format.calls.open).strip()
    return _SUFFIX.sub(">", mark.splitlines()[0]) if mark else ""
