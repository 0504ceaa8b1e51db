"""Makes an input that shows a fault smaller, while it still shows one."""

from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import msgspec

from tests.fuzz.frames.inputs import Bytes, Input, Message, Request, Step, Text
from tests.fuzz.frames.trees import copied, slots

Shows = Callable[[Input], Awaitable[bool]]
"""Whether an input shows the fault."""


class Minimiser:
    """Tries smaller inputs, at most so many."""

    def __init__(self, shows: Shows, most_tries: int = 400) -> None:
        self._shows = shows
        self._left = most_tries

    async def minimise(self, given: Input) -> Input:
        """The smallest input that was found."""
        given = await self._fewer_steps(given)
        for index in range(len(given.steps)):
            given = await self._smaller_step(given, index)
        plain = msgspec.structs.replace(given, betas="", compress=False)
        return plain if plain != given and await self._still(plain) else given

    async def _still(self, given: Input) -> bool:
        if self._left <= 0:
            return False
        self._left -= 1
        return await self._shows(given)

    async def _fewer_steps(self, given: Input) -> Input:
        """Leave out halves, then quarters, and so on, as long as the rest shows the fault."""
        size = len(given.steps) // 2
        while size:
            at = 0
            while at < len(given.steps):
                rest = given.steps[:at] + given.steps[at + size :]
                smaller = msgspec.structs.replace(given, steps=rest)
                if rest and await self._still(smaller):
                    given = smaller
                else:
                    at += size
            size //= 2
        return given

    async def _smaller_step(self, given: Input, index: int) -> Input:
        is_better = True
        while is_better:
            is_better = False
            for step in _smaller(given.steps[index]):
                steps = (*given.steps[:index], step, *given.steps[index + 1 :])
                smaller = msgspec.structs.replace(given, steps=steps)
                if await self._still(smaller):
                    given, is_better = smaller, True
                    break
        return given


def _smaller(step: Step) -> Iterator[Step]:
    """Steps that are smaller, the smallest first."""
    if isinstance(step, Text):
        yield from (Text(text) for text in _smaller_texts(step.text))
    elif isinstance(step, Request) and step.text is not None:
        yield from (msgspec.structs.replace(step, text=text) for text in _smaller_texts(step.text))
    elif isinstance(step, Message | Bytes):
        data = bytes.fromhex(step.hex)
        yield from (msgspec.structs.replace(step, hex=part.hex()) for part in _shorter(data))


def _smaller_texts(text: str) -> Iterator[str]:
    try:
        tree = msgspec.json.decode(text)
    except (ValueError, RecursionError):
        yield from _shorter(text)
        return
    for number in range(len(slots(tree))):
        smaller = copied(tree)
        container, key = slots(smaller)[number]
        del container[key]
        yield msgspec.json.encode(smaller).decode()
    for number, (container, key) in enumerate(slots(tree)):
        value = container[key]
        if isinstance(value, str) and len(value) > 8:
            for part in _shorter(value):
                smaller = copied(tree)
                container, key = slots(smaller)[number]
                container[key] = part
                yield msgspec.json.encode(smaller).decode()


def _shorter(whole: Any) -> Iterator[Any]:
    """A text or bytes without one of its parts, large parts first."""
    size = len(whole) // 2
    while size:
        for at in range(0, len(whole), size):
            yield whole[:at] + whole[at + size :]
        size = 0 if size == 1 else max(size // 4, 1)
