"""A chat template and its properties, which are found out once, when a model is loaded.

The template writes short conversations of placeholders. They show how it ends an answer, whether it numbers
calls, which thoughts it drops, and what ``reasoning.effort`` changes. ``Draft`` is one conversation as the
template writes it, with and without its last messages.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from typing import Any, Literal

from msgspec import Struct, structs

from slipring.base.errors import InvalidRequest
from slipring.core.token_estimates import estimated_picture_tokens
from slipring.prompts.fallback_reasons import NO_BOUNDARY, REWRITES_EARLIER, CannotAppend
from slipring.prompts.parsing.output_format import OutputFormat
from slipring.prompts.rendering import (
    ALL_THOUGHTS,
    CALL_IDS,
    CALL_TEXTS,
    CHAIN_CHOICES,
    EMPTY_THOUGHTS,
    LOOP_THOUGHTS,
    WHITE_SPACE,
    ChainChoice,
    PlacedPicture,
    picture_id,
)
from slipring.prompts.templates.chat_messages import (
    PICTURE_ROLES,
    ChatMessage,
    MessageFields,
    PictureForm,
    Role,
    picture_mark,
    split_picture_marks,
)
from slipring.prompts.templates.detection.family_formats import HERMES
from slipring.prompts.templates.detection.format_detection import detect_format
from slipring.prompts.templates.detection.probes import common_prefix
from slipring.prompts.templates.jinja_engines import (
    NO_VARIABLES,
    ChatTemplate,
    SupportsStrftime,
    TemplateError,
    Variables,
)
from slipring.prompts.templates.message_forms import ACCEPTS_ALL, MessageForms, find_forms
from slipring.prompts.templates.stand_ins import (
    ALL_PLACEHOLDERS,
    ANSWERED,
    CALLED,
    EARLIER_ANSWERS,
    LAST_CALL_PLACEHOLDER,
    NEXT_PLACEHOLDER,
    PLACEHOLDER_TOOLS,
    QUESTION,
    TEXT_PLACEHOLDER,
    THOUGHT_PLACEHOLDER,
    earlier_calls,
    with_earlier_calls,
    with_thoughts,
)
from slipring.prompts.tokenization.control_token_guard import ControlTokenFinder, ControlTokenGuard
from slipring.prompts.tokenization.token_budget import BudgetedEncoder
from slipring.prompts.tokenization.tokenizer import Vocabulary
from slipring.protocol import wire
from slipring.protocol.items.item_pictures import Picture


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
        fixed_prompt: str | None,
    ) -> None:
        """``fixed_prompt``: what opens the assistant turn after all messages; None if it depends on them."""
        self._form = form
        self._finder = form.finder
        self._encoder = encoder
        self.variables = variables
        self._fixed_prompt = fixed_prompt
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
            variables=self.variables if variables is None else variables,
        )

    def opened(self, messages: Sequence[ChatMessage], text: str) -> str:
        """``text``, which is what is written for messages, with an open assistant turn."""
        if self._fixed_prompt is None:
            return self.write(messages, prompt=True)
        return text + self._fixed_prompt

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
            for part in split_picture_marks(piece) if isinstance(piece, str) and form.id is None else [piece]:
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


class ModelTemplate(Struct, frozen=True, kw_only=True):
    """A model's chat template, and what its files say about the tokens around it."""

    source: str
    bos_token: str = ""
    eos_token: str = ""
    stop_ids: tuple[int, ...] = ()
    """The ids that end an answer, as far as the model's files name them."""
    response_template: Mapping[str, Any] | None = None
    """The model's own description of its answers."""


_EXCHANGES = (0, 1, 2, 20)
"""How many earlier exchanges are tried, to see whether a template counts messages."""

ThoughtsKept = Literal["all", "turn", "template"]
"""Whose thoughts a context has: all, those since the last user message, or those that the template writes."""


class ProbedTemplate:
    """A template with what was found out about it. Raises ``TemplateError`` if it is unusable.

    ``variables``: further variables of the template, which win over those that an effort sets.
    ``keeps_thoughts``: earlier thoughts stay in the context where the template would drop them.
    """

    def __init__(
        self,
        model: ModelTemplate,
        vocabulary: Vocabulary,
        *,
        today: SupportsStrftime | None,
        variables: Variables,
        keeps_thoughts: bool,
        pictures: Sequence[PictureForm] = (),
    ) -> None:
        self.template = ChatTemplate(
            model.source, bos_token=model.bos_token, eos_token=model.eos_token, today=today
        )
        self._vocabulary = vocabulary
        self._finder = ControlTokenFinder(vocabulary, model.source, ALL_PLACEHOLDERS)
        self._placed = ControlTokenGuard(self._finder, lambda: "").text
        """What is written for a placeholder."""
        self._variables = variables
        self._variables_by_effort: dict[tuple[str | None, bool], Variables] = {}
        self._fixed_prompts: dict[tuple[str | None, bool], str | None] = {}
        """Both by the effort, and whether all thoughts are kept."""
        self._require_user_message()
        self.detected = detected = detect_format(self._render_probe, model.source, model.response_template)
        # Tools that the template does not write are described in Hermes' form: calls are expected in it.
        self.output_format = detected.format if detected.writes_tools else _with_hermes(detected.format)
        # A template that knows no thoughts does not say that they are to be dropped.
        self.keeps_thoughts = keeps_thoughts or self.output_format.think_close != detected.format.think_close
        self._form = self._find_form()
        self.picture = self._find_picture_form(pictures)
        """How it takes pictures; None if it takes none."""
        if self.picture is not None:
            fields = structs.replace(self._form.fields, picture=self.picture)
            forms = structs.replace(self._form.forms, pictured=self.picture.roles)
            self._form = structs.replace(self._form, fields=fields, forms=forms)
        self.eos_token = model.eos_token
        named = self._control_ids((model.eos_token, *self.output_format.stops))
        self.stop_ids = frozenset(named.union(model.stop_ids))
        self.numbers_calls = self._finds_numbers()
        """Whether a call is written otherwise after other calls: ``all`` of them, or after the ``first``."""
        self.counts_messages = self._counts_messages()
        """Whether what it writes for new messages depends on how many came before: no stand-in shows that."""
        self.closers = (
            self._find_closer(ANSWERED, TEXT_PLACEHOLDER),
            self._find_closer(CALLED, LAST_CALL_PLACEHOLDER),
        )
        """The control tokens that end an answer of text and one of calls; empty if none does."""
        self._effort_changes: dict[tuple[str | None, str | None, bool], bool] = {}
        self.rewrites_answers = not self.keeps_thoughts and self._drops_thoughts()
        self.efforts = detected.thinking.distinct_efforts()
        self.chain_choices = tuple(sorted(self._find_choices(), key=CHAIN_CHOICES.index))

    def _find_form(self) -> DraftForm:
        """How it writes messages without pictures."""
        detected = self.detected
        fields = MessageFields(
            thought_blocks=detected.takes_thought_chunks,
            text_arguments=detected.takes_text_arguments,
            broken_arguments=detected.takes_broken_arguments,
            null_content=detected.takes_null_content,
            calls_as_text=None if detected.writes_calls else _with_hermes(self.output_format),
        )
        self._form = DraftForm(self.template, self._finder, ACCEPTS_ALL, fields, self.output_format)
        forms = find_forms(self._written)
        if not detected.writes_tools and not detected.writes_calls:
            forms = structs.replace(forms, outputs=False)  # Hermes' form for these as well
        return structs.replace(self._form, forms=forms)

    @property
    def forms(self) -> MessageForms:
        return self._form.forms

    def draft(
        self,
        messages: Sequence[ChatMessage],
        tools: list[dict[str, Any]],
        encoder: BudgetedEncoder,
        effort: str | None,
        reasoning_context: str | None = None,
    ) -> Draft:
        """What writes a conversation. ``messages`` and ``tools`` have all texts that it will write."""
        variables = self.variables_of(effort, reasoning_context)
        prompt = self._fixed_prompt(effort, reasoning_context)
        return Draft(self._form, encoder, messages, tools, variables, prompt)

    def thoughts_kept(self, reasoning_context: str | None) -> ThoughtsKept:
        """What a request's ``reasoning_context`` comes to with this template."""
        if reasoning_context == "current_turn":
            return "turn"
        return "all" if self.keeps_thoughts or reasoning_context == "all_turns" else "template"

    def variables_of(self, effort: str | None, reasoning_context: str | None = None) -> Variables:
        """The variables for an effort and a ``reasoning_context``, with those of the operator."""
        keeps = self.thoughts_kept(reasoning_context) == "all"
        found = self._variables_by_effort.get((effort, keeps))
        if found is None:
            switches = self.detected.thinking
            kept = switches.keep_variables() if keeps else NO_VARIABLES
            found = {**switches.variables(effort), **kept, **self._variables}
            self._variables_by_effort[effort, keeps] = found
        return found

    def _fixed_prompt(self, effort: str | None, reasoning_context: str | None) -> str | None:
        """What opens the assistant turn after every conversation, if the template's syntax says that there is
        such a text; None if it does not, or none can be written to find it."""
        if not self.template.has_fixed_prompt:
            return None
        key = (effort, self.thoughts_kept(reasoning_context) == "all")
        if key not in self._fixed_prompts:
            self._fixed_prompts[key] = self._find_fixed_prompt(self.variables_of(effort, reasoning_context))
        return self._fixed_prompts[key]

    def _find_fixed_prompt(self, variables: Variables) -> str | None:
        if any(isinstance(value, list | dict) for value in variables.values()):
            return None  # the template may put into them what it reads in a conversation
        try:
            text, opened = (self._user_message("?", variables, prompt=prompt) for prompt in (False, True))
        except InvalidRequest:
            return None
        return opened[len(text) :] if opened.startswith(text) else None

    def effort_changes_history(self, before: str | None, now: str | None, *, has_tools: bool) -> bool:
        """Whether a template writes another beginning or other earlier answers for another effort, instead of
        only another prompt."""
        if before == now or self.variables_of(before) == self.variables_of(now):
            return False
        change = (before, now, has_tools)
        if change not in self._effort_changes:
            tools = PLACEHOLDER_TOOLS if has_tools else []
            self._effort_changes[change] = any(
                self._written(messages, before, tools) != self._written(messages, now, tools)
                for messages in ([QUESTION], EARLIER_ANSWERS)
            )
        return self._effort_changes[change]

    def _find_picture_form(self, forms: Sequence[PictureForm]) -> PictureForm | None:
        """The first form in which the template writes a picture of the user, with all roles in which it does;
        None if there is none."""
        plain = self._form
        try:
            for form in forms:
                self._form = structs.replace(plain, fields=structs.replace(plain.fields, picture=form))
                found = {role: self._written_picture(role) for role in PICTURE_ROLES}
                id = found["user"]
                if id is None:
                    continue
                if form.part is not None:
                    parts = [{"type": "text", "text": "?"}, {**form.part}, {"type": "text", "text": " "}]
                    self.template.compare([{"role": "user", "content": parts}])
                return structs.replace(
                    form,
                    id=id if isinstance(id, int) else None,
                    are_numbered=self._numbers_pictures(),
                    roles=tuple(role for role, written in found.items() if written == id),
                )
        finally:
            self._form = plain
        return None

    def _written_picture(self, role: Role) -> int | str | None:
        """What the template writes for a picture in a message of this role: a mark, or the id of a control
        token; None if it writes nothing that can be found, or not the texts beside it."""
        question, called, output = CALLED
        before, after = "((before it))", "((after it))"

        def written(text: str) -> str | None:
            if role == "tool":
                return self._written([question, called, structs.replace(output, content=text)])
            message = ChatMessage(role=role, content=text)
            return self._written([message] if role == "user" else [message, question])

        shown, plain = written(before + picture_mark(0) + after), written(before + after)
        if shown is None or plain is None or before not in shown or after not in shown:
            return None
        if shown.count(picture_mark(0)) == 1:
            return picture_mark(0)
        ids, others = (
            [each for each in self._finder.split(text) if isinstance(each, int)] for text in (shown, plain)
        )
        added = (id for id in ids if ids.count(id) == others.count(id) + 1)
        return next(added, None)

    def _numbers_pictures(self) -> bool:
        """Whether the template writes another text for a picture after one in an earlier message."""
        question, answer, following = ANSWERED
        last = structs.replace(following, content=picture_mark(1))
        seen = structs.replace(question, content=question.content + picture_mark(0))
        texts = (self._written((before, answer, last)) or "" for before in (question, seen))
        one, other = (text.rpartition(TEXT_PLACEHOLDER)[2] for text in texts)
        return one != other

    def _finds_numbers(self) -> Literal["all", "first", ""]:
        """Whether the template writes another text for a call, or for its output, after other calls: for each
        of them, for the first one, or not."""
        question, *called = CALLED
        in_a_loop = self._numbers_after(lambda count: [question, *earlier_calls(count)], called)
        asked_again = self._numbers_after(lambda count: with_earlier_calls([question], count), called)
        return "all" if "all" in (in_a_loop, asked_again) else in_a_loop or asked_again

    def _numbers_after(
        self, earlier: Callable[[int], Sequence[ChatMessage]], called: Sequence[ChatMessage]
    ) -> Literal["all", "first", ""]:
        """The same for a call after the messages with so many earlier ones."""
        written = []
        for count in range(3):
            before = earlier(count)
            start, whole = (self._written(messages) for messages in (before, [*before, *called]))
            if start is None or whole is None:
                return ""
            # Some templates end a list of outputs only where nothing follows it.
            written.append(whole[len(common_prefix(start, whole)) :])
        if written[1] != written[2]:
            return "all"
        return "first" if written[0] != written[1] else ""

    def _counts_messages(self) -> bool:
        """Whether the template writes what follows an answer, or its prompt once it is answered, otherwise
        after more messages."""
        question, answer, _ = ANSWERED
        _, called, output = CALLED
        system = structs.replace(question, role="system")
        exchange, thinking = (question, answer), (question, with_thoughts(answer))
        loops = [(question, called, output, answer) * count for count in _EXCHANGES[1:]]
        alike: tuple[Sequence[Sequence[ChatMessage]], ...] = (
            [exchange * count for count in _EXCHANGES],
            [(), *((question, *exchange * count) for count in _EXCHANGES), (*exchange, system)],
            [thinking * count for count in _EXCHANGES[1:]],
            # Where calls are numbered, stand-ins have one if there was one.
            loops if self.numbers_calls else [(), *loops],
        )
        return any(len({*map(self._written_after, earlier)} - {None}) > 1 for earlier in alike)

    def _written_after(self, earlier: Sequence[ChatMessage]) -> tuple[str, bool] | None:
        """What the template writes after an answer that follows earlier messages, and whether it writes the
        prompt of that answer as before; None if it refuses them, or writes the answer otherwise."""
        draft = self.draft([*earlier, *ANSWERED], [], BudgetedEncoder(self._vocabulary), None)
        try:
            start = draft.write([*earlier, QUESTION], prompt=True)
            written = draft.write([*earlier, *ANSWERED], prompt=True)
        except InvalidRequest:
            return None
        before, mark, after = written.rpartition(self._placed(TEXT_PLACEHOLDER))
        return (after, draft.kept(start, before) is not None) if mark else None

    def _find_closer(self, messages: Sequence[ChatMessage], mark: str) -> str:
        """The control token that ends an answer, between ``mark``, the last text of an answer, and the next
        message; empty if none does.

        It is the first one that ends answers. Where the template writes another one (Harmony), or none (GLM:
        the next message begins), it is the first one that is not a mark of calls.
        """
        written = self._written(messages)
        if written is None:
            return ""
        after = written.rpartition(self._placed(mark))[2]
        pieces = self._finder.split(after.partition(self._placed(NEXT_PLACEHOLDER))[0])
        ids = [piece for piece in pieces if isinstance(piece, int)]
        format = self.output_format
        # In Harmony, all structure is marks: answers end with one that is none of a call.
        marks = set() if format.is_harmony else self._control_ids(format.marks())
        if mark == TEXT_PLACEHOLDER and not _is_blank(pieces):
            return ""  # text ends the answer
        closers = [id for id in ids if id in self.stop_ids] or self._others(pieces, marks)
        names = {self._vocabulary.control(name): name for name in self._vocabulary.control_tokens()}
        return names[closers[0]] if closers else ""

    def _others(self, pieces: Sequence[str | int], marks: Set[int]) -> list[int]:
        """The control tokens that are no marks. A mark that begins the next message is one of them (Solar's
        ``<|begin|>tool<|tool_response|>``): other words than those of calls follow it."""
        found: list[int] = []
        for before, text, piece in zip(("", "", *pieces), ("", *pieces), pieces, strict=False):
            if isinstance(piece, int) and piece not in marks:
                if isinstance(before, int) and isinstance(text, str) and self._is_foreign(text):
                    found.append(before)
                found.append(piece)
        return found

    def _is_foreign(self, text: str) -> bool:
        """Whether a text has words that are no marks of the format."""
        for mark in sorted(self.output_format.marks(), key=len, reverse=True):
            text = text.replace(mark.strip(), "")
        return bool(text.strip())

    def _control_ids(self, names: Iterable[str]) -> set[int]:
        return {self._vocabulary.control(name) for name in filter(self._vocabulary.has_control, names)}

    def _drops_thoughts(self) -> bool:
        """Whether the template leaves out the thoughts of an answer once the user speaks again."""
        question, answer, following = ANSWERED
        return self._drops((question, with_thoughts(answer), following), None)

    def _drops(self, messages: Sequence[ChatMessage], effort: str | None) -> bool:
        """Whether the template leaves out the only thoughts of messages."""
        written = self._written(messages, effort)
        return written is not None and self._placed(THOUGHT_PLACEHOLDER) not in written

    def _find_choices(self) -> Iterator[ChainChoice]:
        """What chains keep that the template drops."""
        efforts = (None, *self.efforts)
        yield from {choice for effort in efforts for choice in self._kept_after_answers(effort)}
        question, called, output = CALLED
        loop = (question, with_thoughts(called), output)
        if self._adds_call_ids():
            yield CALL_IDS
        if self._drops_call_texts():
            yield CALL_TEXTS
        if self.keeps_thoughts and self._drops_thoughts():
            yield ALL_THOUGHTS
        elif any(self._drops(loop, effort) for effort in filter(self._thinks, efforts)):
            yield LOOP_THOUGHTS

    def _kept_after_answers(self, effort: str | None) -> Iterator[ChainChoice]:
        """What chains keep because a template writes prompts otherwise once answers and messages follow."""
        draft = self.draft(EARLIER_ANSWERS, [], BudgetedEncoder(self._vocabulary), effort)
        question, answer, following = ANSWERED
        _, called, output = CALLED
        texts, calls = draft.guard.text(TEXT_PLACEHOLDER), draft.guard.text(LAST_CALL_PLACEHOLDER)
        for context in ((question,), (question, called, output)):
            for reply, mark, follower in ((answer, texts, following), (called, calls, output)):
                try:
                    start = draft.write(context, prompt=True)
                    written = draft.write([*context, reply, follower]).rpartition(mark)[0]
                except InvalidRequest:
                    continue
                yield from draft.kept(start, written) or ()

    def _adds_call_ids(self) -> bool:
        """Whether the template writes the id of a call only once its output follows."""
        *asked, called, _ = CALLED
        texts = [self._written(messages) for messages in ([*asked, called], CALLED)]
        mark, closer, id = self._placed(LAST_CALL_PLACEHOLDER), self.closers[True], called.calls[-1].id
        last, earlier = ((text or "").rpartition(mark)[2] for text in texts)
        return None not in texts and bool(closer) and id in earlier.partition(closer)[0] and id not in last

    def _drops_call_texts(self) -> bool:
        """Whether the template writes a call without the text before it."""
        question, called, output = CALLED
        spoken = structs.replace(called, content=TEXT_PLACEHOLDER)
        written = self._written([question, spoken, output]) or ""
        return (
            self._placed(LAST_CALL_PLACEHOLDER) in written and self._placed(TEXT_PLACEHOLDER) not in written
        )

    def _thinks(self, effort: str | None) -> bool:
        """Whether the model may think, as far as its template shows."""
        switches = self.detected.thinking
        is_off = effort == "none" if effort is not None else switches.thinks_by_default is False
        return bool(self.output_format.think_close) and not (is_off and switches.can_be_off)

    def _require_user_message(self) -> None:
        try:
            text = self._user_message("?")
        except InvalidRequest as error:
            if not self._takes_parts_only():
                reason = f"The chat template cannot render a user message: {error.message}"
                raise TemplateError(reason) from None
            return
        if text == self._user_message("!"):
            self._takes_parts_only()

    def _takes_parts_only(self) -> bool:
        """Whether the template writes contents that are lists, and no text. If so, texts become lists."""
        self.template.text_parts = True
        try:
            self.template.text_parts = self._user_message("?") != self._user_message("!")
        except InvalidRequest:
            self.template.text_parts = False
        return self.template.text_parts

    def _user_message(self, text: str, variables: Variables | None = None, *, prompt: bool = True) -> str:
        question = [{"role": "user", "content": text}]
        variables = self._variables if variables is None else variables
        return self.template.render(question, add_generation_prompt=prompt, variables=variables)

    def _render_probe(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        add_generation_prompt: bool,
        variables: Variables,
    ) -> str:
        return self.template.render(
            messages,
            tools,
            add_generation_prompt=add_generation_prompt,
            variables={**variables, **self._variables},
        )

    def _written(
        self,
        messages: Sequence[ChatMessage],
        effort: str | None = None,
        tools: Sequence[dict[str, Any]] = (),
    ) -> str | None:
        """What the template writes for messages; None if it refuses them."""
        draft = self.draft(messages, list(tools), BudgetedEncoder(self._vocabulary), effort)
        try:
            return draft.write(messages)
        except InvalidRequest:
            return None


def _with_hermes(format: OutputFormat) -> OutputFormat:
    """A format with Hermes' calls if it has none, and with Hermes' thoughts if it has none."""
    if format.calls is not None or format.is_harmony:
        return format
    think_open, think_close = format.think_open, format.think_close
    if not think_close:
        think_open, think_close = HERMES.think_open, HERMES.think_close
    return structs.replace(format, calls=HERMES.calls, think_open=think_open, think_close=think_close)


def _is_blank(pieces: Sequence[str | int]) -> bool:
    """Whether no text but white space precedes the first control token."""
    return not pieces or isinstance(pieces[0], int) or not pieces[0].strip()
