"""Which constraints of answers a server takes, by its version, and where in an answer it begins to enforce
them.
"""

import re
from collections.abc import Awaitable, Callable
from typing import Final, Literal

from slipring.core.generation import Job
from slipring.engines.constraints.grammar_compiler import Compiler
from slipring.engines.constraints.server_constraint import Constraint, constraint_of, tag_of
from slipring.engines.remote.http_connection import HttpFailure
from slipring.prompts.rendering import Rendered, Renderer, Rendering

_VERSION: Final = re.compile(r"\d+(\.\d+)+")
_TRIED: Final = '"slipring"'
TRIED_TOKENS: Final = 4
_FIRST_WITH_TAGS: Final = {"vllm": (0, 21), "sglang": (0, 5, 12)}
"""The first versions with xgrammar 0.2."""


class ServerConstraints:
    """Writes constraints for a server.

    ``takes_tags`` asks whether the server takes structural tags, and raises ``HttpFailure`` if it does not
    tell. ``try_out`` returns the first ``TRIED_TOKENS`` of the answer to a job, or None if the server fails.
    """

    def __init__(
        self,
        takes_tags: Callable[[], Awaitable[bool]],
        try_out: Callable[[Job, Rendered, Constraint], Awaitable[str | None]],
    ) -> None:
        self._ask_for_tags = takes_tags
        self._try_out = try_out
        self._takes_tags: bool | None = None
        self._waits_for_thoughts: bool | None = None

    async def of(
        self, job: Job, rendering: Rendering, renderer: Renderer, compiler: Compiler
    ) -> Constraint | None:
        """The constraint of the answer to a job that asks for one. Raises what ``tag_of`` and
        ``constraint_of`` raise."""
        if not await self._accepts_tags():
            return await constraint_of(job, renderer, compiler)
        opens_thought = renderer.opens_thought(rendering.prompt)
        after_thought = opens_thought and await self._begins_after_thoughts(job, rendering.prompt)
        return await tag_of(job, renderer, compiler, opens_thought=opens_thought, after_thought=after_thought)

    async def _accepts_tags(self) -> bool:
        """Whether the server takes structural tags. Asked once."""
        if self._takes_tags is None:
            try:
                self._takes_tags = await self._ask_for_tags()
            except (HttpFailure, ValueError, AttributeError, TypeError):
                return True  # a gateway in front of the server may not know the path
        return self._takes_tags

    async def _begins_after_thoughts(self, job: Job, prompt: Rendered) -> bool:
        """Whether the server begins to enforce a constraint after the thought that a prompt has opened, as it
        does with a reasoning parser. Tried once."""
        if self._waits_for_thoughts is None:
            answer = await self._try_out(job, prompt, Constraint("schema", f'{{"const":{_TRIED}}}'))
            if answer is None:
                return False
            begins = answer.strip()[: len(_TRIED)]
            self._waits_for_thoughts = not begins or not _TRIED.startswith(begins)
        return self._waits_for_thoughts


def takes_tags(kind: Literal["vllm", "sglang"], version: object) -> bool:
    """Whether a server of this version takes structural tags. Versions without numbers, and those of
    development builds, count as new."""
    numbers = _VERSION.match(str(version))
    if numbers is None or "dev" in str(version):
        return True
    return tuple(map(int, numbers.group().split("."))) >= _FIRST_WITH_TAGS[kind]
