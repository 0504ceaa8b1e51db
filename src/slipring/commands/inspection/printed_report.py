"""``slipring inspect``: its flags, its exit code, and the report on a model as it is printed for people."""

import argparse
import asyncio
import json
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby

import msgspec
from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from slipring.base.errors import StartupError
from slipring.base.progress_line import ProgressLine
from slipring.base.standard_streams import print_encoded
from slipring.commands.argument_parser import text
from slipring.commands.inspection.model_facts import (
    Appending,
    Finding,
    FormatFacts,
    Report,
    StopToken,
    Token,
    VariableFacts,
    WriterFacts,
)
from slipring.engines.hub.model_hub import ModelHub
from slipring.engines.hub.model_names import inspected_name

UNUSABLE = 1
"""The exit code if the model would not work."""
_INDENT = 2
_LABEL_CHARS = 14
_SOURCES = {
    "eos_token": "eos_token",
    "files": "the model's files",
    "template": "the template ends answers with it",
}
Row = tuple[str, str | Text]


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "engine",
        metavar="ENGINE",
        type=text,
        help="a GGUF file, a directory of tokenizer files, a model of a hub (ORG/REPO), or an engine as"
        " 'slipring serve' takes it",
    )
    parser.add_argument("--tokens", action="store_true", help="show every token of the sample conversation")
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def inspect(arguments: argparse.Namespace) -> int:
    """Inspect a model and print the report. Returns the exit code. Raises ``StartupError``."""
    try:
        from slipring.commands.inspection.verdict import report_of

        engine = inspected_name(arguments.engine, ModelHub())
        with ProgressLine("reading the model"):
            report = asyncio.run(report_of(engine))
    except ModuleNotFoundError as error:
        raise StartupError(
            f"{error.name} is not installed (pip install '.[tokens]' in a checkout of slipring)"
        ) from None
    except StartupError as error:
        raise StartupError(str(error).removeprefix("--engine ")) from None
    if arguments.json:
        print_encoded(msgspec.json.format(msgspec.json.encode(report)))
    else:
        show(report, with_tokens=arguments.tokens)
    return 0 if report.works else UNUSABLE


def show(report: Report, *, with_tokens: bool = False) -> None:
    """Print a report to standard output. ``with_tokens``: every token of the sample conversation too."""
    console = Console(highlight=False)
    with console.capture() as printed:
        console.print(render(report, width=console.width, with_tokens=with_tokens))
    print("\n".join(line.rstrip() for line in printed.get().splitlines()))


def render(report: Report, *, width: int = 80, with_tokens: bool = False) -> RenderableType:
    """A report for a terminal of this width."""
    parts: list[RenderableType] = [_rows(_model_rows(report))]
    for title, rows in _sections(report):
        parts += [Text(), Text(title, style="bold"), _rows(rows)]
    if report.sample is not None:
        parts += [Text(), Text("Sample conversation", style="bold"), _block(report.sample.text)]
        tokens = report.sample.tokens
        if tokens and not with_tokens:
            parts.append(_block(f"{len(tokens)} tokens; --tokens shows them"))
        elif tokens:
            title = f"Its {len(tokens)} tokens (control tokens in brackets)"
            parts += [Text(), Text(title, style="bold"), _tokens(tokens, width - _INDENT)]
    parts += [Text(), _verdict(report)]
    return Group(*parts)


def _model_rows(report: Report) -> Iterator[Row]:
    model = report.model
    yield "model", Text(_visible(model.name or "unknown"), style="bold")
    yield "from", f"{model.place} ({model.engine})" if model.engine else model.place
    if model.architecture:
        yield "architecture", model.architecture
    if model.context_tokens:
        yield "context", f"{model.context_tokens} tokens"
    if report.tokenizer is not None:
        is_local = report.tokenizer.place == "local"
        parts = ["in this process" if is_local else "asked from the server"]
        if report.tokenizer.tokens is not None:
            parts.append(f"{report.tokenizer.tokens} tokens")
        parts.append(f"{report.tokenizer.control_tokens} control tokens")
        if report.tokenizer.pre_tokenizer:
            parts.append(f"pre-tokenizer {report.tokenizer.pre_tokenizer}")
        yield "tokenizer", ", ".join(parts)
    if report.sampling is not None:
        recommended = [f"{name} {value:g}" for name, value in report.sampling.items() if value is not None]
        yield "sampling", ", ".join(recommended) or "nothing recommended"
    if model.sessions is not None:
        yield "sessions", model.sessions
    if model.pictures is not None:
        yield "pictures", model.pictures


def _sections(report: Report) -> Iterator[tuple[str, Iterable[Row]]]:
    if report.writer is not None and report.format is not None:
        yield "Format", _format_rows(report.writer, report.format)
    if report.stop_tokens:
        yield "Stop tokens", map(_stop_row, report.stop_tokens)
    if report.variables is not None:
        yield "Template variables", _variable_rows(report.variables)
    if report.adapted_forms:
        yield "Messages that are adapted", [(each.form, each.adaptation) for each in report.adapted_forms]
    if report.appending is not None:
        yield "New turns are appended, not rendered again", _appending_rows(report)
    if report.kept:
        yield "Kept in chains, dropped if all is rendered", [(each.name, each.kept) for each in report.kept]
    if report.parsed_call is not None:
        yield "Sample call", _call_rows(report)


def _format_rows(writer: WriterFacts, format: FormatFacts) -> Iterator[Row]:
    names = {
        "template": "the model's chat template",
        "builtin_template": f"built-in template {writer.name}",
    }
    runs = f", run by {writer.template_engine}" if writer.template_engine else ""
    yield "written by", f"{names[writer.kind]}{runs}"
    yield "because", writer.why
    yield "calls", format.found
    if format.calls is not None:
        marks = {name: value for name, value in format.calls.items() if value not in ("", False)}
        yield "", ", ".join(f"{name} {_quoted(value)}" for name, value in marks.items())
    if format.layout == "harmony":
        yield "thoughts", "messages of the channel analysis"
    elif format.thoughts is not None:
        ended = ", or calls at the end of the answer" if format.calls_end_thoughts else ""
        yield "thoughts", f"{_quoted(format.thoughts.open)} … {_quoted(format.thoughts.close)}{ended}"
    else:
        yield "thoughts", "none"
    if format.ignored:
        yield "ignored", ", ".join(map(_quoted, format.ignored))
    yield "tools", f"described by the {format.tools_described_by}".replace("the slipring", "slipring")


def _stop_row(token: StopToken) -> Row:
    name = _visible(token.name or "?")
    sources = ", ".join(_SOURCES[source] for source in token.sources) or "unknown"
    if token.id is None:
        return name, Text(f"not in the vocabulary ({sources})", style="yellow")
    return name, f"{token.id} ({sources})"


def _variable_rows(variables: VariableFacts) -> Iterator[Row]:
    defaults = {True: "by default", False: "not by default", None: "as the model decides"}
    yield "thinks", defaults[variables.thinks_by_default]
    for values, group in groupby(variables.by_effort.items(), lambda each: _assigned(each[1])):
        efforts = [effort for effort, _ in group]
        yield "effort", f"{', '.join(efforts)}: {values or 'no variable'}"
    if variables.keeps_by_default:
        keep = "the template keeps them"
    else:
        keep = _assigned(variables.keep) or "no variable: thoughts are kept as emitted"
    yield "thinking=keep", keep
    yield "options", f"thinking={variables.thinking}, variables: {_assigned(variables.given) or 'none'}"


def _appending_rows(report: Report) -> Iterator[Row]:
    appending = report.appending
    assert appending is not None
    rows: tuple[tuple[str, Appending | None], ...] = (
        ("tool loop", appending.tool_loop),
        ("… with thoughts", appending.tool_loop_with_thoughts),
        ("user's turn", appending.user_turn),
        ("… after thoughts", appending.user_turn_after_thoughts),
    )
    for label, found in rows:
        if found is not None:
            no = Text.assemble(("no: ", "yellow"), _visible(found.reason or ""))
            yield label, Text("yes", style="green") if found.appends else no


def _call_rows(report: Report) -> Iterator[Row]:
    call = report.parsed_call
    assert call is not None
    yield "written", _visible(call.written)
    if call.thoughts:
        yield "thoughts", _visible(call.thoughts)
    if call.text:
        yield "text", _visible(call.text)
    name = "no call" if call.name is None else f"{call.name} {call.arguments}"
    yield "parsed", Text(_visible(name), style="green" if call.is_right else "red")


def _verdict(report: Report) -> RenderableType:
    result = Text("It works.", style="bold green") if report.works else Text("It does not work.", "bold red")
    return Group(
        *(_finding("warning", "yellow", warning) for warning in report.warnings),
        *(_finding("problem", "red", problem) for problem in report.problems),
        result,
    )


def _finding(word: str, style: str, finding: Finding) -> RenderableType:
    text = Text(_visible(finding.what))
    if finding.remedy:
        text.append(f"\n→ {finding.remedy}")
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    grid.add_row(Text(word, style=style), text)
    return grid


def _rows(rows: Iterable[Row]) -> RenderableType:
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(min_width=_LABEL_CHARS, overflow="fold")
    grid.add_column(overflow="fold")
    for label, value in rows:
        grid.add_row(Text(label, style="cyan"), value if isinstance(value, Text) else Text(value))
    return Padding(grid, (0, 0, 0, _INDENT))


def _block(text: str) -> RenderableType:
    return Padding(Text(_visible(text), overflow="fold"), (0, 0, 0, _INDENT))


def _tokens(tokens: Iterable[Token], width: int) -> RenderableType:
    """Tokens one after the other, each whole on its line."""
    lines, used = [Text()], 0
    for token in tokens:
        shown = Text(f"[{token.id} {_visible(token.text or '')}]", style="magenta")
        if not token.control:
            shown = Text(str(token.id) if token.text is None else f"{token.id} {_quoted(token.text)}")
        chars = cell_len(shown.plain) + 2
        if used and used + chars > width:
            lines.append(Text())
            used = 0
        lines[-1].append_text(shown).append("  ")
        used += chars
    for line in lines:
        line.rstrip()
    return Padding(Group(*lines), (0, 0, 0, _INDENT))


def _assigned(values: Mapping[str, object]) -> str:
    return ", ".join(f"{name}={_quoted(value)}" for name, value in values.items())


def _quoted(value: object) -> str:
    return _visible(json.dumps(value, ensure_ascii=False))


def _visible(text: str) -> str:
    """A text without characters that control a terminal: those of a model's files may be anybody's."""
    return "".join(char if char.isprintable() or char == "\n" else ascii(char)[1:-1] for char in text)
