"""A source that asks a guard model, on an engine of this server.

The job of a question is like any other, with a pattern that its answer has to match. It belongs to no
response: it is not stored, not counted as a turn and not charged to the tenant's quota.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from hashlib import blake2b
from itertools import count
from pathlib import Path
from typing import Annotated, Literal, Protocol

import msgspec
from msgspec import Meta, Struct

from slipring.base.errors import ApiError, ModelNotFound, StartupError
from slipring.base.tenant_slots import TenantSlots
from slipring.core.chain.head import Head
from slipring.core.chain.state import Carry, ResponseState
from slipring.core.checks.policies import Subject
from slipring.core.generation import Delta, Emit, Finished, Job, Model, RefusalText, Settings, Text
from slipring.core.turn.response_object import new_response
from slipring.protocol import wire
from slipring.protocol.items import Item, read_item
from slipring.protocol.requests import CreateRequest
from slipring.protocol.responses import Logprob
from slipring.protocol.tools import AUTO, Offer
from slipring.safety.source import Findings, SourceFailed
from slipring.safety.sources.guard_formats import (
    Answer,
    GraniteGuardian,
    GuardFormat,
    LlamaGuard,
    Message,
    Question,
    Qwen3Guard,
    ShieldGemma,
    Unreadable,
    WrittenPolicy,
)

_TOP_LOGPROBS = 5
_MAX_CONVERSATIONS = 256
_MAX_CONVERSATION_BYTES = 32 * 1024
"""A conversation that is longer begins anew: the guard need not remember everything, and its context window
is limited."""


class GuardSettings(Struct, frozen=True, forbid_unknown_fields=True):
    model: str
    """The name of a model that this server serves."""
    format: Literal["llama-guard", "qwen3guard", "granite", "shieldgemma", "policy"]
    criteria: dict[str, str] = {}
    """What ``granite`` and ``shieldgemma`` ask about, in one question each, by category."""
    policy: str = ""
    """The text of a policy, for ``policy``."""
    policy_file: str = ""
    """The file that contains it instead."""
    labels: tuple[Annotated[str, Meta(pattern="^[A-Za-z0-9_-]+$")], ...] = ("safe", "unsafe")
    """The answers to a policy; the first one is for texts that it allows."""
    max_output_tokens: Annotated[int, Meta(ge=1)] | None = None
    """The most tokens of an answer, if the format's own number is too small for a model's reasoning."""


class Engines(Protocol):
    """The models of a server, and how jobs are run on them."""

    def find(self, name: str) -> Model:
        """The model of this name. Raises ``ModelNotFound``."""

    async def generate(self, job: Job, emit: Emit) -> None:
        """Run a job, as ``Engine.generate`` does."""


def guard_format(settings: GuardSettings) -> GuardFormat:
    """The format that settings choose. Raises ``StartupError``."""
    match settings.format:
        case "llama-guard":
            return LlamaGuard()
        case "qwen3guard":
            return Qwen3Guard()
        case "granite":
            return GraniteGuardian(settings.criteria)
        case "shieldgemma":
            return ShieldGemma(settings.criteria)
        case "policy":
            if len(set(settings.labels)) < max(len(settings.labels), 2):
                raise StartupError("settings.labels must be two labels or more, all different")
            return WrittenPolicy(_policy_text(settings), settings.labels)


def _policy_text(settings: GuardSettings) -> str:
    text = settings.policy
    if settings.policy_file:
        try:
            text = Path(settings.policy_file).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise StartupError(f"settings.policy_file cannot be read: {type(error).__name__}") from None
    if not text.strip():
        raise StartupError("settings.policy or settings.policy_file is missing, or empty")
    return text


class Guard:
    """Asks one model in one format.

    With a policy and a context, the texts of one conversation are asked about in one conversation with the
    guard, so that its engine processes each text once.
    """

    longest_match = 0

    def __init__(self, settings: GuardSettings, engines: Engines, context: int, *, at_once: int = 4) -> None:
        """``context``: how many earlier texts each subject comes with. ``at_once``: jobs of one tenant that
        run at the same time. Raises ``StartupError``."""
        self._settings = settings
        self._engines = engines
        self._context = context
        self._format = guard_format(settings)
        self._head = Head(instructions=self._format.instructions)
        self._slots = TenantSlots(at_once)
        self._numbers = count(1)
        self._conversations: OrderedDict[bytes, ResponseState] = OrderedDict()
        """By tenant and the context that the next subject comes with. The least recently used first."""

    @property
    def version(self) -> str:
        # The text of a policy file is not in the settings.
        instructions = (self._format.instructions or "").encode()
        return f"{self._settings.model}/{blake2b(instructions, digest_size=6).hexdigest()}"

    async def start(self) -> None:
        """Look the model up: the engines have started before."""
        try:
            self._engines.find(self._settings.model)
        except ModelNotFound as error:
            raise StartupError(f"settings.model: {error.message}") from None

    async def close(self) -> None:
        self._conversations.clear()

    async def inspect(self, subjects: Sequence[Subject], tenant: str) -> list[Findings]:
        return list(await asyncio.gather(*(self._inspect(subject, tenant) for subject in subjects)))

    async def _inspect(self, subject: Subject, tenant: str) -> Findings:
        try:
            if self._format.is_continued and self._context:
                return Findings(await self._continue(subject, tenant))
            questions = self._format.questions(subject)
            answers = await asyncio.gather(*(self._ask(question, tenant) for question in questions))
        except SourceFailed as error:
            return Findings(failed=str(error))
        except Unreadable:
            return Findings(failed="the guard model gave no valid answer")
        scores: dict[str, float] = {}
        for each, _ in answers:
            scores |= each
        return Findings(scores)

    async def _continue(self, subject: Subject, tenant: str) -> dict[str, float]:
        """Ask in the conversation that contains the subject's context, or else in a new one."""
        # Removed, because two jobs cannot continue one conversation at once.
        parent = self._conversations.pop(_key(tenant, subject.context), None)
        if parent is not None:
            question = self._format.next_question(subject)
        else:
            [question] = self._format.questions(subject)
        scores, state = await self._ask(question, tenant, parent)
        if state.context_bytes <= _MAX_CONVERSATION_BYTES:
            following = (*subject.context, subject.text)[-self._context :]
            self._conversations[_key(tenant, following)] = state
            if len(self._conversations) > _MAX_CONVERSATIONS:
                self._conversations.popitem(last=False)
        return scores

    async def _ask(
        self, question: Question, tenant: str, parent: ResponseState | None = None
    ) -> tuple[dict[str, float], ResponseState]:
        """The scores that the model gives, and the state of the conversation after its answer."""
        try:
            job = self._job(question, tenant, parent)
            async with self._slots.hold(tenant):
                answer, finished = await self._generate(job)
        except ApiError as error:
            raise SourceFailed(f"the guard model failed: {error.code}") from None
        scores = self._format.read(question, answer)
        response = new_response(
            CreateRequest(),
            self._head,
            AUTO,
            job.settings,
            response_id=job.response_id,
            model=job.model.name,
            now=0,
        )
        state = ResponseState(
            response=response,
            parent=parent,
            head=self._head,
            input=job.input,
            output=(_item(Message("assistant", answer.text)),),
            carry=Carry(),
            position=finished.position,
        )
        return scores, state

    def _job(self, question: Question, tenant: str, parent: ResponseState | None) -> Job:
        model = self._engines.find(self._settings.model)
        has_logprobs = model.capabilities.logprobs
        return Job(
            response_id=f"check_{id(self):x}_{next(self._numbers)}",
            tenant=tenant,
            model=model,
            head=self._head,
            parent=parent,
            input=tuple(map(_item, question.messages)),
            offer=Offer(forbidden=True),
            settings=Settings(
                max_output_tokens=self._settings.max_output_tokens or self._format.max_tokens,
                temperature=0.0,
                logprobs=has_logprobs,
                top_logprobs=_TOP_LOGPROBS if has_logprobs else 0,
                effort=model.efforts[0] if model.efforts else None,
                pattern=self._format.pattern,
            ),
        )

    async def _generate(self, job: Job) -> tuple[Answer, Finished]:
        texts: list[str] = []
        logprobs: list[Logprob] = []
        last: Delta | None = None

        def take(deltas: list[Delta]) -> None:
            nonlocal last, logprobs
            for delta in deltas:
                if isinstance(delta, Text):
                    texts.append(delta.text)
                    logprobs += delta.logprobs
                elif isinstance(delta, RefusalText):
                    raise SourceFailed("the guard model refused to answer")
            last = deltas[-1]

        await self._engines.generate(job, take)
        if not isinstance(last, Finished):
            raise SourceFailed("the guard model gave no answer")
        return Answer("".join(texts), logprobs), last


def _key(tenant: str, context: Sequence[str]) -> bytes:
    return blake2b(msgspec.msgpack.encode((tenant, context)), digest_size=20).digest()


def _item(message: Message) -> Item:
    return read_item(wire.encode({"type": "message", "role": message.role, "content": message.text}), "input")
