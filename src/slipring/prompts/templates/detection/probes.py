"""Small conversations that are rendered with a chat template to find out what it writes, and the comparison
of the texts.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import msgspec

NAME = "probe_function"
FIRST_KEY = "probe_key_a"
SECOND_KEY = "probe_key_b"
FIRST_VALUE = "Probe-value-a"
SECOND_VALUE = "Probe-value-b"
NUMBER = 53190
QUESTION = "Probe-question"
NEXT_QUESTION = "Next-question"
TEXT = "Probe-answer"
THOUGHT = "Probe-thought"
OUTPUT = "Probe-output"
IDS = ("probeid01", "probeid02")
"""Ids of calls: nine letters and digits, a form that all templates accept."""
_NAMING_IDS = (f"functions.{NAME}:0", f"functions.{NAME}:1")
"""Ids of calls for templates that write them in place of names: Kimi K2.5's."""

STRINGS: dict[str, Any] = {FIRST_KEY: FIRST_VALUE, SECOND_KEY: SECOND_VALUE}
_BROKEN = (f'{{"{FIRST_KEY}": "{FIRST_VALUE}', f'["{FIRST_VALUE}"]')
"""Arguments of calls that are cut off, and ones that are no object."""
Dict = dict[str, Any]
_PROPERTIES = {key: {"type": "string", "description": "A value."} for key in STRINGS}
TOOLS: list[Dict] = [
    {
        "type": "function",
        "function": {
            "name": NAME,
            "description": "A function.",
            "parameters": {"type": "object", "properties": _PROPERTIES, "required": []},
        },
    }
]


class Render(Protocol):
    """Renders a conversation with a model's chat template; raises any exception if the template fails."""

    def __call__(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        *,
        add_generation_prompt: bool,
        variables: Mapping[str, object],
    ) -> str: ...


class Probe:
    """Renders probe conversations with one template. ``variables`` are passed with each of them."""

    def __init__(self, render: Render, variables: Mapping[str, object]) -> None:
        self._render = render
        self.variables = variables
        self.takes_text_arguments = False
        """Whether the arguments of calls are passed as JSON text, because the template refuses objects."""
        self.has_null_content = False
        """Whether the content of an answer of calls is None, because the template ignores its calls else."""
        self._ids = IDS

    def using(self, variables: Mapping[str, object]) -> "Probe":
        """A probe of the same template with other variables."""
        return Probe(self._render, variables)

    def write(self, messages: Sequence[Dict], *, prompt: bool = False, tools: bool = True) -> str | None:
        """Render messages; None if the template refuses them. ``prompt``: with the beginning of an answer."""
        try:
            return self._render(
                msgspec.json.decode(msgspec.json.encode(messages)),  # a copy: the template may change it
                msgspec.json.decode(msgspec.json.encode(TOOLS)) if tools else None,
                add_generation_prompt=prompt,
                variables=self.variables,
            )
        except Exception:  # of the template engine's, or of what the template calls
            return None

    def answer(self, *, text: str = "", thoughts: str = "", calls: Sequence[Dict | str] = ()) -> Dict:
        """An assistant message. ``calls``: the arguments of each call; text is passed as it is."""
        message: Dict = {"role": "assistant", "content": text}
        if thoughts:
            message |= dict.fromkeys(("reasoning_content", "reasoning", "thinking"), thoughts)
        if calls:
            if self.has_null_content and not text:
                message["content"] = None
            message["tool_calls"] = [
                {
                    "id": id,
                    "type": "function",
                    "function": {"name": NAME, "arguments": self._arguments(arguments)},
                }
                for id, arguments in zip(self._ids, calls, strict=False)
            ]
        return message

    def _arguments(self, arguments: Dict | str) -> Dict | str:
        if self.takes_text_arguments and not isinstance(arguments, str):
            return msgspec.json.encode(arguments).decode()
        return arguments

    def adapt(self) -> bool:
        """Find out how the template takes calls. Returns whether it writes them at all."""
        for self._ids in (IDS, _NAMING_IDS):
            for takes_text in (False, True):
                written = {null: self._written_call(takes_text, null) for null in (False, True)}
                # A template that has a case for calls without content writes less for them.
                for null in sorted(filter(written.get, written), key=lambda null: len(written[null])):
                    self.takes_text_arguments, self.has_null_content = takes_text, null
                    return True
        self._ids = IDS
        self.takes_text_arguments = self.has_null_content = False
        return False

    def _written_call(self, takes_text: bool, null: bool) -> str:
        """What the template writes for a call; nothing if its name is missing."""
        self.takes_text_arguments, self.has_null_content = takes_text, null
        written = self.after_question(self.answer(calls=[STRINGS])) or ""
        return written if NAME in written else ""

    def takes_broken_arguments(self) -> bool:
        """Whether the template writes arguments of calls that are text and no JSON object. Others refuse
        them, leave them out, or take them apart."""
        written = (self.after_question(self.answer(calls=[text])) or "" for text in _BROKEN)
        return all(NAME in each and FIRST_VALUE in each for each in written)

    def after_question(self, *messages: Dict, prompt: bool = False) -> str | None:
        """What the template writes from the user's question on, which the messages follow."""
        written = self.write([user(QUESTION), *messages], prompt=prompt)
        return None if written is None else written[max(written.rfind(QUESTION), 0) :]


def user(text: str) -> Dict:
    return {"role": "user", "content": text}


def output(of: str) -> Dict:
    return {"role": "tool", "content": OUTPUT, "tool_call_id": of, "name": NAME}


TAG = re.compile(r"<[^<>\n]*[^<>\s]>|\[/?[A-Z][A-Z_ ]*\]")
_OPENING = re.compile(r"<[^<>\n]*$|\[/?[A-Z_]*$")


def common_prefix(one: str, other: str) -> str:
    """What both texts begin with, without a part of a tag at its end."""
    length = _common_length(one, other)
    prefix = one[:length]
    if length == len(one) == len(other):
        return prefix
    opened = _OPENING.search(prefix)
    return prefix[: opened.start()] if opened else prefix


def common_suffix(one: str, other: str) -> str:
    """What both texts end with, without a part of a tag at its beginning."""
    length = _common_length(one[::-1], other[::-1])
    start = len(one) - length
    cut = next((tag.end() for tag in TAG.finditer(one) if tag.start() < start < tag.end()), start)
    return one[cut:]


def _common_length(one: str, other: str) -> int:
    return next(
        (at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other))
    )


def from_first_tag(text: str) -> str:
    """The text from its first tag on, whole or begun; without white space before it if there is none."""
    found = re.search(r"[<\[]", text)
    return text[found.start() :] if found else text.lstrip()


def is_blank(text: str) -> bool:
    return not text.strip()


def marked(text: str) -> str:
    """The text, or nothing if it is only white space."""
    return "" if is_blank(text) else text
