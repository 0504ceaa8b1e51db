"""One request of the Decisions API: one response reads its input, and each question continues that one."""

from collections.abc import Sequence

from msgspec import UNSET, Raw, structs

from slipring.base.errors import UnsupportedParameter
from slipring.protocol import wire
from slipring.protocol.decisions.answers import Answer, Decision, answer_to, has_answer
from slipring.protocol.decisions.questions import INSTRUCTIONS, Question, question_of
from slipring.protocol.decisions.requests import read_input, read_questions, read_request
from slipring.protocol.endpoints.translated_messages import NOTHING_KNOWN, Known
from slipring.protocol.endpoints.translation import ErrorReply, Translation
from slipring.protocol.events import Completed, Error, Event, Failed, Incomplete, ResponseEvent
from slipring.protocol.requests import CreateRequest, PatternedRequest, ReasoningConfig
from slipring.protocol.responses import InputTokensDetails, OutputTokensDetails, Response, Usage

LANES = 8
"""Questions that are asked at once."""
_LOGPROBS = "message.output_text.logprobs"
_MOST_LOGPROBS = 20
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
