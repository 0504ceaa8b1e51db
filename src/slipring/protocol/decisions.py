"""The Decisions API: its requests, what a model is asked, and the answers that its tokens give.

A request has questions about one input. One response reads the input, and each question continues that
response. The options of a question have labels that begin with different letters: the model is asked for one
of them, and the probabilities of the first token of its answer are those of the options.

What is not supported is refused by name; unknown fields pass. ``input`` and ``questions`` stay raw until
their length is known: decoding a huge list would block the event loop.
"""

import math
import re
from collections.abc import Sequence
from string import ascii_uppercase
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, structs

from slipring.base.errors import InvalidRequest, UnsupportedParameter
from slipring.protocol import wire
from slipring.protocol.endpoints.translation import ErrorReply, Translation
from slipring.protocol.events import Completed, Error, Event, Failed, Incomplete, ResponseEvent
from slipring.protocol.requests import (
    NOTHING_KNOWN,
    CreateRequest,
    Known,
    PatternedRequest,
    PromptCacheOptions,
    ReasoningConfig,
)
from slipring.protocol.responses import InputTokensDetails, Logprob, OutputTokensDetails, Response, Usage
from slipring.protocol.tools.client_tools import ImageDetail

MOST_QUESTIONS = 400
MOST_OPTIONS = 20
"""Choices or levels of a question. The API allows 255 choices; the probabilities are read from the most
likely tokens of an engine, of which servers name 20."""
_MOST_LOGPROBS = 20
_MOST_ITEMS = 20_000
_MOST_JSON_BYTES = 256 * 1024
_MOST_VALUES = 10_000
_MOST_LEVELS = 32
_ITEM_TYPES = frozenset(
    {"message", "function_call", "function_call_output", "custom_tool_call", "custom_tool_call_output"}
)
_NOTHING = (b"[]", b'""')
INSTRUCTIONS = (
    "You are asked questions about the input that follows. Judge each question by the input alone, and "
    "answer with one of its labels and nothing else."
)
_YES_NO = ("Yes", "No")
_BY_LETTER = "Answer with the letter of one of them, and nothing else."
LANES = 8
"""Questions that are asked at once."""
_LOGPROBS = "message.output_text.logprobs"
_MOST_TOKENS = 8
"""Of an answer: a label, and white space before it."""
_BLOCKED = "invalid_prompt"
_TOO_LONG = "context_length_exceeded"
_NO_ANSWER = (
    "Invalid 'model': it thinks before it answers, so that no probabilities can be read of its first token."
)
_DECLINED = wire.raw(
    {"type": "message", "content": [{"type": "refusal", "refusal": ""}], "role": "assistant", "id": "msg_"}
)


class QuestionText(Struct, tag_field="type", tag="input_text"):
    text: str


class QuestionImage(Struct, tag_field="type", tag="input_image"):
    image_url: str
    detail: ImageDetail | None = None


class QuestionJson(Struct, tag_field="type", tag="input_json"):
    data: Raw


Part = QuestionText | QuestionImage | QuestionJson


class ChoiceOption(Struct):
    """One of the choices of a question."""

    value: str | bool
    description: str | None = None


class ScoreLevel(Struct):
    """One of the levels of a question, which are ordered."""

    label: str
    description: str | None = None


class PredicateQuestion(Struct, tag_field="type", tag="predicate"):
    """How likely is it that a statement is true?"""

    instructions: str | list[Part]
    name: str | None = None


class ChoiceQuestion(Struct, tag_field="type", tag="choice"):
    """Which of several options is it?"""

    instructions: str | list[Part]
    choices: Annotated[list[ChoiceOption], Meta(min_length=2, max_length=MOST_OPTIONS)]
    name: str | None = None


class ScoreQuestion(Struct, tag_field="type", tag="score"):
    """Where on a scale is it?"""

    instructions: str | list[Part]
    levels: Annotated[list[ScoreLevel], Meta(min_length=2, max_length=MOST_OPTIONS)]
    name: str | None = None


Asked = PredicateQuestion | ChoiceQuestion | ScoreQuestion


class DecisionRequest(Struct):
    """Questions about one input."""

    input: Raw
    questions: Raw
    model: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_options: PromptCacheOptions | None = None
    safety_identifier: Annotated[str, Meta(max_length=128)] | None = None


class _Item(Struct):
    type: str = "message"
    call_id: object = None


_request = msgspec.json.Decoder(DecisionRequest)
_raw_list = msgspec.json.Decoder(list[Raw])
_asked: msgspec.json.Decoder[Asked] = msgspec.json.Decoder(Asked)
_item = msgspec.json.Decoder(_Item)
_fields = msgspec.json.Decoder(dict[str, Raw])
_json_part = msgspec.json.Decoder(QuestionJson)
_any = msgspec.json.Decoder()


def read_request(body: bytes) -> DecisionRequest:
    """Decode a request; errors name the field."""
    return wire.decode(_request, wire.require_text(body))


def read_questions(sent: Raw) -> list[Asked]:
    """Decode ``questions``; errors name the question."""
    wire.require_few(sent, MOST_QUESTIONS, "questions", "questions")
    entries = wire.decode(_raw_list, sent, where="questions")
    if not entries:
        raise InvalidRequest.at("questions", "there is none")
    if len(entries) > MOST_QUESTIONS:
        raise wire.too_many(MOST_QUESTIONS, "questions", "questions")
    asked = [wire.decode(_asked, entry, where=f"questions[{index}]") for index, entry in enumerate(entries)]
    for index, question in enumerate(asked):
        _require_words(question, f"questions[{index}]")
    return asked


def _require_words(question: Asked, where: str) -> None:
    """Refuse a question that asks nothing, or whose options cannot be told apart."""
    instructions = question.instructions
    texts = (
        [instructions]
        if isinstance(instructions, str)
        else [getattr(each, "text", "…") for each in instructions]
    )
    if not any(map(str.strip, texts)):
        raise wire.missing(f"{where}.instructions")
    if isinstance(question, PredicateQuestion):
        return
    if isinstance(question, ChoiceQuestion):
        place, field, options = "choices", "value", [each.value for each in question.choices]
    else:
        place, field, options = "levels", "label", [each.label for each in question.levels]
    for index, option in enumerate(options):
        if isinstance(option, str) and not option.strip():
            raise InvalidRequest.at(f"{where}.{place}[{index}].{field}", "it is empty")
    if len({(type(option), option) for option in options}) < len(options):
        raise InvalidRequest.at(f"{where}.{place}", f"a {field} occurs twice")


def read_input(sent: Raw) -> Raw:
    """``input`` as the Responses API takes it: with text for ``input_json``."""
    if bytes(sent) in _NOTHING:
        raise wire.missing("input")
    if not bytes(sent).startswith(b"["):
        return sent
    wire.require_few(sent, _MOST_ITEMS, "input", "items")
    entries = wire.decode(_raw_list, sent, where="input")
    open_calls: dict[object, None] = {}
    read = [_read_item(entry, f"input[{index}]", open_calls) for index, entry in enumerate(entries)]
    if open_calls:
        raise InvalidRequest(
            f"No tool output found for function call {next(iter(open_calls))}.", param="input"
        )
    return wire.raw(read)


def _read_item(entry: Raw, where: str, open_calls: dict[object, None]) -> Raw:
    """An item as the Responses API takes it. ``open_calls``: the ids of calls that have no output so far."""
    item_type = wire.decode(_item, entry, where=where)
    kind = item_type.type
    if isinstance(item_type.call_id, str):
        if kind.endswith("_call"):
            open_calls[item_type.call_id] = None
        else:
            open_calls.pop(item_type.call_id, None)
    if kind not in _ITEM_TYPES:
        raise InvalidRequest.at(
            f"{where}.type", f"'{kind[:64]}' is no item of an input for decisions", code="invalid_value"
        )
    if b'"input_json"' not in bytes(entry):
        return entry
    item = wire.decode(_fields, entry, where=where)
    parts = item.get("content", Raw(b"null"))
    if not bytes(parts).startswith(b"["):
        return entry
    wire.require_few(parts, _MOST_ITEMS, f"{where}.content", "parts")
    content = wire.decode(_raw_list, parts, where=f"{where}.content")
    written = [_read_part(part, f"{where}.content[{index}]") for index, part in enumerate(content)]
    return wire.raw({**item, "content": written})


def _read_part(part: Raw, where: str) -> Raw:
    if wire.decode(_item, part, where=where).type != "input_json":
        return part
    text = json_text(wire.decode(_json_part, part, where=where).data, f"{where}.data")
    return wire.raw({"type": "input_text", "text": text})


def json_text(data: Raw, where: str) -> str:
    """What a model reads of JSON: an object, or an array of objects."""
    wire.require_short(data, where, _MOST_JSON_BYTES)
    value = wire.decode(_any, data, where=where)
    entries = value if isinstance(value, list) else [value]
    if not all(isinstance(entry, dict) for entry in entries):
        raise InvalidRequest.at(where, "expected an object, or an array of objects", code="invalid_type")
    if _is_large(value):
        raise InvalidRequest.at(where, f"more than {_MOST_LEVELS} levels or {_MOST_VALUES} values")
    return wire.encode(value).decode()


def _is_large(value: object) -> bool:
    """Whether JSON has too many levels or values."""
    level, count = [value], 0
    for _ in range(_MOST_LEVELS + 1):
        count += len(level)
        inner: list[object] = []
        for each in level:
            if isinstance(each, dict | list):
                inner += each.values() if isinstance(each, dict) else each
        if count + len(inner) > _MOST_VALUES:
            return True
        level = inner
    return bool(level)


class Question(Struct, frozen=True):
    """A question with the labels of its options."""

    asked: Asked
    labels: tuple[str, ...]
    content: Raw
    """The content of the message that asks it."""

    @property
    def pattern(self) -> str:
        """What an answer has to match."""
        return "|".join(map(re.escape, self.labels))

    def message(self) -> Raw:
        """The ``input`` of the turn that asks it."""
        return wire.raw([{"type": "message", "role": "user", "content": self.content}])


def question_of(asked: Asked, where: str) -> Question:
    """A question of a request; ``where`` is its place there."""
    if isinstance(asked, PredicateQuestion):
        rest = "Is this true of the input? Answer Yes or No, and nothing else."
        return Question(asked, _YES_NO, _content(asked.instructions, rest, where))
    if isinstance(asked, ChoiceQuestion):
        named = [(_named(each.value), each.description) for each in asked.choices]
        lead = "The options are:"
    else:
        named = [(each.label, each.description) for each in asked.levels]
        lead = "The levels are, from the lowest to the highest:"
    labels = tuple(ascii_uppercase[: len(named)])
    lines = [
        f"{label}. {name}: {description}" if description else f"{label}. {name}"
        for label, (name, description) in zip(labels, named, strict=True)
    ]
    rest = "\n".join((lead, *lines, _BY_LETTER))
    return Question(asked, labels, _content(asked.instructions, rest, where))


def _named(value: str | bool) -> str:
    return value if isinstance(value, str) else str(value).lower()


def _content(instructions: str | list[Part], rest: str, where: str) -> Raw:
    if isinstance(instructions, str):
        return wire.raw(f"{instructions}\n\n{rest}")
    parts = [_written(part, f"{where}.instructions[{index}]") for index, part in enumerate(instructions)]
    return wire.raw([*parts, {"type": "input_text", "text": rest}])


def _written(part: Part, where: str) -> dict[str, str]:
    if isinstance(part, QuestionImage):
        return {"type": "input_image", "image_url": part.image_url, "detail": part.detail or "auto"}
    text = json_text(part.data, f"{where}.data") if isinstance(part, QuestionJson) else part.text
    return {"type": "input_text", "text": text}


class PredicateAnswer(Struct, tag_field="type", tag="predicate"):
    name: str | None
    probability: float


class OptionProbability(Struct):
    value: str | bool
    probability: float


class ChoiceAnswer(Struct, tag_field="type", tag="choice"):
    name: str | None
    choice: str | bool
    confidence: float
    """The probability of ``choice``."""
    probabilities: list[OptionProbability]


class LevelProbability(Struct):
    value: int
    """The index of the level."""
    label: str
    probability: float


class ScoreAnswer(Struct, tag_field="type", tag="score"):
    name: str | None
    score: float
    """The expected index."""
    confidence: float
    """The probability of the most likely level."""
    probabilities: list[LevelProbability]


class RefusalAnswer(Struct, tag_field="type", tag="refusal"):
    """The model has not answered with one of the labels, or a safety check has blocked the question."""

    name: str | None


Answer = PredicateAnswer | ChoiceAnswer | ScoreAnswer | RefusalAnswer


class Decision(Struct):
    model: str
    answers: list[Answer]
    usage: Usage


class _Part(Struct):
    type: str
    text: str = ""
    logprobs: list[Logprob] = []


class _Output(Struct):
    type: str
    content: list[_Part] = []


_output = msgspec.json.Decoder(_Output)


def has_answer(response: Response) -> bool:
    """Whether a model has begun an answer, or refused one, instead of writing thoughts alone."""
    return any(part.type in ("output_text", "refusal") for part in _parts(response))


def _parts(response: Response) -> list[_Part]:
    return [part for raw in response.output for part in _output.decode(raw).content]


def probabilities(labels: Sequence[str], logprobs: Sequence[Logprob]) -> list[float] | None:
    """The probabilities of labels, by the first token of an answer that is not white space; None if that is
    none of them. A label that is not among the most likely tokens has none."""
    first = next((each for each in logprobs if each.token.strip()), None)
    if first is None:
        return None
    likely = {first.token: first.logprob} | {each.token: each.logprob for each in first.top_logprobs}
    weights = dict.fromkeys(labels, 0.0)
    for token, logprob in likely.items():
        if (label := _label(labels, token.strip())) is not None:
            weights[label] += math.exp(min(logprob, 0.0))
    total = sum(weights.values())
    return [weight / total for weight in weights.values()] if total else None


def _label(labels: Sequence[str], token: str) -> str | None:
    """The label that a token is, or that only it begins with: some vocabularies split words."""
    fitting = [label for label in labels if token and label.lower().startswith(token.lower())]
    return fitting[0] if len(fitting) == 1 else None


def answer_to(asked: Asked, labels: Sequence[str], response: Response) -> Answer:
    """The answer that a response has given to a question with these labels."""
    found = probabilities(labels, [each for part in _parts(response) for each in part.logprobs])
    if found is None:
        return RefusalAnswer(asked.name)
    if isinstance(asked, PredicateQuestion):
        return PredicateAnswer(asked.name, found[0])
    best = max(range(len(found)), key=found.__getitem__)
    if isinstance(asked, ChoiceQuestion):
        options = [
            OptionProbability(option.value, probability)
            for option, probability in zip(asked.choices, found, strict=True)
        ]
        return ChoiceAnswer(asked.name, asked.choices[best].value, found[best], options)
    levels = [
        LevelProbability(index, level.label, probability)
        for index, (level, probability) in enumerate(zip(asked.levels, found, strict=True))
    ]
    expected = sum(each.value * each.probability for each in levels)
    return ScoreAnswer(asked.name, expected, found[best], levels)


class DecisionTranslation(Translation):
    """Translates one request and its answers. ``read`` comes first."""

    def __init__(self, lanes: int = LANES) -> None:
        self._lanes = lanes
        self._questions: list[Question] = []
        self._prompt: Usage | None = None
        self._ended: dict[int, list[Response]] = {}
        """By lane: its responses, in the order of its questions."""

    def read(self, body: bytes, known: Known = NOTHING_KNOWN) -> CreateRequest:
        """The create request of the turn that processes the input. Raises ``ApiError``."""
        sent = read_request(body)
        asked = read_questions(sent.questions)
        self._questions = [question_of(each, f"questions[{index}]") for index, each in enumerate(asked)]
        return PatternedRequest(
            model=sent.model,
            input=read_input(sent.input),
            instructions=INSTRUCTIONS,
            reasoning=ReasoningConfig("none"),
            include=[_LOGPROBS],
            top_logprobs=_MOST_LOGPROBS,
            store=False,
            prompt_cache_key=sent.prompt_cache_key,
            prompt_cache_options=sent.prompt_cache_options,
            safety_identifier=sent.safety_identifier,
        )

    def prefilled(self, prompt: Usage | None) -> None:
        """The input was processed by a job with this usage."""
        self._prompt = prompt if prompt is not None and prompt.input_tokens else None

    def forks(self, request: CreateRequest, first_id: str) -> list[CreateRequest]:
        """The create requests of all questions. Those on one lane follow each other."""
        assert isinstance(request, PatternedRequest)
        return [
            structs.replace(
                request,
                generate=None,
                previous_response_id=first_id,
                stream_id=str(index % self._lanes),
                input=question.message(),
                answer_pattern=question.pattern,
                max_output_tokens=_MOST_TOKENS,
            )
            for index, question in enumerate(self._questions)
        ]

    def judged(self, event: Event, first: Response) -> Event:
        """An event of a question. One that a safety check has blocked is a refusal, so that the others are
        answered. One without an answer ends the request: it would not be true that the model has declined."""
        if isinstance(event, Error):
            if event.error.code != _BLOCKED:
                return self._named(event)
            return _declined(event, structs.replace(first, usage=None))
        if isinstance(event, Failed):
            error = event.response.error
            return _declined(event, event.response) if error is not None and error.code == _BLOCKED else event
        if isinstance(event, Incomplete):
            details = event.response.incomplete_details
            if details is not None and details.reason == "content_filter":
                return _declined(event, event.response)
        if isinstance(event, Completed | Incomplete) and not has_answer(event.response):
            return Error.of(UnsupportedParameter(_NO_ANSWER, param="model"))
        return event

    def _named(self, event: Error) -> Error:
        """A refusal of a question that names it."""
        lane, body = event.stream_id, event.error
        if lane is UNSET or body.param is None or not body.param.startswith("input"):
            return event
        index = int(lane) + self._lanes * len(self._ended.get(int(lane), ()))
        place = f"questions[{index}].instructions"
        message = body.message if body.code == _TOO_LONG else body.message.replace(body.param, place)
        renamed = structs.replace(body, message=message, param=place)
        return structs.replace(event, error=renamed)

    def ends(self, event: ResponseEvent) -> bool:
        if isinstance(event, Failed):
            return True
        lane = event.stream_id
        assert lane is not UNSET, "the response that reads the input is not passed on"
        self._ended.setdefault(int(lane), []).append(event.response)
        return sum(map(len, self._ended.values())) == len(self._questions)

    def body(self, response: Response) -> Decision:
        answers: list[Answer] = []
        for index, question in enumerate(self._questions):
            turn, lane = divmod(index, self._lanes)
            answers.append(answer_to(question.asked, question.labels, self._ended[lane][turn]))
        used = [each.usage for responses in self._ended.values() for each in responses]
        return Decision(response.model, answers, _total([each for each in used if each], self._prompt))

    def error(self, error: Error) -> ErrorReply:
        body = error.error
        if body.param in ("include", "top_logprobs"):
            # The request has none of these: what it names is a model that cannot decide.
            body = structs.replace(
                body, message="Invalid 'model': this model does not return logprobs.", param="model"
            )
        if body.code == _TOO_LONG:
            # There is no such field here.
            body = structs.replace(body, message=body.message.replace(", or set truncation to 'auto'", ""))
        return super().error(structs.replace(error, error=body))


def _declined(event: Event, response: Response) -> Completed:
    refused = structs.replace(response, status="completed", error=None, output=[Raw(bytes(_DECLINED))])
    return Completed(sequence_number=0, stream_id=event.stream_id, response=refused)


def _total(used: Sequence[Usage], prompt: Usage | None) -> Usage:
    """The tokens of a request. ``prompt``: of the job that processed the input for all questions, if one has:
    each question then adds what it has beside it."""
    shared = prompt.input_tokens if prompt is not None else 0
    read = shared + sum(each.input_tokens - shared for each in used)
    cached = (
        prompt.input_tokens_details.cached_tokens
        if prompt is not None
        else sum(each.input_tokens_details.cached_tokens for each in used)
    )
    written = sum(each.output_tokens for each in used)
    reasoning = sum(each.output_tokens_details.reasoning_tokens for each in used)
    return Usage(
        read,
        InputTokensDetails(cached, read - cached),
        written,
        OutputTokensDetails(reasoning),
        read + written,
    )
