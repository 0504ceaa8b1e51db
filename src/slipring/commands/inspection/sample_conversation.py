"""A sample conversation with a tool, rendered turn by turn as an engine renders it.

The answers of the model are written in its own format (``answer_writer``), and their ids are kept as if the
model had emitted them. So what is appended, and why something is not, is what a server would report.
"""

from collections.abc import Iterator, Sequence

from msgspec import Raw, Struct, json

from slipring.base.errors import InvalidRequest
from slipring.core.chain.instructions_and_tools import Head
from slipring.core.chain.state import Carry, ResponseState
from slipring.core.generation import (
    CallArguments,
    CallStarted,
    Capabilities,
    Delta,
    Job,
    Model,
    Settings,
    Text,
    Thought,
)
from slipring.core.turn.response_object import new_response
from slipring.engines.tokens.token_answer import Piece, TokenAnswer
from slipring.prompts.parsing.answer_writer import Call, answer_pieces, piece_ids
from slipring.prompts.rendering import Rendered, Renderer, Rendering
from slipring.prompts.tokenization.control_token_guard import ControlTokenFinder
from slipring.prompts.tokenization.tokenizer import Vocabulary
from slipring.protocol import wire
from slipring.protocol.items.items import Item, read_item
from slipring.protocol.requests import CreateRequest
from slipring.protocol.tools.tool_choice import AUTO, Offer
from slipring.protocol.tools.toolset import Toolset

INSTRUCTIONS = "You are a helpful assistant."
QUESTION, NEXT_QUESTION = "What is the weather in Rome?", "And how warm is it?"
THOUGHTS, LAST_THOUGHTS = "I need the weather in Rome.", "The tool says that it is sunny."
CALL = Call("get_weather", {"city": "Rome", "days": 2})
SECOND_CALL = Call("get_weather", {"city": "Rome", "days": 3}, index=1)
OUTPUT, ANSWER = "Sunny, 21 degrees.", "It is sunny in Rome."
_TOOL = {
    "type": "function",
    "name": CALL.name,
    "description": "Tells the weather.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
        "required": ["city"],
    },
}
TOOLS = Toolset.read(Raw(wire.encode([_TOOL])))
_HEAD = Head(INSTRUCTIONS, TOOLS)
_MODEL = Model(name="sample", owner="slipring", capabilities=Capabilities())


class Answer(Struct, frozen=True):
    """What the model answers in a turn."""

    thoughts: str = ""
    text: str = ""
    calls: tuple[Call, ...] = ()

    def items(self) -> tuple[Item, ...]:
        """The answer as items."""
        items: list[Item] = []
        if self.thoughts:
            content = [{"type": "reasoning_text", "text": self.thoughts}]
            items.append(_item("reasoning", id="rs_1", summary=[], content=content))
        if self.text:
            items.append(_item("message", role="assistant", content=self.text))
        for call in self.calls:
            call_id = f"call_{call.index}"
            items.append(_item("function_call", call_id=call_id, name=call.name, arguments=call.json))
        return tuple(items)


class Turn(Struct, frozen=True):
    """A turn: the client's new items, and what the model answers."""

    input: tuple[Item, ...]
    answer: Answer


class Emission(Struct, frozen=True):
    """An answer as the model emits it."""

    text: str
    ids: list[int]


class AnsweredTurn(Struct, frozen=True):
    """A turn that was rendered and answered."""

    job: Job
    rendering: Rendering
    emission: Emission


class ReadAnswer(Struct, frozen=True):
    """An answer as it was parsed."""

    thoughts: str
    text: str
    calls: tuple[tuple[str, str], ...]
    """Names and arguments."""


class Refusal(Exception):
    """The conversation cannot be rendered. The message says why."""


def user(text: str) -> tuple[Item, ...]:
    return (_item("message", role="user", content=text),)


def output(call: Call) -> tuple[Item, ...]:
    return (_item("function_call_output", call_id=f"call_{call.index}", output=OUTPUT),)


def converse(renderer: Renderer, turns: Sequence[Turn], settings: Settings) -> Iterator[AnsweredTurn]:
    """Render a conversation turn by turn. Raises ``Refusal``."""
    parent: ResponseState | None = None
    for number, turn in enumerate(turns):
        job = Job(
            response_id=f"resp_{number}",
            tenant="",
            model=_MODEL,
            head=_HEAD,
            parent=parent,
            input=turn.input,
            offer=Offer(TOOLS.callables),
            settings=settings,
        )
        try:
            rendering = renderer.render(job)
            emission = emit(renderer, rendering.prompt, turn.answer)
        except InvalidRequest as error:
            raise Refusal(error.message) from None
        except KeyError as error:
            raise Refusal(f"the vocabulary has no control token {error.args[0]}") from None
        yield AnsweredTurn(job, rendering, emission)
        parent = ResponseState(
            response=new_response(
                CreateRequest(), _HEAD, AUTO, settings, response_id=job.response_id, model=_MODEL.name, now=0
            ),
            parent=parent,
            head=_HEAD,
            input=turn.input,
            output=turn.answer.items(),
            carry=Carry(),
            position=rendering.with_answer(emission.ids),
        )


def emit(renderer: Renderer, prompt: Rendered, answer: Answer) -> Emission:
    """Write an answer as the model emits it: marks that are control tokens by their ids."""
    format = renderer.output_format
    thoughts = answer.thoughts if format.think_close or format.is_harmony else ""
    pieces = answer_pieces(
        format, thoughts, answer.text, answer.calls, opened_thought=renderer.opens_thought(prompt)
    )
    ids = piece_ids(pieces, renderer.vocabulary, ControlTokenFinder(renderer.vocabulary, ""))
    return Emission("".join(piece.text for piece in pieces), ids)


def read_back(renderer: Renderer, step: AnsweredTurn) -> ReadAnswer:
    """Parse an answer from the ids that the model emits."""
    decoder = TokenAnswer(step.job, step.rendering, renderer)
    deltas = decoder.take(Piece(step.emission.ids, step.emission.text, reason="stop"))
    return _collected([*deltas, *decoder.finish()])


def spell(vocabulary: Vocabulary, ids: Sequence[int]) -> str:
    """The text of ids, control tokens by name."""
    names = control_names(vocabulary)
    pieces = (names[id].encode() if id in names else vocabulary.bytes_of(id) for id in ids)
    return b"".join(pieces).decode("utf-8", "replace")


def control_names(vocabulary: Vocabulary) -> dict[int, str]:
    """The names of control tokens, by id."""
    return {vocabulary.control(name): name for name in vocabulary.control_tokens()}


def same_arguments(call: Call, arguments: str) -> bool:
    """Whether parsed arguments are those of a call."""
    try:
        return bool(json.decode(arguments) == call.values)
    except ValueError:
        return False


def _collected(deltas: Sequence[Delta]) -> ReadAnswer:
    thoughts = text = ""
    calls: list[tuple[str, str]] = []
    for delta in deltas:
        if isinstance(delta, Thought):
            thoughts += delta.text
        elif isinstance(delta, Text):
            text += delta.text
        elif isinstance(delta, CallStarted):
            calls.append((delta.name, ""))
        elif isinstance(delta, CallArguments):
            name, arguments = calls.pop()
            calls.append((name, arguments + delta.text))
    return ReadAnswer(thoughts, text, tuple(calls))


def _item(type: str, **fields: object) -> Item:
    return read_item(wire.encode({"type": type, **fields}), "input")
