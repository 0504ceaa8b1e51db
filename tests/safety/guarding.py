"""An engine that plays a guard model: its answer depends on whether the prompt contains a word."""

from collections.abc import Callable

from slipring.base.errors import ModelNotFound
from slipring.core.generation import Accepted, Capabilities, Emit, Finished, Job, Model, Text, deliver

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

    async def generate(self, job: Job, emit: Emit) -> None:
        self.jobs.append(job)
        await deliver(emit, [Accepted()])
        is_bad = any(BAD.encode() in item.raw for item in job.input)
        for piece in self._answer(is_bad).splitlines(keepends=True):
            await deliver(emit, [Text(piece)])
        await deliver(emit, [Finished("stop", 1, 0, 1)])


NO_ENGINES = GuardEngine(lambda _: "")
