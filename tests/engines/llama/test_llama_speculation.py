"""Speculation: answers are the same as without, however many tokens llama.cpp accepts at once."""

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from msgspec.json import encode

from slipring.base.errors import PermissionDenied, StartupError
from slipring.core.limits import Limits
from slipring.engines.llama.engine import LlamaEngine
from slipring.engines.llama.options import LlamaOptions, read_options
from slipring.engines.llama.worker_shares import EmbeddedOwner
from tests.engines.llama.test_llama_steering import take_turns
from tests.harness import TERMINAL, serve
from tests.model import SharedModel, loaded
from tests.prompts.gguf_writer import write_tiny_model
from tests.prompts.vocabulary import short_metadata

GREEDY: dict[str, Any] = {"temperature": 0, "max_output_tokens": 240, "store": False}
LINE = "the parser reads the next line of the file and splits it at every comma"
FORCED = {
    "type": "json_schema",
    "name": "note",
    "strict": True,
    "schema": {
        "type": "object",
        "properties": {"first": {"const": LINE}, "again": {"const": LINE}},
        "required": ["first", "again"],
        "additionalProperties": False,
    },
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, SharedModel]]:
    """The same model without speculation and with two kinds of it."""
    path = tmp_path_factory.mktemp("repeating") / "Repeating-Q8_0.gguf"
    write_tiny_model(path, short_metadata(), attends=False)
    with ExitStack() as running:
        yield {
            spec: running.enter_context(loaded(str(path), spec)) for spec in ("", "ngram-simple", "ngram-mod")
        }


async def complete(model: SharedModel, prompt: str) -> tuple[str, int, int]:
    """Returns llama.cpp's answer, and how many of its tokens were drafted and how many accepted."""
    engine = model.engine(slots=1, context=1024)
    async with serve(engine):
        body = encode({"prompt": prompt, "temperature": 0, "n_predict": 400, "cache_prompt": False})
        answer = await engine._api.queries.query("/completion", [body])
        counts = [answer["timings"].get(name, 0) for name in ("draft_n", "draft_n_accepted")]
        return answer["content"], counts[0], counts[1]


def text_of(response: dict[str, Any]) -> str:
    return "".join(part["text"] for item in response["output"] for part in item["content"])


async def conversation(model: SharedModel) -> list[Any]:
    """Answers and token counts of a chain. Its third message begins like the answer, so that drafts are wrong
    where it goes on differently."""
    async with model.serve(slots=1, context=2000) as server, server.connect() as socket:
        first = await socket.response(input="Hello.", **GREEDY)
        words = text_of(first).split(" ")
        misleading = " ".join([*words[:120], *words[60:30:-1]])
        second = await socket.response(
            input=misleading, previous_response_id=first["id"], **{**GREEDY, "max_output_tokens": 101}
        )
        third = await socket.response(
            input="Go on.", previous_response_id=second["id"], **{**GREEDY, "max_output_tokens": 20}
        )
        assert not server.service.render_fallbacks
        return [(text_of(each), each["status"], each["usage"]) for each in (first, second, third)]


async def test_a_chain_is_the_same_as_without_speculation(models: dict[str, SharedModel]) -> None:
    plain, *others = [await conversation(model) for model in models.values()]
    assert others == [plain, plain]
    usage = plain[2][2]
    assert usage["input_tokens_details"]["cached_tokens"] >= plain[1][2]["total_tokens"]
    for spec in ("ngram-simple", "ngram-mod"):
        _, _, accepted = await complete(models[spec], "Hello." + plain[0][0])
        assert accepted > 100


async def test_a_wrong_draft_does_not_change_the_answer(models: dict[str, SharedModel]) -> None:
    text, drafted, _ = await complete(models[""], "Hello.")
    assert not drafted
    words = text.split(" ")
    prompt = " ".join([*words[:20], *("reads the next line" * 20).split(), *words[1:14]])
    expected, _, _ = await complete(models[""], prompt)
    answer, drafted, accepted = await complete(models["ngram-simple"], prompt)
    assert drafted > accepted > 0
    assert answer == expected


async def test_grammars_and_stops_hold_within_a_draft(models: dict[str, SharedModel]) -> None:
    answers = []
    for spec, times in (("", 1), ("ngram-mod", 2)):
        async with models[spec].serve(slots=1, context=1024) as server, server.connect() as socket:
            for _ in range(times):
                answer = await socket.response(
                    input="Write a note.", **GREEDY, text={"format": FORCED}, instructions=LINE
                )
                answers.append((text_of(answer), answer["status"], answer["usage"]["output_tokens"]))
    assert len(set(answers)) == 1
    assert answers[0][0].count(LINE) == 2
    assert answers[0][1] == "completed"


async def test_an_answer_is_steered_within_a_draft(models: dict[str, SharedModel]) -> None:
    engine = models["ngram-mod"].engine(slots=1, context=1024)
    take_turns(engine)
    async with serve(engine, limits=Limits(steer_after_tokens=8)) as server, server.connect() as socket:
        whole = await socket.response(input="Hello.", **GREEDY)
        await socket.create(input="Hello.", **GREEDY)
        target = (await socket.until("response.in_progress"))[-1]["response"]["id"]
        await socket.until("response.output_text.delta")
        await socket.send(type="response.steer", previous_response_id=target, input="Stop.")
        ended = (await socket.until(*TERMINAL))[-1]["response"]
        follows = (await socket.until(*TERMINAL))[-1]["response"]
        assert ended["usage"]["output_tokens"] >= 8
        assert text_of(whole).startswith(text_of(ended))
        assert follows["usage"]["input_tokens_details"]["cached_tokens"] >= ended["usage"]["total_tokens"]
        assert not server.service.render_fallbacks


async def test_the_drafts_of_all_slots_fit_a_batch(models: dict[str, SharedModel]) -> None:
    async with models["ngram-mod"].serve(slots=3, context=1024) as server:
        posts = [server.post(input="Hello.", **GREEDY) for _ in range(3)]
        answers = [answer for _, answer in await asyncio.gather(*posts)]
        assert len({text_of(answer) for answer in answers}) == 1


async def test_logprobs_are_refused(models: dict[str, SharedModel]) -> None:
    async with models["ngram-simple"].serve(slots=1) as server:
        status, answer = await server.post(input="Hello.", top_logprobs=1, **GREEDY)
        assert (status, answer["error"]["param"]) == (400, "top_logprobs")


async def test_a_pool_of_drafts_serves_one_tenant(models: dict[str, SharedModel]) -> None:
    engine = models["ngram-mod"].engine(slots=1, context=1024)
    with pytest.raises(StartupError, match="serves one tenant"):
        async with serve(engine, api_key=("a:one", "b:two")):
            raise AssertionError
    engine._refuse_second_tenant("a")
    with pytest.raises(PermissionDenied):  # its key was created after the start
        engine._refuse_second_tenant("b")
    own = models["ngram-simple"].engine(slots=1, context=1024)
    async with serve(own, api_key=("a:one", "b:two")):
        assert not own.serves_one_tenant


def test_a_pool_of_drafts_is_not_shared_by_workers(models: dict[str, SharedModel]) -> None:
    path = models[""].path
    with pytest.raises(StartupError, match="several workers"):
        EmbeddedOwner(LlamaOptions(model=path, spec="ngram-mod"), path, 1024, users=2)


@pytest.mark.parametrize(
    ("text", "why"),
    [("spec=ngram", "must be ngram-simple, "), ("http://127.0.0.1:1,spec=ngram-mod", "embedded engine only")],
)
def test_unknown_speculation_is_refused(text: str, why: str) -> None:
    with pytest.raises(StartupError, match=why):
        LlamaEngine(read_options(text))
