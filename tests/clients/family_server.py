"""A fake vLLM server with a model of a family, for clients that run tool loops with it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.commands.inspection.model_directories import write_directory
from tests.engines.fakes.families import Answer, FakeFamilyServer
from tests.prompts.templates.detection.test_format_detection import KNOWN, STOPS
from tests.prompts.templates.family_templates import source_of

MOVING = {"mistral_nemo": "its template moves the tools to the last user message"}
"""Families whose prompts are rendered in full, and why."""
ASKED_TO_THINK = {"deepseek_v3_2": {"effort": "high"}}
"""Families that think only if they are asked to: their template drops thoughts otherwise."""


@asynccontextmanager
async def family_server(path: Path, family: str, *answers: Answer) -> AsyncIterator[FakeFamilyServer]:
    """A server with a model of this family, which gives these answers in turn."""
    stops = STOPS.get(family, ("<|im_end|>",))
    directory = write_directory(path / family, source_of(family), bos_token="<s>", eos_token=stops[0])
    fake = FakeFamilyServer(directory, KNOWN[family], (stops[0], stops[-1]))
    fake.answers.extend(answers)
    await fake.start()
    try:
        yield fake
    finally:
        await fake.close()


def require_appended(fake: FakeFamilyServer, *, first: int = 0) -> None:
    """Each prompt after ``first`` begins with the one before it and the ids that the model emitted for it."""
    for number in range(first + 1, len(fake.prompts)):
        before = [*fake.prompts[number - 1], *fake.emitted[number - 1]]
        assert fake.prompts[number][: len(before)] == before
