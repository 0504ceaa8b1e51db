"""Compares what slipring writes and reads with what an independent implementation wrote and read."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple

from msgspec import Raw, structs

from slipring.base.errors import InvalidRequest
from slipring.core.chain.instructions_and_tools import Head
from slipring.core.chain.state import ResponseState
from slipring.core.generation import Job, Settings
from slipring.prompts.parsing.output_parser import output_parser
from slipring.prompts.rendering import Rendered, Rendering
from slipring.prompts.templates.probed_template import ModelTemplate
from slipring.prompts.templates.template_renderer import TemplateRenderer
from slipring.prompts.tokenization.tokenizer import Tokenizer
from slipring.protocol.items.items import Item
from slipring.protocol.tools.tool_choice import Offer
from slipring.protocol.tools.toolset import Toolset
from tests.prompts.oracles.conversations import CHAINS, PROMPTS, TOOLS, Message
from tests.prompts.oracles.families import DAY, Family
from tests.prompts.parsing.answers import merged
from tests.prompts.templates.family_templates import source_of
from tests.prompts.test_rendering import after, job
from tests.prompts.vocabulary import item, message

TOOLSET = Toolset.read(Raw(json.dumps([{"type": "function", **tool} for tool in TOOLS]).encode()))
_THINKING = "thoughts, text, user"
OFFER = Offer(tools=tuple(TOOLSET.callables))


_FOLDER = Path(__file__).parent / "templates"


def own_template(family: Family) -> str:
    """The template of ours in the format of a family."""
    path = _FOLDER / f"{family.own}.jinja"
    return path.read_text() if path.exists() else source_of(family.own)


class Difference(NamedTuple):
    """Something that slipring and an oracle write or read differently."""

    case: str
    ours: object
    theirs: object


def family_vocabulary(metadata: Mapping[str, Any], family: Family) -> Tokenizer:
    """The words of a vocabulary, followed by the control tokens of a family."""
    types = metadata["tokenizer.ggml.token_type"]
    words = [token for token, type in zip(metadata["tokenizer.ggml.tokens"], types, strict=True) if type == 1]
    changes = {
        "tokenizer.ggml.tokens": [*words, *family.controls],
        "tokenizer.ggml.token_type": [*(1 for _ in words), *(3 for _ in family.controls)],
    }
    return Tokenizer.from_gguf({**metadata, **changes})


def family_renderer(
    family: Family, source: str, vocabulary: Tokenizer, *, keeps_thoughts: bool = False
) -> TemplateRenderer:
    model = ModelTemplate(source=source, bos_token=family.bos, eos_token=family.eos)
    today = date.fromisoformat(DAY)
    return TemplateRenderer(model, vocabulary, today=today, keeps_thoughts=keeps_thoughts)


class Comparison:
    """Compares a renderer with the recording of an oracle.

    ``has_ids``: the oracle's ids are those of the renderer's vocabulary.
    ``has_tools``: the template writes the family's own words about tools.
    """

    def __init__(
        self,
        family: Family,
        renderer: TemplateRenderer,
        recording: Mapping[str, Any],
        *,
        has_ids: bool,
        has_tools: bool,
    ) -> None:
        self._family = family
        self._renderer = renderer
        self._recording = recording
        self._has_ids = has_ids
        self._has_tools = has_tools
        vocabulary = renderer.vocabulary
        self._names = {vocabulary.control(token): token for token in vocabulary.control_tokens()}
        longest_first = sorted(vocabulary.control_tokens(), key=len, reverse=True)
        self._split = re.compile("(" + "|".join(map(re.escape, longest_first)) + ")")

    def differences(self) -> list[Difference]:
        return [*self._stops(), *self.prompts(), *self.chains()]

    def kept_thoughts(self) -> Iterator[Difference]:
        """The differences of a renderer that keeps earlier thoughts, in a user's turn after some."""
        recorded = self._recording["chains"].get(_THINKING, [])
        if any("kept" in entry or "added" in entry for entry in recorded):
            chain = [{**entry, "added": entry.get("added") or entry.get("kept")} for entry in recorded]
            del chain[0]["added"]
            found = self._chain(f"kept: {_THINKING}", CHAINS[_THINKING], chain)
            yield from (each for each in found if ", 1" in each.case)  # the first step is compared elsewhere

    def _stops(self) -> Iterator[Difference]:
        ours = sorted(self._names[id] for id in self._renderer.stop_ids())
        if more := sorted({*ours} - {*self._recording["stops"]}):
            yield Difference("stops", more, self._recording["stops"])

    def prompts(self) -> Iterator[Difference]:
        for name, recorded in self._recording["prompts"].items():
            case = PROMPTS[name]
            tools = bool(case.get("tools"))
            if tools and not self._has_tools:
                continue
            done = self._job(case["messages"], None, tools=tools, effort=case.get("effort"))
            rendering = self._render(done)
            if isinstance(rendering, Rendering):
                yield from self._compared(f"prompt: {name}", rendering.prompt.ids(), recorded)
            else:
                yield Difference(f"prompt: {name}", rendering, recorded["text"])

    def chains(self) -> Iterator[Difference]:
        for name, recorded in self._recording["chains"].items():
            yield from self._chain(f"chain: {name}", CHAINS[name], recorded)

    def _chain(
        self, name: str, steps: Sequence[Mapping[str, Any]], recorded: Sequence[Mapping[str, Any]]
    ) -> Iterator[Difference]:
        effort = self._family.effort_of(steps)
        parent: ResponseState | None = None
        before: list[int] = []
        calls = 0
        for number, (step, entry) in enumerate(zip(steps, recorded, strict=True)):
            case = f"{name}, {number}"
            first = calls - sum(each["role"] == "tool" for each in step["new"])
            done = self._job(step["new"], parent, tools=True, effort=effort, first_call=max(first, 0))
            rendering = self._render(done)
            if not isinstance(rendering, Rendering):
                yield Difference(case, rendering, "a prompt")
                return
            ids = rendering.prompt.ids()
            if "added" in entry:
                if rendering.fallback is not None:
                    yield Difference(f"{case}: appended", rendering.fallback, "appended")
                else:
                    yield from self._compared(f"{case}: added", ids[len(before) :], entry["added"])
            elif number and rendering.fallback is None:
                # The oracle renders all again even if nothing changes.
                if "kept" in entry:
                    yield from self._compared(f"{case}: added", ids[len(before) :], entry["kept"])
                else:
                    yield Difference(f"{case}: appended", self._text(ids[len(before) :]), "rendered in full")
            elif self._has_tools and "whole" in entry:
                yield from self._compared(f"{case}: whole", ids, entry["whole"])
            if "answer" not in step:
                return
            emitted = self._encode(entry["emitted"]["text"])
            yield from self._answer(case, rendering.prompt, emitted, entry)
            stop = emitted[-1:] if emitted[-1] in self._renderer.stop_ids() else []
            if not stop:
                yield Difference(f"{case}: end", self._text(emitted[-1:]), self._recording["stops"])
            kept = emitted[: len(emitted) - len(stop)]
            output = items_of([step["answer"]], calls)
            calls += len(step["answer"]["calls"])
            parent = after(done, rendering.with_answer(kept), output=tuple(output))
            before = [*ids, *emitted]

    def _answer(
        self,
        case: str,
        prompt: Rendered,
        emitted: Sequence[int],
        entry: Mapping[str, Any],
    ) -> Iterator[Difference]:
        """What is read in the emitted ids must be what the oracle reads."""
        parser = output_parser(
            self._renderer.output_format, OFFER, starts_thinking=self._renderer.opens_thought(prompt)
        )
        stops = self._renderer.stop_ids()
        text = self._renderer.token_bytes.join(id for id in emitted if id not in stops).decode()
        ours = _read(merged([*parser.feed(text), *parser.finish()]))
        if ours != entry["parsed"]:
            yield Difference(f"{case}: parsed", ours, entry["parsed"])

    def _render(self, done: Job) -> Rendering | str:
        """A rendering, or why the template refuses the conversation."""
        try:
            return self._renderer.render(done)
        except InvalidRequest as error:
            return error.message

    def _compared(self, case: str, ids: list[int], recorded: Mapping[str, Any]) -> Iterator[Difference]:
        text = self._text(ids)
        if text != recorded["text"]:
            yield Difference(case, text, recorded["text"])
        elif ids != (recorded["ids"] if self._has_ids else self._encode(text)):
            yield Difference(f"{case}: ids", ids, recorded["ids"])

    def _job(
        self,
        messages: Sequence[Message],
        parent: ResponseState | None,
        *,
        tools: bool,
        effort: str | None = None,
        first_call: int = 0,
    ) -> Job:
        instructions = ""
        if messages[0]["role"] == "system" and parent is None:
            instructions, messages = messages[0]["content"], messages[1:]
        head = Head(instructions, TOOLSET) if tools else Head(instructions)
        if parent is not None:
            head = parent.head
        done = job(tuple(items_of(messages, first_call)), parent, head)
        return structs.replace(done, settings=Settings(effort=effort or self._family.effort))

    def _text(self, ids: Iterable[int]) -> str:
        vocabulary = self._renderer.vocabulary
        pieces = (self._names[id].encode() if id in self._names else vocabulary.bytes_of(id) for id in ids)
        return b"".join(pieces).decode()

    def _encode(self, text: str) -> list[int]:
        vocabulary = self._renderer.vocabulary
        ids: list[int] = []
        for part in filter(None, self._split.split(text)):
            ids += [vocabulary.control(part)] if vocabulary.has_control(part) else vocabulary.encode(part)
        return ids


def items_of(messages: Sequence[Message], first_call: int = 0) -> list[Item]:
    """Messages as items. ``first_call``: the number of the first call that they make or answer."""
    items: list[Item] = []
    made = answered = first_call
    for each in messages:
        if each["role"] == "tool":
            items.append(item("function_call_output", call_id=f"c{answered}", output=each["content"]))
            answered += 1
            continue
        if each.get("thoughts"):
            content = [{"type": "reasoning_text", "text": each["thoughts"]}]
            items.append(item("reasoning", id="rs", summary=[], content=content))
        if each["content"]:
            items.append(message(each["role"], each["content"]))
        for name, arguments in each.get("calls", ()):
            text = json.dumps(arguments, ensure_ascii=False)
            items.append(item("function_call", call_id=f"c{made}", name=name, arguments=text))
            made += 1
    return items


def _read(deltas: Iterable[Any]) -> dict[str, Any]:
    """Deltas in the form of a recording."""
    read: dict[str, Any] = {"thoughts": "", "text": "", "calls": []}
    for delta in deltas:
        match type(delta).__name__:
            case "Thought":
                read["thoughts"] += delta.text
            case "Text":
                read["text"] += delta.text
            case "CallStarted":
                read["calls"].append([delta.name, ""])
            case "CallArguments":
                read["calls"][-1][1] += delta.text
    for call in read["calls"]:
        call[1] = json.loads(call[1] or "{}")
    return read
