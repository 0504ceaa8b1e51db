"""JSON decoding: errors name the field, raw values stay unchanged."""

import msgspec
import pytest
from msgspec import UNSET, Raw, Struct

from slipring.base.errors import ApiError, InvalidJson, InvalidRequest
from slipring.protocol import wire


class Inner(Struct):
    size: int


class Strict(Struct, forbid_unknown_fields=True):
    size: int = 0


class Outer(Struct):
    name: str
    inner: Inner | None = None
    inners: list[Inner] = []
    table: dict[str, Inner] = {}
    strict: Strict | None = None


DECODER = msgspec.json.Decoder(Outer)


def refusal(data: bytes | str, where: str = "") -> ApiError:
    with pytest.raises(InvalidRequest) as caught:
        wire.decode(DECODER, data, where=where)
    return caught.value


def test_an_unknown_field_of_the_object_itself_is_named():
    with pytest.raises(InvalidRequest) as caught:
        wire.decode(msgspec.json.Decoder(Strict), '{"n": 1}')
    error = caught.value
    assert (error.code, error.param) == ("unknown_parameter", "n")
    assert error.message == "Unknown parameter: 'n'."


def test_valid_json_is_decoded():
    assert wire.decode(DECODER, '{"name": "x", "later": 1}').name == "x"


@pytest.mark.parametrize(
    ("data", "param", "code", "message"),
    [
        ("{}", "name", "missing_required_parameter", "Missing required parameter: 'name'."),
        ('{"name": 1}', "name", "invalid_type", "Invalid 'name': expected `str`, got `int`."),
        ('{"name":"x","inner":{"size":"1"}}', "inner.size", "invalid_type", None),
        ('{"name":"x","inner":{}}', "inner.size", "missing_required_parameter", None),
        ('{"name":"x","inners":[{"size":1},{"size":"2"}]}', "inners[1].size", "invalid_type", None),
        ('{"name":"x","table":{"k":{"size":"2"}}}', "table.size", "invalid_type", None),
        ('{"name":"x","strict":{"n":1}}', "strict.n", "unknown_parameter", "Unknown parameter: 'strict.n'."),
    ],
)
def test_the_offending_field_is_named(data, param, code, message):
    error = refusal(data)
    assert (error.param, error.code, error.status) == (param, code, 400)
    if message is not None:
        assert error.message == message


def test_the_field_is_named_below_where():
    assert refusal('{"name": 1}', "input[2]").param == "input[2].name"
    assert refusal("{}", "input[2]").param == "input[2].name"
    assert refusal("5", "input[2]").param == "input[2]"


@pytest.mark.parametrize(
    "data", ["", "{", "nope", '{"name": "x"} trailing', b"\xff\xfe", b'{"name": "\xff"}']
)
def test_invalid_json_is_reported(data):
    error = refusal(data)
    assert isinstance(error, InvalidJson)
    assert (error.code, error.param) == ("invalid_json", None)
    assert error.message.startswith("The request is not valid JSON: ")


@pytest.mark.parametrize("rest", ["", "x", "x" * 20, "\\n", "\\ud83d\\ude00"])
@pytest.mark.parametrize("read", [str, str.encode])
def test_half_of_a_surrogate_pair_is_reported_as_such_wherever_it_is(rest, read):
    error = refusal(read(f'{{"name": "\\ud83d{rest}"}}'))
    assert isinstance(error, InvalidJson)
    assert "utf-16 surrogate pair" in error.message
    assert "truncated" in refusal('{"name": "\\ud83d\\ude00').message


@pytest.mark.parametrize("data", ["5", "[]", '"x"', "null"])
def test_a_value_that_is_not_an_object_is_reported(data):
    error = refusal(data)
    assert isinstance(error, InvalidJson)
    assert error.message.startswith("The request must be a JSON object: ")


def test_deep_nesting_is_refused():
    error = refusal('{"name": "x", "later": ' + "[" * 200_000)
    assert error.message == "The request's JSON is nested too deeply."


def test_errors_carry_no_trace_of_the_decoder():
    """A chained exception would put the client's data into the logs."""
    with pytest.raises(InvalidRequest) as caught:
        wire.decode(DECODER, "{}")
    assert caught.value.__suppress_context__


# Text.


def test_utf8_passes_unchanged():
    data = "é".encode()
    assert wire.require_text(data) is data


@pytest.mark.parametrize("data", [b"\xff", b"\xc3", b"\xed\xa0\x80"])
def test_bytes_that_are_not_utf8_are_refused(data):
    with pytest.raises(InvalidJson, match="not valid UTF-8"):
        wire.require_text(data)


# Raw values.


def test_absent_and_null_are_not_given():
    assert wire.given(UNSET) is None
    assert wire.given(Raw(b"null")) is None
    assert wire.given(Raw(b"")) is None


@pytest.mark.parametrize("value", [b"0", b"false", b"[]", b'""', b"{}", b'"null"'])
def test_everything_else_is_given(value):
    given = wire.given(Raw(value))
    assert given is not None
    assert bytes(given) == value


@pytest.mark.parametrize("value", [UNSET, Raw(b"null"), Raw(b"{}"), Raw(b'{"a": 1}')])
def test_objects_null_and_absent_pass_as_objects(value):
    wire.require_object(value, "x")


@pytest.mark.parametrize("value", [b"[]", b"1", b'"{"', b"true"])
def test_other_values_do_not_pass_as_objects(value):
    with pytest.raises(InvalidRequest) as caught:
        wire.require_object(Raw(value), "tools[0].x")
    assert caught.value.message == "Invalid 'tools[0].x': expected an object."
    assert (caught.value.param, caught.value.code) == ("tools[0].x", "invalid_type")


def test_raw_values_are_spliced_byte_for_byte():
    spaced = Raw(b'{ "a" :  1.50 }')
    assert wire.encode({"x": spaced}) == b'{"x":{ "a" :  1.50 }}'
    assert wire.encode(wire.raw({"x": spaced})) == b'{"x":{ "a" :  1.50 }}'


def test_paths_are_joined_without_a_leading_dot():
    assert wire.join("", ".a.b") == "a.b"
    assert wire.join("input[2]", ".content") == "input[2].content"
    assert wire.join("input[2]", "") == "input[2]"


# Bounds.


def long_array(entries: int) -> bytes:
    entry = b'{"x":"' + b"y" * wire.LONG_BYTES + b'"}'
    return b"[" + b",".join([entry] + [b"{}"] * (entries - 1)) + b"]"


def test_a_long_array_is_bounded_in_entries():
    wire.require_few(long_array(3), 3, "input", "items")
    with pytest.raises(InvalidRequest, match="more than 3 items") as caught:
        wire.require_few(long_array(4), 3, "input", "items")
    assert caught.value.param == "input"


def test_short_arrays_and_other_values_are_not_counted():
    wire.require_few(b"[{},{},{},{}]", 3, "input", "items")
    wire.require_few(b'"' + b"x" * wire.LONG_BYTES + b'"', 3, "input", "items")


def test_the_entries_of_a_long_array_must_be_objects():
    with pytest.raises(InvalidRequest) as caught:
        wire.require_few(b"[" + b"1," * wire.LONG_BYTES + b"1]", 3, "input", "items")
    assert (caught.value.param, caught.value.code) == ("input[0]", "invalid_type")


def test_a_field_is_bounded_in_bytes():
    wire.require_short(Raw(b'"123"'), "type", 5)
    with pytest.raises(InvalidRequest, match="more than 5 bytes") as caught:
        wire.require_short(Raw(b'"1234"'), "type", 5)
    assert caught.value.param == "type"
