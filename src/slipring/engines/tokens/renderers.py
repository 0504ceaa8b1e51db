"""Chooses the renderer for a model: its own chat template, a built-in one, or a dialect.

A dialect appends without running a template. It is used where it writes exactly what the model's template
writes, or where the operator names it.
"""

import datetime
import logging
import re

from msgspec import structs

from slipring.base.errors import InvalidRequest, StartupError, UnusableModel
from slipring.core.chain.head import Head
from slipring.core.generation import Settings
from slipring.engines.tokens.builtin_templates import NAMES, builtin_template, find_builtin
from slipring.engines.tokens.model_files import ModelInfo
from slipring.engines.tokens.rendering_options import (
    TEMPLATE,
    RenderingOptions,
    keeps_thoughts,
    read_variables,
)
from slipring.prompts.dialects.dialect import CHATML, DIALECTS
from slipring.prompts.dialects.dialect_renderer import DialectRenderer
from slipring.prompts.rendering import Renderer
from slipring.prompts.templates.template_engines import TemplateError
from slipring.prompts.templates.template_renderer import ModelTemplate, TemplateRenderer
from slipring.prompts.tokenization.token_budget import BudgetedEncoder
from slipring.prompts.tokenization.tokenizer import Vocabulary
from slipring.protocol import wire
from slipring.protocol.items import Item, read_item

log = logging.getLogger("slipring")
_CHATML_CONTROL = ("<|im_start|>", "<|im_end|>")
_DEFAULT_SYSTEM = re.compile(r"<\|im_start\|>system\n(.*?)<\|im_end\|>\n", re.DOTALL)


def make_serving_renderer(
    kind: str, options: RenderingOptions, info: ModelInfo, vocabulary: Vocabulary
) -> Renderer:
    """As ``make_renderer``, for an engine that will serve the model: logs if calls will not be understood."""
    renderer = make_renderer(kind, options, info, vocabulary)
    if renderer.output_format.calls is None and not renderer.output_format.is_harmony:
        log.warning(
            "%s: no format of calls was found for the model, so its calls arrive as text (slipring inspect"
            " says more)",
            kind,
        )
    return renderer


def make_renderer(kind: str, options: RenderingOptions, info: ModelInfo, vocabulary: Vocabulary) -> Renderer:
    """Make the renderer that the options name; without a name, the one that suits the model.

    ``kind`` is the engine's, for messages. Raises ``StartupError``, and ``UnusableModel`` if the template is
    missing or cannot be used.
    """
    dialect = options.dialect
    known = (TEMPLATE, *DIALECTS, *NAMES)
    if dialect and dialect not in known:
        raise StartupError(f"--engine {kind}: unknown dialect '{dialect}' (known: {', '.join(known)})")
    if dialect in DIALECTS:
        return DialectRenderer(DIALECTS[dialect], vocabulary)
    builtin = dialect if dialect in NAMES else None if dialect else find_builtin(info, vocabulary)
    source = builtin_template(builtin) if builtin is not None else info.template
    if not source:
        unknown = f", and none is known for its architecture {info.family}" if info.family else ""
        raise UnusableModel(
            f"--engine {kind}: the model has no chat template{unknown}: its calls would not be understood;"
            " name its dialect with dialect="
        )
    model = ModelTemplate(
        source=source,
        bos_token=info.bos,
        eos_token=info.eos,
        stop_ids=info.stop_ids,
        response_template=info.response_template,
    )
    try:
        renderer = TemplateRenderer(
            model,
            vocabulary,
            today=datetime.date.today(),
            variables=read_variables(kind, options),
            keeps_thoughts=keeps_thoughts(kind, options),
        )
    except TemplateError as error:
        raise UnusableModel(f"--engine {kind}: the model's chat template cannot be used: {error}") from None
    return renderer if dialect else _as_dialect(renderer) or renderer


def _as_dialect(renderer: TemplateRenderer) -> DialectRenderer | None:
    """The ChatML dialect, if it writes what the template writes: templates without tools and thoughts do."""
    if (
        not renderer.vocabulary.is_local
        or renderer.detected.writes_tools
        or renderer.detected.format.think_open
        or not all(map(renderer.vocabulary.has_control, _CHATML_CONTROL))
    ):
        return None
    try:
        written = renderer.template.render([{"role": "user", "content": "?"}])
    except InvalidRequest:
        return None
    system = _DEFAULT_SYSTEM.match(written)
    dialect = DialectRenderer(
        structs.replace(CHATML, default_system=system.group(1) if system else ""), renderer.vocabulary
    )
    return (
        dialect if all(_written(dialect, probe) == _written(renderer, probe) for probe in _PROBES) else None
    )


def _written(renderer: Renderer, probe: tuple[Head, tuple[Item, ...]]) -> list[int]:
    head, items = probe
    encoder = BudgetedEncoder(renderer.vocabulary)
    return renderer.open(renderer.start(head, Settings(), items, encoder)).ids()


def _message(role: str, text: str) -> Item:
    return read_item(wire.encode({"type": "message", "role": role, "content": text}), "input")


_SYSTEM, _USER, _ANSWER = _message("system", " S "), _message("user", " U\n"), _message("assistant", " A ")
_PROBES = tuple(
    (head, items)
    for head in (Head(), Head("Be brief.\n"))
    for items in (
        (_USER,),
        (_SYSTEM, _USER),
        (_USER, _SYSTEM, _USER),
        (_USER, _ANSWER, _USER),
        (_SYSTEM, _USER, _USER, _ANSWER, _USER),
    )
)
"""Conversations that both must write with the same tokens."""
