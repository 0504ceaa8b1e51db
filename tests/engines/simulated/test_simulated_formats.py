"""The simulated engine writes calls in the output formats of the model families."""

import datetime
import json
import re
from functools import cache
from typing import Any

import pytest
from msgspec import Raw, structs

from slipring.core.chain.instructions_and_tools import Head
from slipring.core.generation import (
    CallArguments,
    CallEnded,
    CallStarted,
    Capabilities,
    Delta,
    Finished,
    Job,
    Model,
    Prefilled,
    Settings,
    Text,
)
from slipring.engines.constraints.sample_values import SampleDocument
from slipring.engines.simulated.options import SimulatedOptions
from slipring.engines.simulated.plan import Content
from slipring.engines.simulated.tokenized import TokenizedEngine, Wording
from slipring.engines.tokens.token_answer import Piece, TokenAnswer
from slipring.prompts.templates.probed_template import ModelTemplate
from slipring.prompts.templates.template_renderer import TemplateRenderer
from slipring.prompts.tokenization.tokenizer import Tokenizer
from slipring.protocol.items.items import read_item, user_message
from slipring.protocol.tools.tool_choice import Offer
from slipring.protocol.tools.toolset import Toolset
from tests.harness import WEATHER, serve
from tests.prompts.parsing.answers import merged
from tests.prompts.template_texts import PLAIN
from tests.prompts.templates.family_templates import NAMES, source_of
from tests.prompts.vocabulary import smollm2_metadata

pytestmark = pytest.mark.usefixtures("compiled_here")

Json = dict[str, Any]
TOKEN = re.compile(
    r"<\|[^<>|\s']*\|>|<[^<>|\s']+\|>|<\|[a-z_]+>|<｜[^<>]*?｜>|｜DSML｜|\[/?[A-Z_]+\]|\]~!?b\[?\]?|\[e~\["
)
TAGS = (
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "]<]minimax[>[",
    '<|"|>',
    "<seed:eos>",
    "<seed:bos>",
)
TOKENS = 90
DOCUMENT = SampleDocument('{"city":"Rome","days":2}', '{"city":', ',"days":2}')
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city", "days"],
}
FUNCTION = {"type": "function", "name": "weather", "description": "Foresees.", "parameters": PARAMETERS}
CUSTOM = {"type": "custom", "name": "shell", "description": "Runs."}


@cache
def vocabulary() -> Tokenizer:
    """SmolLM2's vocabulary with the control tokens of all families."""
    metadata = dict(smollm2_metadata())
    tokens = list(metadata["tokenizer.ggml.tokens"])
    found = [*TAGS, *(token for family in NAMES for token in TOKEN.findall(source_of(family)))]
    new = [token for token in dict.fromkeys(found) if token not in tokens]
    metadata["tokenizer.ggml.tokens"] = [*tokens, *new]
    metadata["tokenizer.ggml.token_type"] = [*metadata["tokenizer.ggml.token_type"], *(3 for _ in new)]
    return Tokenizer.from_gguf(metadata)


@cache
def renderer_of(family: str) -> TemplateRenderer:
    source = PLAIN if family == "plain" else source_of(family)
    model = ModelTemplate(source=source, bos_token="<|endoftext|>", eos_token="<|im_end|>")
    return TemplateRenderer(model, vocabulary(), today=datetime.date(2026, 1, 2))


def toolset(*tools: Json) -> Toolset:
    return Toolset.read(Raw(json.dumps(tools).encode()))


def job_with(tools: Toolset) -> Job:
    return Job(
        response_id="r",
        tenant="t",
        model=Model(name="simulated", owner="slipring", capabilities=Capabilities()),
        parent=None,
        input=(user_message("hello"),),
        head=Head(tools=tools),
        settings=Settings(),
        offer=Offer(tools=tools.callables),
    )


def answer(
    family: str, tool: Json, calls: int = 1, document: SampleDocument = DOCUMENT
) -> tuple[list[int], list[Delta]]:
    """The ids of an answer, and the deltas that are decoded from them one by one, as the engine does."""
    tools = toolset(tool)
    renderer, job = renderer_of(family), job_with(tools)
    rendering = renderer.render(job)
    wording = Wording(renderer, SimulatedOptions(output_tokens=TOKENS))
    ids = wording.ids(job, rendering.prompt, Content(tools.callables * calls, document), "")
    decoded = TokenAnswer(job, rendering, renderer, trusted=True)
    deltas = [delta for id in ids for delta in decoded.take(Piece([id]))]
    deltas += decoded.finish()
    assert isinstance(deltas[0], Prefilled)
    assert isinstance(deltas[-1], Finished)
    return ids, merged(deltas[1:-1])


@pytest.mark.parametrize("family", NAMES)
def test_calls_of_functions_have_the_configured_length(family: str) -> None:
    expected = 1 if family == "gpt_oss" else 3
    ids, deltas = answer(family, FUNCTION, calls=3)
    assert deltas[::3] == [CallStarted("function", "weather")] * expected
    assert deltas[2::3] == [CallEnded()] * expected
    for call in deltas[1::3]:
        assert isinstance(call, CallArguments)
        arguments = json.loads(call.text)
        assert (arguments["city"].split()[:2], arguments["days"]) == (["This", "this"], 2)
    assert len(ids) == TOKENS * expected


@pytest.mark.parametrize("family", NAMES)
def test_calls_of_functions_without_a_free_string_are_valid(family: str) -> None:
    _, deltas = answer(family, FUNCTION, document=SampleDocument('{"city":"Rome","days":2}'))
    started, arguments, _ = deltas
    assert started == CallStarted("function", "weather")
    assert isinstance(arguments, CallArguments)
    assert json.loads(arguments.text) == {"city": "Rome", "days": 2}


@pytest.mark.parametrize("family", [name for name in NAMES if name != "gpt_oss"])
def test_a_call_ends_before_the_first_token_of_the_next(family: str) -> None:
    """With a grammar and without. Answers of gpt-oss have one call."""
    tools = toolset(FUNCTION)
    renderer, job = renderer_of(family), job_with(tools)
    rendering = renderer.render(job)
    wording = Wording(renderer, SimulatedOptions(output_tokens=TOKENS))
    ids = wording.ids(job, rendering.prompt, Content(tools.callables * 2, DOCUMENT), "")
    for trusted in (False, True):
        decoded = TokenAnswer(job, rendering, renderer, trusted=trusted)
        batches = [decoded.take(Piece([id])) for id in ids]
        ended = next(at for at, deltas in enumerate(batches) if CallEnded() in deltas)
        assert batches[ended][-1] == CallEnded()
        read = renderer.token_bytes.join(ids[: ended + 1]).decode()
        # In arrays and lists the token that ends a call may hold the comma after it.
        assert read.rstrip(", \n").endswith(("}", ")", ">", "|"))
        assert read.count("weather") == 1


@pytest.mark.parametrize("family", NAMES)
def test_custom_tools_get_their_input(family: str) -> None:
    _, (started, arguments, _) = answer(family, CUSTOM)
    assert started == CallStarted("custom", "shell")
    assert isinstance(arguments, CallArguments)
    assert len(arguments.text.split()) == TOKENS


@pytest.mark.parametrize("family", NAMES)
def test_words_have_the_configured_length(family: str) -> None:
    ids, (text,) = answer(family, FUNCTION, calls=0)
    assert isinstance(text, Text)
    assert text.text.startswith("This this is")
    assert len(ids) == TOKENS


def test_a_model_whose_template_writes_no_tools_calls_in_the_form_of_hermes() -> None:
    _, (started, arguments, _) = answer("plain", FUNCTION)
    assert isinstance(started, CallStarted)
    assert isinstance(arguments, CallArguments)


@pytest.mark.parametrize("family", ["qwen3_coder", "kimi_k2", "gpt_oss"])
async def test_a_tool_loop_is_answered_in_the_models_format(family: str) -> None:
    options = SimulatedOptions(tokens_per_s=0, output_tokens=TOKENS, tool_calls=3, parallel_calls=2)
    engine = TokenizedEngine(options, renderer_of(family))
    head = {"tools": [WEATHER], "instructions": "Be brief."}
    history: list[Json] = [{"type": "message", "role": "user", "content": "Rome?"}]
    new, previous, counts = history, {}, []
    async with serve(engine) as server, server.connect() as socket:
        while new:
            response = await socket.response(input=new, **previous, **head)
            calls = [item for item in response["output"] if item["type"] == "function_call"]
            counts.append(len(calls))
            assert response["usage"]["output_tokens"] == TOKENS * max(len(calls), 1)
            assert all(list(json.loads(call["arguments"])) == ["city"] for call in calls)
            new = [
                {"type": "function_call_output", "call_id": call["call_id"], "output": "sunny"}
                for call in calls
            ]
            history = [*history, *response["output"], *new]
            previous = {"previous_response_id": response["id"]}
        assert not server.service.render_fallbacks
        assert counts == ([1, 1, 1, 0] if family == "gpt_oss" else [2, 1, 0])


@pytest.mark.parametrize("family", ["qwen3_coder", "kimi_k2"])
def test_calls_have_the_ids_that_the_template_writes(family: str) -> None:
    renderer, tools = renderer_of(family), toolset(FUNCTION)
    job = job_with(tools)
    prompt = renderer.render(job).prompt
    content = Content(tools.callables * 2, DOCUMENT)
    ids = Wording(renderer, SimulatedOptions(output_tokens=TOKENS)).ids(job, prompt, content, "")
    _, deltas = answer(family, FUNCTION, calls=2)
    calls = [
        read_item(
            json.dumps(
                {"type": "function_call", "call_id": f"c{at}", "name": "weather", "arguments": call.text}
            ).encode(),
            "",
        )
        for at, call in enumerate(deltas)
        if isinstance(call, CallArguments)
    ]
    whole = renderer.render(structs.replace(job, input=(*job.input, *calls))).context.ids()
    starts = range(prompt.total, len(whole))
    assert ids in [
        whole[at : at + len(ids)] for at in starts
    ]  # Kimi's template writes an empty thought before
