"""The packaged model answers with the sampling of its model card, unless a request says otherwise."""

from slipring.engines.llama.engine import LlamaEngine
from slipring.engines.llama.options import LlamaOptions
from slipring.engines.llama.packaged_model import PACKAGED_MAX_OUTPUT_TOKENS
from tests.model import ServeModel


async def test_recommended_sampling_is_used_and_shown(smollm2: ServeModel) -> None:
    async with smollm2() as server, server.connect() as socket:
        plain = await socket.response(input="Hello!", max_output_tokens=4)
        assert (plain["temperature"], plain["top_p"]) == (0.2, 0.9)
        greedy = await socket.response(input="Hello!", max_output_tokens=4, temperature=0, top_p=1)
        assert (greedy["temperature"], greedy["top_p"]) == (0, 1)


def test_answers_of_the_packaged_model_are_bounded() -> None:
    (model,) = LlamaEngine(LlamaOptions(slots=1, context=512)).models()
    assert model.defaults.max_output_tokens == PACKAGED_MAX_OUTPUT_TOKENS
