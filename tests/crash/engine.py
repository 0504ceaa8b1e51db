"""The embedded engine, llama.cpp with a tiny model, is killed while it reads a prompt or writes an answer."""

from contextlib import AsyncExitStack
from random import Random
from typing import TYPE_CHECKING, ClassVar

from tests.crash.clients import Counts, Crowd, WrongAnswer
from tests.crash.ledger import Json, Turn
from tests.crash.servers import Server, command_of, descendants, gone, kill, serving, until
from tests.crash.sites import SqliteSite
from tests.prompts.gguf_writer import write_tiny_model
from tests.prompts.vocabulary import short_metadata

if TYPE_CHECKING:
    from tests.crash.storm import Round

_CHILD = "engines/llama/child_program.py"
_CONTEXT = 16384
_TOKENS = 24
_WORKERS = 0.3
"""Share of the rounds in which two workers share the engine."""


def _repeated_wording(number: int) -> str:
    """Texts that occur again, some of which take the engine a while to read."""
    return "say more" + " and more" * (number % 5) * (40 if number % 3 == 0 else 1)


class LlamaCounts(Counts):
    """Checks that what a text adds to the tokens of its context depends on the text alone: otherwise a part
    of the context is missing, or is there twice. The tiny model never ends an answer by itself."""

    ending = "incomplete"
    settings: ClassVar[Json] = {"max_output_tokens": _TOKENS, "temperature": 0}

    def __init__(self) -> None:
        self._added: dict[tuple[bool, str], int] = {}

    def check(self, turn: Turn) -> None:
        response = turn.response
        assert response is not None
        if not turn.is_complete:
            return
        before = 0
        if turn.parent is not None:
            assert turn.parent.response is not None
            before = turn.parent.response["usage"]["total_tokens"]
        added = response["usage"]["input_tokens"] - before
        kind = (turn.parent is None, turn.text)
        if self._added.setdefault(kind, added) != added:
            raise WrongAnswer(f"turn {turn.number} adds {added} tokens, and not {self._added[kind]}")

    def check_output(self, response: Json) -> None:
        (item,) = response["output"]
        assert response["usage"]["output_tokens"] == _TOKENS
        assert item["content"][0]["text"]


class EngineSite(SqliteSite):
    """One server with the embedded engine, or two workers that share one."""

    name = "engine"
    fault_share = 1.0
    wording = staticmethod(_repeated_wording)

    async def open(self, stack: AsyncExitStack) -> None:
        await super().open(stack)
        assert self.directory is not None
        self.counts = LlamaCounts()
        self._model = self.directory / "Tiny-Q8_0.gguf"
        write_tiny_model(self._model, short_metadata(), context=_CONTEXT)

    async def start(self, stack: AsyncExitStack, random: Random) -> list[Server]:
        engine = f"llama:{self._model},slots=4,context={_CONTEXT},threads=1"
        workers = ("--workers", "2") if random.random() < _WORKERS else ()
        return [await stack.enter_async_context(serving(self.spec, *workers, engine=engine))]

    def add_clients(self, crowd: Crowd) -> None:
        # Conversations are left out: their items are found by texts that occur once.
        crowd.behaviours = [crowd.socket, crowd.socket, crowd.sse, crowd.post, crowd.background]

    async def break_something(self, storm_round: "Round") -> str:
        crowd = storm_round.crowd
        (server,) = storm_round.servers.values()
        reads = storm_round.random.random() < 0.5
        moment = "response.created" if reads else "response.output_text.delta"
        killed: list[int] = []

        def watch(turn: Turn, event: Json) -> None:
            if event["type"] == moment and not killed:
                crowd.may_refuse = True
                killed.extend(_engines_of(server))
                kill(*killed)

        crowd.on_event = watch
        await until(lambda: bool(killed) or not crowd.urls, "no client receives an answer")
        await gone(killed)
        await until(
            lambda: bool(_engines_of(server)) or not crowd.urls, "an engine that was killed is not replaced"
        )
        return f"engine killed while it {'read a prompt' if reads else 'wrote an answer'}"


def _engines_of(server: Server) -> list[int]:
    return [pid for pid in descendants(server.process.pid) if _CHILD in command_of(pid)]
