"""Assembles tool calls from pieces that servers interleave, and emits one call after the other.

The first call that is not over is emitted as it comes; later ones are held back. A call is over when its
arguments are a complete JSON object, which nothing but white space can follow, or when the answer ends. An
empty object is certain only once another call or text has begun: some servers send one before the arguments,
which then replace it.

Servers number and name calls in many ways. A piece that has a name belongs to a further call if its id or its
name is another, or if the arguments are complete. A piece without a name never does: some servers change the
id of a call after its first piece. Pieces that belong to no call for certain fail the answer: a call is
never made up.
"""

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import UNSET, Struct

from slipring.base.errors import ServerError
from slipring.core.generation import CallArguments, CallEnded, CallStarted, Delta
from slipring.engines.chat.chunks import CallPiece, number_of, text_of
from slipring.engines.chat.returned_fields import NONE, ReturnedFields, kept
from slipring.prompts.parsing.calls.json_scanner import JsonScanner
from slipring.protocol.tools import CallableTool

_LONGEST_NAME = 256


class _Input(Struct):
    """The arguments of a custom tool's call."""

    input: str


_object = msgspec.json.Decoder(dict[str, msgspec.Raw])
_input = msgspec.json.Decoder(_Input | str)


def _named(value: Any) -> int | str | None:
    """What a server names a call by: a text or a whole number. Anything else names none."""
    return value if isinstance(value, str) else number_of(value)


class _Call:
    """One call and how much of it has been emitted."""

    __slots__ = (
        *("_scanner", "emitted", "id", "is_certain", "is_complete", "is_over", "is_started", "name"),
        *("pieces", "returned", "tool"),
    )

    def __init__(self, id: str | float) -> None:
        self.id = id
        self.name = ""
        self.tool: CallableTool | None = None
        self.returned = NONE
        """What the server wants back with the call."""
        self.pieces: list[str] = []
        self.emitted = 0
        """How many pieces of the arguments have been emitted."""
        self.is_started = self.is_over = False
        self.is_complete = False
        """Whether the arguments are a complete JSON object."""
        self.is_certain = False
        """Whether no other arguments can follow."""
        self._scanner = JsonScanner("{")

    @property
    def is_function(self) -> bool:
        """Whether arguments are emitted piece by piece: for functions and searches for tools."""
        return self.tool is None or self.tool.kind != "custom"

    @property
    def emittable(self) -> int:
        """How many pieces may be emitted: not the end of an empty object that others may replace."""
        return len(self.pieces) - (self.is_complete and not self.is_certain and not self.is_over)

    def add(self, text: str) -> None:
        """Add a piece of the arguments."""
        if self.is_complete and not self.is_certain and text.strip():
            self._restart()
            text = text.lstrip().removeprefix("{")
        self.pieces.append(text)
        scanner = self._scanner
        if not scanner.complete:
            scanner.feed(text)
            if not scanner.complete:
                return
            try:
                self.is_certain = bool(_object.decode("".join(self.pieces)))
            except (ValueError, RecursionError):
                return
            self.is_complete = True
            if not self.is_certain:
                self.pieces, self.emitted = ["{", "}"], min(self.emitted, 1)
        elif text.strip():
            self.is_complete = False

    def _restart(self) -> None:
        """Begin the arguments again, after an empty object whose end was held back."""
        self.pieces, self.is_complete = ["{"], False
        self._scanner = JsonScanner("{")
        self._scanner.feed("{")


class CallAssembly:
    """The calls of one answer: takes pieces, returns deltas."""

    def __init__(self, names: Mapping[str, CallableTool]) -> None:
        """``names``: the tools that were sent, by the names that the model uses."""
        self._names = names
        self._calls: list[_Call] = []
        self._at: dict[float | str, _Call] = {}
        self._current = 0
        self._growing: _Call | None = None
        """The last call, if its arguments are emitted as they come."""

    @property
    def any(self) -> bool:
        return bool(self._calls)

    @property
    def returned(self) -> tuple[ReturnedFields, ...]:
        """What the server wants back with each call."""
        return tuple(call.returned for call in self._calls)

    @property
    def are_complete(self) -> bool:
        """Whether every call that has begun has its arguments."""
        return all(call.is_over or call.is_complete for call in self._calls)

    def take(self, piece: CallPiece) -> list[Delta]:
        """Add a piece. Returns the deltas that can be emitted."""
        function, growing = piece.function, self._growing
        if (
            growing is not None
            and function is not None
            and not function.name
            and type(piece.index) in (int, str)
            and self._at.get(piece.index) is growing
            and not growing.is_complete
            and piece.extra_content is UNSET
            and type(text := function.arguments) is str
        ):
            # The hot path, once per token of a call: more arguments of the call that is being emitted.
            if not text:
                return []
            growing.add(text)
            if growing.is_complete:
                return self._advance()
            growing.emitted += 1
            return [CallArguments(text)]
        piece.index, piece.id = _named(piece.index), _named(piece.id)
        name, text = (text_of(function.name), function.arguments_json) if function is not None else ("", "")
        call = self._find(piece, name, text)
        if call is None:
            return []
        if piece.extra_content is not UNSET or piece.provider_specific_fields is not UNSET:
            call.returned = call.returned.updated(
                ReturnedFields(kept(piece.extra_content), kept(piece.provider_specific_fields))
            )
        # A name comes before the arguments: whole or in pieces, and some servers repeat it.
        if name and not call.pieces and not (call.name in self._names and name == call.name):
            call.name += name
        if call.is_over and text.strip():
            raise ServerError("The engine's calls cannot be told apart.")
        if text and not call.is_over:
            call.add(text)
        return self._advance()

    def settle(self) -> tuple[bool, list[Delta]]:
        """End all calls if they are complete, so that text may follow: whether they are, and the deltas."""
        if not self.are_complete:
            return False, []
        return True, self.finish(cut_off=False)

    def finish(self, *, cut_off: bool) -> list[Delta]:
        """End all calls. ``cut_off``: the answer hit a limit, so that the last call may be incomplete."""
        deltas: list[Delta] = []
        for call in self._calls[self._current :]:
            if not call.name and not call.pieces and cut_off:
                continue
            self._emit(call, deltas)
            self._end(call, deltas, cut_off=cut_off)
        self._current = len(self._calls)
        self._growing = None
        return deltas

    def _find(self, piece: CallPiece, name: str, text: str) -> _Call | None:
        """The call that a piece belongs to, perhaps a new one; None if it repeats a call as a whole."""
        call = self._candidate(piece)
        if call is not None and self._is_of_another_call(call, piece, name):
            if piece.id and piece.id == call.id and name == call.name and text == "".join(call.pieces):
                return None
            call = None
        if call is None:
            call = _Call(piece.id or "")
            self._calls.append(call)
        if piece.index is not None:
            self._at[piece.index] = call
        return call

    def _candidate(self, piece: CallPiece) -> _Call | None:
        """The call that a piece may belong to: by its index, else by its id, else the last one."""
        if piece.index is not None:
            return self._at.get(piece.index)
        if piece.id:
            return next((call for call in reversed(self._calls) if call.id == piece.id), None)
        return self._calls[-1] if self._calls else None

    def _is_of_another_call(self, call: _Call, piece: CallPiece, name: str) -> bool:
        """Whether a piece begins a call, although a server gives it the place of another."""
        if not name:
            return False
        if piece.id and call.id and piece.id != call.id:
            return True
        if call.pieces:
            return call.is_complete or name != call.name
        # No arguments yet: the name may come in pieces, or the first call may have none.
        names = self._names
        return name != call.name and call.name in names and name in names and call.name + name not in names

    def _advance(self) -> list[Delta]:
        deltas: list[Delta] = []
        self._growing = None
        while self._current < len(self._calls):
            call = self._calls[self._current]
            self._emit(call, deltas)
            is_last = self._current == len(self._calls) - 1
            if not (call.is_certain if is_last else call.is_complete):
                self._growing = call if is_last and call.is_started and call.is_function else None
                break
            self._end(call, deltas, cut_off=False)
            self._current += 1
        return deltas

    def _emit(self, call: _Call, deltas: list[Delta]) -> None:
        """Emit the new pieces of the current call. Its name is complete once arguments have come."""
        if not call.pieces:
            return
        if not call.is_started:
            self._start(call, deltas)
        if call.is_function and call.emitted < (end := call.emittable):
            deltas.append(CallArguments("".join(call.pieces[call.emitted : end])))
            call.emitted = end

    def _start(self, call: _Call, deltas: list[Delta]) -> None:
        if not 1 <= len(call.name) <= _LONGEST_NAME:
            raise ServerError("The engine called a tool without naming it.")
        call.is_started = True
        call.tool = tool = self._names.get(call.name)
        if tool is None:
            deltas.append(CallStarted("function", call.name, is_offered=False))
        else:
            deltas.append(CallStarted(tool.kind, tool.name, tool.namespace))

    def _end(self, call: _Call, deltas: list[Delta], *, cut_off: bool) -> None:
        if not call.is_started:
            self._start(call, deltas)
        call.is_over = True
        self._emit(call, deltas)
        text = "".join(call.pieces)
        if call.tool is not None and call.tool.kind == "custom":
            deltas.append(CallArguments(_custom_input(text)))
        elif not text and not cut_off:
            deltas.append(CallArguments("{}"))
        deltas.append(CallEnded(call.is_complete or not cut_off))


def _custom_input(text: str) -> str:
    """The input of a custom tool, from ``{"input": …}``; text of any other form is the input itself."""
    for ending in ("", '"}'):  # the second for a call that was cut off
        try:
            value = _input.decode(text + ending)
        except (ValueError, RecursionError):
            continue
        return value if isinstance(value, str) else value.input
    return text
