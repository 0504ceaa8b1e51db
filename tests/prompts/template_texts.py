"""Chat templates in the styles of several model families, and a vocabulary with all their control tokens."""

from functools import cache
from typing import Any

from slipring.prompts.templates.probed_template import ModelTemplate
from slipring.prompts.templates.template_renderer import TemplateRenderer
from slipring.prompts.tokenization.tokenizer import Tokenizer
from tests.prompts.vocabulary import small_metadata, smollm2, smollm2_metadata

CHATML = """\
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}
        {{- messages[0].content + '\\n\\n' }}
    {%- endif %}
    {{- 'Tools, to be called within <tool_call>:' }}
    {%- for tool in tools %}
        {{- '\\n' }}{{ tool | tojson }}
    {%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'tool' %}
        {{- '<|im_start|>user\\n<tool_response>\\n' + message.content + '\\n</tool_response><|im_end|>\\n' }}
    {%- elif message.role == 'assistant' %}
        {{- '<|im_start|>assistant\\n' }}
        {%- generation %}
        {{- message.content }}
        {%- for call in message.tool_calls or [] %}
            {{- '\\n<tool_call>\\n{"name": ' }}{{ call.function.name | tojson }}{{ ', "arguments": ' }}
            {{- call.function.arguments | tojson }}{{ '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>' }}
        {%- endgeneration %}
        {{- '\\n' }}
    {%- elif not loop.first or message.role != 'system' %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""

HEADERS = """\
{{- bos_token }}
{%- if tools %}
{{- '<|start_header_id|>system<|end_header_id|>\\n\\nAnswer with {"name": …, "parameters": …}.\\n' }}
{%- for tool in tools %}{{ tool.function | tojson(indent=2) }}{% endfor %}
{{- '<|eot_id|>' }}
{%- endif %}
{%- for message in messages %}
    {%- set role = 'ipython' if message.role == 'tool' else message.role %}
    {{- '<|start_header_id|>' + role + '<|end_header_id|>\\n\\n' + message.content | trim }}
    {%- for call in message.tool_calls or [] %}
        {{- '{"name": "' + call.function.name + '", "parameters": ' }}{{ call.function.arguments | tojson }}}
    {%- endfor %}
    {{- '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""

THINKING = """\
{%- if tools %}{{ '<|im_start|>system\\n' }}{{ tools | tojson }}{{ '<|im_end|>\\n' }}{% endif %}
{%- set ns = namespace(last=-1) %}
{%- for message in messages %}
    {%- if message.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role == 'tool' %}
        {%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{ '<|im_start|>user' }}{% endif %}
        {{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{ '<|im_end|>\\n' }}{% endif %}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\\n' }}
        {%- if message.reasoning_content is string and loop.index0 > ns.last %}
            {{- '<think>\\n' + message.reasoning_content.strip('\\n') + '\\n</think>\\n\\n' }}
        {%- endif %}
        {{- message.content }}
        {%- for call in message.tool_calls or [] %}
            {{- '<tool_call>' + call.function.name + '\\n' }}
            {%- if call.function.arguments is string %}
                {{- call.function.arguments }}
            {%- else %}
                {%- for key, value in call.function.arguments.items() %}
                    {{- '<' + key + '>' + (value if value is string else value | tojson) + '</' + key + '>' }}
                {%- endfor %}
            {%- endif %}
            {{- '</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}
"""

MOVING = """\
{{- bos_token }}
{%- set ns = namespace(last=-1) %}
{%- for message in messages if message.role == 'user' %}{% set ns.last = ns.last + 1 %}{% endfor %}
{%- set count = namespace(users=-1) %}
{%- for message in messages %}
    {%- if message.role == 'user' %}
        {%- set count.users = count.users + 1 %}
        {%- if tools and count.users == ns.last %}
            {{- '[AVAILABLE_TOOLS]' }}{{ tools | tojson }}{{ '[/AVAILABLE_TOOLS]' }}
        {%- endif %}
        {{- '[INST]' + message.content + '[/INST]' }}
    {%- elif message.role == 'system' %}
        {{- '[INST]' + message.content + '[/INST]' }}
    {%- elif message.role == 'tool' %}
        {%- if message.tool_call_id | length != 9 %}{{ raise_exception('ids have nine letters') }}{% endif %}
        {{- '[TOOL_RESULTS]' }}
        {{- {'content': message.content, 'call_id': message.tool_call_id} | tojson }}
        {{- '[/TOOL_RESULTS]' }}
    {%- elif message.tool_calls %}
        {{- '[TOOL_CALLS][' }}
        {%- for call in message.tool_calls %}
            {{- call.function | tojson }}{{ ', ' if not loop.last }}
        {%- endfor %}
        {{- ']' + eos_token }}
    {%- else %}
        {{- message.content + eos_token }}
    {%- endif %}
{%- endfor %}
"""

PLAIN = """\
{%- for message in messages %}{{ '### ' + message.role + ':\\n' + message.content + '\\n\\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '### assistant:\\n' }}{% endif %}
"""
"""Without control tokens: nothing can be appended."""

STRICT = """\
{%- for message in messages %}
    {%- if message.role not in ('user', 'assistant') %}
        {{- raise_exception('There are users and assistants, and no ' + message.role + '.') }}
    {%- elif (message.role == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('Conversation roles must alternate.') }}
    {%- endif %}
    {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}
"""

FOLDING = """\
{{- bos_token }}
{%- set lead, rest = '', messages %}
{%- if messages[0].role == 'system' %}
    {%- set lead, rest = messages[0].content + '\\n\\n', messages[1:] %}
{%- endif %}
{%- for message in rest %}
    {{- '<|im_start|>' + ('model' if message.role == 'assistant' else message.role) + '\\n' }}
    {{- (lead if loop.first else '') + message.content | trim }}
    {%- if message.tool_calls %}{{ message.tool_calls }}{% endif %}
    {%- if not loop.last %}{{ '<|im_end|>\\n' }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_end|>\\n<|im_start|>model\\n' }}{% endif %}
"""
"""Writes the system text with the first message, calls as Python's ``repr``; leaves the last message open."""

LAST = """\
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' }}
    {%- if message.role == 'assistant' and loop.last or message.reasoning_content %}
        {{- '<think>\\n' + (message.reasoning_content or '') + '\\n</think>\\n\\n' }}
    {%- endif %}
    {{- message.content }}
    {%- for call in message.tool_calls or [] %}{{ '<tool_call>' }}{{ call | tojson }}{% endfor %}
    {{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}
"""
"""Writes a thought in the last answer, even an empty one."""

SPECIAL = (
    "<|begin_of_text|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
    "<|python_tag|>",
    "[INST]",
    "[/INST]",
    "[AVAILABLE_TOOLS]",
    "[/AVAILABLE_TOOLS]",
    "[TOOL_CALLS]",
    "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]",
    "</s>",
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
)
"""Control tokens of these templates that SmolLM2 does not have."""


@cache
def everything() -> Tokenizer:
    """SmolLM2's vocabulary with all control tokens that the templates write."""
    metadata = dict(smollm2_metadata())
    tokens = [*metadata["tokenizer.ggml.tokens"], *SPECIAL]
    metadata["tokenizer.ggml.tokens"] = tokens
    metadata["tokenizer.ggml.token_type"] = [*metadata["tokenizer.ggml.token_type"], *(3 for _ in SPECIAL)]
    return Tokenizer.from_gguf(metadata)


@cache
def odd() -> Tokenizer:
    """The small vocabulary, in which a plain word is a control token."""
    return Tokenizer.from_gguf(small_metadata())


TEMPLATES: dict[str, tuple[str, Any]] = {
    "chatml": (CHATML, everything),
    "chatml in odd": (CHATML, odd),
    "headers": (HEADERS, everything),
    "thinking": (THINKING, everything),
    "thinking in smollm2": (THINKING, smollm2),
    "moving": (MOVING, everything),
    "plain": (PLAIN, everything),
    "strict": (STRICT, everything),
    "folding": (FOLDING, everything),
    "last": (LAST, everything),
    "smollm2": (smollm2_metadata()["tokenizer.chat_template"], smollm2),
}


@cache
def template_renderer(name: str) -> TemplateRenderer:
    source, vocabulary = TEMPLATES[name]
    bos, eos = ("<|begin_of_text|>", "<|eot_id|>") if name == "headers" else ("", "<|im_end|>")
    if name == "moving":
        bos, eos = "<|endoftext|>", "</s>"
    return TemplateRenderer(ModelTemplate(source=source, bos_token=bos, eos_token=eos), vocabulary())
