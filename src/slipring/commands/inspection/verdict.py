"""Reports on a model: its facts, whether it works, and what to do if it does not."""

import asyncio
from collections.abc import Iterator

from msgspec import structs

from slipring.base.errors import StartupError, Unavailable, UnusableModel
from slipring.commands.inspection import model_facts
from slipring.commands.inspection.model_facts import (
    Appending,
    Finding,
    Inspected,
    ModelFacts,
    Report,
    StopToken,
    inspect_model,
)
from slipring.commands.inspection.model_source import ModelSource, open_source
from slipring.commands.inspection.sample_conversation import Refusal

USE_CHAT = "let its own server format and parse: engine chat"
_NAME_DIALECT = f"name its format with dialect= (docs/dialects.md), or {USE_CHAT}"
_FULL = "each such turn is rendered and tokenized in full"
KEEP = "thinking=keep keeps them in the context"


def unusable(source: ModelSource, message: str) -> Finding:
    """The problem with a model for which no renderer can be made."""
    what = message.removeprefix(f"--engine {source.kind}: ")
    if source.info.template:
        return Finding(what=what, remedy=_NAME_DIALECT)
    what = what.partition(";")[0]
    if source.engine == "vllm":
        return Finding(
            what=what,
            remedy="name the model's tokenizer with tokenizer= (a directory, or ORG/REPO), or start vLLM with"
            " --enable-tokenizer-info-endpoint",
        )
    return Finding(what=what, remedy=_NAME_DIALECT)


def problems(report: Report) -> Iterator[Finding]:
    """What keeps a model from working."""
    if report.format is not None and not report.format.layout:
        yield Finding(
            what="no format of calls was found: what the model writes as a call would arrive as text",
            remedy=_NAME_DIALECT,
        )
    if report.parsed_call is not None and not report.parsed_call.is_right:
        yield Finding(
            what="the sample call is not read back as it was written: calls would arrive as text, or wrong",
            remedy=_NAME_DIALECT,
        )
    if not any(token.id is not None for token in report.stop_tokens):
        yield Finding(
            what="no token that ends an answer is known: answers would not end",
            remedy="add generation_config.json to the model's directory, or eos_token to"
            " tokenizer_config.json",
        )
    loops = _loops(report) if report.appending is not None and report.sample is not None else []
    if loops and not any(loop.appends for loop in loops):
        yield Finding(
            what=f"tool loops never append ({loops[0].reason}): every turn is rendered in full",
            remedy=_NAME_DIALECT,
        )


def warnings(report: Report, source: ModelSource) -> Iterator[Finding]:
    """What works worse than it could."""
    if source.unknown_vocabulary:
        yield Finding(
            what=f"slipring cannot tokenize for this model ({source.unknown_vocabulary}): llama.cpp is asked"
            " for the tokens of every text, and some answers are rendered again",
        )
    elif report.tokenizer is not None and report.tokenizer.place == "server":
        yield Finding(
            what="the server is asked for the tokens of every text",
            remedy="name the model's tokenizer.json with tokenizer=",
        )
    yield from map(_missing_stop, (token for token in report.stop_tokens if token.id is None))
    if report.format is not None and report.format.tools_described_by == "slipring":
        yield Finding(
            what="the template describes no tools: slipring describes them in the system message, in a form"
            " that the model may not have learned"
        )
    if report.appending is not None and report.sample is not None:
        yield from _slow_turns(report)


def _loops(report: Report) -> list[Appending]:
    assert report.appending is not None
    loops = (report.appending.tool_loop, report.appending.tool_loop_with_thoughts)
    return [loop for loop in loops if loop is not None]


def _missing_stop(token: StopToken) -> Finding:
    where = {"eos_token": "the model's files name", "template": "the template writes"}
    who = " and ".join(where[source] for source in token.sources)
    return Finding(
        what=f"{who} {token.name} as the end of an answer, but the vocabulary has no such control token"
    )


def _slow_turns(report: Report) -> Iterator[Finding]:
    appending = report.appending
    assert appending is not None
    loops = _loops(report)
    if any(loop.appends for loop in loops):
        for name, loop in (
            ("tool loops without thoughts", appending.tool_loop),
            ("tool loops with thoughts", appending.tool_loop_with_thoughts),
        ):
            if loop is not None and not loop.appends:
                yield Finding(what=f"{name} do not append ({loop.reason}): {_FULL}")
    after, turn = appending.user_turn_after_thoughts, appending.user_turn
    if turn is not None and not turn.appends:
        yield Finding(what=f"a user's turn does not append ({turn.reason}): {_FULL}")
    elif after is not None and not after.appends:
        can_keep = report.variables is not None and report.variables.thinking != "keep"
        yield Finding(
            what=f"a user's turn after thoughts does not append ({after.reason}): {_FULL}",
            remedy=KEEP if can_keep else "",
        )


async def report_of(engine: str) -> Report:
    """Inspect what ``engine`` names: see ``open_source``. Raises ``StartupError``."""
    try:
        async with open_source(engine) as source:
            return await asyncio.to_thread(report_on, source)
    except UnusableModel as error:
        what = str(error).partition(": ")[2]
        return Report(
            works=False,
            problems=(Finding(what=what, remedy=USE_CHAT),),
            warnings=(),
            model=ModelFacts(name="", place=engine),
        )
    except Unavailable as error:
        raise StartupError(error.message) from None


def report_on(source: ModelSource) -> Report:
    """Inspect a model. Blocks, and may ask a server. Raises ``StartupError`` for wrong options."""
    report = Report(
        works=False,
        problems=(),
        warnings=(),
        model=model_facts.model_facts(source),
        sampling=model_facts.sampling_facts(source),
        tokenizer=model_facts.tokenizer_facts(source),
    )
    try:
        model = inspect_model(source)
    except UnusableModel as error:
        return structs.replace(report, problems=(unusable(source, str(error)),))
    report = structs.replace(
        report,
        writer=model_facts.writer_facts(model),
        format=model_facts.format_facts(model),
        stop_tokens=model_facts.stop_tokens(model),
        variables=model_facts.variable_facts(model),
        adapted_forms=model_facts.adapted_forms(model),
        appending=model_facts.appending_facts(model),
        kept=model.renderer.chain_choices,
    )
    report, refused = _with_sample(report, model)
    found = (*refused, *problems(report))
    return structs.replace(report, works=not found, problems=found, warnings=tuple(warnings(report, source)))


def _with_sample(report: Report, model: Inspected) -> tuple[Report, list[Finding]]:
    """The report with the sample conversation, or the problem that there is none."""
    try:
        sample, call = model_facts.sample_facts(model), model_facts.parsed_call(model)
    except Refusal as refusal:
        what = f"a conversation with a system message and a tool cannot be written: {refusal}"
        return report, [Finding(what=what, remedy="name another format with dialect= (docs/dialects.md)")]
    return structs.replace(report, sample=sample, parsed_call=call), []
