"""What odd answers of every family become on a running server, by chain and with the whole history.

A thought quotes a call, marks have no effect, a call follows a thought. Clients must get the same events both
ways, no mark as text and no quoted call; and the model must read the same afterwards, with
``recognised_s=0``, where a resent history is rendered as a whole, and with recognition, where it continues
the chain.
"""

import re
from pathlib import Path
from typing import Any

import pytest

from slipring.core.limits import Limits
from slipring.prompts.parsing.answer_writer import Call
from slipring.prompts.parsing.output_format import OutputFormat
from slipring.prompts.rendering import LOOP_THOUGHTS
from tests.clients.family_server import ASKED_TO_THINK, family_server
from tests.clients.test_families import TOOLS
from tests.engines.fakes.families import Answer, FakeFamilyServer
from tests.harness import Socket, serve
from tests.prompts.parsing.test_marks import closing_marks_of, structure_of
from tests.prompts.parsing.written_calls import written
from tests.prompts.templates.family_renderers import family_renderer
from tests.prompts.templates.family_templates import NAMES

Json = dict[str, Any]
QUOTED, IDEA, TEXT = "So. {} or not.", "Let me see.", "It rains."
CALL = Call("get_weather", {"city": "Rome", "days": 2})
GENERATED = {"id", "item_id", "call_id", "created_at", "completed_at", "response", "logprobs", "obfuscation"}

SPELLED_OTHERWISE = {
    # The fake writes no marks around a text.
    "cohere": (r"<\|(START|END)_TEXT\|>", ""),
    # The fake opens a channel that the prompt has opened.
    "gemma_4": (r"(<\|channel>thought)+", ""),
    # The fake writes the channel before the recipient, the template after it.
    "gpt_oss": (
        r"(assistantto=\.get_weather)?<\|channel\|>commentary(to=\.get_weather<\|\|>)?json",
        "",
    ),
    # The fake closes no message; the template writes a response without content before calls.
    "kimi_k3": (
        r"<\|close\|>message<\|sep\|>|<\|open\|>response<\|sep\|><\|close\|>response<\|sep\|>",
        "",
    ),
    # The fake quotes strings as JSON does, the template as Python does.
    "lfm2_5": ("'", '"'),
}
"""How the fakes of some families spell an answer otherwise than the template, as a pattern and what stands
for it: chains keep what the model wrote."""


def has_marks(format: OutputFormat) -> bool:
    """Whether an answer is one text with marks, not a list of messages."""
    return not (format.is_harmony or format.is_addressed) and format.calls is not None


def answers_of(format: OutputFormat) -> tuple[Answer, ...]:
    """A thought that quotes a call; a call; marks that have no effect."""
    if not has_marks(format):
        return Answer(thoughts="So.", text=TEXT), Answer(thoughts=IDEA, calls=(CALL,)), Answer(text=TEXT)
    quoted = QUOTED.format(written(format, [(CALL.name, CALL.values)]))
    stray = "".join(closing_marks_of(format)) if not getattr(format.calls, "is_bare", False) else ""
    first = Answer(thoughts=quoted, text=TEXT) if format.think_close else Answer(text=TEXT, written=stray)
    return first, Answer(thoughts=IDEA, calls=(CALL,)), Answer(thoughts="So.", text=TEXT, written=stray)


def seen(events: list[Json]) -> list[Any]:
    """What a client sees of a turn, without what is generated for it."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: plain(each) for name, each in value.items() if name not in GENERATED}
        return [plain(each) for each in value] if isinstance(value, list) else value

    return [plain(event) for event in events]


async def play(socket: Socket, effort: Json, *, chained: bool) -> tuple[list[Any], list[Json]]:
    """Three turns: what a client sees, and the items of the answers."""
    history: list[Json] = []
    views, answers = [], list[Json]()
    new: list[Json] = [{"type": "message", "role": "user", "content": "What is the weather?"}]
    parent: Json = {}
    for _ in range(3):
        history += new
        asked = {"input": new, **parent} if chained else {"input": history}
        events = await socket.turn(**asked, tools=TOOLS, store=False, **effort)
        response = events[-1]["response"]
        assert response["status"] == "completed"
        views.append(seen(events))
        parent = {"previous_response_id": response["id"]}
        answers += response["output"]
        history += response["output"]
        calls = [item["call_id"] for item in response["output"] if item["type"] == "function_call"]
        new = [{"type": "function_call_output", "call_id": call, "output": "21"} for call in calls]
        new = new or [{"type": "message", "role": "user", "content": "And then?"}]
    return views, answers


def read_by_the_model(fake: FakeFamilyServer, family: str, prompt: list[int]) -> str:
    """A prompt without marks, white space, and what the family's chains may keep."""
    tokenizer = fake._tokenizer
    names = {tokenizer.control(name): name for name in tokenizer.control_tokens()}
    pieces = (names[id].encode() if id in names else tokenizer.bytes_of(id) for id in prompt)
    text = b"".join(pieces).decode(errors="replace")
    if LOOP_THOUGHTS in family_renderer(family).chain_choices:
        text = text.replace(IDEA, "")
    if has_marks(fake.format):
        for mark in sorted(structure_of(fake.format), key=len, reverse=True):
            text = text.replace(mark, "")
    # Ids of calls are generated, where a template writes them.
    text = re.sub(r"\b[A-Za-z0-9]{9}\b", "", "".join(text.split()))
    pattern, replacement = SPELLED_OTHERWISE.get(family, ("", ""))
    return re.sub(pattern, replacement, text) if pattern else text


@pytest.mark.parametrize("recognised_s", [0, 600])
@pytest.mark.parametrize("family", NAMES)
async def test_a_chain_and_a_resent_history_are_the_same(
    family: str, recognised_s: int, tmp_path: Path
) -> None:
    async with family_server(tmp_path, family) as fake:
        fake.answers.extend(answers_of(fake.format) * 2)
        effort = {"reasoning": ASKED_TO_THINK[family]} if family in ASKED_TO_THINK else {}
        engine = fake.engine(retries=0, structural_tags=False)
        limits = Limits(recognised_s=recognised_s)
        async with serve(engine, limits=limits) as server, server.connect() as socket:
            chained, items = await play(socket, effort, chained=True)
            whole, resent = await play(socket, effort, chained=False)
    assert whole == chained
    assert len(fake.prompts) == 6
    for turn in range(3):
        one, other = fake.prompts[turn], fake.prompts[turn + 3]
        if recognised_s:
            assert other == one
        else:
            assert read_by_the_model(fake, family, other) == read_by_the_model(fake, family, one)
    for found in (items, resent):
        calls = [item for item in found if item["type"] == "function_call"]
        texts = [part["text"] for item in found if item["type"] == "message" for part in item["content"]]
        assert ([item["name"] for item in calls], texts) == ([CALL.name], [TEXT, TEXT])
