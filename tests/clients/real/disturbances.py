"""Disturbances of connections between a client and its server."""

from tests.relay import Disturbance, Json


class Refusing(Disturbance):
    """Refuses upgrades, like a server or proxy without WebSockets."""

    def __init__(self, status: int) -> None:
        self._status = status

    def refusal(self) -> int | None:
        return self._status


class Forgetting(Disturbance):
    """Replaces the parent of one frame with an unknown id: the server answers as if it had evicted the
    parent."""

    def __init__(self, number: int) -> None:
        self._left = number

    def frame(self, frame: Json) -> Json:
        self._left -= 1
        return frame if self._left else {**frame, "previous_response_id": "resp_forgotten"}


class Cutting(Disturbance):
    """Breaks the connection once, after some text deltas of an answer."""

    def __init__(self, pieces: int) -> None:
        self._left = pieces

    def cuts_after(self, event: Json) -> bool:
        self._left -= event["type"] == "response.output_text.delta"
        return event["type"] == "response.output_text.delta" and not self._left
