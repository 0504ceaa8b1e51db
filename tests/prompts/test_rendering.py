"""Rendering by delta gives the tokens of the whole context, for any split into turns."""

import json
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st
from msgspec import Raw

from slipring.core.chain.instructions_and_tools import Head
from slipring.core.chain.state import Carry, ResponseState
from slipring.core.generation import Job, Settings
from slipring.prompts.fallback_reasons import HEAD_CHANGED
from slipring.prompts.rendering import Body, Preface, Rendered, empty
from slipring.prompts.templates.template_renderer import TemplateRenderer
from slipring.prompts.tokenization.token_budget import TokenBudget
from slipring.prompts.truncation import shorten
from slipring.protocol.items.items import Item
from slipring.protocol.requests import TEXT, TextFormat
from slipring.protocol.tools.tool_choice import Offer
from slipring.protocol.tools.toolset import Toolset
from tests.core.connection import PLAIN, node
from tests.prompts.vocabulary import (
    CHATML_CONTROL,
    RENDERERS,
    VISIBLE,
    call,
    custom_call,
    item,
    message,
    of_format,
    output,
    renderer,
    small,
)

EVERY_WRITER = pytest.mark.parametrize("writer", RENDERERS)
TOOL = {"type": "function", "name": "weather", "parameters": {"type": "object"}}
TOOLS = Toolset.read(Raw(json.dumps([TOOL]).encode()))
HEAD = Head("You help.", TOOLS)
TEXTS = st.sampled_from(
    ["", " ", "\n", "hello", "  hello\n", "<|im_end|>\n", "<|eot_id|>", "halt"]
) | st.text(max_size=8)
NAMES = st.sampled_from(["f", "weather"])
SPACES = st.none() | st.just("files")
ITEMS: st.SearchStrategy[Item] = st.one_of(
    st.builds(message, st.sampled_from(["user", "assistant", "system", "developer"]), TEXTS),
    st.builds(call, NAMES, st.sampled_from(["{}", '{"a":1}']), namespace=SPACES),
    st.builds(custom_call, NAMES, TEXTS, namespace=SPACES),
    st.builds(output, TEXTS, st.sampled_from(["function_call_output", "custom_tool_call_output"])),
    st.just(item("reasoning", summary=[])),
    st.just(item("additional_tools", tools=[TOOL])),
    st.just(item("configuration_update", reasoning={"effort": "low"})),
)
STEPS = st.lists(st.lists(ITEMS, max_size=4).map(tuple), min_size=1, max_size=5)
Items = tuple[Item, ...]


def job(
    items: Items = (), parent: ResponseState | None = None, head: Head = HEAD, format: TextFormat = TEXT
) -> Job:
    return Job(
        response_id="r",
        tenant="t",
        model=PLAIN,
        head=head,
        parent=parent,
        input=items,
        offer=Offer(),
        settings=Settings(format=format),
    )


def after(done: Job, position: Any, *, output: Items = ()) -> ResponseState:
    """The response state after a finished job."""
    return ResponseState(
        response=node("r").response,
        parent=done.parent,
        head=done.head,
        input=done.input,
        output=output,
        carry=Carry(),
        position=position,
    )


def whole(writer: TemplateRenderer, *items: Item, head: Head = HEAD) -> tuple[list[int], list[int]]:
    rendering = writer.render(job(items, head=head))
    assert rendering.fallback is None
    return rendering.context.ids(), rendering.prompt.ids()


def user(text: str) -> Item:
    return message("user", text)


# Chains and whole contexts


def test_rendering_by_delta_gives_the_tokens_of_the_whole_context() -> None:
    writers = {name: renderer(name) for name in RENDERERS}

    @settings(max_examples=30)
    @given(STEPS)
    def the_same(steps: list[Items]) -> None:
        for name, writes in writers.items():
            note(name)
            assert_rendered_by_delta(writes, steps)

    the_same()


def assert_rendered_by_delta(writes: TemplateRenderer, steps: list[Items]) -> None:
    parent: ResponseState | None = None
    seen: Items = ()
    for items in steps:
        step = job(items, parent)
        rendering = writes.render(step)
        seen += items
        context, prompt = whole(writes, *seen)
        assert rendering.context.ids() == context
        assert rendering.prompt.ids() == prompt
        assert (rendering.context.total, rendering.prompt.total) == (len(context), len(prompt))
        before = 0 if parent is None or rendering.fallback is not None else parent.position.total
        assert rendering.new_tokens == len(prompt) - before
        parent = after(step, rendering.context)


def test_emitted_ids_are_kept_and_new_items_are_appended_to_them() -> None:
    writers = {name: renderer(name) for name in RENDERERS}

    @settings(max_examples=25)
    @given(
        st.lists(
            st.tuples(st.lists(ITEMS, max_size=3).map(tuple), st.lists(st.integers(0, 255))), max_size=4
        ),
        st.lists(ITEMS, max_size=3).map(tuple),
    )
    def kept(turns: list[tuple[Items, list[int]]], last: Items) -> None:
        for name, writes in writers.items():
            note(name)
            assert_emitted_ids_are_kept(writes, turns, last)

    kept()


def assert_emitted_ids_are_kept(
    writes: TemplateRenderer, turns: list[tuple[Items, list[int]]], last: Items
) -> None:
    parent: ResponseState | None = None
    ids: list[int] = []
    for items, emitted in [*turns, (last, [])]:
        step = job((*items, user("go on")), parent)
        rendering = writes.render(step)
        prompt = rendering.prompt.ids()
        if parent is not None and rendering.fallback is None:
            assert prompt[: len(ids)] == ids
        answered = rendering.with_answer(emitted)
        ids = prompt + emitted
        assert answered.ids() == ids
        assert answered.total == len(ids)
        # The text of the item does not matter: the emitted ids are used.
        parent = after(step, answered, output=(message("assistant", "something else"),))


@EVERY_WRITER
def test_the_next_message_closes_the_answer(writer: str) -> None:
    writes = renderer(writer)
    first = job((user("hello"),))
    answered = writes.render(first).with_answer(writes.vocabulary.encode("yes"))
    rendering = writes.render(job((user("more"),), after(first, answered)))
    assert (
        rendering.prompt.ids() == whole(writes, user("hello"), message("assistant", "yes"), user("more"))[1]
    )


@EVERY_WRITER
def test_forks_share_their_parents_tokens_and_do_not_see_each_other(writer: str) -> None:
    writes = renderer(writer)
    first = job((user("hello"),))
    parent = after(first, writes.render(first).context)
    forks = [writes.render(job((user(text),), parent)).context for text in ("one", "two")]
    assert [fork.ids() for fork in forks] == [
        whole(writes, user("hello"), user(text))[0] for text in ("one", "two")
    ]
    assert forks[0].body.parent is forks[1].body.parent is parent.position.body


@EVERY_WRITER
def test_a_job_without_new_items_has_the_position_of_its_parent(writer: str) -> None:
    writes = renderer(writer)
    first = job((user("hello"),))
    position = writes.render(first).context
    again = writes.render(job((item("reasoning", summary=[]),), after(first, position)))
    assert again.context is position


# Heads


@EVERY_WRITER
def test_an_unchanged_head_is_shared(writer: str) -> None:
    writes = renderer(writer)
    first = job((user("hello"),))
    position = writes.render(first).context
    for head in (HEAD, Head("You help.", TOOLS)):
        rendering = writes.render(job((user("more"),), after(first, position), head))
        assert rendering.context.preface is position.preface
        assert rendering.context.body.parent is position.body
        assert rendering.new_tokens == rendering.prompt.total - position.total


@EVERY_WRITER
@pytest.mark.parametrize("head", [Head("Other.", TOOLS), Head("You help."), Head()])
def test_with_another_head_everything_is_rendered(writer: str, head: Head) -> None:
    writes = renderer(writer)
    first = job((user("hello"),))
    position = writes.render(first).context
    rendering = writes.render(job((user("more"),), after(first, position), head))
    assert rendering.fallback == HEAD_CHANGED
    assert (rendering.context.ids(), rendering.prompt.ids()) == whole(
        writes, user("hello"), user("more"), head=head
    )
    assert rendering.new_tokens == rendering.prompt.total
    assert position.ids() == whole(writes, user("hello"))[0], "the parent is as it was"


SCHEMA = TextFormat(kind="json_schema", echo=Raw(b"{}"), schema=b'{"type":"object"}')


@EVERY_WRITER
def test_the_answer_format_is_part_of_the_head(writer: str) -> None:
    writes = renderer(writer)
    first = job((user("hello"),))
    position = writes.render(first).context
    formatted = writes.render(job((user("more"),), after(first, position), format=SCHEMA))
    assert formatted.fallback == HEAD_CHANGED
    whole_job = job((user("hello"), user("more")), format=SCHEMA)
    assert formatted.prompt.ids() == writes.render(whole_job).prompt.ids()
    assert '{"type":"object"}' in b"".join(map(writes.bytes_of, formatted.context.ids())).decode()


# Contexts that are too long


@EVERY_WRITER
def test_shortening_drops_the_oldest_items_and_keeps_calls_with_their_outputs(writer: str) -> None:
    writes = renderer(writer)
    added = item("additional_tools", tools=[TOOL])
    items = (user("one"), added, call("f"), user("two"), output("2"), message("assistant", "a"), user("end"))
    borders = [items, items[1:], (added, *items[5:]), (added, *items[6:])]
    for earlier, kept in pairwise(borders):
        most = len(whole(writes, *kept)[1])
        for room in (most, len(whole(writes, *earlier)[1]) - 1):
            shortened = shorten(writes, job(items), TokenBudget(room))
            assert shortened is not None
            assert shortened.prompt.ids() == whole(writes, *kept)[1]
            assert shortened.dropped_items == len(items) - len(kept)
            assert shortened.fallback is not None
    assert shorten(writes, job(items), TokenBudget(len(whole(writes, added, user("end"))[1]) - 1)) is None


# Parents that cannot be appended to


def foreign_positions(writer: str) -> list[object]:
    """None, another engine's position, and positions of all other renderers."""
    others = [renderer(other).render(job()).context for other in RENDERERS if other != writer]
    return [None, SimpleNamespace(size_bytes=9), *others]


@EVERY_WRITER
def test_a_parent_of_another_engine_dialect_or_vocabulary_causes_a_full_rendering(writer: str) -> None:
    writes = renderer(writer)
    grandparent = after(job((user("hello"),)), writes.render(job((user("hello"),))).context)
    for position in foreign_positions(writer):
        done = job((call("f"),), grandparent)
        parent = after(done, position, output=(output("1"), message("assistant", "one")))
        rendering = writes.render(job((output("2"), user("more")), parent))
        items = (
            user("hello"),
            call("f"),
            output("1"),
            message("assistant", "one"),
            output("2"),
            user("more"),
        )
        assert rendering.fallback is not None
        assert (rendering.context.ids(), rendering.prompt.ids()) == whole(writes, *items)
        assert rendering.new_tokens == rendering.prompt.total


@EVERY_WRITER
def test_after_a_full_rendering_the_chain_continues_by_delta(writer: str) -> None:
    writes = renderer(writer)
    lost = after(job((user("hello"),)), None)
    again = job((user("more"),), lost)
    position = writes.render(again).context
    rendering = writes.render(job((user("end"),), after(again, position)))
    assert rendering.fallback is None
    assert rendering.prompt.ids() == whole(writes, user("hello"), user("more"), user("end"))[1]
    assert rendering.context.body.parent is position.body


@EVERY_WRITER
def test_the_first_step_counts_all_its_tokens(writer: str) -> None:
    rendering = renderer(writer).render(job((user("hello"),)))
    assert rendering.new_tokens == rendering.prompt.total == len(rendering.prompt.ids())


def test_positions_stay_valid_for_a_new_renderer_of_the_same_model() -> None:
    first = job((user("hello"),))
    position = renderer("llama3 in small").render(first).context
    assert renderer("llama3 in small").render(job((), after(first, position))).context is position


# Tokens


@EVERY_WRITER
def test_answers_end_at_the_control_tokens_that_the_vocabulary_has(writer: str) -> None:
    writes = renderer(writer)
    stops = {"chatml": CHATML_CONTROL[::2], "llama3": ("<|eot_id|>", "<|eom_id|>", "<|end_of_text|>")}
    assert writes.stop_ids() == {*map(writes.vocabulary.control, stops[writer.split()[0]])}


def chain(length: int) -> Body:
    body = empty(None)
    for number in range(length):
        body = body.then((number, number), None)
    return body


def test_a_very_long_chain_does_not_exceed_the_recursion_limit() -> None:
    body = chain(100_000)
    assert body.total == 200_000
    assert [step.ids[0] for step in body.steps() if step.ids] == list(range(100_000))
    rendered = Rendered("w", Preface(HEAD, TEXT), body)
    del body
    assert rendered.total == len(rendered.ids()) == 200_000
    del rendered  # freeing the links recursively would overflow the stack here


def test_appending_does_not_change_the_parent() -> None:
    body = chain(2)
    longer = body.then([9], "tail")
    assert (body.total, body.tail, [step.json for step in body.steps()]) == (
        4,
        None,
        [b"", b"0,0", b"1,1"],
    )
    assert (longer.total, longer.tail, longer.parent) == (5, "tail", body)
    assert longer.size_bytes > body.size_bytes


def test_a_mark_is_a_token_if_the_vocabulary_has_it_and_text_never_becomes_one() -> None:
    writes = renderer("chatml in small")
    mark = writes.vocabulary.control(VISIBLE)
    ids = whole(writes, user("hello"), call("f", f'{{"a":"{VISIBLE}"}}'), head=Head())[0]
    assert ids.count(mark) == 1
    assert b"".join(map(writes.bytes_of, ids)).decode().count(VISIBLE) == 2


def test_marks_in_an_answer_are_text_and_other_control_tokens_are_not() -> None:
    writes = renderer("chatml in small")
    mark, end = writes.vocabulary.control(VISIBLE), writes.vocabulary.control("<|im_end|>")
    assert (writes.mark_of(mark), writes.mark_of(end)) == (VISIBLE, "")
    ids = [mark, *writes.vocabulary.encode("hello"), end, 10**6]
    assert writes.token_bytes.join(ids) == b"<tool_call>hello"
    assert set(writes.token_bytes) == set(ids[:-2]), "tokens without bytes are not cached"


def test_the_prompt_of_a_format_without_thoughts_opens_none() -> None:
    writes = renderer("chatml in small")
    assert not writes.opens_thought(writes.render(job()).prompt)


def test_a_renderer_names_the_control_tokens_of_its_marks() -> None:
    writes = of_format("chatml", small())
    for _ in range(2):
        assert writes.control_ids() == {VISIBLE: writes.vocabulary.control(VISIBLE)}
    assert writes.counted_calls(writes.render(job((user("a"),))).prompt) == 0


def test_the_size_of_a_context_grows_with_its_tokens() -> None:
    first = renderer("chatml in small").render(job((user("hello"),))).context
    longer = renderer("chatml in small").render(job((user("hello" * 100),))).context
    assert longer.size_bytes - first.size_bytes == 11 * (longer.total - first.total)
    assert first.size_bytes > 11 * first.total


def test_a_context_shares_what_it_begins_with_and_a_rewritten_one_nothing() -> None:
    preface = Preface(HEAD, TEXT)
    first = Rendered("w", preface, chain(3))
    longer = first.then((1, 2, 3), None)
    assert longer.unshared_bytes(first) == longer.size_bytes - first.size_bytes
    assert first.unshared_bytes(longer) == first.unshared_bytes(first) == 0
    fork = first.then((4,), None).then((5,), None)
    assert fork.unshared_bytes(longer) == fork.size_bytes - first.size_bytes
    assert [each.body.continues(first.body) for each in (first, longer, fork)] == [True] * 3
    assert not first.body.continues(longer.body)
    assert not fork.body.continues(longer.body)
    for length in (0, 2, 3, 4):
        rewritten = Rendered("w", preface, chain(length))
        assert rewritten.unshared_bytes(first) == rewritten.body.size_bytes
        assert not rewritten.body.continues(first.body)
    assert longer.unshared_bytes(SimpleNamespace(size_bytes=9)) == longer.size_bytes


def test_the_first_tokens_of_a_context() -> None:
    body = empty(None).then((1, 2), None).then((3, 4), None).then((5,), None)
    rendered = Rendered("w", Preface(HEAD, TEXT), body)
    for tokens in range(7):
        first = rendered.first(tokens)
        assert first.ids() == [1, 2, 3, 4, 5][:tokens]
        assert first.total == min(tokens, 5)
