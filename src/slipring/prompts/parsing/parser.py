"""From a model's text to deltas, piece by piece: what is thought, what is said, what is a call.

Owns the reading of every dialect whose calls are JSON (``CallFormat`` says how they are marked) and the names
by which a model addresses tools (``flat_name``). Three promises:

- Nothing is lost. A call is held back until it is complete; one that is malformed, unclosed or names no
  offered tool becomes text as the model wrote it. One that is trusted to be well formed is given as it comes
  (``constrained_calls``). Dropped are markers that did their work, and white space next to them.
- The pieces do not matter: any split of a text gives the same deltas, but for how text and trusted arguments
  are cut.
- Time is linear in the text, memory in what is held back.
"""

from collections import Counter, deque
from enum import Enum
from functools import lru_cache
from typing import Final

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from slipring.core.generation import CallArguments, CallStarted, Delta, Text, Thought
from slipring.prompts.parsing.constrained_calls import Openings, TrustedCall
from slipring.prompts.parsing.json_scanner import SPACE, SPACES, Scanner, skip
from slipring.protocol.tools import CallableTool, Offer
from slipring.protocol.wire import given

_SEPARATORS: Final = SPACE + ";,"
_PIECE: Final = 4096
"""Longer pieces are cut, so that searching the rest after every marker stays cheap."""


class CallFormat(Struct, frozen=True, kw_only=True):
    """How a dialect marks thoughts and calls. An empty marker never comes."""

    call_open: str = ""
    call_close: str = ""
    """Without it, the JSON that follows ``call_open`` ends the call by itself, as after ``prefix``."""
    think_open: str = ""
    think_close: str = ""
    prefix: str = ""
    """Announces bare JSON, wherever it comes."""
    arguments_key: str = "arguments"
    """Under which the model writes a call's arguments; both usual ones are read."""
    bare_json: bool = False
    """Before anything is said, a JSON object of a call's form, or an array of them, is a call."""


def flat_name(tool: CallableTool) -> str:
    """The name by which a model addresses a tool: models know no namespaces."""
    return tool.name if tool.namespace is None else f"{tool.namespace}__{tool.name}"


class _Written(Struct):
    """A call as models write it. Further keys (``type``, ``id``) say nothing new."""

    name: str
    arguments: Raw | UnsetType = UNSET
    parameters: Raw | UnsetType = UNSET


class _Input(Struct, forbid_unknown_fields=True):
    """The arguments of a custom tool's call."""

    input: str


_written = msgspec.json.Decoder(_Written | list[_Written])
_object = msgspec.json.Decoder(dict[str, object])
_input = msgspec.json.Decoder(_Input | str)
_string = msgspec.json.Decoder(str)


class _Directory:
    """The offered tools by the names a model may use, and the reading of calls to them."""

    __slots__ = ("tools",)

    def __init__(self, offer: Offer) -> None:
        # A tool may be offered twice (``allowed_tools`` naming it and its namespace); that is no ambiguity.
        tools = {(tool.namespace, tool.name): tool for tool in offer.tools}.values()
        self.tools = _unambiguous([(tool.name, tool) for tool in tools])
        self.tools |= _unambiguous([(flat_name(tool), tool) for tool in tools])

    def __bool__(self) -> bool:
        return bool(self.tools)

    def calls(self, text: str, *, announced: bool) -> list[Delta]:
        """The calls that a JSON text makes; none if any of it is not a valid call."""
        try:
            written = _written.decode(text.encode())
            calls = written if isinstance(written, list) else [written]
            return [delta for call in calls for delta in self._call(call, announced=announced)]
        except (ValueError, LookupError, RecursionError):
            return []

    def _call(self, call: _Written, *, announced: bool) -> tuple[Delta, Delta]:
        tool = self.tools[call.name]
        arguments = given(call.arguments) or given(call.parameters)
        if arguments is not None:
            text = _custom_input(arguments) if tool.kind == "custom" else _arguments(arguments)
        elif announced and tool.kind != "custom":
            text = "{}"
        else:
            raise ValueError("no arguments")
        return CallStarted(tool.kind, tool.name, tool.namespace), CallArguments(text)


def _unambiguous(named: list[tuple[str, CallableTool]]) -> dict[str, CallableTool]:
    count = Counter(name for name, _ in named)
    return {name: tool for name, tool in named if count[name] == 1}


def _arguments(raw: Raw) -> str:
    """A function's arguments as the model wrote them: an object, or a string that holds one."""
    data = bytes(raw)
    text = _string.decode(data) if data.startswith(b'"') else data.decode()
    _object.decode(text)
    return text


def _custom_input(raw: Raw) -> str:
    value = _input.decode(raw)
    return value if isinstance(value, str) else value.input


class _Markers:
    """Markers to look for in a text that comes in pieces."""

    __slots__ = ("_longest", "_markers", "_prefixes", "_starts")

    def __init__(self, *markers: str) -> None:
        self._markers = tuple(marker for marker in markers if marker)
        self._prefixes = frozenset(marker[:end] for marker in self._markers for end in range(1, len(marker)))
        self._longest = max(map(len, self._prefixes), default=0)
        self._starts = frozenset(marker[0] for marker in self._markers)

    def __bool__(self) -> bool:
        return bool(self._markers)

    def may_begin_in(self, text: str) -> bool:
        return not self._starts.isdisjoint(text)

    def cut(self, text: str, *, last: bool) -> tuple[str, str, str]:
        """What comes before the first marker, the marker, and the rest.

        Without a marker, the rest is a tail that may become one, unless this is the ``last`` piece. First is
        the marker that ends first: the choice then never depends on text that may not have come yet.
        """
        found = [(text.find(each) + len(each), -len(each)) for each in self._markers if each in text]
        if found:
            end, size = min(found)
            return text[: end + size], text[end + size : end], text[end:]
        end = len(text) - (0 if last else self._tail(text))
        return text[:end], "", text[end:]

    def _tail(self, text: str) -> int:
        if self._starts.isdisjoint(text[-self._longest :]):
            return 0  # nearly always
        for size in range(min(self._longest, len(text)), 0, -1):
            if text[-size:] in self._prefixes:
                return size
        return 0


_markers = lru_cache(maxsize=64)(_Markers)
"""Every answer looks for the same few."""


class _State(Enum):
    SPEAKING = 0
    THINKING = 1
    MARKED = 2
    """Between ``call_open`` and ``call_close``."""
    BARE = 3
    """In JSON that ends by itself."""
    TRUSTED = 4
    """In a call that is given as it comes."""


_SPEAKING, _THINKING, _MARKED, _BARE, _TRUSTED = _State  # looking a member up on its enum costs more


class Parser:
    """Reads one answer.

    ``starts_thinking``: the prompt ended with the marker that opens a thought. ``trusted``: calls are written
    as grammars write them, after ``call_open`` or, in a format without, as bare JSON.
    """

    def __init__(
        self,
        format: CallFormat,
        offer: Offer,
        *,
        thinking: bool = True,
        starts_thinking: bool = False,
        trusted: bool = False,
    ) -> None:
        self._format = format
        self._directory = _Directory(offer)
        calls = bool(self._directory)
        thinking = thinking and bool(format.think_close)
        self._markers = _markers(
            format.think_open if thinking else "",
            format.call_open if calls else "",
            format.prefix if calls else "",
        )
        self._think_close = _markers(format.think_close)
        self._call_close = _markers(format.call_close)
        self._state = _THINKING if thinking and starts_thinking else _SPEAKING
        self._deltas: list[Delta] = []
        self._queue: deque[str] = deque()  # pieces not looked at yet
        self._pending = ""  # the piece at hand, from where reading stopped
        self._final = False
        self._gap: list[str] = []  # dropped if a marker comes, said if text comes
        self._fresh = self.is_thinking  # directly after a marker
        self._bare = calls and format.bare_json  # JSON that starts here is a call
        self._listed = False  # after bare JSON: separators may lead to more
        self._announced = False
        self._held: list[str] = []  # the call at hand: its marker, then its pieces
        self._resume = 0  # how many of these to give up if what looked like a string was none
        self._scanner = Scanner()
        self._openings = Openings(self._directory.tools if trusted else {}, format.arguments_key)
        self._trusted = TrustedCall(self._openings, "")
        self._otherwise = _BARE  # how the call at hand is read if it is not of the trusted form

    @property
    def is_thinking(self) -> bool:
        """Whether the model is inside a thought, by what came so far."""
        return self._state is _THINKING

    @property
    def is_holding(self) -> bool:
        """Whether a call is being written of which nothing is given before its end."""
        return self._state is _MARKED or self._state is _BARE

    @property
    def is_between(self) -> bool:
        """Whether no thought and no call is half written, nor anything that might become the mark of one."""
        return self._state is _SPEAKING and not self._pending

    def feed(self, text: str) -> list[Delta]:
        """Take what the model wrote next."""
        if not text:
            return []
        if self._state is _MARKED and self._is_inside(text):
            self._held.append(text)
            return []
        if len(text) <= _PIECE:
            self._pending += text
        else:
            self._queue.extend(text[at : at + _PIECE] for at in range(0, len(text), _PIECE))
        self._run()
        return self._told()

    def _is_inside(self, text: str) -> bool:
        """Whether it is sure to belong to a string within the call at hand: most of what is long does."""
        return not self._pending and self._scanner.goes_on(text) and not self._call_close.may_begin_in(text)

    def finish(self) -> list[Delta]:
        """The model wrote no more: give what is held back."""
        self._final = True
        self._run()
        if not self._fresh:
            self._say("")
        return self._told()

    def _told(self) -> list[Delta]:
        told = self._deltas
        self._deltas = []
        return told

    def _run(self) -> None:
        while True:
            if self._queue:
                self._pending += self._queue.popleft()
            while self._step():
                pass
            if not self._queue:
                return

    def _step(self) -> bool:
        """Read what is pending; returns whether the state changed, so that there may be more to read."""
        state = self._state
        if state is _SPEAKING:
            return self._speak()
        if state is _MARKED:
            return self._read_marked()
        if state is _THINKING:
            return self._think()
        return self._read_bare() if state is _BARE else self._read_trusted()

    @property
    def _last(self) -> bool:
        return self._final and not self._queue

    def _think(self) -> bool:
        thought, marker, self._pending = self._think_close.cut(self._pending, last=self._last)
        self._tell(thought)
        if marker:
            self._enter(_SPEAKING)
        return bool(marker)

    def _speak(self) -> bool:
        text, marker, rest = self._markers.cut(self._pending, last=self._last)
        if self._bare:
            text = self._skip_gap(text)
            if text.startswith(("{", "[")):
                self._pending = text + marker + rest
                return self._open("", _BARE)
        self._pending = rest
        self._tell(text)
        if not marker:
            return False
        if marker == self._format.think_open:
            self._enter(_THINKING)
            return True
        closed = marker == self._format.call_open and self._call_close
        return self._open(marker, _MARKED if closed else _BARE)

    def _enter(self, state: _State) -> None:
        """A marker did its work: it is dropped, and white space around it."""
        self._state = state
        self._gap.clear()
        self._fresh = True

    def _skip_gap(self, text: str) -> str:
        rest = text.lstrip(_SEPARATORS if self._listed else SPACE)
        self._widen(text[: len(text) - len(rest)])
        return rest

    def _widen(self, gap: str) -> None:
        if self._fresh and not self._gap:
            gap = gap.lstrip(SPACE)
        if gap:
            self._gap.append(gap)

    def _tell(self, text: str) -> None:
        """Text or thought that came. White space at its end waits for what comes next."""
        if self._fresh and not self._gap:
            text = text.lstrip(SPACE)
        marker_may_come = self.is_thinking or bool(self._markers)
        said = text.rstrip(SPACE) if marker_may_come else text
        if said:
            self._say(said)
            self._fresh = False
        self._widen(text[len(said) :])

    def _say(self, text: str) -> None:
        text = "".join((*self._gap, text))
        self._gap.clear()
        if not text:
            return
        if self.is_thinking:
            self._deltas.append(Thought(text))
        else:
            self._deltas.append(Text(text))
            self._bare = self._listed = False

    def _open(self, marker: str, state: _State) -> bool:
        """From here on, text is held back."""
        self._state = state
        self._announced = bool(marker)
        self._held = [marker]
        self._resume = 0
        self._scanner = Scanner()
        if self._openings and marker == self._format.call_open:
            self._trusted = TrustedCall(self._openings, self._format.call_close if state is _MARKED else "")
            self._otherwise = state
            self._state = _TRUSTED
        return True

    def _read_trusted(self) -> bool:
        call = self._trusted
        started = call.started
        read, deltas = call.feed(self._pending)
        self._pending = self._pending[read:]
        self._deltas += deltas
        if call.started and not started:
            self._enter(_TRUSTED)
        if call.complete:
            if self._otherwise is _BARE:
                self._bare = self._listed = True
            self._enter(_SPEAKING)
            return True
        if call.follows and (call.started or not self._last):
            return False
        if call.started:
            self._held = call.held
            return self._give_up()
        self._pending = "".join(call.held) + self._pending
        self._state = self._otherwise
        return True

    def _read_bare(self) -> bool:
        read = self._scanner.feed(self._pending)
        self._held.append(self._pending[:read])
        self._pending = self._pending[read:]
        if not self._scanner.complete:
            return self._give_up() if self._pending or self._last else False
        if not self._call():
            return self._give_up()
        self._bare = self._listed = True
        return True

    def _read_marked(self) -> bool:
        body, marker, rest = self._call_close.cut(self._pending, last=self._last)
        read = self._scanner.feed(body)
        if self._scanner.complete:
            read = skip(SPACES, body, read)
        self._held.append(body[:read])
        if read < len(body):
            self._pending = body[read:] + marker + rest
            return self._give_up()
        self._pending = rest
        if marker:
            return self._close(marker)
        return self._give_up() if self._last else False

    def _close(self, marker: str) -> bool:
        if self._scanner.in_string and self._scanner.feed(marker) == len(marker):
            # Part of a string, by the look of it. If the string turns out to be none, this was the end.
            self._held.append(marker)
            self._resume = self._resume or len(self._held)
            return True
        if self._scanner.complete and self._call():
            return True
        self._held.append(marker)
        return self._give_up()

    def _call(self) -> bool:
        """Give the calls that are held, if they are calls."""
        calls = self._directory.calls("".join(self._held[1:]), announced=self._announced)
        if not calls:
            return False
        self._deltas += calls
        self._held = []
        self._enter(_SPEAKING)
        return True

    def _give_up(self) -> bool:
        """What is held is no call: say it. What came after its end, if it had one, is read again."""
        self._state = _SPEAKING
        held, again = self._held, [self._pending]
        if self._resume:
            held, again = held[: self._resume], [*held[self._resume :], self._pending]
        self._queue.extendleft(reversed(again))
        self._pending = ""
        self._held = []
        self._fresh = self._bare = False
        self._tell("".join(held))
        return True
