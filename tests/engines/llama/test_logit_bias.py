"""Biases of tokens, by a real llama-server."""

from tests.chat_api import Chat
from tests.harness import serve
from tests.model import SharedModel


async def test_a_bias_decides_what_the_model_says(tiny_model: SharedModel) -> None:
    engine = tiny_model.engine(slots=1, context=256)
    async with serve(engine) as server:
        chat = Chat(server)
        (wanted,) = engine.renderer.vocabulary.encode("the")
        plain = await chat.message(max_tokens=6, temperature=0)
        biased = await chat.message(max_tokens=6, temperature=0, logit_bias={str(wanted): 100})
        assert biased["content"] == "the" * 6 != plain["content"]
        size = engine.renderer.vocabulary.size
        assert size is not None
        status, error = await chat.error(logit_bias={str(size): 1})
        assert (status, error["param"]) == (400, "logit_bias")
        assert str(size) in error["message"]
