"""Scripted answers, for testing clients: ``simulated:script=FILE``.

The file is JSON lines; each line is the answer to one create. All connections share one position in it.
An answer is a list of steps, each an object with one key:

    {"text": "…"}  {"refusal": "…"}  {"reasoning": "…"}  {"reasoning_summary": "…"}
    {"function_call": {"name": "…", "arguments": {…} or "…", "namespace": "…", "kind": "function"}}
    {"custom_tool_call": {"name": "…", "input": "…", "namespace": "…"}}
    {"stall_s": 1.5}  {"error": {"message": "…", "status": 500}}

Texts are streamed word by word. Warmups do not advance the script. After the last line every create fails, so
that a test notices a client that sends too many.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from slipring.base.errors import RateLimited, ServerError, StartupError
from slipring.core.generation import CallStarted, RefusalText, Text, Thought, ThoughtSummary
from slipring.engines.simulated.plan import AnswerStep, Emit, Fail, Stall, call_steps
from slipring.protocol import wire
from slipring.protocol.tools.toolset import Kind


class _FunctionCall(Struct):
    name: str
    arguments: Any = {}
    namespace: str | None = None
    kind: Kind = "function"
    """Of the tool: models call tools of most kinds as functions."""


class _CustomToolCall(Struct):
    name: str
    input: str = ""
    namespace: str | None = None


class _Failure(Struct):
    message: str = "This error is scripted."
    status: int = 500


class _Line(Struct, forbid_unknown_fields=True):
    """One step: exactly one field is set."""

    text: str | None = None
    refusal: str | None = None
    reasoning: str | None = None
    reasoning_summary: str | None = None
    function_call: _FunctionCall | None = None
    custom_tool_call: _CustomToolCall | None = None
    stall_s: float | None = None
    error: _Failure | None = None


_decoder = msgspec.json.Decoder(list[_Line])
_WORD = re.compile(r"\s*\S+\s*$|\s*\S+|\s+")
_TEXT_DELTAS = {
    "text": Text,
    "refusal": RefusalText,
    "reasoning": Thought,
    "reasoning_summary": ThoughtSummary,
}


class Script:
    """Answers in the order in which they are played."""

    def __init__(self, answers: list[list[AnswerStep]]) -> None:
        self._answers = answers
        self._played = 0

    def next(self) -> list[AnswerStep]:
        """The next answer. Raises ``ServerError`` after the last one."""
        if self._played == len(self._answers):
            raise ServerError(f"The script has ended: it holds {len(self._answers)} answers.")
        self._played += 1
        return self._answers[self._played - 1]


def read_script(path: str) -> Script:
    """Read a script file. Raises ``StartupError``, which names the line of a mistake."""
    try:
        lines = Path(path).read_text(encoding="utf-8").split("\n")
    except OSError as error:
        raise StartupError(f"--engine simulated: cannot read the script {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise StartupError(f"--engine simulated: the script {path} is not UTF-8 text") from None
    answers = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            answers.append([step for each in _decoder.decode(line) for step in _steps(each)])
        except (msgspec.DecodeError, ValueError) as error:
            raise StartupError(f"--engine simulated: {path}, line {number}: {error}") from None
    return Script(answers)


def _steps(line: _Line) -> Iterator[AnswerStep]:
    """The steps of one entry of an answer. Raises ``ValueError`` unless it has one key."""
    given = {name: value for name in line.__struct_fields__ if (value := getattr(line, name)) is not None}
    if len(given) != 1:
        raise ValueError(f"a step has exactly one key, this one has {len(given)}")
    name, value = next(iter(given.items()))
    if name in _TEXT_DELTAS:
        for word in _WORD.findall(value):
            yield Emit([_TEXT_DELTAS[name](word)], is_reasoning=name.startswith("reasoning"))
    elif isinstance(value, _FunctionCall):
        arguments = value.arguments
        text = arguments if isinstance(arguments, str) else wire.encode(arguments).decode()
        yield from _call(CallStarted(value.kind, value.name, value.namespace), text)
    elif isinstance(value, _CustomToolCall):
        yield from _call(CallStarted("custom", value.name, value.namespace), value.input)
    elif isinstance(value, _Failure):
        yield Fail(RateLimited(value.message) if value.status == 429 else ServerError(value.message))
    else:
        yield Stall(value)


def _call(started: CallStarted, text: str) -> Iterator[AnswerStep]:
    """A call whose text is streamed four characters at a time."""
    return call_steps(started, text, (len(text) + 3) // 4)
