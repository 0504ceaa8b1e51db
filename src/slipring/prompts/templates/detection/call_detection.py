"""Finds how a chat template writes calls: where names, keys and values come out, and what is between them.

Each layout has a function that reads ``_Written`` and returns None if that has another layout.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from slipring.prompts.parsing.output_format import Calls, JsonCalls, NamedJsonCalls, PythonCalls, TaggedCalls
from slipring.prompts.templates.detection.probes import (
    FIRST_KEY,
    FIRST_VALUE,
    IDS,
    NAME,
    NEXT_QUESTION,
    NUMBER,
    QUESTION,
    SECOND_KEY,
    SECOND_VALUE,
    STRINGS,
    TAG,
    TEXT,
    Probe,
    common_prefix,
    common_suffix,
    from_first_tag,
    marked,
    user,
)
from slipring.prompts.templates.detection.thought_detection import Thoughts

_PREFIX_OF_NAME = re.compile(r"(?<=[>\]])[\w.]+$")
_FIRST_TAG = re.compile(rf"(?:{TAG.pattern})\s*")
_ARRAY_OPEN = re.compile(r"\[\s*$")
_decoder = json.JSONDecoder()


class Found(Struct, frozen=True):
    """The layout of calls, and what ends an answer of calls."""

    calls: Calls
    ending: str


class _Written(Struct, frozen=True):
    """What a template writes for an answer of two calls."""

    calls: str
    """From where an answer of text differs; one call if the template refuses two."""
    ending: str
    """What answers of calls and of text end with; not part of ``calls``."""
    text_end: str
    """The mark after an answer of text, if there is one."""
    probe: Probe


class _Marks(Struct, frozen=True):
    """The marks around calls. ``open`` ends where a call's name or JSON begins."""

    section_open: str
    open: str
    close: str
    between: str
    section_close: str
    ending: str


def find_calls(probe: Probe, thoughts: Thoughts) -> Found | None:
    """Find the layout of calls. ``probe`` has been adapted to the template."""
    text = probe.after_question(probe.answer(text=TEXT))
    one = probe.after_question(probe.answer(calls=[STRINGS]))
    if text is None or one is None:
        return None
    two = probe.after_question(probe.answer(calls=[STRINGS, STRINGS]))
    ending = common_suffix(one, text[text.rfind(TEXT) + len(TEXT) :])
    if two is None or two.count(NAME) == one.count(NAME):
        two = one
    written = _Written(
        calls=thoughts.without_empty(two[len(common_prefix(two, text)) : len(two) - len(ending)]),
        ending=ending,
        text_end=mark_after_text(probe),
        probe=probe,
    )
    for layout in (_json_calls, _python_calls, _named_json_calls, _tagged_calls):
        found = layout(written)
        if found is not None:
            return found
    return None


def _marks(written: _Written, before: str, middle: str | None, after: str) -> _Marks:
    """Divide what stands before the first call, between two calls and after the last one."""
    if middle is None:  # one call: a mark may belong to the call or to the section
        opening, close, between = from_first_tag(before), after, ""
        before = ""
    else:
        close = marked(common_prefix(middle, after))
        opening = marked(from_first_tag(common_suffix(before, middle[len(close) :])))
        between = middle[len(close) : len(middle) - len(opening)]
        before = before[: len(before) - len(opening)]
        after = after[len(close) :]
    section_close, ending = _ending(written, before, after) if middle is not None else ("", written.ending)
    return _Marks(
        _constant(marked(before)), opening, close, _constant(between), marked(section_close), ending
    )


def _constant(mark: str) -> str:
    """The mark, or nothing if it repeats the call's name, which no format can say."""
    return "" if NAME in mark else mark


def _ending(written: _Written, section_open: str, rest: str) -> tuple[str, str]:
    """Divide what stands after all calls: the end of the section, and the end of the answer."""
    if marked(written.ending):
        return rest, written.ending
    tags = list(TAG.finditer(rest))
    is_same = bool(tags) and tags[-1].group() == written.text_end
    if is_same or (written.text_end and len(tags) > (1 if marked(section_open) else 0)):
        return rest[: tags[-1].start()], rest[tags[-1].start() :]
    return rest, ""


def mark_after_text(probe: Probe) -> str:
    """The first mark after an answer of text: what ends it or, if nothing does, what begins the next turn."""
    messages = [user(QUESTION), probe.answer(text=TEXT), user(NEXT_QUESTION)]
    for each in (messages[:2], messages):
        after = (probe.write(each) or "").rpartition(TEXT)[2].partition(NEXT_QUESTION)[0]
        mark = TAG.search(after)
        if mark is not None or re.search(r"[<>\[\]]", after):
            return mark.group() if mark is not None else after.strip()
    return ""


def _named_json_calls(written: _Written) -> Found | None:
    """``[TOOL_CALLS]f[ARGS]{…}``."""
    spans = [_arguments_after(written.calls, at) for at in _places(written.calls, NAME)]
    found = [span for span in spans if span is not None]
    if not found:
        return None
    (start, first_open, end), *others = found
    text = written.calls
    marks = _marks(
        written,
        text[:start],
        text[end : others[-1][0]] if others else None,
        text[others[-1][2] :] if others else text[end:],
    )
    if not marks.open:
        return None  # without a mark before it, a name looks like text
    section_open, id_open = _id_before(marks.section_open, IDS[0])
    between, _ = _id_before(marks.between, IDS[1])
    separator, arguments_open, is_index = _id_in(
        text[start + len(NAME) : first_open],
        text[others[-1][0] + len(NAME) : others[-1][1]] if others else None,
    )
    prefix = _PREFIX_OF_NAME.search(marks.open)
    name_prefix = prefix.group() if prefix else ""
    calls = NamedJsonCalls(
        section_open=section_open,
        section_close=marks.section_close,
        open=marks.open.removesuffix(name_prefix),
        close=marks.close,
        between=between,
        id_open=id_open,
        name_prefix=name_prefix,
        id_separator=separator,
        id_is_index=is_index,
        arguments_open=arguments_open,
    )
    return Found(calls, marks.ending)


def _arguments_after(text: str, name_at: int) -> tuple[int, int, int] | None:
    """Where a name begins, and where the JSON object of arguments after it begins and ends."""
    begin = text.find("{", name_at)
    value, end = _decode(text, begin) if begin >= 0 else (None, 0)
    between = text[name_at + len(NAME) : begin]
    if not isinstance(value, dict) or FIRST_KEY not in value or FIRST_KEY in between or NAME in between:
        return None
    return name_at, begin, end


def _id_before(text: str, id: str) -> tuple[str, str]:
    """Divide what stands before a call if it ends with an id: the rest, and the mark before the id."""
    if not text.endswith(id):
        return text, ""
    marks = list(TAG.finditer(text.removesuffix(id)))
    at = marks[-1].start() if marks else len(text) - len(id)
    return text[:at], text[at:].removesuffix(id)


def _id_in(first: str, second: str | None) -> tuple[str, str, bool]:
    """Divide what stands between name and arguments: what precedes an id, what follows, whether it counts."""
    for id, next_id, is_index in ((*IDS, False), ("0", "1", True)):
        separator, found, rest = first.partition(id)
        if found and separator and (second is None or second == separator + next_id + rest):
            return separator, rest, is_index
    return "", first, False


def _json_calls(written: _Written) -> Found | None:
    """``{"name": …, "arguments": …}``."""
    text = written.calls
    objects = [_object_around(text, at) for at in _places(text, NAME)]
    found = [each for each in objects if each is not None]
    if not found:
        return None
    (begin, end, value), (last_begin, last_end, _) = found[0], found[-1]
    keys = {key: _kind(each) for key, each in value.items()}
    names = [key for key, kind in keys.items() if kind == "name"]
    arguments = [key for key, kind in keys.items() if kind == "arguments"]
    if not arguments:
        return None
    ids = [key for key, kind in keys.items() if kind == "id" and key != "type"]
    before, after = text[:begin], text[last_end:]
    array = _ARRAY_OPEN.search(before)
    is_array = array is not None and after.lstrip().startswith("]")
    middle = text[end:last_begin] if len(found) > 1 else None
    if array is not None and is_array:
        section_open = before[: array.start()]
        section_close, ending = _ending(written, section_open, after.lstrip().removeprefix("]"))
        marks = _Marks(section_open, "", "", "", section_close, ending)
    else:
        marks = _marks(written, before, middle, after)
    calls = JsonCalls(
        section_open=marks.section_open,
        section_close=marks.section_close,
        open=marks.open,
        close=marks.close,
        between=marks.between,
        name_key=names[0],
        arguments_key=arguments[0],
        id_key=ids[0] if ids else "",
        is_array=is_array,
        is_bare=not is_array or not marks.section_open.strip(),
    )
    return Found(calls, marks.ending)


def _object_around(text: str, name_at: int) -> tuple[int, int, Mapping[str, Any]] | None:
    """The innermost JSON object that has the probe's name as a value, and where it begins and ends."""
    begin = name_at
    while (begin := text.rfind("{", 0, begin)) >= 0:
        value, end = _decode(text, begin)
        if isinstance(value, dict) and end > name_at:
            return (begin, end, value) if NAME in value.values() else None
    return None


def _kind(value: object) -> str:
    if value == NAME:
        return "name"
    if value == STRINGS or (isinstance(value, str) and FIRST_VALUE in value):
        return "arguments"
    return "id" if isinstance(value, str) else ""


def _decode(text: str, at: int) -> tuple[Any, int]:
    try:
        return _decoder.raw_decode(text, at)
    except ValueError:
        return None, 0


def _python_calls(written: _Written) -> Found | None:
    """``[f(a=1)]``, or calls without brackets, one after the other."""
    text = written.calls
    begin = re.search(rf"\[\s*{NAME}\(", text)
    end = re.search(rf"{SECOND_VALUE}['\"]?\)\s*\](?!.*{SECOND_VALUE})", text, re.DOTALL)
    if begin is None or end is None:
        return _unbracketed_python_calls(written)
    section_open = text[: begin.start()]
    section_close, ending = _ending(written, section_open, text[end.end() :])
    is_bare = not marked(section_open)
    return Found(PythonCalls(section_open=section_open, section_close=section_close, is_bare=is_bare), ending)


def _unbracketed_python_calls(written: _Written) -> Found | None:
    """``<calls>f(a=1)`` and further calls, with white space between them."""
    text = written.calls
    places = [match.start() for match in re.finditer(rf"{NAME}\(", text)]
    ends = [match.end() for match in re.finditer(rf"{SECOND_VALUE}['\"]?\)", text)]
    if not places or len(ends) != len(places) or not marked(text[: places[0]]):
        return None
    between = text[ends[0] : places[1]] if len(places) > 1 else "\n"
    if not between.isspace():
        return None
    section_open = text[: places[0]]
    section_close, ending = _ending(written, section_open, text[ends[-1] :])
    calls = PythonCalls(
        section_open=section_open, section_close=section_close, between=between, is_list=False
    )
    return Found(calls, ending)


def _tagged_calls(written: _Written) -> Found | None:
    """``<function=f><parameter=k>v</parameter></function>``."""
    text = written.calls
    places = [_argument_places(text, at) for at in _places(text, NAME)]
    found = [each for each in places if each is not None]
    if not found:
        return None
    name, key, value, next_key, next_value = found[0]
    last_name, *_, last_value = found[-1]
    to_key = text[name + len(NAME) : key]
    to_next_key = text[value + len(FIRST_VALUE) : next_key]
    key_open = from_first_tag(common_suffix(to_key, to_next_key))
    value_close = to_next_key.removesuffix(key_open)
    middle = text[next_value + len(SECOND_VALUE) : last_name] if len(found) > 1 else None
    after = text[last_value + len(SECOND_VALUE) :]
    marks = _marks(
        written,
        text[:name],
        middle.removeprefix(value_close) if middle is not None else None,
        after.removeprefix(value_close),
    )
    to_value = text[key + len(FIRST_KEY) : value]
    if not key_open or not marks.open or to_value.endswith('"'):  # strings as JSON: no format can say that
        return None
    string_attribute, json_attribute, key_close = _attributes(written.probe, to_value)
    opening = re.search(r"<[^<>]*$", marks.open)
    name_open = opening.group() if opening else ""
    open = marks.open.removesuffix(name_open)
    inner_close = _FIRST_TAG.match(marks.close) if open else None  # the tag of the name ends before the call
    arguments_close = inner_close.group() if inner_close else marks.close
    if not name_open:
        arguments_close = ""
    calls = TaggedCalls(
        section_open=marks.section_open,
        section_close=marks.section_close,
        open=open,
        close=marks.close.removeprefix(arguments_close),
        between=marks.between,
        name_open=name_open,
        name_close=to_key.removesuffix(key_open),
        arguments_close=arguments_close,
        key_open=key_open,
        key_close=key_close,
        value_close=value_close,
        string_attribute=string_attribute,
        json_attribute=json_attribute,
    )
    return Found(calls, marks.ending)


def _argument_places(text: str, name_at: int) -> list[int] | None:
    """Where the name, the keys and the values of a call with two arguments begin, in their order."""
    at, places = name_at + len(NAME), [name_at]
    for part in (FIRST_KEY, FIRST_VALUE, SECOND_KEY, SECOND_VALUE):
        place = text.find(part, at)
        if place < 0 or NAME in text[at:place]:
            return None
        places.append(place)
        at = place + len(part)
    return places


def _attributes(probe: Probe, for_string: str) -> tuple[str, str, str]:
    """What follows a key: attributes that say that the value is a string or JSON, and the end of the tag.
    Compares what follows the key of a string, of a number and of an object."""
    for_number = _after_key(probe, NUMBER, str(NUMBER))
    if for_number is None or for_number == for_string or '"' not in for_string:
        return "", "", for_string
    key_close = for_string[for_string.rfind('"') + 1 :]
    for_object = _after_key(probe, {SECOND_KEY: SECOND_VALUE}, "{")
    string = for_string.removesuffix(key_close)
    if for_object == for_number:
        return string, for_number.removesuffix(key_close), key_close
    return string.replace('"string"', '"{type}"'), "", key_close


def _after_key(probe: Probe, value: Any, written_as: str) -> str | None:
    text = probe.after_question(probe.answer(calls=[{FIRST_KEY: value}])) or ""
    after = text[text.rfind(FIRST_KEY) + len(FIRST_KEY) :] if FIRST_KEY in text else ""
    return after[: after.find(written_as)] if written_as in after else None


def _places(text: str, part: str) -> list[int]:
    return [match.start() for match in re.finditer(re.escape(part), text)]
