"""What becomes of errors of questions."""

import json

from slipring.base.errors import InvalidRequest, ServerError
from slipring.protocol.decisions.translation import DecisionTranslation
from slipring.protocol.events import Error
from tests.protocol.chat_completions.test_answer import response as chat_response

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
