"""Chooses the chat template that writes contexts for a model, its own or a built-in one, by the options of
its engine."""

import datetime
import logging
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

import msgspec

from slipring.base.errors import StartupError, UnusableModel, suggestion
from slipring.engines.addresses_and_options import KEEP, TEMPLATE, RenderingOptions
from slipring.engines.tokens.model_files import ModelInfo
from slipring.prompts.templates.chat_messages import PICTURE_PARTS, PictureForm
from slipring.prompts.templates.jinja_engines import TemplateError
from slipring.prompts.templates.probed_template import ModelTemplate
from slipring.prompts.templates.template_renderer import TemplateRenderer
from slipring.prompts.tokenization.tokenizer import Vocabulary

log = logging.getLogger("slipring")
_PICTURE_TEXTS = {
    "minicpmv": "(<image>./</image>)",
    "minicpmo": "(<image>./</image>)",
    "internvl_chat": "<image>",
}
"""What stands for a picture in the texts of models whose templates take no lists, by architecture."""


def read_variables(kind: str, options: RenderingOptions) -> Mapping[str, Any]:
    """The variables for the template. A value is JSON, or else text."""
    variables: dict[str, Any] = {}
    for pair in filter(None, options.variables.split(";")):
        name, separator, value = pair.partition(":")
        if not separator or not name.isidentifier():
            raise StartupError(
                f"--engine {kind}: option 'variables' is written as name:value;name:value, not '{pair}'"
            )
        try:
            variables[name] = msgspec.json.decode(value)
        except msgspec.DecodeError:
            variables[name] = value
    return variables


def picture_forms(info: ModelInfo) -> Sequence[PictureForm]:
    """The forms in which the template of a model that sees may take pictures."""
    text = _PICTURE_TEXTS.get(info.family)
    return PICTURE_PARTS if text is None else (*PICTURE_PARTS, PictureForm(text=text))


def check_rendering(kind: str, options: RenderingOptions) -> None:
    """Raise ``StartupError`` for options that suit no model. ``kind`` is the engine's, for messages."""
    known = (TEMPLATE, *NAMES)
    if options.dialect and options.dialect not in known:
        raise StartupError(
            f"--engine {kind}: unknown dialect '{options.dialect}'{suggestion(options.dialect, known)}"
            f" (known: {', '.join(known)})"
        )
    read_variables(kind, options)


class NoTemplate(UnusableModel):
    """Nothing says how contexts are written for a model."""


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
        raise NoTemplate(
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
            keeps_thoughts=options.thinking == KEEP or builtin in (CHATML, LLAMA3),
            pictures=pictures,
        )
    except TemplateError as error:
        raise UnusableModel(f"--engine {kind}: the model's chat template cannot be used: {error}") from None


HARMONY, DEEPSEEK_V3_1 = "harmony", "deepseek-v3.1"
DEEPSEEK_V3_2, DEEPSEEK_V4, DEEPSEEK_V4_1 = "deepseek-v3.2", "deepseek-v4", "deepseek-v4.1"
KIMI_K3, CHATML, LLAMA3 = "kimi-k3", "chatml", "llama3"
NAMES = (HARMONY, DEEPSEEK_V3_1, DEEPSEEK_V3_2, DEEPSEEK_V4, DEEPSEEK_V4_1, KIMI_K3, CHATML, LLAMA3)
_FAMILIES = {
    "deepseek_v32": DEEPSEEK_V3_2,
    "deepseek32": DEEPSEEK_V3_2,
    "deepseek_v4": DEEPSEEK_V4,
    "deepseek4": DEEPSEEK_V4,
    "deepseek_v41": DEEPSEEK_V4_1,
    "kimi_k3": KIMI_K3,
    "kimi-k3": KIMI_K3,
    "gpt_oss": HARMONY,
    "gpt-oss": HARMONY,
}
"""Names of architectures in ``config.json`` and in GGUF files, of models that may have no template."""
STOPS = {CHATML: ("<|endoftext|>",), LLAMA3: ("<|eom_id|>", "<|end_of_text|>")}
"""Tokens that end answers besides those that a template writes, for models whose files name none."""


def builtin_template(name: str) -> str:
    """The source of a built-in template."""
    file = f"{name.replace('-', '_').replace('.', '_')}.jinja"
    return (resources.files("slipring.prompts.templates") / "builtin" / file).read_text(encoding="utf-8")


def find_builtin(info: ModelInfo, vocabulary: Vocabulary) -> str | None:
    """The name of the built-in template that a model needs; None if its own will do, or if it has none and
    it is not certain which one it needs: an architecture that is not known may write tokens of a known one
    in another way, and several DeepSeek models that write calls differently have the token ``｜DSML｜``."""
    if "<|channel|>" in info.template and "<|start|>" in info.template and "analysis" in info.template:
        return HARMONY  # its own has one call per message, and no text beside thoughts and calls
    if "<｜tool▁calls▁begin｜>" in info.template and _is_deepseek_v3_1(info.template):
        return DEEPSEEK_V3_1  # its own writes no tools
    if info.template:
        return None
    if info.family:
        return _FAMILIES.get(info.family)
    if all(map(vocabulary.has_control, ("<|open|>", "<|sep|>", "<|end_of_msg|>"))):
        return KIMI_K3
    return HARMONY if all(map(vocabulary.has_control, ("<|channel|>", "<|message|>", "<|call|>"))) else None


def _is_deepseek_v3_1(template: str) -> bool:
    """Whether a template of the family is that of V3.1: the older ones write arguments in fenced blocks."""
    return "tools" not in template and "thinking" in template and "```json" not in template
