"""The vocabulary of the small model that comes as a wheel, and a renderer, for benchmarks that tokenize."""

from typing import Any

from slipring.engines.llama.packaged_model import packaged_model
from slipring.engines.tokens.model_files import read_gguf
from slipring.engines.tokens.template_choice import builtin_template
from slipring.prompts.templates.probed_template import ModelTemplate
from slipring.prompts.templates.template_renderer import TemplateRenderer
from slipring.prompts.tokenization.tokenizer import Tokenizer


def packaged_metadata() -> dict[str, Any]:
    """Return the metadata of the packaged model's GGUF file, as a tokenizer reads it."""
    path = packaged_model()
    if path is None:
        raise RuntimeError("the packaged model is not installed: make install")
    return read_gguf("llama", path)


def chatml_renderer(vocabulary: Tokenizer) -> TemplateRenderer:
    """The renderer that ``dialect=chatml`` makes."""
    return TemplateRenderer(ModelTemplate(source=builtin_template("chatml")), vocabulary)
