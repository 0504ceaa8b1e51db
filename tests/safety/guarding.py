"""An engine that plays a guard model: its answer depends on whether the prompt contains a word."""

from collections.abc import AsyncGenerator, Callable

from slipring.base.errors import ModelNotFound
from slipring.core.generation import Accepted, Capabilities, Delta, Finished, Job, Model, Text

BAD = "bomb"


class GuardEngine:
    """The engines of a server with one guard model, as the source ``guard`` uses them."""

    def __init__(self, answer: Callable[[bool], str]) -> None:
        """``answer``: what the model writes about a text that contains the word, and about others."""
        self._answer = answer
        self.jobs: list[Job] = []

    def find(self, name: str | None) -> Model:
        if name != "guard":
            raise ModelNotFound(name or "", ["guard"])
        return Model(name="guard", owner="tests", capabilities=Capabilities())

    async def generate(self, job: Job) -> AsyncGenerator[list[Delta], None]:
        self.jobs.append(job)
        yield [Accepted()]
        is_bad = any(BAD.encode() in item.raw for item in job.input)
        for piece in self._answer(is_bad).splitlines(keepends=True):
            yield [Text(piece)]
        yield [Finished("stop", 1, 0, 1)]


NO_ENGINES = GuardEngine(lambda _: "")
