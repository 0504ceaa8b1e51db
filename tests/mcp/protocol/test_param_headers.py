"""Tool parameters in headers: marks in schemas, and encoding of values."""

import base64
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipring.mcp.protocol.param_headers import (
    InvalidMark,
    ParamHeader,
    header_value,
    mirrored,
    param_headers,
)

MARKED = {"type": "string", "x-mcp-header": "Region"}


def properties(**found: Any) -> dict[str, Any]:
    return {"type": "object", "properties": found}


def test_marks_are_found_below_properties_only() -> None:
    schema = properties(region=MARKED, place=properties(row={"type": "integer", "x-mcp-header": "Row"}))
    assert param_headers(schema) == (
        ParamHeader("Mcp-Param-Region", ("region",)),
        ParamHeader("Mcp-Param-Row", ("place", "row")),
    )


def test_a_property_may_be_called_like_the_mark() -> None:
    assert param_headers(properties(**{"x-mcp-header": {"type": "string"}})) == ()
    assert param_headers({"default": {"x-mcp-header": "A"}, "enum": [{"x-mcp-header": ""}]}) == ()


@pytest.mark.parametrize(
    "schema",
    [
        properties(a={"type": "string", "x-mcp-header": name})
        for name in ("", "a b", "a:b", "é", "a\tb", "a\r\nHost", 7, None, "x" * 200)
    ]
    + [
        properties(a={"type": kind, "x-mcp-header": "A"})
        for kind in ("number", "object", "array", "null", ["string"])
    ]
    + [
        properties(a=MARKED, b=MARKED),
        properties(a=MARKED, b={"type": "string", "x-mcp-header": "rEGION"}),
        properties(a={"type": "array", "items": MARKED}),
        properties(a={"anyOf": [MARKED]}),
        {"$defs": {"a": MARKED}},
        {"if": properties(a=MARKED)},
        {"type": "string", "x-mcp-header": "Root"},
        properties(a={"not": MARKED}),
        properties(**{f"p{n}": {"type": "string", "x-mcp-header": f"P{n}"} for n in range(100)}),
    ],
)
def test_invalid_marks_are_refused(schema: dict[str, Any]) -> None:
    with pytest.raises(InvalidMark):
        param_headers(schema)


def test_a_schema_without_end_is_refused() -> None:
    schema: dict[str, Any] = {}
    for _ in range(500):
        schema = properties(a=schema)
    with pytest.raises(InvalidMark):
        param_headers(schema)


@pytest.mark.parametrize(
    ("value", "sent"),
    [
        ("us-west1", "us-west1"),
        ("", ""),
        ("a b", "a b"),
        (42, "42"),
        (-7, "-7"),
        (3.0, "3"),
        (True, "true"),
        (False, "false"),
        (" padded ", "=?base64?IHBhZGRlZCA=?="),
        ("line1\nline2", "=?base64?bGluZTEKbGluZTI=?="),
        ("Hello, 世界", "=?base64?SGVsbG8sIOS4lueVjA==?="),
        ("=?base64?literal?=", "=?base64?PT9iYXNlNjQ/bGl0ZXJhbD89?="),
        (None, None),
        (2**53, None),
        (1.5, None),
        ([], None),
    ],
)
def test_values_are_encoded_as_the_protocol_says(value: Any, sent: str | None) -> None:
    headers = (ParamHeader("H", ("a", "b")),)
    assert mirrored(headers, {"a": {"b": value}}) == ([] if sent is None else [("H", sent)])


@pytest.mark.parametrize("arguments", [{}, {"a": None}, {"a": 1}, {"a": {"c": 1}}])
def test_absent_parameters_have_no_header(arguments: dict[str, Any]) -> None:
    assert mirrored((ParamHeader("H", ("a", "b")),), arguments) == []


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"])))
def test_every_text_is_safe_in_a_header_and_can_be_read_back(text: str) -> None:
    value = header_value(text)
    assert re.fullmatch(r"[\x20-\x7e]*", value)
    assert value == value.strip()
    marked = re.fullmatch(r"=\?base64\?(.*)\?=", value)
    assert (base64.b64decode(marked[1]).decode() if marked else value) == text
