"""What becomes of errors of questions."""

import json

from msgspec import structs

from slipring.base.errors import ContextLengthExceeded, InvalidRequest, ServerError
from slipring.protocol.decisions import DecisionTranslation
from slipring.protocol.events import Error, Incomplete
from slipring.protocol.responses import IncompleteDetails
from slipring.protocol.wire import encode
from tests.protocol.chat_completions.test_completion import response as chat_response
from tests.protocol.chat_completions.test_completion import text

BODY = {"input": "x", "questions": [{"type": "predicate", "instructions": "It is so."}] * 3}


def test_an_error_names_its_question_if_it_has_one() -> None:
    translation = DecisionTranslation(2)
    translation.read(json.dumps(BODY).encode())
    first = chat_response()
    wrong = InvalidRequest("Invalid 'input[0].content'.", param="input[0].content")
    for lane, param in (("1", "questions[1].instructions"), (None, "input[0].content")):
        named = translation.judged(Error.of(wrong, lane), first)
        assert isinstance(named, Error)
        assert named.error.param == param
        assert param in named.error.message
    other = Error.of(ServerError("It broke."), "0")
    assert translation.judged(other, first) is other


def test_a_question_that_is_too_long_is_not_advised_to_truncate() -> None:
    translation = DecisionTranslation(2)
    translation.read(json.dumps(BODY).encode())
    named = translation.judged(Error.of(ContextLengthExceeded(20, 10), "0"), chat_response())
    assert isinstance(named, Error)
    assert named.error.param == "questions[0].instructions"
    body = json.loads(encode(translation.error(named).body))
    assert "your input resulted in" in body["error"]["message"]
    assert "truncation" not in body["error"]["message"]


def test_an_answer_at_the_bound_on_its_tokens_is_one() -> None:
    translation = DecisionTranslation(2)
    translation.read(json.dumps(BODY).encode())
    details = IncompleteDetails.of("max_output_tokens")
    for items, is_answered in ((chat_response(text("Yes")), True), (chat_response(), False)):
        cut = structs.replace(items, status="incomplete", incomplete_details=details)
        event = Incomplete(sequence_number=7, response=cut)
        judged = translation.judged(event, chat_response())
        assert (judged is event) == is_answered
        assert isinstance(judged, Error) != is_answered
