"""An upstream's events: what is decoded of them, and how often."""

import json
from typing import Any

import pytest

from slipring.base.errors import ServerError
from slipring.engines.responses import events
from slipring.engines.responses.events import Event, OtherEvent, decode_event
from tests.engines.fakes.responses import FakeResponsesServer
from tests.engines.fakes.server import Call, Say, Stop, Think, in_front_of


class CountingDecoder:
    """Decodes, and keeps what it was given."""

    def __init__(self, decoder: Any) -> None:
        self._decoder = decoder
        self.payloads: list[Any] = []

    def decode(self, payload: Any) -> Any:
        self.payloads.append(bytes(payload) if not isinstance(payload, str) else payload)
        return self._decoder.decode(payload)


@pytest.mark.parametrize("transport", ["websocket", "sse"])
async def test_each_event_is_decoded_once(transport: str, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, outline = CountingDecoder(events._event), CountingDecoder(events._outline)
    monkeypatch.setattr(events, "_event", whole)
    monkeypatch.setattr(events, "_outline", outline)
    async with in_front_of(FakeResponsesServer(transport)) as (fake, server), server.connect() as socket:
        fake.script(Think(("hm",)), Say(("one", "two")), Call("f", '{"a": 1}'), Stop())
        response = await socket.response(input="go", store=False)
        assert response["status"] == "completed"
    numbers = [json.loads(payload)["sequence_number"] for payload in whole.payloads]
    assert numbers == list(range(len(numbers)))
    assert json.loads(whole.payloads[-1])["type"] == "response.completed"
    assert outline.payloads == []


def test_fields_of_other_types_are_no_error_until_the_event_is_used() -> None:
    other = decode_event('{"type": "response.unknown", "stream_id": "a", "delta": {"x": 1}}')
    assert isinstance(other, OtherEvent)
    assert (other.type, other.stream_id) == ("response.unknown", "a")
    known = decode_event(b'{"type": "response.output_text.delta", "delta": "hi", "more": 1}')
    assert (type(known), known.delta) == (Event, "hi")


@pytest.mark.parametrize("payload", [b"{", b"[]", b"\xff", '{"type": 7}'])
def test_a_payload_that_is_no_event_is_a_server_error(payload: bytes | str) -> None:
    with pytest.raises(ServerError, match="cannot be read"):
        decode_event(payload)
