"""Every field of every item is inspected, or is on the list of those that are not: derived from the types."""

import json
import re
from typing import Any

import pytest
from msgspec import structs

from slipring.core.chain import hosted_items_in_context
from slipring.core.chain.instructions_and_tools import Head
from slipring.core.checks.answer_gate import Gate
from slipring.core.checks.inspected_texts import (
    LABELS,
    NAMES,
    NOT_INSPECTED,
    WORDS,
    other_texts,
    others_digest,
    texts_in,
    upstream_subjects,
)
from slipring.core.checks.known_verdicts import KnownVerdicts
from slipring.core.checks.policies import Check, Policy
from slipring.core.turn.turn_checks import InspectedItems
from slipring.protocol.items.items import CARRIED_TYPES, FORMS, Item, read_item
from slipring.protocol.responses import OutputItem
from tests.text_fields import Variant, text_fields, vocabulary

WORD = "zebra"
SPELLED = r"\u007aebra"
SENT: dict[str, list[Variant]] = {
    **{item_type: text_fields(form, WORD) for item_type, form in FORMS.items()},
    **{item_type: [(".text", {"text": WORD}), (".*", {WORD: 1})] for item_type in sorted(CARRIED_TYPES)},
}
"""By type of item that clients can send: its fields."""
EMITTED: list[Variant] = text_fields(OutputItem, WORD)
"""The fields of items that a response can contain."""


def inspected(items: tuple[Item, ...]) -> list[str]:
    """The texts that are inspected of the items of a request."""
    gate = Gate(Policy((Check("guard", action="block"),)))
    InspectedItems(gate, KnownVerdicts(10**6), "t").begin(None, Head(), hosted_items_in_context.opened(items))
    return [subject.text for inspection in gate.take_due() for subject in inspection.subjects]


def read(item_type: str, fields: Any) -> Item:
    return read_item(json.dumps({"type": item_type, **fields}).encode(), "input[0]")


def is_exempt(path: str) -> bool:
    """Whether a field has no text that is inspected: an id, sealed content or data."""
    return not NOT_INSPECTED.isdisjoint(re.findall(r"\w+", path))


CASES = [(item_type, path, value) for item_type, fields in SENT.items() for path, value in fields]


@pytest.mark.parametrize(("item_type", "path", "value"), CASES, ids=[f"{a}{b}" for a, b, _ in CASES])
def test_a_word_in_any_field_of_an_item_that_a_client_sends_is_inspected(
    item_type: str, path: str, value: Any
):
    found = any(WORD in text for text in inspected((read(item_type, value),)))
    assert found != is_exempt(path)


@pytest.mark.parametrize("item_type", sorted(SENT))
def test_fields_that_nobody_knows_are_inspected(item_type: str):
    least = next((value for path, value in SENT[item_type] if is_exempt(path)), None)
    least = least if least is not None else SENT[item_type][0][1] if SENT[item_type] else {}
    plain = json.loads(json.dumps(least).replace(WORD, "hi"))
    for unknown in ({"more": {"deep": [WORD]}}, {WORD: 1}, {"more": {WORD: None}}):
        assert any(WORD in text for text in inspected((read(item_type, {**plain, **unknown}),))), unknown


@pytest.mark.parametrize(("path", "value"), EMITTED, ids=[path for path, _ in EMITTED])
def test_a_word_in_any_field_of_an_item_of_an_engines_server_is_inspected(path: str, value: Any):
    item = Item(value["type"], json.dumps(value).encode())
    subjects = upstream_subjects([item], [])
    assert any(WORD in subject.text for subject in subjects) != is_exempt(path)


def test_escapes_in_the_arguments_of_any_call_are_read():
    arguments = {"arguments": '{"a":"' + SPELLED + '","' + SPELLED + '":"b"}'}
    with_arguments = [
        item_type for item_type, fields in SENT.items() if any(path == ".arguments" for path, _ in fields)
    ]
    assert set(with_arguments) == {"function_call", "tool_search_call", "mcp_call", "mcp_approval_request"}
    for item_type in with_arguments:
        least = next(value for path, value in SENT[item_type] if path == ".arguments")
        [first, *_] = inspected((read(item_type, {**least, **arguments}),))
        assert '{"a":"zebra","zebra":"b"}' in first


def test_a_value_that_is_nested_too_deeply_to_be_read_is_inspected_as_a_whole():
    deep = b"[" * 10_000 + b'"zebra"' + b"]" * 10_000
    assert texts_in(deep) == [deep.decode()]


def test_what_a_client_has_changed_in_a_sealed_thought_is_inspected():
    def thought(summary: str) -> Item:
        return read("reasoning", {"summary": [{"type": "summary_text", "text": summary}]})

    assert inspected((structs.replace(thought("a"), opened=(thought("a"),)),)) == ["a"]
    assert inspected((structs.replace(thought(WORD), opened=(thought("a"),)),)) == ["a", WORD]


@pytest.mark.parametrize(
    ("item_type", "fields"),
    [
        ("message", {"role": "user", "content": "hi"}),
        ("message", {"role": "user", "content": [{"type": "input_text", "text": "hi"}]}),
        (
            "message",
            {
                "role": "assistant",
                "id": "msg_1",
                "status": "completed",
                "content": [{"type": "output_text", "text": "hi", "annotations": [], "logprobs": []}],
            },
        ),
        ("function_call", {"call_id": "c", "name": "f", "arguments": "{}", "status": "completed"}),
        ("function_call_output", {"call_id": "c", "output": "hi"}),
    ],
)
def test_other_texts_of_usual_items_are_part_of_their_keys(item_type: str, fields: dict[str, Any]):
    plain = read(item_type, fields)
    assert (other_texts(plain), others_digest(plain)) == ([], b"")
    for unusual in ({**fields, "more": WORD}, {**fields, WORD: None}):
        assert others_digest(read(item_type, unusual)) != b""


def test_an_annotation_that_a_client_sends_is_part_of_the_key():
    part = {"type": "output_text", "text": "hi", "annotations": [{"type": "url_citation", "title": WORD}]}
    assert others_digest(read("message", {"role": "assistant", "content": [part]})) != b""


def test_words_and_names_of_the_protocol_say_nothing():
    names, words = vocabulary([*FORMS.values(), OutputItem])
    assert names <= NAMES
    types = {*FORMS, *CARRIED_TYPES}
    assert words - types <= WORDS
    assert LABELS <= NAMES
