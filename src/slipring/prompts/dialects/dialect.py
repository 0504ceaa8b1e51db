"""The base class of dialects: how to write the items of a context for a family of models.

A dialect writes items one after the other and keeps one piece of state: the ``Block`` that is still open (an
assistant message that may get calls, a batch of tool outputs). The next item continues or closes that block.
A delta starts from the block that its parent left open, so it is written exactly as it would be within the
whole context.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from enum import Enum

from msgspec import Struct

from slipring.core.chain.head import Head
from slipring.prompts.parsing.output_format import OutputFormat
from slipring.prompts.tool_definitions import describe_format, describe_found, flat_name
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
    """A control token, by its name in the vocabulary. Text is never encoded as one."""

    token: str


class Mark(Struct, frozen=True):
    """A marker such as ``<tool_call>``: a control token if the vocabulary has it, otherwise text."""

    token: str


class Phrase(Struct, frozen=True):
    """Texts and marks encoded as one text, split only at the marks that are control tokens."""

    parts: tuple[str | Mark, ...]


Fragment = str | Control | Phrase
"""Each text fragment is encoded separately, so that a delta and the whole context give the same ids."""


class Block(Enum):
    """What is open at the end of a context. The values are stored: see ``rendering_codec``."""

    NONE = "nothing"
    ASSISTANT = "a message of the assistant"
    TOOLS = "a batch of tool outputs"


class Dialect(ABC):
    """The prompt format of a model family. Subclasses write the blocks; this class decides which to write."""

    name: str
    stop: tuple[str, ...]
    """Control tokens that end an answer."""
    output_format: OutputFormat
    """How the model writes calls and thoughts; configures the parser."""
    tool_role: str
    """The role of blocks that hold tool outputs."""

    @abstractmethod
    def open(self, role: str) -> list[Fragment]:
        """Begin a block of the given role."""

    @abstractmethod
    def close(self) -> list[Fragment]:
        """End a block."""

    @abstractmethod
    def preamble(self) -> list[Fragment]:
        """What every context begins with, such as a BOS token."""

    @abstractmethod
    def describe_tools(self, tools: Iterable[CallableTool]) -> tuple[str | Mark, ...]:
        """Describe the tools, and how to call them."""

    @abstractmethod
    def write_call(self, name: str, arguments: str, *, first: bool) -> Fragment:
        """Write a call inside an assistant block; ``first``: the block is empty so far."""

    @abstractmethod
    def write_output(self, text: str, *, first: bool) -> Fragment:
        """Write a tool output inside a block of ``tool_role``; ``first``: the block is empty so far."""

    def write_head(self, head: Head, format: TextFormat) -> list[Fragment]:
        """Write instructions, tools and the answer format as the first system block."""
        parts: list[tuple[str | Mark, ...]] = [(head.instructions,)] if head.instructions else []
        if head.tools.callables:
            parts.append(self.describe_tools(head.tools.callables))
        if format.kind != "text":
            parts.append((describe_format(format),))
        if not parts:
            return self.preamble()
        pieces = tuple(piece for part in parts for piece in ("\n\n", *part))[1:]
        return [*self.preamble(), *self.open("system"), Phrase(pieces), *self.close()]

    def write_default_system(self, items: Sequence[Item]) -> list[Fragment]:
        """What precedes the first item of a context without a head. ``items`` begins with that item."""
        return []

    def write_items(self, block: Block, items: Iterable[Item]) -> tuple[list[Fragment], Block]:
        """Write items after a context that left ``block`` open; return the block that they leave open."""
        fragments: list[Fragment] = []
        for item in items:
            written, block = self._write_item(block, item)
            fragments += written
        return fragments, block

    def write_prompt(self, block: Block) -> list[Fragment]:
        """Open an assistant block for the model to answer in, or continue the one that is open."""
        if block is Block.ASSISTANT:
            return []
        return [*self._close(block), *self.open("assistant")]

    def _write_item(self, block: Block, item: Item) -> tuple[list[Fragment], Block]:
        body = item.body()
        if isinstance(body, Message):
            return self._write_message(block, body)
        if isinstance(body, FunctionCall):
            return self._write_call(block, flat_name(body), body.arguments.strip() or "{}")
        if isinstance(body, CustomToolCall):
            return self._write_call(block, flat_name(body), _as_arguments(body.input))
        if isinstance(body, CallOutput):
            opening = [] if block is Block.TOOLS else [*self._close(block), *self.open(self.tool_role)]
            text = describe_found(body) if isinstance(body, LoadedTools) else plain_text(body.output)
            output = self.write_output(text, first=block is not Block.TOOLS)
            return [*opening, output], Block.TOOLS
        if isinstance(body, AdditionalTools):
            described = Phrase(self.describe_tools(Toolset.brought(body.tools).callables))
            return [*self._close(block), *self.open("system"), described, *self.close()], Block.NONE
        return [], block  # reasoning of earlier turns, configuration updates, items of hosted tools

    def _write_message(self, block: Block, message: Message) -> tuple[list[Fragment], Block]:
        text = plain_text(message.content)
        if message.role == "assistant":
            if block is Block.ASSISTANT:
                return ["\n" + text], block
            return [*self._close(block), *self.open("assistant"), text], Block.ASSISTANT
        role = "user" if message.role == "user" else "system"
        return [*self._close(block), *self.open(role), text, *self.close()], Block.NONE

    def _write_call(self, block: Block, name: str, arguments: str) -> tuple[list[Fragment], Block]:
        if block is Block.ASSISTANT:
            return [self.write_call(name, arguments, first=False)], block
        opening = [*self._close(block), *self.open("assistant")]
        return [*opening, self.write_call(name, arguments, first=True)], Block.ASSISTANT

    def _close(self, block: Block) -> list[Fragment]:
        return [] if block is Block.NONE else self.close()


def _as_arguments(text: str) -> str:
    """A custom tool's free-form input as JSON arguments."""
    return wire.encode({"input": text}).decode()
