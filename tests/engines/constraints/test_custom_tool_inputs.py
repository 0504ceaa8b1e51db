"""Inputs of custom tools, checked for every engine."""

import json
from collections.abc import Sequence
from typing import Any

import pytest
from msgspec import Raw

from slipring.base.errors import ServerError
from slipring.core.chain.instructions_and_tools import Head
from slipring.core.generation import (
    Accepted,
    CallArguments,
    CallEnded,
    CallStarted,
    Delta,
    Emit,
    Finished,
    Job,
    Model,
    Settings,
    Text,
    deliver,
)
from slipring.engines.base import Engine, Level
from slipring.engines.constraints import custom_tool_inputs
from slipring.engines.constraints.sample_values import sample_input
from slipring.protocol.tools.grammars_and_schemas import Grammar
from slipring.protocol.tools.tool_choice import Offer
from slipring.protocol.tools.toolset import Toolset
from tests.core.connection import PLAIN
from tests.engines.fitting import STATES, fits
from tests.harness import serve

DIGITS: dict[str, Any] = {"type": "custom", "name": "dial", "format": {"type": "grammar", "syntax": "regex"}}
DIGITS["format"]["definition"] = "[0-9]+"
FREE = {"type": "custom", "name": "note"}
DONE = Finished("stop", 1, 0, 1, position=object())  # type: ignore[arg-type]


class Scripted(Engine):
    name = "scripted"
    level = Level.ITEMS

    def __init__(self, *batches: list[Delta]) -> None:
        self.batches = batches
        self.closed = False

    def models(self) -> Sequence[Model]:
        return [PLAIN]

    async def generate(self, job: Job, emit: Emit) -> None:
        try:
            for batch in self.batches:
                await deliver(emit, batch)
        finally:
            self.closed = True


def job_with(*tools: Any, generate: bool = True) -> Job:
    offer = Offer(Toolset.read(Raw(json.dumps(tools).encode())).callables)
    return Job("r", "t", PLAIN, Head(), None, (), offer, Settings(), generate=generate)


async def generated(engine: Engine, job: Job) -> list[Delta]:
    deltas: list[Delta] = []
    await engine.generate(job, custom_tool_inputs.checked(engine.compiler, job, deltas.extend))
    return deltas


def call(name: str, *pieces: str, kind: Any = "custom") -> list[Delta]:
    return [CallStarted(kind, name), *map(CallArguments, pieces)]


async def test_the_deltas_of_jobs_without_grammars_are_emitted_as_they_are() -> None:
    for job in (job_with(), job_with(FREE), job_with(DIGITS, generate=False)):
        assert await generated(Scripted(call("dial", "x"), [DONE]), job) == [*call("dial", "x"), DONE]


@pytest.mark.parametrize("ending", [[DONE], [Text("so"), DONE], [*call("note", "x"), DONE]])
async def test_an_input_that_does_not_match_the_grammar_fails_the_response_at_once(
    ending: list[Delta],
) -> None:
    engine = Scripted([Accepted()], call("dial", "12"), [CallArguments("x"), *ending])
    job, deltas = job_with(DIGITS, FREE), list[Delta]()
    emit = custom_tool_inputs.checked(engine.compiler, job, deltas.extend)

    with pytest.raises(ServerError, match="does not fit the grammar of the tool 'dial'"):
        await engine.generate(job, emit)
    assert deltas == [Accepted(), *call("dial", "12")], "the text that does not match is not emitted"
    assert engine.closed


@pytest.mark.parametrize("text", ["1", "1" * 5000])
async def test_an_input_that_matches_the_grammar_is_passed_on(text: str) -> None:
    engine = Scripted([*call("dial", text), *call("note", "anything"), DONE])
    assert (await generated(engine, job_with(DIGITS, FREE)))[-1] is DONE


PAIR = {**DIGITS, "format": {**DIGITS["format"], "definition": "[0-9]{2}"}}


async def test_an_input_that_a_token_limit_cut_off_does_not_fail_the_response() -> None:
    cut = Finished("max_output_tokens", 1, 0, 1)
    assert (await generated(Scripted([*call("dial", "1"), cut]), job_with(PAIR)))[-1] is cut

    ended = [*call("dial", "1"), CallEnded(False), cut]
    assert (await generated(Scripted(ended), job_with(PAIR))) == ended


@pytest.mark.parametrize("end", [CallEnded(), DONE])
async def test_an_incomplete_input_fails_the_response_at_its_end(end: Delta) -> None:
    with pytest.raises(ServerError, match="does not fit"):
        await generated(Scripted([*call("dial", "1"), end, DONE]), job_with(PAIR))


@pytest.mark.parametrize(
    "grammar",
    [
        Grammar("regex", "[0-9]{4}-[0-9]{2}"),
        Grammar("regex", "a+b|é"),
        Grammar("regex", "[^x]{30}y"),
        Grammar("lark", 'start: "<" start ">" | "x"'),
        Grammar("lark", 'start: line+ "end"\nline: "+" /.+/ LF\n%import common.LF'),
    ],
)
def test_the_simulated_engine_finds_a_text_that_matches(grammar: Grammar) -> None:
    text = sample_input(grammar.syntax, grammar.definition, STATES)
    assert text is not None
    assert fits(grammar, text)


async def test_a_server_checks_inputs_and_makes_all_calls_of_its_client(tmp_path: Any) -> None:
    script = tmp_path / "script"
    calls = [{"custom_tool_call": {"name": "dial", "input": text}} for text in ("1", "2", "three")]
    script.write_text("\n".join(json.dumps(line) for line in (calls[:2], calls[2:])))
    async with serve(f"simulated:script={script}") as server:
        status, body = await server.post(input="hello", tools=[DIGITS], max_tool_calls=1)
        assert status == 200
        assert [item["input"] for item in body["output"]] == ["1", "2"], "the limit is on hosted calls"
        assert body["max_tool_calls"] == 1
        async with server.connect() as socket:
            events = await socket.turn(input="hello", tools=[DIGITS], store=False)
    assert events[-1]["type"] == "response.failed"
    assert events[-1]["response"]["error"]["code"] == "server_error"
    assert events[-1]["response"]["output"][0]["input"] == ""
