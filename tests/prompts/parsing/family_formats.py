"""Output formats of model families, written by hand from the families' chat templates.

slipring finds most of them by rendering a template; those that it knows by name are imported.
"""

from msgspec import structs

from slipring.prompts.parsing.output_format import (
    JsonCalls,
    NamedJsonCalls,
    OutputFormat,
    PythonCalls,
    TaggedCalls,
)
from slipring.prompts.templates.detection.family_formats import DEEPSEEK_V3 as DEEPSEEK_V3
from slipring.prompts.templates.detection.family_formats import DOTS as DOTS
from slipring.prompts.templates.detection.family_formats import FUNCTION_GEMMA as FUNCTION_GEMMA
from slipring.prompts.templates.detection.family_formats import GEMMA4 as GEMMA4
from slipring.prompts.templates.detection.family_formats import HARMONY as HARMONY
from slipring.prompts.templates.detection.family_formats import HERMES as HERMES
from slipring.prompts.templates.detection.family_formats import INTERNLM2 as INTERNLM2
from slipring.prompts.templates.detection.family_formats import KIMI_K2 as KIMI_K2
from slipring.prompts.templates.detection.family_formats import KIMI_K3 as KIMI_K3
from slipring.prompts.templates.detection.family_formats import LFM2 as LFM2
from slipring.prompts.templates.detection.family_formats import LLAMA3_JSON as LLAMA3_JSON
from slipring.prompts.templates.detection.family_formats import LONGCAT as LONGCAT
from slipring.prompts.templates.detection.family_formats import MINIMAX_M3 as MINIMAX_M3
from slipring.prompts.templates.detection.family_formats import MUSE as MUSE
from slipring.prompts.templates.detection.family_formats import OLMO3 as OLMO3
from slipring.prompts.templates.detection.family_formats import PHI4_MINI as PHI4_MINI
from slipring.prompts.templates.detection.family_formats import STEP3 as STEP3

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

K2_HORIZON = OutputFormat(
    calls=TaggedCalls(
        section_open="<ifm|tool_calls>",
        section_close="</ifm|tool_calls>",
        open="<ifm|tool_call>",
        close="</ifm|tool_call>",
        key_open="<ifm|arg_key>",
        key_close="</ifm|arg_key><ifm|arg_value>",
        value_close="</ifm|arg_value>",
    ),
    think_open="<ifm|think>",
    think_close="</ifm|think>",
    calls_end_thoughts=True,
)
"""As GLM, in marks of its own: K2 Horizon."""

PLAMO3 = OutputFormat(
    calls=NamedJsonCalls(
        section_open="<|plamo:begin_tool_requests:plamo|>",
        section_close="<|plamo:end_tool_requests:plamo|>",
        open="<|plamo:begin_tool_request:plamo|><|plamo:begin_tool_name:plamo|>",
        close="<|plamo:end_tool_arguments:plamo|><|plamo:end_tool_request:plamo|>",
        arguments_open="<|plamo:end_tool_name:plamo|><|plamo:begin_tool_arguments:plamo|><|plamo:constrain|>json"
        "<|plamo:msg|>",
    ),
    think_open="<|plamo:begin_think:plamo|>",
    think_close="<|plamo:end_think:plamo|>",
    stops=("<|plamo:tag|>",),
)
"""A name and JSON arguments, each in tags: PLaMo 3."""

PYTHON_LIST = OutputFormat(calls=PythonCalls(is_bare=True))
"""``[f(a=1)]`` without marks: Llama 4, Llama 3.2."""

FORMATS = {name: each for name, each in globals().items() if isinstance(each, OutputFormat)}
"""By name."""
