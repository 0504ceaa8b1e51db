"""Chooses the chat template that writes contexts for a model: its own, or a built-in one."""

import datetime
import logging
from collections.abc import Sequence

from slipring.base.errors import StartupError, UnusableModel
from slipring.base.spelling import suggestion
from slipring.engines.tokens.builtin_templates import (
    CHATML,
    LLAMA3,
    NAMES,
    STOPS,
    builtin_template,
    find_builtin,
)
from slipring.engines.tokens.model_files import ModelInfo
from slipring.engines.tokens.rendering_options import (
    TEMPLATE,
    RenderingOptions,
    keeps_thoughts,
    read_variables,
)
from slipring.prompts.templates.picture_forms import PARTS, PictureForm
from slipring.prompts.templates.probed_template import ModelTemplate
from slipring.prompts.templates.template_engines import TemplateError
from slipring.prompts.templates.template_renderer import TemplateRenderer
from slipring.prompts.tokenization.tokenizer import Vocabulary

log = logging.getLogger("slipring")


_PICTURE_TEXTS = {
    "minicpmv": "(<image>./</image>)",
    "minicpmo": "(<image>./</image>)",
    "internvl_chat": "<image>",
}
"""What stands for a picture in the texts of models whose templates take no lists, by architecture."""


def picture_forms(info: ModelInfo) -> Sequence[PictureForm]:
    """The forms in which the template of a model that sees may take pictures."""
    text = _PICTURE_TEXTS.get(info.family)
    return PARTS if text is None else (*PARTS, PictureForm(text=text))


def check_rendering(kind: str, options: RenderingOptions) -> None:
    """Raise ``StartupError`` for options that suit no model. ``kind`` is the engine's, for messages."""
    known = (TEMPLATE, *NAMES)
    if options.dialect and options.dialect not in known:
        raise StartupError(
            f"--engine {kind}: unknown dialect '{options.dialect}'{suggestion(options.dialect, known)}"
            f" (known: {', '.join(known)})"
        )
    keeps_thoughts(kind, options)
    read_variables(kind, options)


def make_serving_renderer(
    kind: str,
    options: RenderingOptions,
    info: ModelInfo,
    vocabulary: Vocabulary,
    pictures: Sequence[PictureForm] = (),
) -> TemplateRenderer:
    """As ``make_renderer``, for an engine that will serve the model: logs if calls will not be understood."""
    renderer = make_renderer(kind, options, info, vocabulary, pictures)
    if renderer.output_format.calls is None and not renderer.output_format.is_harmony:
        log.warning(
            "%s: no format of calls was found for the model, so its calls arrive as text (slipring inspect"
            " says more)",
            kind,
        )
    return renderer


def make_renderer(
    kind: str,
    options: RenderingOptions,
    info: ModelInfo,
    vocabulary: Vocabulary,
    pictures: Sequence[PictureForm] = (),
) -> TemplateRenderer:
    """Make the renderer that the options name; without a name, the one that suits the model.

    ``kind`` is the engine's, for messages. ``pictures``: the forms in which a model that sees can be given
    pictures. Raises ``StartupError``, and ``UnusableModel`` if the template is
    missing or cannot be used.
    """
    check_rendering(kind, options)
    dialect = options.dialect
    builtin = dialect if dialect in NAMES else None if dialect else find_builtin(info, vocabulary)
    source = builtin_template(builtin) if builtin is not None else info.template
    if not source:
        unknown = f", and none is known for its architecture {info.family}" if info.family else ""
        raise UnusableModel(
            f"--engine {kind}: the model has no chat template{unknown}: its calls would not be understood;"
            " name its dialect with dialect="
        )
    stops = filter(vocabulary.has_control, STOPS.get(builtin or "", ()))
    model = ModelTemplate(
        source=source,
        bos_token=info.bos,
        eos_token=info.eos,
        stop_ids=(*info.stop_ids, *map(vocabulary.control, stops)),
        response_template=info.response_template,
    )
    try:
        return TemplateRenderer(
            model,
            vocabulary,
            today=datetime.date.today(),
            variables=read_variables(kind, options),
            # Those two write no thoughts, and serve models that may think.
            keeps_thoughts=keeps_thoughts(kind, options) or builtin in (CHATML, LLAMA3),
            pictures=pictures,
        )
    except TemplateError as error:
        raise UnusableModel(f"--engine {kind}: the model's chat template cannot be used: {error}") from None
