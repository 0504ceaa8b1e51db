"""Chooses the renderer for a model: a built-in dialect, or the model's own chat template."""

import datetime

from slipring.engines.tokens.model_files import ModelInfo
from slipring.errors import StartupError
from slipring.prompts.dialects.chatml import ChatMl
from slipring.prompts.dialects.dialect import Dialect
from slipring.prompts.dialects.dialect_renderer import DialectRenderer
from slipring.prompts.dialects.llama3 import Llama3
from slipring.prompts.rendering import Renderer
from slipring.prompts.templates.template_renderer import TemplateRenderer
from slipring.prompts.templates.template_values import TemplateError
from slipring.prompts.tokenization.tokenizer import Vocabulary

_DIALECTS: dict[str, type[Dialect]] = {ChatMl.name: ChatMl, Llama3.name: Llama3}
_TEMPLATE = "template"


def make_renderer(kind: str, dialect: str, info: ModelInfo, vocabulary: Vocabulary) -> Renderer:
    """Make the renderer of the named dialect; without a name, of the dialect whose control tokens are in the
    model's template, or else of the template itself.

    ``kind`` is the engine's, for messages. Raises ``StartupError``.
    """
    known = (*_DIALECTS, _TEMPLATE)
    template = info.template
    if dialect and dialect not in known:
        raise StartupError(f"--engine {kind}: unknown dialect '{dialect}' (known: {', '.join(known)})")
    if not dialect and "<|start_header_id|>" in template:
        dialect = Llama3.name
    elif not dialect and "<|im_start|>" in template:
        dialect = ChatMl.name
    if dialect in _DIALECTS:
        return DialectRenderer(_DIALECTS[dialect](), vocabulary)
    if not template:
        raise StartupError(f"--engine {kind}: the model has no chat template; name its dialect with dialect=")
    try:
        today = datetime.date.today()
        return TemplateRenderer(template, vocabulary, bos_token=info.bos, eos_token=info.eos, today=today)
    except TemplateError as error:
        raise StartupError(f"--engine {kind}: the model's chat template cannot be used: {error}") from None
