"""Makes the report about a model: its facts, and the verdict on them."""

import asyncio

from msgspec import structs

from slipring.base.errors import StartupError, Unavailable, UnusableModel
from slipring.commands.inspection import model_facts
from slipring.commands.inspection.facts import Finding, ModelFacts, Report
from slipring.commands.inspection.model_facts import Inspected, inspect_model
from slipring.commands.inspection.model_source import ModelSource, open_source
from slipring.commands.inspection.sample_conversation import Refusal
from slipring.commands.inspection.verdict import USE_CHAT, problems, unusable, warnings


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
