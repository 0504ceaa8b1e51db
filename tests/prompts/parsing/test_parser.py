"""From a model's text to deltas. Every case is read whole, and again one character at a time."""

import json
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipring.core.generation import CallArguments, CallStarted, Delta, Text, Thought
from slipring.prompts.parsing.parser import CallFormat, Parser, flat_name
from slipring.protocol.tools import CallableTool, CustomTool, FunctionTool, Offer

QWEN = CallFormat(
    call_open="<tool_call>", call_close="</tool_call>", think_open="<think>", think_close="</think>"
)
LLAMA = CallFormat(bare_json=True, prefix="<|python_tag|>")
BOTH = CallFormat(
    call_open="<tool_call>",
    call_close="</tool_call>",
    think_open="<think>",
    think_close="</think>",
    prefix="<|python_tag|>",
    bare_json=True,
)
MISTRAL = CallFormat(call_open="[TOOL_CALLS]")


def function(name: str, namespace: str | None = None) -> CallableTool:
    return CallableTool("function", name, namespace, FunctionTool(name=name))


def custom(name: str, namespace: str | None = None) -> CallableTool:
    return CallableTool("custom", name, namespace, CustomTool(name=name))


OFFER = Offer(tools=(function("f"), function("g"), custom("patch"), function("read", "files")))
NONE = Offer()


def merged(deltas: Iterable[Delta]) -> list[Delta]:
    """Adjacent pieces of text, of thought, or of a call's arguments, as one."""
    whole: list[Delta] = []
    for delta in deltas:
        last = whole[-1] if whole else None
        if isinstance(delta, Text | Thought):
            assert delta.text, "an empty delta"
        if isinstance(last, Text | Thought | CallArguments) and type(last) is type(delta):
            whole[-1] = type(last)(last.text + delta.text)
        else:
            whole.append(delta)
    return whole


def parsed(
    pieces: Iterable[str],
    format: CallFormat = QWEN,
    offer: Offer = OFFER,
    *,
    thinking: bool = True,
    starts_thinking: bool = False,
    trusted: bool = False,
) -> list[Delta]:
    parser = Parser(format, offer, thinking=thinking, starts_thinking=starts_thinking, trusted=trusted)
    deltas = [delta for piece in pieces for delta in parser.feed(piece)]
    return merged(deltas + parser.finish())


def call(name: str, arguments: str, namespace: str | None = None) -> list[Delta]:
    return [CallStarted("function", name, namespace), CallArguments(arguments)]


def custom_call(name: str, text: str) -> list[Delta]:
    return [CallStarted("custom", name), CallArguments(text)]


def check(text: str, expected: list[Delta], format: CallFormat = QWEN, offer: Offer = OFFER) -> None:
    assert parsed([text], format, offer) == expected
    assert parsed(text, format, offer) == expected


F = '{"name": "f", "arguments": {"a": 1}}'
G = '{"name": "g", "arguments": {}}'
CALL_F, CALL_G = call("f", '{"a": 1}'), call("g", "{}")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        ("Hello", [Text("Hello")]),
        (" \n Hello,\n\n world \n", [Text(" \n Hello,\n\n world \n")]),
        ("  \n", [Text("  \n")]),
        ("a < b", [Text("a < b")]),
        ("a <tool_cal b", [Text("a <tool_cal b")]),
        ("a <tool_cal", [Text("a <tool_cal")]),
        ("a </tool_call> b", [Text("a </tool_call> b")]),
        ("a </think> b", [Text("a </think> b")]),
        ("<<think>x</think>>", [Text("<"), Thought("x"), Text(">")]),
        ("<thi<think>x</think>", [Text("<thi"), Thought("x")]),
        ("été 💩 <tool", [Text("été 💩 <tool")]),
    ],
)
def test_text_is_text(text: str, expected: list[Delta]):
    check(text, expected)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<think>\nHm.\n\nWell. \n</think>\n\nYes.", [Thought("Hm.\n\nWell."), Text("Yes.")]),
        ("<think>\n\n</think>\n\nYes.\n", [Text("Yes.\n")]),
        ("<think></think>", []),
        ("\n<think>x</think> \n", [Thought("x")]),
        ("Yes. \n<think>x</think> no", [Text("Yes."), Thought("x"), Text("no")]),
        ("<think>a</think>\n<think>b</think>", [Thought("ab")]),
        ("<think>unclosed \n", [Thought("unclosed \n")]),
        ("<think>unclosed </thin", [Thought("unclosed </thin")]),
        ("<think>a<think>b</think>", [Thought("a<think>b")]),
        (f"<think><tool_call>{F}</tool_call></think>", [Thought(f"<tool_call>{F}</tool_call>")]),
        (f"<think>x</think>\n\n<tool_call>\n{F}\n</tool_call>", [Thought("x"), *CALL_F]),
        (f"<tool_call>{F}</tool_call>\n<think>x</think>\nDone", [*CALL_F, Thought("x"), Text("Done")]),
    ],
)
def test_thoughts(text: str, expected: list[Delta]):
    check(text, expected)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"<tool_call>\n{F}\n</tool_call>", CALL_F),
        (f"<tool_call>{F}</tool_call>", CALL_F),
        (
            f"Let me look.\n\n<tool_call>\n{F}\n</tool_call>\n<tool_call>\n{G}\n</tool_call>\n",
            [Text("Let me look."), *CALL_F, *CALL_G],
        ),
        (f"<tool_call>{F}</tool_call>\n\nDone. ", [*CALL_F, Text("Done. ")]),
        (f"<tool_call>{F}</tool_call>, done", [*CALL_F, Text(", done")]),
        (f"<tool_call>[{F}, {G}]</tool_call>", [*CALL_F, *CALL_G]),
        ('<tool_call>{"arguments":{ "a" :"}{][" },"name":"f"}</tool_call>', call("f", '{ "a" :"}{][" }')),
        (
            '<tool_call>{"name": "f", "parameters": {"é": "\\u00e9"}}</tool_call>',
            call("f", '{"é": "\\u00e9"}'),
        ),
        ('<tool_call>{"id": "1", "type": "function", "name": "g", "arguments": {}}</tool_call>', CALL_G),
        ('<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>', CALL_F),
        ('<tool_call>{"name": "g"}</tool_call>', CALL_G),
        ('<tool_call>{"name": "g", "arguments": null}</tool_call>', CALL_G),
        (
            '<tool_call>{"name": "patch", "arguments": {"input": "a\\n"}}</tool_call>',
            custom_call("patch", "a\n"),
        ),
        ('<tool_call>{"name": "patch", "arguments": "a\\"b"}</tool_call>', custom_call("patch", 'a"b')),
        ('<tool_call>{"name": "patch", "arguments": ""}</tool_call>', custom_call("patch", "")),
        ('<tool_call>{"name": "files__read", "arguments": {}}</tool_call>', call("read", "{}", "files")),
        ('<tool_call>{"name": "read", "arguments": {}}</tool_call>', call("read", "{}", "files")),
        (
            '<tool_call>{"name": "f", "arguments": {"a": "</tool_call>\\"<tool_call>"}}</tool_call>!',
            [*call("f", '{"a": "</tool_call>\\"<tool_call>"}'), Text("!")],
        ),
    ],
)
def test_marked_calls(text: str, expected: list[Delta]):
    check(text, expected)


@pytest.mark.parametrize(
    "body",
    [
        "",
        "f(1)",
        "{}",
        "[]",
        "[[]]",
        "null",
        '"f"',
        '{"name": "f", "arguments": {"a": 1}',
        '{"name": "f", "arguments": {"a": 01}}',
        '{"name": "f", "arguments": {"a": "\\x"}}',
        '{"name": "f", "arguments": {"a": "\\uzzzz"}}',
        '{"name": "f", "arguments": {"a": "\\ud800"}}',
        '{"name": "f", "arguments": {"a": \n"line\nbreak"}}',
        '{"name": "f", "arguments": {"a": 1]}',
        '{"name": "f", "arguments": {"a": e}}',
        '{"name": "f", "arguments": [1]}',
        '{"name": "f", "arguments": 1}',
        '{"name": "f", "arguments": "no object"}',
        '{"name": "f", "arguments": "[]"}',
        '{"name": "unknown", "arguments": {}}',
        '{"name": "files", "arguments": {}}',
        '{"name": 1, "arguments": {}}',
        '{"arguments": {}}',
        '{"name": "patch", "arguments": {"code": "a"}}',
        '{"name": "patch", "arguments": {"input": "a", "more": 1}}',
        '{"name": "patch", "arguments": {"input": 1}}',
        '{"name": "patch"}',
        '{"name": "f", "arguments": "',
        '{"name": "f", "arguments": "\\',
        f"{F} {G}",
        f"{F}.",
        f'[{F}, {{"name": "unknown", "arguments": {{}}}}]',
        '{"name": "f", "arguments": {"a": ' + 5000 * "[" + 5000 * "]" + "}}",
        '{"name": "f", "arguments": {"a": "\ud800"}}',
    ],
)
def test_malformed_calls_are_text_and_calls_after_them_are_calls(body: str):
    bad = f"Well, \n<tool_call> {body}\t</tool_call>"
    check(bad, [Text(bad)])
    check(f"{bad}\n", [Text(f"{bad}\n")])
    check(f"{bad}\n<tool_call>{G}</tool_call>", [Text(bad), *CALL_G])
    check(f"{bad} \n then\n<tool_call>{G}</tool_call>", [Text(f"{bad} \n then"), *CALL_G])


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>",
        " <tool_call> ",
        f"<tool_call>\n{F}\n",
        f"<tool_call>\n{F}\n</tool_cal",
        '<tool_call>{"name": "f", "arguments": {"a": "',
        '<tool_call>{"name": "f</tool_call>',
        '<tool_call>{"name": "f</tool_call></tool_call>',
        "<tool_call><tool_call>",
    ],
)
def test_unclosed_calls_are_text(text: str):
    check(text, [Text(text)])


def test_a_call_inside_a_broken_one_is_a_call():
    check(f"<tool_call>\n<tool_call>{F}</tool_call>", [Text("<tool_call>"), *CALL_F])
    check(f'<tool_call>{{"name": "f\n<tool_call>{G}</tool_call>', [Text('<tool_call>{"name": "f'), *CALL_G])


@pytest.mark.parametrize("format", [QWEN, LLAMA, BOTH, MISTRAL])
@pytest.mark.parametrize(
    "text", [F, f"a\n<tool_call>{F}</tool_call>\n", f"<|python_tag|>{F}", "[TOOL_CALLS][]"]
)
def test_without_tools_nothing_is_a_call(format: CallFormat, text: str):
    check(text, [Text(text)], format, NONE)


def test_without_tools_there_are_thoughts():
    check(
        f"<think>x</think>\n<tool_call>{F}</tool_call>",
        [Thought("x"), Text(f"<tool_call>{F}</tool_call>")],
        offer=NONE,
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (F, CALL_F),
        (f" \n{F}\n", CALL_F),
        ('{"name": "f", "parameters": {"a": "}"}}', call("f", '{"a": "}"}')),
        (f"{F}{G}", [*CALL_F, *CALL_G]),
        (f"{F}; {G}", [*CALL_F, *CALL_G]),
        (f"{F},\n{G};", [*CALL_F, *CALL_G]),
        (f"{F}\n\n{G}\n", [*CALL_F, *CALL_G]),
        (f"[{F}, {G}]", [*CALL_F, *CALL_G]),
        (f"[ {F} ]\n{G}", [*CALL_F, *CALL_G]),
        (f"{F}\nDone. ", [*CALL_F, Text("Done. ")]),
        (f"{F}\n, done", [*CALL_F, Text(", done")]),
        (f"{F} then {G}", [*CALL_F, Text(f"then {G}")]),
        (f"{F}; {{}} {G}", [*CALL_F, Text(f"; {{}} {G}")]),
        (f"{F}; {{x", [*CALL_F, Text("; {x")]),
        (f"Well. {F}", [Text(f"Well. {F}")]),
        (f"; {F}", [Text(f"; {F}")]),
        (f"Well. <|python_tag|>{F}; {G}", [Text("Well."), *CALL_F, *CALL_G]),
        (f"{F};<|python_tag|> {G}", [*CALL_F, *CALL_G]),
        ('<|python_tag|>{"name": "g"}', CALL_G),
        ('<|python_tag|>f.call(a="1") ', [Text('<|python_tag|>f.call(a="1") ')]),
        ("a <|python_tag|>", [Text("a <|python_tag|>")]),
        ("a <|python_t", [Text("a <|python_t")]),
        (f"<|python_tag|><|python_tag|>{F}", [Text("<|python_tag|>"), *CALL_F]),
        ('{"name": "g"}', [Text('{"name": "g"}')]),
        ('{"name": "unknown", "arguments": {}}\n', [Text('{"name": "unknown", "arguments": {}}\n')]),
        ('{"answer": [1, true, "}"]} ', [Text('{"answer": [1, true, "}"]} ')]),
        (' {"name": "f", ', [Text(' {"name": "f", ')]),
        ("{x | x > 1}", [Text("{x | x > 1}")]),
        ("[1] says so", [Text("[1] says so")]),
        (f"[{F}, 1]", [Text(f"[{F}, 1]")]),
    ],
)
@pytest.mark.parametrize("format", [LLAMA, BOTH])
def test_bare_json(text: str, expected: list[Delta], format: CallFormat):
    check(text, expected, format)


def test_bare_json_after_thoughts_and_marked_calls():
    check(f"<think>x</think>\n{F}", [Thought("x"), *CALL_F], BOTH)
    check(f"<tool_call>{F}</tool_call>\n{G}", [*CALL_F, *CALL_G], BOTH)
    check(f"{F};<think>x</think>{G}", [*CALL_F, Thought("x"), *CALL_G], BOTH)
    check(f"Hm\n<tool_call>{F}</tool_call>\n{G}", [Text("Hm"), *CALL_F, Text(G)], BOTH)


def test_bare_json_is_text_where_the_format_knows_none():
    check(F, [Text(F)], QWEN)


def test_a_marker_without_a_closing_one():
    check(f"Hm [TOOL_CALLS] [{F}, {G}]\n", [Text("Hm"), *CALL_F, *CALL_G], MISTRAL)
    check(f"[TOOL_CALLS]{F}[TOOL_CALLS]{G}", [*CALL_F, *CALL_G], MISTRAL)
    check(f"[TOOL_CALL]{F}", [Text(f"[TOOL_CALL]{F}")], MISTRAL)
    check(f"[TOOL_CALLS]{F}", CALL_F, CallFormat(call_open="[TOOL_CALLS]", bare_json=True))
    check(f"[{F}]", CALL_F, CallFormat(call_open="[TOOL_CALLS]", bare_json=True))


def test_a_closing_marker_alone_marks_nothing():
    check(f"{F}</tool_call>", [Text(f"{F}</tool_call>")], CallFormat(call_close="</tool_call>"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("\nHm.\n</think>\n\nYes", [Thought("Hm."), Text("Yes")]),
        ("Hm. ", [Thought("Hm. ")]),
        (" ", []),
        (f"Hm.</think>\n<tool_call>{F}</tool_call>", [Thought("Hm."), *CALL_F]),
    ],
)
def test_an_answer_may_start_inside_a_thought(text: str, expected: list[Delta]):
    assert parsed([text], starts_thinking=True) == expected
    assert parsed(text, starts_thinking=True) == expected


def test_a_format_may_only_close_thoughts():
    format = CallFormat(think_close="</think>")
    assert parsed("a</think>b<think>c", format, starts_thinking=True) == [Thought("a"), Text("b<think>c")]


def test_thinking_can_be_off():
    text = "<think>x</think> y"
    assert parsed(text, thinking=False) == [Text(text)]
    assert parsed(text, thinking=False, starts_thinking=True) == [Text(text)]
    assert parsed(text, CallFormat(), starts_thinking=True) == [Text(text)]


def test_text_and_thought_come_at_once_but_for_what_may_become_a_marker():
    parser = Parser(QWEN, OFFER)
    assert parser.feed("<think>") == []
    assert parser.is_thinking
    assert parser.feed("Hm") == [Thought("Hm")]
    assert parser.feed(" so</") == [Thought(" so")]
    assert parser.feed("b") == [Thought("</b")]
    assert parser.feed("</think>\n") == []
    assert not parser.is_thinking
    assert parser.feed("Yes") == [Text("Yes")]
    assert parser.feed(", ") == [Text(",")]
    assert parser.feed("a <too") == [Text(" a")]
    assert parser.feed("k") == [Text(" <took")]
    assert parser.feed("") == []
    assert parser.feed("\n<tool_call>{") == []
    assert parser.feed("x") == [Text("\n<tool_call>{"), Text("x")]
    assert parser.finish() == []


def test_a_call_comes_when_it_is_complete():
    parser = Parser(BOTH, OFFER)
    assert parser.feed(F[:-1]) == []
    assert parser.feed("}") == CALL_F
    assert parser.feed(f"<tool_call>{G}</tool_call") == []
    assert parser.feed(">") == CALL_G
    assert parser.finish() == []


def test_nothing_is_held_back_where_no_marker_may_come():
    parser = Parser(QWEN, NONE, thinking=False)
    assert parser.feed("a \n<") == [Text("a \n<")]
    assert parser.feed(" ") == [Text(" ")]
    parser = Parser(CallFormat(bare_json=True), OFFER)
    assert parser.feed(" ") == []
    assert parser.feed("a ") == [Text(" a ")]


def test_flat_names():
    assert flat_name(function("read")) == "read"
    assert flat_name(function("read", "files")) == "files__read"


def named(name: str, *tools: CallableTool) -> list[Delta]:
    text = f'{{"name": "{name}", "arguments": {{}}}}'
    deltas = parsed([text], LLAMA, Offer(tools=tools))
    return [] if deltas == [Text(text)] else deltas


def test_names_that_could_mean_two_tools_mean_none():
    one, two = function("read", "one"), function("read", "two")
    assert named("read", one, two) == []
    assert named("one__read", one, two) == call("read", "{}", "one")
    assert named("two__read", one, two) == call("read", "{}", "two")
    assert named("a__b__c", function("c", "a__b"), function("b__c", "a")) == []
    assert named("c", function("c", "a__b"), function("b__c", "a")) == call("c", "{}", "a__b")


def test_a_tool_without_namespace_goes_before_namesakes_in_one():
    assert named("read", function("read"), function("read", "one")) == call("read", "{}")
    assert named("one__read", function("read"), function("read", "one")) == call("read", "{}", "one")


def test_a_tool_offered_twice_is_one_tool():
    assert named("read", function("read", "one"), function("read", "one")) == call("read", "{}", "one")


HELD = 100_000


@pytest.mark.parametrize(
    "text",
    [
        f'<tool_call>{{"name": "f", "arguments": {{"a": "{HELD * "x"}"}}}}</tool_call>',
        f'{{"name": "f", "arguments": {{"a": "{HELD * "x"}"}}}}',
        f'{{"name": "f", "arguments": {{"a": [{HELD * "1,"}1]}}}}',
        f'<tool_call>{{"name": "f", "arguments": {{"a": "{HELD // 10 * "</tool_call>"}"}}}}</tool_call>',
    ],
)
def test_long_calls(text: str):
    check(text, call("f", text[text.index('{"a"') : text.rindex("}}") + 1]), BOTH)


ALIKE = 20_000


@pytest.mark.parametrize(
    "text",
    [
        ALIKE * " " + "x",
        ALIKE * "x",
        ALIKE * "<",
        ALIKE // 10 * "<tool_call>",
        ALIKE // 20 * '<tool_call>{"</tool_call>',
        '<tool_call>{"</tool_call>' + ALIKE // 20 * '<tool_call>{\\"</tool_call>',
        ALIKE // 20 * '<tool_call>{"</tool_call>"',
        ALIKE * "[",
        ALIKE * "{",
        "[" + ALIKE * "{",
        '{"a' + ALIKE * "\\\\",
        '{"a": ' + ALIKE * "[",
    ],
)
def test_long_lookalikes(text: str):
    check(text, [Text(text)], BOTH)


def test_many_thoughts():
    check(2_000 * "<think>x</think>\n", [Thought(2_000 * "x")])


MARKERS = ["<tool_call>", "</tool_call>", "<think>", "</think>", "<|python_tag|>", "[TOOL_CALLS]"]
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text('{}[]"\\<>/a é💩\n', max_size=8)
    | st.sampled_from(MARKERS),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text('{"\\a', max_size=3), inner, max_size=3)
    ),
    max_leaves=5,
)
arguments = st.dictionaries(st.sampled_from(["a", "input", "}"]), values, max_size=2)


def written(name: str, arguments: object, indent: int | None) -> str:
    return json.dumps({"name": name, "arguments": arguments}, indent=indent, ensure_ascii=False)


calls = st.builds(
    written, st.sampled_from(["f", "files__read", "patch", "nope"]), arguments, st.sampled_from([None, 1])
)
marked = calls.map("<tool_call>\n{}\n</tool_call>".format)
lookalikes = st.sampled_from(MARKERS).flatmap(
    lambda marker: st.integers(1, len(marker)).map(lambda n: marker[:n])
)
scraps = st.text('{}[]"\\<>/|;, \nnae1:é💩', max_size=6)
outputs = st.lists(
    st.one_of(
        st.text(max_size=4), st.sampled_from(MARKERS), st.sampled_from([" ", "\n", "; "]), scraps, lookalikes,
        calls, marked, calls.flatmap(lambda text: st.integers(1, len(text)).map(lambda n: text[:n])),
    ),
    max_size=8,
).map("".join)  # fmt: skip
ODD = CallFormat(
    call_open="{a", call_close='"}', think_open="a<", think_close=" b", prefix="a<x", bare_json=True
)
formats = st.sampled_from([QWEN, LLAMA, BOTH, MISTRAL, ODD])


def split(text: str, cuts: list[int]) -> list[str]:
    ends = sorted(cut % (len(text) + 1) for cut in cuts)
    return [text[start:end] for start, end in zip([0, *ends], [*ends, len(text)], strict=True)]


@given(
    outputs,
    st.lists(st.integers(0, 1000), max_size=6),
    formats,
    st.booleans(),
    st.sampled_from([OFFER, NONE]),
)
def test_any_split_gives_the_same(text: str, cuts: list[int], format: CallFormat, inside: bool, offer: Offer):
    whole = parsed([text], format, offer, starts_thinking=inside)
    assert parsed(split(text, cuts), format, offer, starts_thinking=inside) == whole
    assert parsed(text, format, offer, starts_thinking=inside) == whole


@given(st.text('a{}<>"; bx,:', max_size=40), st.sampled_from([OFFER, NONE]))
def test_any_split_gives_the_same_with_markers_that_overlap(text: str, offer: Offer):
    assert parsed(text, ODD, offer) == parsed([text], ODD, offer)


def without_markers(text: str) -> list[Delta]:
    """What the rules for thoughts say, over the whole text at once."""
    deltas: list[Delta] = []
    fresh = False
    while "<think>" in text:
        said, _, text = text.partition("<think>")
        thought, closed, text = text.partition("</think>")
        said = said.rstrip(" \t\r\n")
        deltas.append(Text(said.lstrip(" \t\r\n") if fresh else said))
        deltas.append(Thought(thought.strip(" \t\r\n") if closed else thought.lstrip(" \t\r\n")))
        fresh = bool(closed)
        if not closed:
            return merged(delta for delta in deltas if isinstance(delta, Text | Thought) and delta.text)
    deltas.append(Text(text.lstrip(" \t\r\n") if fresh else text))
    return merged(delta for delta in deltas if isinstance(delta, Text | Thought) and delta.text)


@given(outputs)
def test_without_tools_all_but_think_markers_is_kept(text: str):
    assert parsed(text, BOTH, NONE) == without_markers(text)


@given(outputs, st.sampled_from([QWEN, LLAMA, BOTH, MISTRAL]))
def test_what_calls_no_offered_tool_is_kept_exactly(text: str, format: CallFormat):
    offer = Offer(tools=(function("other"),))
    assert parsed(text, format, offer, thinking=False) == ([Text(text)] if text else [])


@given(
    st.lists(st.tuples(st.sampled_from(["f", "g"]), arguments), min_size=1, max_size=3),
    st.sampled_from([None, 1]),
)
def test_calls_are_read_as_written(wanted: list[tuple[str, object]], indent: int | None):
    sources = [written(name, values, indent) for name, values in wanted]
    texts = [
        "".join(f"<tool_call>\n{source}\n</tool_call>\n" for source in sources),
        "; ".join(sources),
        "[" + ", ".join(sources) + "]",
        "<|python_tag|>" + "\n".join(sources),
    ]
    for text in texts:
        deltas = parsed(text, BOTH)
        assert [delta.name for delta in deltas if isinstance(delta, CallStarted)] == [
            name for name, _ in wanted
        ]
        read = [json.loads(delta.text) for delta in deltas if isinstance(delta, CallArguments)]
        assert read == [values for _, values in wanted]
        assert len(deltas) == 2 * len(wanted)


BARE = CallFormat(bare_json=True)
CALLED = CallFormat(call_open="<tool_call>", call_close="</tool_call>", arguments_key="parameters")


def trusted(pieces: Iterable[str], format: CallFormat = QWEN, offer: Offer = OFFER) -> list[Delta]:
    """As read by a parser that trusts calls. A call without a piece of arguments has empty ones."""
    whole: list[Delta] = []
    for delta in parsed(pieces, format, offer, trusted=True):
        if whole and isinstance(whole[-1], CallStarted) and not isinstance(delta, CallArguments):
            whole.append(CallArguments(""))
        whole.append(delta)
    return [*whole, CallArguments("")] if whole and isinstance(whole[-1], CallStarted) else whole


def check_trusted(text: str, expected: list[Delta], format: CallFormat = QWEN, offer: Offer = OFFER) -> None:
    assert trusted([text], format, offer) == expected
    assert trusted(text, format, offer) == expected


@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("f", "{}", call("f", "{}")),
        ("f", ' { "a" : [1, {"b": {}}, []] } ', call("f", '{ "a" : [1, {"b": {}}, []] }')),
        ("f", '{"a": "}{][\\"}{\\\\", "}": "</tool_call>"}', None),
        ("f", '{"a": "\\\\\\"\\\\"}', None),
        ("g", '{"é": "\\u00e9 \\ud83d\\ude00 💩"}', None),
        ("files__read", '{"a": -1.5e3, "b": [true, false, null]}', None),
        ("read", "{}", call("read", "{}", "files")),
        ("patch", '{"input": ""}', custom_call("patch", "")),
        ("patch", '{ "input" : "a}{\\"b" }', custom_call("patch", 'a}{"b')),
        ("patch", '{"input": "\\"\\\\\\/\\b\\f\\n\\r\\t"}', custom_call("patch", '"\\/\b\f\n\r\t')),
        ("patch", '{"input": "\\\\u0041\\u0041é"}', custom_call("patch", "\\u0041Aé")),
        ("patch", '{"input": "\\ud83d\\ude00💩\\uD83D\\uDE00"}', custom_call("patch", "😀💩😀")),
    ],
)
def test_trusted_calls_are_what_untrusted_ones_are(name: str, arguments: str, expected: list[Delta] | None):
    for format, key, before, after in (
        (QWEN, "arguments", "<think>x</think>\nHm\n<tool_call>\n", "\n</tool_call>"),
        (CALLED, "parameters", "<tool_call>", "</tool_call>"),
        (MISTRAL, "arguments", "Hm [TOOL_CALLS]", "\n"),
        (BARE, "arguments", "", ""),
        (LLAMA, "arguments", " \n", "\n"),
    ):
        for source in (
            f'{{"name": "{name}", "{key}": {arguments}}}',
            f'{{ "name"\n:"{name}" ,\t"{key}"  :{arguments} }}',
        ):
            text = f"{before}{source}{after}"
            whole = parsed([text], format)
            assert isinstance(whole[-2], CallStarted)
            assert expected is None or whole[-2:] == expected
            check_trusted(text, whole, format)
            check_trusted(f"{text}\n{text}", parsed([f"{text}\n{text}"], format), format)


def test_trusted_arguments_come_as_they_are_written():
    parser = Parser(QWEN, OFFER, trusted=True)
    assert parser.feed('Hm \n<tool_call>\n{"name": "files__read", "arguments": ') == [Text("Hm")]
    assert parser.feed("{") == [CallStarted("function", "read", "files"), CallArguments("{")]
    assert parser.feed('"a": "x') == [CallArguments('"a": "x')]
    assert parser.feed("\\") == [CallArguments("\\")]
    assert parser.feed('"}') == [CallArguments('"}')]
    assert parser.feed('"}}\n</tool') == [CallArguments('"}')]
    assert not parser.is_thinking
    assert parser.feed('_call>\n<tool_call>{"name": "g", "arguments": {}') == [
        *(CallStarted("function", "g"), CallArguments("{"), CallArguments("}")),
    ]
    assert parser.feed("}</tool_call>") == []
    assert parser.finish() == []


def test_trusted_bare_arguments_come_as_they_are_written():
    parser = Parser(BARE, OFFER, trusted=True)
    assert parser.feed('{"name": "f"') == []
    assert parser.feed(', "arguments": {"a') == [
        *(CallStarted("function", "f"), CallArguments("{"), CallArguments('"a')),
    ]
    assert parser.feed('": {}}}; {"name": "patch", "arguments": {"input": "') == [
        *(CallArguments('": {}}'), CallStarted("custom", "patch")),
    ]
    assert parser.feed("a\\n\\ud83d") == [CallArguments("a\n")]
    assert parser.feed("\\ude0") == []
    assert parser.feed("0b") == [CallArguments("😀b")]
    assert parser.feed('"}}') == []
    assert parser.finish() == []


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("\\ud83d", "\ufffd"),
        ("\\ude00\\ud83d", "\ufffd\ufffd"),
        ("\\ud83d\\ud83d\\ude00", "\ufffd😀"),
        ("\\ud83d\\n", "\ufffd\n"),
        ("\\ud83dx\\u12", "\ufffdx\\u12"),
        ("\\ud83d\\u12 \\x", "\ufffd\\u12 \\x"),
        ("line\nbreak", "line\nbreak"),
    ],
)
def test_trusted_input_that_is_no_json_after_all_is_read_as_far_as_it_goes(written: str, read: str):
    text = f'{{"name": "patch", "arguments": {{"input": "{written}"}}}}'
    check_trusted(text, custom_call("patch", read), BARE)


@pytest.mark.parametrize(
    "body",
    [
        '{"arguments": {"a": 1}, "name": "f"}',
        '{"name": "f", "parameters": {"a": 1}}',
        '{"id": "1", "name": "f", "arguments": {"a": 1}}',
        '{"name": "\\u0066", "arguments": {"a": 1}}',
        '{"name": "f", "arguments": "{\\"a\\": 1}"}',
        f"[{F}]",
        f"[{F}, {G}]",
        '{"name": "g"}',
        '{"name": "patch", "arguments": "a"}',
        '{"name": "patch", "arguments": {"code": "a"}}',
        '{"name": "patch", "arguments": {"input": 1}}',
        '{"name": "unknown", "arguments": {}}',
        '{"name": "f ", "arguments": {}}',
        '{"name": " f", "arguments": {}}',
        '{"na me": "f", "arguments": {}}',
        '{"name": "f", "arguments": [1]}',
        '{"name": "f',
        "f(1)",
        "",
        10_000 * " " + '{"x": 1}',
    ],
)
def test_what_does_not_begin_in_the_trusted_form_is_read_as_ever(body: str):
    for format, text in (
        (QWEN, f"Hm\n<tool_call>{body}</tool_call>\n<tool_call>{G}</tool_call>"),
        (QWEN, f"<tool_call>{body}"),
        (BARE, f"{body}\n{G}"),
    ):
        check_trusted(text, parsed([text], format), format)


@pytest.mark.parametrize("text", [F, f"[{F}]", f" {F}", f"<|python_tag|>{F}", f"Hm <|python_tag|>{F}"])
def test_only_calls_as_the_format_marks_them_are_trusted(text: str):
    parser = Parser(BOTH, OFFER, trusted=True)
    assert merged([delta for piece in text[:-1] for delta in parser.feed(piece)]) in ([], [Text("Hm")])
    check_trusted(text, parsed([text], BOTH), BOTH)


def test_names_that_json_would_escape_are_not_trusted():
    offer = Offer(tools=(function('f"'), function("a b")))
    for name in ('f\\"', "a b", "a\\u0020b", "ab"):
        text = f'{{"name": "{name}", "arguments": {{}}}}'
        check_trusted(text, parsed([text], BARE, offer), BARE, offer)


@pytest.mark.parametrize(
    "rest", [', "id": 1}', "]", "}.", '} {"name"', "} </tool_cal </tool_call>", "}</tool _call>", " x"]
)
def test_what_breaks_the_trusted_form_behind_the_arguments_is_text(rest: str):
    text = f'<tool_call>{{"name": "f", "arguments": {{"a": 1}}{rest}'
    check_trusted(text, [*CALL_F, Text(rest)])
    check_trusted(f"{text}\n<tool_call>{G}</tool_call>", [*CALL_F, Text(rest), *CALL_G])


def test_trusted_calls_may_be_cut_off_anywhere():
    value = '{"a": ["}\\"", {"b": 1}]}'
    start = '<tool_call>\n{"name": "f", "arguments": '
    text = f"{start}{value}}}\n</tool_call>"
    for end in range(len(text)):
        cut = text[:end]
        got = cut[len(start) : len(start) + len(value)]
        check_trusted(cut, call("f", got) if got else [Text(cut)] if cut else [])
        check_trusted(f"Hm\n{cut}", [Text("Hm"), *call("f", got)] if got else [Text(f"Hm\n{cut}")])


def test_trusted_input_may_be_cut_off_anywhere():
    start = '{"name": "patch", "arguments": {"input": "'
    written, ends = "a\\n\\ud83d\\ude00b", {0: "", 1: "a", 3: "a\n", 15: "a\n😀", 16: "a\n😀b"}
    for end in range(len(written) + 1):
        said = ends[max(known for known in ends if known <= end)]
        check_trusted(start + written[:end], custom_call("patch", said), BARE)
    for rest in ('"', '"}', '" }\n'):
        check_trusted(start + written + rest, custom_call("patch", "a\n😀b"), BARE)


@pytest.mark.parametrize(
    "value",
    [
        f'{{"a": "{ALIKE * "x"}"}}',
        f'{{"a": "{ALIKE // 10 * "</tool_call>"}"}}',
        f'{{"a": {ALIKE * "["}{ALIKE * "]"}}}',
        f'{{"a": "{ALIKE * "{"}"}}',
        '{"a": "' + ALIKE * "\\\\" + '"}',
        ALIKE * " " + "{}" + ALIKE * "\n",
    ],
)
def test_long_trusted_calls(value: str):
    check_trusted(f'<tool_call>{{"name": "f", "arguments": {value}}}</tool_call>', call("f", value.strip()))


def test_long_trusted_input():
    written = ALIKE // 10 * "\\ud83d\\ude00x"
    text = f'{{"name": "patch", "arguments": {{"input": "{written}"}}}}'
    check_trusted(text, custom_call("patch", ALIKE // 10 * "😀x"), BARE)


@given(outputs, st.lists(st.integers(0, 1000), max_size=6), formats, st.booleans())
def test_any_split_gives_the_same_where_calls_are_trusted(
    text: str, cuts: list[int], format: CallFormat, inside: bool
):
    whole = parsed([text], format, starts_thinking=inside, trusted=True)
    assert parsed(split(text, cuts), format, starts_thinking=inside, trusted=True) == whole
    assert parsed(text, format, starts_thinking=inside, trusted=True) == whole


@given(st.text('a{}<>"; bx,:', max_size=40))
def test_any_split_gives_the_same_with_trust_and_markers_that_overlap(text: str):
    text = f'{{a{{"name": "f", "arguments": {{{text}'
    assert parsed(text, ODD, trusted=True) == parsed([text], ODD, trusted=True)


@given(
    st.lists(st.tuples(st.sampled_from(["f", "files__read", "patch"]), arguments), min_size=1, max_size=3),
    st.booleans(),
    st.booleans(),
    st.sampled_from([None, 1]),
    st.integers(0, 1000),
)
def test_trusted_calls_are_read_as_written_and_up_to_where_they_are_cut(
    wanted: list[tuple[str, object]], marked: bool, ascii: bool, indent: int | None, end: int
):
    sources = [
        json.dumps(
            {"name": name, "arguments": {"input": str(values)} if name == "patch" else values},
            indent=indent,
            ensure_ascii=ascii,
        )
        for name, values in wanted
    ]
    text = "\n".join(f"<tool_call>\n{source}\n</tool_call>" if marked else source for source in sources)
    format = QWEN if marked else BARE
    whole = parsed([text], format)
    check_trusted(text, whole, format)
    cut = trusted(text[: end % len(text)], format)
    got = [delta.text for delta in cut if isinstance(delta, CallArguments)]
    full = [delta.text for delta in whole if isinstance(delta, CallArguments)]
    assert got[:-1] == full[: len(got[:-1])]
    assert all(mine.startswith(part) for mine, part in zip(full, got, strict=False))
