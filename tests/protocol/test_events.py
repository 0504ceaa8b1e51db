"""Events: errors, and the logprobs of text."""

from slipring.base.errors import RateLimited, ServerError
from slipring.protocol import wire
from slipring.protocol.events import Error, ErrorBody, EventLogprob, EventTopLogprob
from slipring.protocol.responses import Logprob, TopLogprob


def test_an_error_event_is_numbered_zero_and_names_its_lane() -> None:
    error = Error.of(RateLimited("Wait."), "lane")
    assert (error.sequence_number, error.stream_id, error.status) == (0, "lane", 429)
    assert b"stream_id" not in wire.encode(Error.of(RateLimited("Wait.")))


def test_an_error_without_a_delay_has_no_headers() -> None:
    assert b"headers" not in wire.encode(ErrorBody.of(ServerError("Gone.")))


def test_the_delay_of_an_error_is_rounded_up_to_whole_seconds() -> None:
    error = RateLimited("Wait.", retry_after_s=1.2)
    assert ErrorBody.of(error).headers == {"retry-after": "2"}


def test_the_logprobs_of_an_event_have_no_bytes() -> None:
    logprob = Logprob("a", -0.5, [97], [TopLogprob("b", -1.5, [98])])
    assert EventLogprob.of(logprob) == EventLogprob("a", -0.5, [EventTopLogprob("b", -1.5)])
