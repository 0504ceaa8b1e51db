"""Chat templates in the formats of the model families (``families/*.jinja``), and a Jinja2 that renders them.

The templates are short: they write what the family's own template writes around messages, calls and thoughts,
and read the same variables. Their prose is not the family's.
"""

import json
import re
from collections.abc import Mapping, Sequence
from datetime import date
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment

from slipring.prompts.templates.detection.probes import Render

FOLDER = Path(__file__).parent / "families"
NAMES = sorted(path.stem for path in FOLDER.glob("*.jinja"))

_TOKEN = re.compile(
    r"<\|[^<>|\s'{}]+\|>|<｜[^<>｜\s'{}]+｜>|<\|[a-z_]+>|<[a-z_]+\|>|\[/?[A-Z_]+\]|</?(?:tool_call|think)>"
    r"|｜DSML｜|<(?:turn|tool_call|tool_response|channel)\|>|\[e~\[|\]~b\]|\]~!b\[|<\|\"\|>"
    r"|</?(?:arg_key|arg_value|tool_response|seed:[a-z_]+|minimax:tool_call|mm:think)>|<(?:start|end)_of_turn>"
    r"|</?(?:assistant|user|system)>|<extra_id_\d+>|<SPECIAL_\d+>|<sep>|</?s>|<(?:beginning|end)_of_sentence>"
)
"""Control tokens, as far as a template's source shows them."""


def control_tokens_of(source: str) -> list[str]:
    """The control tokens that a template writes, as far as its source shows them."""
    return sorted({*_TOKEN.findall(source)})


def source_of(family: str) -> str:
    return (FOLDER / f"{family}.jinja").read_text()


@cache
def render_with_jinja2(
    source: str, *, bos_token: str = "<s>", eos_token: str = "</s>", today: date | None = None
) -> Render:
    """Compile a template with Jinja2. The function that is returned renders conversations with it. Without
    ``today``, formats of the date are written as they are."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _Generation]
    )
    environment.filters["tojson"] = _to_json
    environment.filters["from_json"] = json.loads
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = today.strftime if today else lambda form: form.replace("%", "")
    template = environment.from_string(source)

    def render(
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        *,
        add_generation_prompt: bool,
        variables: Mapping[str, object],
    ) -> str:
        return template.render(
            messages=messages,
            tools=tools,
            add_generation_prompt=add_generation_prompt,
            bos_token=bos_token,
            eos_token=eos_token,
            **variables,
        )

    return render


class _Generation(jinja2.ext.Extension):
    """The tag ``generation``, which marks training targets and renders its content."""

    tags = {"generation"}  # noqa: RUF012  (Jinja2 reads a set)

    def parse(self, parser: Any) -> Any:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
