"""Dialects: how the items of a context are written for a family of models.

Writing is a fold over the items. After each item a ``Block`` says what is still open (an assistant's message
that calls may be added to, a batch of tool outputs), and the next item continues or closes it. A delta is
therefore written exactly as it would be within the whole: it begins with the block that its parent left open.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from enum import Enum

from msgspec import Struct

from slipring.core.chain.head import Head
from slipring.prompts.parsing.parser import CallFormat
from slipring.prompts.tool_definitions import describe_format, describe_found
from slipring.protocol import wire
from slipring.protocol.items import (
    AdditionalTools,
    CallOutput,
    CustomToolCall,
    FunctionCall,
    Item,
    LoadedTools,
    Message,
    plain_text,
)
from slipring.protocol.requests import TextFormat
from slipring.protocol.tools import CallableTool, Toolset


class Control(Struct, frozen=True):
    """A control token, by its name in the vocabulary. Text can never become one."""

    token: str


class Mark(Struct, frozen=True):
    """A marker such as ``<tool_call>``: one token where the vocabulary has it, text where it has not."""

    token: str


class Phrase(Struct, frozen=True):
    """Texts and marks that are encoded as one text, but for the marks that are tokens."""

    parts: tuple[str | Mark, ...]


Fragment = str | Control | Phrase
"""Each text fragment is encoded by itself, in a delta as in the whole."""


class Block(Enum):
    """What is open at the end of a context."""

    NONE = "nothing"
    ASSISTANT = "a message of the assistant"
    TOOLS = "a batch of tool outputs"


class Dialect(ABC):
    """A family's way of writing. Subclasses say how blocks look; the fold over items is the same for all."""

    name: str
    stop: tuple[str, ...]
    """Control tokens that end an answer."""
    calls: CallFormat
    """How the model writes calls and thoughts, for the parser."""

    @abstractmethod
    def open(self, role: str) -> list[Fragment]:
        """The beginning of a block."""

    @abstractmethod
    def close(self) -> list[Fragment]:
        """The end of a block."""

    @abstractmethod
    def preamble(self) -> list[Fragment]:
        """What stands before everything."""

    @abstractmethod
    def describe_tools(self, tools: Iterable[CallableTool]) -> tuple[str | Mark, ...]:
        """Tool definitions, and how to call them, in words for the model."""

    @abstractmethod
    def write_call(self, name: str, arguments: str, *, first: bool) -> Fragment:
        """A call, inside the assistant's block; ``first`` when nothing stands before it there."""

    @abstractmethod
    def write_output(self, text: str, *, first: bool) -> Fragment:
        """A tool's output, inside its block."""

    tool_role: str
    """The role that tool outputs are spoken with."""

    def write_head(self, head: Head, format: TextFormat) -> list[Fragment]:
        """Instructions, tools and the format of answers, as the system's first block."""
        parts: list[tuple[str | Mark, ...]] = [(head.instructions,)] if head.instructions else []
        if head.tools.callables:
            parts.append(self.describe_tools(head.tools.callables))
        if format.kind != "text":
            parts.append((describe_format(format),))
        if not parts:
            return self.preamble()
        said = tuple(piece for part in parts for piece in ("\n\n", *part))[1:]
        return [*self.preamble(), *self.open("system"), Phrase(said), *self.close()]

    def write_items(self, block: Block, items: Iterable[Item]) -> tuple[list[Fragment], Block]:
        """Write items after a context that left ``block`` open; returns what they leave open."""
        fragments: list[Fragment] = []
        for item in items:
            written, block = self._write_item(block, item)
            fragments += written
        return fragments, block

    def write_prompt(self, block: Block) -> list[Fragment]:
        """What makes the model speak; an assistant's message that is open is gone on with."""
        if block is Block.ASSISTANT:
            return []
        return [*self._shut(block), *self.open("assistant")]

    def _write_item(self, block: Block, item: Item) -> tuple[list[Fragment], Block]:
        body = item.body()
        if isinstance(body, Message):
            return self._write_message(block, body)
        if isinstance(body, FunctionCall):
            return self._write_call(block, body.name, body.namespace, body.arguments.strip() or "{}")
        if isinstance(body, CustomToolCall):
            return self._write_call(block, body.name, body.namespace, _as_arguments(body.input))
        if isinstance(body, CallOutput):
            opening = [] if block is Block.TOOLS else [*self._shut(block), *self.open(self.tool_role)]
            text = describe_found(body) if isinstance(body, LoadedTools) else plain_text(body.output)
            said = self.write_output(text, first=block is not Block.TOOLS)
            return [*opening, said], Block.TOOLS
        if isinstance(body, AdditionalTools):
            described = Phrase(self.describe_tools(Toolset.brought(body.tools).callables))
            return [*self._shut(block), *self.open("system"), described, *self.close()], Block.NONE
        return [], block  # reasoning of earlier turns, settings, and what only hosted tools understand

    def _write_message(self, block: Block, message: Message) -> tuple[list[Fragment], Block]:
        text = plain_text(message.content)
        if message.role == "assistant":
            if block is Block.ASSISTANT:
                return ["\n" + text], block
            return [*self._shut(block), *self.open("assistant"), text], Block.ASSISTANT
        role = "user" if message.role == "user" else "system"
        return [*self._shut(block), *self.open(role), text, *self.close()], Block.NONE

    def _write_call(
        self, block: Block, name: str, namespace: str | None, arguments: str
    ) -> tuple[list[Fragment], Block]:
        flat = f"{namespace}__{name}" if namespace else name
        if block is Block.ASSISTANT:
            return [self.write_call(flat, arguments, first=False)], block
        opening = [*self._shut(block), *self.open("assistant")]
        return [*opening, self.write_call(flat, arguments, first=True)], Block.ASSISTANT

    def _shut(self, block: Block) -> list[Fragment]:
        return [] if block is Block.NONE else self.close()


def _as_arguments(text: str) -> str:
    """A custom tool's free-form input, as the one argument of a function."""
    return wire.encode({"input": text}).decode()
