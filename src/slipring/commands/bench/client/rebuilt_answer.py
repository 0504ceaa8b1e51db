"""An answer of another API as the events of a response, which is how the bench measures and checks answers.

Each piece that arrives becomes the events that the Responses API has for it. Nothing is added that did not
arrive but the beginnings and ends of items.
"""

from typing import Any, Literal

from slipring.commands.bench.client.exchange import Event

_Kind = Literal["message", "function_call", "reasoning"]


class RebuiltAnswer:
    """Collects the events of one answer. ``take`` returns those since the last call."""

    def __init__(self) -> None:
        self._events: list[Event] = []
        self._numbers = 0
        self._id = ""
        self._items: list[dict[str, Any]] = []
        self._open: dict[str, Any] | None = None
        self._text = ""
        """What has arrived of the open item."""
        self.has_ended = False

    def take(self) -> list[Event]:
        taken, self._events = self._events, []
        return taken

    @property
    def open_kind(self) -> str | None:
        return None if self._open is None else str(self._open["type"])

    def begin(self, answer_id: str) -> None:
        self._id = answer_id
        for kind in ("response.created", "response.in_progress"):
            self._emit(kind, response={"id": answer_id, "output": []})

    def text(self, piece: str) -> None:
        """A piece of the answer's text."""
        if self.open_kind != "message":
            self._start({"type": "message", "role": "assistant", "content": []})
            self._emit("response.content_part.added", content_index=0, part=_part(""))
        self._text += piece
        self._emit("response.output_text.delta", content_index=0, delta=piece)

    def thought(self, piece: str) -> None:
        if self.open_kind != "reasoning":
            self._start({"type": "reasoning", "summary": []})
        self._text += piece

    def sign(self, signature: str) -> None:
        """The seal of the thought that is open."""
        if self._open is not None:
            self._open["encrypted_content"] = signature

    def call(self, call_id: str, name: str) -> None:
        """A call begins."""
        self._start({"type": "function_call", "call_id": call_id, "name": name, "arguments": ""})

    def arguments(self, piece: str) -> None:
        self._text += piece
        self._emit("response.function_call_arguments.delta", delta=piece)

    def close(self) -> None:
        """End the open item."""
        item, self._open = self._open, None
        if item is None:
            return
        if item["type"] == "message":
            item["content"] = [_part(self._text)]
            self._emit("response.output_text.done", content_index=0, text=self._text)
            self._emit("response.content_part.done", content_index=0, part=_part(self._text))
        elif item["type"] == "function_call":
            item["arguments"] = self._text
            self._emit("response.function_call_arguments.done", arguments=self._text)
        else:
            item["content"] = [{"type": "reasoning_text", "text": self._text}]
        self._emit("response.output_item.done", item=item)
        self._items.append(item)
        self._text = ""

    def end(self, *, is_cut: bool, read: int, cached: int, written: int, thought: int) -> None:
        """The answer is complete; the numbers are tokens."""
        self.close()
        self.has_ended = True
        kind = "incomplete" if is_cut else "completed"
        response = {
            "id": self._id,
            "status": kind,
            "output": self._items,
            "previous_response_id": None,
            "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
            "usage": {
                "input_tokens": read,
                "input_tokens_details": {"cached_tokens": cached},
                "output_tokens": written,
                "output_tokens_details": {"reasoning_tokens": thought},
            },
        }
        self._emit(f"response.{kind}", response=response)

    def _start(self, item: dict[str, Any]) -> None:
        self.close()
        self._open = {"id": f"item_{len(self._items)}", **item}
        self._emit("response.output_item.added", item=dict(self._open))

    def _emit(self, kind: str, **fields: Any) -> None:
        event: Event = {"type": kind, "sequence_number": self._numbers, **fields}
        if "response" not in fields:
            event |= {"output_index": len(self._items), "item_id": f"item_{len(self._items)}"}
        self._numbers += 1
        self._events.append(event)


def _part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": []}
