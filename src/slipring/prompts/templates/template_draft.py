"""One conversation as a template writes it, with and without its last messages."""

import re
from collections.abc import Sequence, Set
from typing import Any

from msgspec import Struct, structs

from slipring.base.errors import InvalidRequest
from slipring.core.token_estimates import estimated_picture_tokens
from slipring.prompts.chain_choices import EMPTY_THOUGHTS, WHITE_SPACE, ChainChoice
from slipring.prompts.full_renders import NO_BOUNDARY, REWRITES_EARLIER, CannotAppend
from slipring.prompts.parsing.output_format import OutputFormat
from slipring.prompts.rendering import PlacedPicture, picture_id
from slipring.prompts.templates.chat_messages import ChatMessage, MessageFields
from slipring.prompts.templates.jinja_engines import ChatTemplate, Variables
from slipring.prompts.templates.message_forms import MessageForms
from slipring.prompts.templates.picture_marks import split_marks
from slipring.prompts.templates.stand_ins import ALL_PLACEHOLDERS, THOUGHT_PLACEHOLDER
from slipring.prompts.tokenization.control_token_guard import ControlTokenFinder, ControlTokenGuard
from slipring.prompts.tokenization.token_budget import BudgetedEncoder
from slipring.protocol import wire
from slipring.protocol.pictures.item_pictures import Picture


class DraftForm(Struct, frozen=True):
    """How a template takes conversations, and how its model writes answers."""

    template: ChatTemplate
    finder: ControlTokenFinder
    forms: MessageForms
    fields: MessageFields
    format: OutputFormat


class Draft:
    """Renders one conversation several times, with and without its last messages, and compares what is
    written."""

    def __init__(
        self,
        form: DraftForm,
        encoder: BudgetedEncoder,
        messages: Sequence[ChatMessage],
        tools: list[dict[str, Any]],
        variables: Variables,
    ) -> None:
        self._form = form
        self._finder = form.finder
        self._encoder = encoder
        self._variables = variables
        self.guard = ControlTokenGuard(form.finder, lambda: wire.encode((messages, tools)).decode())
        self._tools: list[dict[str, Any]] = [self.guard.value(tool) for tool in tools]

    def write(
        self, messages: Sequence[ChatMessage], *, prompt: bool = False, variables: Variables | None = None
    ) -> str:
        """Render messages. ``prompt``: with an open assistant turn. ``variables``: instead of those of the
        conversation. Raises ``InvalidRequest``."""
        guard, form = self.guard, self._form
        adapted = form.forms.adapt(messages)
        dicts = [message.as_dict(guard.text, guard.value, form.fields) for message in adapted]
        return form.template.render(
            dicts,
            self._tools or None,
            add_generation_prompt=prompt,
            variables=self._variables if variables is None else variables,
        )

    def count_thoughts(self, text: str) -> int:
        """How many thoughts of a stand-in a text has."""
        return text.count(self.guard.text(THOUGHT_PLACEHOLDER))

    def unwritten_thoughts(self, messages: Sequence[ChatMessage], written: str) -> list[int]:
        """The numbers of the reasoning items whose thoughts are not written. ``written``: what the template
        writes for the messages of these."""
        thinking = [at for at, message in enumerate(messages) if message.thought_numbers]
        if not thinking:
            return []
        mark = "((thought"
        while mark in written:
            mark += "("
        marks = {at: f"{mark} {at}))" for at in thinking if messages[at].thoughts}
        marked = [
            structs.replace(message, thoughts=marks[at]) if at in marks else message
            for at, message in enumerate(messages)
        ]
        shown = self.write(marked, prompt=True)
        unwritten = [at for at in thinking if at not in marks or self.guard.text(marks[at]) not in shown]
        return [number for at in unwritten for number in messages[at].thought_numbers or ()]

    def rest(self, text: str, longer: str) -> str | None:
        """What ``longer`` has after ``text``; None if it has another beginning, or no token ends there."""
        if not longer.startswith(text):
            return None
        return longer[len(text) :] if self._finder.divides(longer, len(text)) else None

    def require_rest(self, text: str, longer: str) -> str:
        """Like ``rest``, but raises ``CannotAppend`` instead of returning None."""
        rest = self.rest(text, longer)
        if rest is None:
            raise CannotAppend(NO_BOUNDARY if longer.startswith(text) else REWRITES_EARLIER)
        return rest

    def has_placeholders(self, text: str) -> bool:
        return any(self.guard.text(placeholder) in text for placeholder in ALL_PLACEHOLDERS)

    def ids(self, text: str) -> list[int]:
        """Encode rendered text: control tokens by name, each text between them separately."""
        ids: list[int] = []
        pieces = self.guard.mend(self._finder.split(text))
        self._encoder.expect(piece for piece in pieces if isinstance(piece, str))
        for piece in pieces:
            if isinstance(piece, int):
                ids.append(piece)
                self._encoder.spend(1)
            else:
                ids += self._encoder.encode(piece)
        return ids

    def placed(self, text: str, pictures: Sequence[Picture]) -> tuple[list[int], list[PlacedPicture]]:
        """Encode rendered text that has pictures, and find the ids that stand for these. Raises
        ``InvalidRequest`` if the template has not written each of them once, in their order."""
        form, encoder = self._form.fields.picture, self._encoder
        assert form is not None, "pictures for a model that cannot see are refused"
        ids: list[int] = []
        numbers: list[int] = []
        places: list[int] = []
        for piece in self.guard.mend(self._finder.split(text)):
            for part in split_marks(piece) if isinstance(piece, str) and form.id is None else [piece]:
                if isinstance(part, str):
                    ids += encoder.encode(part)
                    continue
                if piece is not part or part == form.id:
                    numbers.append(part if form.id is None else len(numbers))
                    places.append(len(ids))
                ids.append(part)
                encoder.spend(1)
        if numbers != list(range(len(pictures))):
            raise InvalidRequest("The model's template does not write the pictures of this conversation.")
        placed: list[PlacedPicture] = []
        for at, picture in zip(places, pictures, strict=True):
            placed.append(PlacedPicture(at, picture.digest, estimated_picture_tokens(picture)))
            if form.id is None:
                ids[at] = picture_id(picture.digest)
        return ids, placed

    def kept(self, start: str, written: str) -> Set[ChainChoice] | None:
        """What a chain keeps if it begins with ``start`` where the template now writes ``written``; None if
        these differ by more."""
        if written.startswith(start):
            return set()
        bare = [self.without_empty_thoughts(text) for text in (start, written)]
        if bare[1].startswith(bare[0]):
            return {EMPTY_THOUGHTS}
        if squeezed(written).startswith(squeezed(start)):
            return {WHITE_SPACE}
        return {EMPTY_THOUGHTS, WHITE_SPACE} if squeezed(bare[1]).startswith(squeezed(bare[0])) else None

    def without_empty_thoughts(self, text: str) -> str:
        """A text without the thoughts that no model wrote, and without marks of thoughts."""
        opening, closing = self._form.format.think_open.strip(), self._form.format.think_close.strip()
        if opening and closing:
            inner = f"(?:(?!{re.escape(opening)}|{re.escape(closing)}).)*"
            thoughts = re.compile(rf"{re.escape(opening)}{inner}{re.escape(closing)}\s*", re.DOTALL)
            text = thoughts.sub(lambda found: found[0] if self.count_thoughts(found[0]) else "", text)
        for mark in filter(None, (opening, closing)):
            text = re.sub(rf"{re.escape(mark)}\s*", "", text)
        return text


def squeezed(text: str) -> str:
    """A text without white space."""
    return "".join(text.split())
