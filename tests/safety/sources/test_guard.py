"""Guard models on engines: bound answers, conversations by delta, failures."""

import asyncio
from collections.abc import Awaitable

import pytest

from slipring.base.errors import ServerError, StartupError
from slipring.core.generation import Accepted, Delta, Emit, Finished, Job, Model, RefusalText, deliver
from slipring.engines.catalog import Catalog
from slipring.safety.source_calls import SourceFailed
from slipring.safety.sources.guard import Guard, GuardSettings, LlamaGuard, Qwen3Guard
from tests.model import SharedModel
from tests.safety.checking import said
from tests.safety.guarding import GuardEngine

_POLICY = GuardSettings("guard", "policy", policy="Texts about weapons are not allowed.")


class Observed:
    """The engines of a server, and what they report about each job."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self.jobs: list[Job] = []
        self.finished: list[Finished] = []
        self.accepted: list[Accepted] = []

    def find(self, name: str | None) -> Model:
        return self._catalog.find(name)

    async def generate(self, job: Job, emit: Emit) -> None:
        self.jobs.append(job)

        def observe(deltas: list[Delta]) -> Awaitable[None] | None:
            self.finished += [delta for delta in deltas if isinstance(delta, Finished)]
            self.accepted += [delta for delta in deltas if isinstance(delta, Accepted)]
            return emit(deltas)

        await self._catalog.generate(job, observe)


@pytest.fixture
async def engines(tiny_model: SharedModel):
    catalog = Catalog.of_engine(tiny_model.engine(slots=2, context=1024), ["guard"])
    await catalog.start()
    yield Observed(catalog)
    for engine in catalog.engines:
        await engine.close()


@pytest.mark.parametrize("format", ["llama-guard", "qwen3guard", "granite", "shieldgemma", "policy"])
async def test_a_model_that_knows_nothing_of_the_format_gives_a_valid_answer(engines, format) -> None:
    settings = GuardSettings("guard", format, policy="No weapons.", max_output_tokens=200)
    (found,) = await Guard(settings, engines, context=0).inspect([said("x")], "t")
    assert found.failed is None
    assert found.scores


async def test_a_conversation_is_read_by_delta(engines) -> None:
    guard = Guard(_POLICY, engines, context=2)
    texts = [f"Text number {number} is about flowers." for number in range(5)]
    for number, text in enumerate(texts):
        context = tuple(texts[max(number - 2, 0) : number])
        (found,) = await guard.inspect([said(text, context=context)], "t")
        assert found.failed is None
    parents = [job.parent for job in engines.jobs]
    assert [parent.depth if parent is not None else 0 for parent in parents] == [0, 1, 2, 3, 4]
    rendered = [each.rendered_tokens for each in engines.accepted]
    assert max(rendered[1:]) < rendered[0]
    # What was read before is in the engine's cache: the part that is new does not grow.
    new = [each.input_tokens - each.cached_tokens for each in engines.finished]
    assert max(new[1:]) < new[0]
    assert new[4] <= new[1] + 2


async def test_conversations_of_tenants_are_apart(engines) -> None:
    guard = Guard(_POLICY, engines, context=2)
    for tenant in ("a", "b", "a"):
        context = ("one",) if len(engines.jobs) == 2 else ()
        await guard.inspect([said("one" if not context else "two", context=context)], tenant)
    assert [(job.tenant, job.parent is None) for job in engines.jobs] == [
        ("a", True),
        ("b", True),
        ("a", False),
    ]


async def test_no_more_jobs_run_at_once_than_the_check_allows() -> None:
    class CountingEngine(GuardEngine):
        running = most = 0

        async def generate(self, job: Job, emit: Emit) -> None:
            self.running += 1
            self.most = max(self.most, self.running)
            try:
                await asyncio.sleep(0)
                await super().generate(job, emit)
            finally:
                self.running -= 1

    engines = CountingEngine(lambda _: "Yes")
    settings = GuardSettings("guard", "shieldgemma", criteria={"a": "No a.", "b": "No b."})
    guard = Guard(settings, engines, context=0, at_once=3)
    found = await guard.inspect([said(str(number)) for number in range(5)], "t")
    assert [each.scores for each in found] == [{"a": 1.0, "b": 1.0}] * 5
    assert (engines.most, len(engines.jobs)) == (3, 10)


async def test_jobs_are_bound_deterministic_and_short() -> None:
    engines = GuardEngine(lambda is_bad: "unsafe\nS1" if is_bad else "safe")
    await Guard(GuardSettings("guard", "llama-guard"), engines, context=3).inspect([said("x")], "t")
    settings = engines.jobs[0].settings
    assert (settings.pattern, settings.temperature) == (LlamaGuard.pattern, 0.0)
    assert settings.max_output_tokens == LlamaGuard.max_tokens
    assert engines.jobs[0].offer.forbidden


async def test_an_answer_that_cannot_be_read_fails_its_text_only() -> None:
    engines = GuardEngine(lambda is_bad: "I am sorry" if is_bad else "Safety: Safe\nCategories: None")
    guard = Guard(GuardSettings("guard", "qwen3guard"), engines, context=0)
    found = await guard.inspect([said("tea"), said("bomb")], "t")
    assert [each.failed for each in found] == [None, "the guard model gave no valid answer"]
    assert engines.jobs[0].settings.pattern == Qwen3Guard.pattern


class FailingEngine(GuardEngine):
    def __init__(self, outcome: Exception | Delta | None) -> None:
        super().__init__(lambda _: "")
        self._outcome = outcome

    async def generate(self, job: Job, emit: Emit) -> None:
        await deliver(emit, [Accepted()])
        if isinstance(self._outcome, Exception):
            raise self._outcome
        if self._outcome is not None:
            await deliver(emit, [self._outcome])


@pytest.mark.parametrize(
    ("outcome", "reason"),
    [
        (ServerError("the text was: tea"), "the guard model failed: server_error"),
        (RefusalText("I will not read tea"), "the guard model refused to answer"),
        (None, "the guard model gave no answer"),
        (SourceFailed("anything"), "anything"),
    ],
)
async def test_failures_of_the_engine_are_named_without_the_text(outcome, reason: str) -> None:
    guard = Guard(_POLICY, FailingEngine(outcome), context=1)
    (found,) = await guard.inspect([said("tea")], "t")
    assert found.failed == reason


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        (GuardSettings("guard", "policy"), "settings.policy or settings.policy_file is missing"),
        (GuardSettings("guard", "policy", policy_file="/nowhere"), "policy_file cannot be read"),
        (GuardSettings("guard", "policy", policy="x", labels=("safe",)), "two labels or more"),
        (GuardSettings("guard", "policy", policy="x", labels=("a", "a")), "all different"),
        (GuardSettings("another", "llama-guard"), "settings.model: The model 'another' does not exist"),
    ],
)
async def test_settings_that_cannot_work_are_refused(settings: GuardSettings, reason: str) -> None:
    with pytest.raises(StartupError, match=reason):
        await Guard(settings, GuardEngine(lambda _: ""), context=0).start()


async def test_a_policy_can_be_in_a_file_and_is_part_of_the_version(tmp_path) -> None:
    file, versions = tmp_path / "policy.md", set()
    for text in ("No weapons.", "No drugs."):
        file.write_text(text)
        settings = GuardSettings("guard", "policy", policy_file=str(file))
        versions.add(Guard(settings, GuardEngine(lambda _: ""), context=0).version)
    assert len(versions) == 2
