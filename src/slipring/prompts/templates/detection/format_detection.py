"""Finds how a model writes its answers, from its chat template.

The template writes earlier answers of the assistant as the model has learned to write them. So small
conversations are rendered and compared: what stands around the thoughts, the text and the calls of a probe
are the marks of the model's ``OutputFormat``. Other formats are recognised by marks in the template's source.

A model may describe its answers itself: ``response_template`` of ``tokenizer_config.json``, by which
transformers parses them. It names regions of an answer (thoughts, text, calls) with their delimiters, which
are literals or regular expressions. Only expressions of literals, white space, named groups and optional
parts are read. What it says takes precedence over what is rendered.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from slipring.prompts.parsing.output_format import (
    BracedCalls,
    Calls,
    JsonCalls,
    NamedJsonCalls,
    NestedTagCalls,
    OutputFormat,
    PythonCalls,
    TaggedCalls,
)
from slipring.prompts.templates.detection.call_detection import Found, find_calls, mark_after_text
from slipring.prompts.templates.detection.family_formats import (
    HARMONY,
    NO_CALLS_RENDERED,
    NOT_RENDERED,
    calls_end_thoughts,
    find_known,
)
from slipring.prompts.templates.detection.probes import (
    IDS,
    NAME,
    QUESTION,
    SECOND_VALUE,
    STRINGS,
    TAG,
    TEXT,
    THOUGHT,
    Probe,
    Render,
    common_suffix,
    marked,
    output,
    user,
)
from slipring.prompts.templates.detection.thinking_switches import ThinkingSwitches, find_switches
from slipring.prompts.templates.detection.thought_detection import Thoughts, find_thoughts

_LAYOUTS: Mapping[type, str] = {
    JsonCalls: "JSON calls",
    NamedJsonCalls: "names with JSON arguments",
    TaggedCalls: "tagged arguments",
    NestedTagCalls: "nested tags",
    PythonCalls: "Python calls",
    BracedCalls: "braced arguments",
}
_ANSWER_MARKS = ("<answer>", "</answer>")
"""Marks around text that Hunyuan A13B writes, and its template takes out of earlier answers."""


class DetectedFormat(Struct, frozen=True, kw_only=True):
    """What a chat template says about the model's answers."""

    format: OutputFormat
    found: str
    """How the format was found, for people."""
    writes_tools: bool
    """Whether the template describes the tools that it is given."""
    writes_calls: bool
    """Whether the template writes the calls of earlier answers."""
    thinking: ThinkingSwitches
    takes_null_content: bool = False
    """Whether the template takes answers of calls without text only if their content is None."""
    takes_text_arguments: bool = False
    """Whether the template takes the arguments of calls only as JSON text."""
    takes_broken_arguments: bool = False
    """Whether the template takes arguments of calls that are text and no JSON object."""
    takes_thought_chunks: bool = False
    """Whether the template takes thoughts only as chunks of content, ``{"type": "thinking", "thinking": …}``,
    and not from a field of the message."""


def detect_format(
    render: Render, source: str, response_template: Mapping[str, Any] | None = None
) -> DetectedFormat:
    """Find the output format of a template. ``response_template``: the description of answers in the model's
    ``tokenizer_config.json``, if it has one."""
    probe = Probe(render, {})
    writes_calls = probe.adapt()
    thinking = find_switches(probe, source)
    thinker = probe.using(thinking.variables("high"))
    writes_calls = thinker.adapt() or writes_calls
    thoughts = find_thoughts(thinker, source)
    format, found = _find_format(thinker, thoughts, source, writes_calls)
    if response_template is not None:
        described = read_response_template(response_template)
        if described is not None:
            format, found = _prefer(described, format, found)
    format = msgspec.structs.replace(format, calls_end_thoughts=calls_end_thoughts(format))
    return DetectedFormat(
        format=format,
        found=found,
        writes_tools=NAME in (probe.write([user(QUESTION)], prompt=True) or ""),
        writes_calls=writes_calls,
        thinking=thinking,
        takes_null_content=thinker.has_null_content,
        takes_text_arguments=thinker.takes_text_arguments,
        takes_broken_arguments=thinker.takes_broken_arguments(),
        takes_thought_chunks=thoughts.are_chunks,
    )


def _find_format(
    probe: Probe, thoughts: Thoughts, source: str, writes_calls: bool
) -> tuple[OutputFormat, str]:
    known = find_known(NOT_RENDERED, source)
    if known is not None:
        return (
            known.format,
            f"{layout_in_words(known.format)} of {known.family}, known by marks in the template",
        )
    found = find_calls(probe, thoughts) if writes_calls else None
    calls, how = _rendered_calls(found, source)
    ignored = _ignored(probe, thoughts, calls, source)
    format = OutputFormat(
        calls=calls,
        think_open=thoughts.open,
        think_close=thoughts.close,
        ignored=ignored,
        stops=tuple(stop for stop in _stops(probe, found) if stop not in ignored),
    )
    return format, how


def _rendered_calls(found: Found | None, source: str) -> tuple[Calls | None, str]:
    """The layout of calls, and how it was found."""
    if found is not None:
        calls = found.calls
        is_llama = "<|start_header_id|>" in source or "<|python_tag|>" in source
        if isinstance(calls, JsonCalls) and is_llama and not (calls.section_open or calls.open):
            calls = msgspec.structs.replace(calls, announcement="<|python_tag|>")
        if isinstance(calls, TaggedCalls) and "<![CDATA[" in source:
            calls = msgspec.structs.replace(calls, has_cdata=True)
        return calls, f"{_LAYOUTS[type(calls)]}, found by rendering the template"
    unwritten = find_known(NO_CALLS_RENDERED, source)
    if unwritten is None:
        return None, "no calls: the template writes none that are known"
    how = f"{layout_in_words(unwritten.format)} of {unwritten.family}, known by marks in the template"
    return unwritten.format.calls, how


def layout_in_words(format: OutputFormat) -> str:
    """How a format writes calls."""
    return "Harmony messages" if format.is_harmony else _LAYOUTS[type(format.calls)]


def _ignored(probe: Probe, thoughts: Thoughts, calls: Calls | None, source: str) -> tuple[str, ...]:
    """Marks before the text and the calls of an answer, and after its text, that do not end the answer."""
    marks: list[str] = []
    for answer in (probe.answer(text=TEXT, thoughts=THOUGHT), probe.answer(text=TEXT)):
        before, _, after = (probe.after_question(answer) or "").partition(TEXT)
        marks.append(_before_content(probe, thoughts, before))
    written = probe.after_question(probe.answer(calls=[STRINGS])) or ""
    ending = common_suffix(written, after)
    if marked(ending):
        marks.append(after.removesuffix(ending))
    if calls is not None and (start := (calls.section_open or calls.open).strip()):
        answer = probe.answer(thoughts=THOUGHT, calls=[STRINGS])
        before, found, _ = (probe.after_question(answer) or "").partition(start)
        marks.append(_before_content(probe, thoughts, before) if found else "")
    if all(mark in source for mark in _ANSWER_MARKS):
        marks += _ANSWER_MARKS
    return tuple(dict.fromkeys(mark.strip() for mark in marks if TAG.search(mark) and NAME not in mark))


def _before_content(probe: Probe, thoughts: Thoughts, before: str) -> str:
    """What the model writes before text or calls, without its thoughts and their marks."""
    _, has_thought, after = before.partition(THOUGHT)
    if has_thought:
        before = after.removeprefix(thoughts.close)
    else:
        prompt = probe.after_question(prompt=True) or ""
        before = before.removeprefix(prompt) if before.startswith(prompt) else ""
    for mark in filter(None, (thoughts.open.strip(), thoughts.close.strip())):
        before = before.replace(mark, "")
    return before


def _stops(probe: Probe, found: Found | None) -> tuple[str, ...]:
    """Tokens that end an answer of text and of calls; where nothing ends them, what begins the next turn."""
    if found is not None and marked(found.ending) and (mark := TAG.search(found.ending)):
        after_calls = mark.group()
    else:
        after_calls = (found.ending.strip() or _mark_after_calls(probe)) if found is not None else ""
    inner = _inner_marks(probe)
    stops = dict.fromkeys((mark_after_text(probe), after_calls))
    return tuple(stop for stop in stops if stop and stop not in inner)


def _inner_marks(probe: Probe) -> str:
    """What stands within answers: between thoughts, text and calls."""
    inner = ""
    for text, calls in ((TEXT, [STRINGS, STRINGS]), (TEXT, []), ("", [STRINGS])):
        written = probe.after_question(probe.answer(text=text, thoughts=THOUGHT, calls=calls)) or ""
        places = [written.rfind(part) for part in (THOUGHT, TEXT, SECOND_VALUE) if part in written]
        inner += written[min(places) : max(places)] if places else ""
    return inner


def _mark_after_calls(probe: Probe) -> str:
    """The first mark after an answer of calls to which the template adds nothing."""
    messages = [user(QUESTION), probe.answer(calls=[STRINGS]), output(IDS[0])]
    alone, written = (
        (probe.write(each) or "").rpartition(SECOND_VALUE)[2] for each in (messages[:2], messages)
    )
    mark = TAG.search(written, len(alone)) if written.startswith(alone) else None
    return mark.group() if mark is not None else ""


def _prefer(described: OutputFormat, rendered: OutputFormat, found: str) -> tuple[OutputFormat, str]:
    """The format that a response_template describes; if both agree the rendered one, with its white space."""
    how = (
        f"{layout_in_words(described)}, as the model's response_template says"
        if _has_calls(described)
        else found
    )
    if _agree(described, rendered):
        return rendered, f"{how}, and the template writes them so"
    if not _has_calls(described):
        described = msgspec.structs.replace(described, calls=rendered.calls)
    stops = described.stops or rendered.stops
    return msgspec.structs.replace(described, stops=stops), how


def _has_calls(format: OutputFormat) -> bool:
    return format.is_harmony or format.calls is not None


def _agree(one: OutputFormat, other: OutputFormat) -> bool:
    """Whether two formats have the same layout and the same marks at its beginning."""
    if type(one.calls) is not type(other.calls) or one.is_harmony != other.is_harmony:
        return False
    if one.calls is None or other.calls is None:
        return one.is_harmony
    opens = [(calls.section_open + calls.open).split() for calls in (one.calls, other.calls)]
    return opens[0] == opens[1] and one.think_close.strip() == other.think_close.strip()


_THOUGHT_FIELDS = ("thinking", "reasoning_content", "reasoning")
_MAX_PATTERN_CHARS = 1000
_GROUP = re.compile(r"\(\?P<(\w+)>(?:[^()\\]|\\.)*\)")
_OPTIONAL = re.compile(r"\(\?:((?:[^()\\]|\\.)*)\)\?")
"""A part that may be missing: the header of a message within an answer."""
_SPACE = re.compile(r"\\s[*+?]?|\\n\?|\[\^<\]\*")
"""White space, or text up to a mark."""
_META = re.compile(r"(?<!\\)[.*+?()\[\]{}^$|]|\\[wdbWDSB]")
_PLACEHOLDER = re.compile(r"\{(?:content\.)?(\w+)\}")
Spec = Mapping[str, Any]
"""A response_template, or a part of one."""


def read_response_template(template: Spec) -> OutputFormat | None:
    """The output format that a response_template describes; None if it says more than a format can."""
    fields = template.get("fields")
    if not isinstance(fields, Mapping) or not all(isinstance(field, Mapping) for field in fields.values()):
        return None
    calls = fields.get("tool_calls", {})
    if "<|channel|>" in str(calls.get("open_pattern", "")).replace("\\", ""):
        return HARMONY
    layout = _described_calls(calls)
    if calls and layout is None:
        return None
    thoughts: Spec = next((fields[name] for name in _THOUGHT_FIELDS if name in fields), {})
    content: Spec = fields.get("content", {})
    opening = _delimiter(content, "open")
    ignored = [opening, _delimiter(content, "close")] if opening else []
    ignored += [mark for field in fields.values() for mark in _optional_marks(field)]
    stops = [] if opening else _literals(content.get("close"))
    return OutputFormat(
        calls=layout,
        think_open=_delimiter(thoughts, "open") or "",
        think_close=_delimiter(thoughts, "close") or "",
        ignored=tuple(dict.fromkeys(mark for mark in ignored if mark)),
        stops=tuple(stops),
    )


def _mapping(value: object) -> Spec:
    return value if isinstance(value, Mapping) else {}


def _literals(value: object) -> list[str]:
    if isinstance(value, str):
        return [value]
    return [each for each in value if isinstance(each, str)] if isinstance(value, Sequence) else []


def _first_literal(value: object) -> str:
    return next(iter(_literals(value)), "")


def _delimiter(field: Spec, key: str) -> str | None:
    """A delimiter as text, with white space where a pattern has some; None if it is a richer pattern."""
    if key in field:
        return _first_literal(field[key])
    parts = _pattern_parts(str(field.get(f"{key}_pattern", "")))
    return parts[0] if parts is not None and len(parts) == 1 else None


def _pattern_parts(pattern: str) -> list[str] | None:
    """Divide a pattern at its named groups: literal, group's name, literal, …; None if it says more."""
    if len(pattern) > _MAX_PATTERN_CHARS:
        return None
    parts: list[str] = []
    for at, part in enumerate(_GROUP.split(_OPTIONAL.sub("", pattern))):
        literal = part if at % 2 else _SPACE.sub("", part)
        if at % 2 == 0 and _META.search(literal):
            return None
        parts.append(literal if at % 2 else re.sub(r"\\(.)", _unescape, literal))
    return parts


def _optional_marks(field: Spec) -> list[str]:
    """What may precede a region: no content."""
    pattern = str(field.get("open_pattern", ""))[:_MAX_PATTERN_CHARS]
    marks = map(_pattern_parts, _OPTIONAL.findall(pattern))
    return [parts[0] for parts in marks if parts is not None and len(parts) == 1]


def _unescape(escape: re.Match[str]) -> str:
    return {"n": "\n", "t": "\t"}.get(escape.group(1), escape.group(1))


def _described_calls(field: Spec) -> Calls | None:
    if field.get("content") == "xml-inline":
        return _described_tags(field)
    if field.get("content") != "json":
        return None
    arguments: Spec = _mapping(field.get("content_args"))
    if "(?P<" in str(field.get("open_pattern", "")):
        parts = _pattern_parts(str(field["open_pattern"]))
        if parts is None or len(parts) != 3 or parts[1] != "name":
            return None
        close = _delimiter(field, "close") or ""
        if arguments.get("unquoted_keys"):
            return _described_braces(parts, close, arguments)
        return NamedJsonCalls(open=parts[0], arguments_open=parts[2], close=close) if parts[2] else None
    return _described_json(field)


def _described_braces(parts: Sequence[str], close: str, arguments: Spec) -> Calls | None:
    delimiters = arguments.get("string_delims")
    tag = re.search(r"\w+:$", parts[0])
    if not isinstance(delimiters, list) or not delimiters or tag is None:
        return None
    return BracedCalls(
        open=parts[0][: tag.start()], close=close, name_open=tag.group(), quote=_first_literal(delimiters[0])
    )


def _described_json(field: Spec) -> Calls | None:
    keys = _mapping(_mapping(field.get("transform")).get("function"))
    name = _PLACEHOLDER.fullmatch(str(keys.get("name", "{name}")))
    arguments = _PLACEHOLDER.fullmatch(str(keys.get("arguments", "{arguments}")))
    open, close = _delimiter(field, "open"), _delimiter(field, "close")
    if name is None or arguments is None or not open:
        return None
    name_key, arguments_key = name.group(1), arguments.group(1)
    if field.get("transform_each"):
        return JsonCalls(
            section_open=open,
            section_close=close or "",
            is_array=True,
            name_key=name_key,
            arguments_key=arguments_key,
        )
    return JsonCalls(open=open, close=close or "", name_key=name_key, arguments_key=arguments_key)


def _described_tags(field: Spec) -> Calls | None:
    arguments: Spec = _mapping(field.get("content_args"))
    opening = _pattern_parts(str(field.get("open_pattern", "")))
    tag = _pattern_parts(str(arguments.get("tag_pattern", "")))
    close = _delimiter(field, "close")
    if opening is None or tag is None or opening[1:2] != ["name"] or [*tag[1::2]] != ["key", "value"]:
        return None
    name_open = re.search(r"<[^<>]*$", opening[0])
    open = opening[0][: name_open.start()] if name_open else opening[0]
    inner = re.match(r"<([^\s=<>]+)", name_open.group()) if name_open else None
    return TaggedCalls(
        open=open,
        close=close or "",
        name_open=name_open.group() if name_open else "",
        name_close=opening[2],
        arguments_close=f"</{inner.group(1)}>" if inner and open else "",
        key_open=tag[0],
        key_close=tag[2],
        value_close=tag[4],
    )
