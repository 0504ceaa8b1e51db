"""What happens to connections, put between a client and its server."""

from tests.relay import Disturbance, Json


class Refusing(Disturbance):
    """A server, or something before it, that has no WebSockets."""

    def __init__(self, status: int) -> None:
        self._status = status

    def refusal(self) -> int | None:
        return self._status


class Forgetting(Disturbance):
    """One frame names a parent that never was: the server answers as if it had forgotten."""

    def __init__(self, number: int) -> None:
        self._left = number

    def frame(self, frame: Json) -> Json:
        self._left -= 1
        return frame if self._left else {**frame, "previous_response_id": "resp_forgotten"}


class Cutting(Disturbance):
    """The connection breaks in the middle of an answer: after so many pieces of its text, once."""

    def __init__(self, pieces: int) -> None:
        self._left = pieces

    def cuts_after(self, event: Json) -> bool:
        self._left -= event["type"] == "response.output_text.delta"
        return event["type"] == "response.output_text.delta" and not self._left
