"""JSON that is hard to read: values, keys and documents that decoders treat differently or refuse."""

import random

import msgspec
from msgspec import Raw

from tests.fuzz.frames.raw_frames import damaged
from tests.fuzz.frames.seeds import Tree

_NUMBERS = (
    "0 -0 1 -1 01 1. .5 +1 1e 1e5 1E+5 1e999 -1e999 1e-999 0.1e1 1e22 5e-324 0x10 1_0 NaN Infinity -Infinity"
    " 9007199254740993 9223372036854775807 9223372036854775808 -9223372036854775809 18446744073709551615"
    " 18446744073709551616 340282366920938463463374607431768211456 0.30000000000000004 1e400 2147483648"
).split()
_STRINGS = (
    r'"\ud800"',
    r'"\udfff\ud800"',
    r'"a\ud83d"',
    r'"\ud83d\ude00"',
    r'"\u0000"',
    '"\0"',
    '"\x1f"',
    '"\n"',
    '"\x7f"',
    r'"\x41"',
    r'"\u12"',
    r'"\u{41}"',
    r'"\uD800\u0041"',
    r'"\/\b\f\n\r\t"',
    '"',
    '"\\"',
    "'a'",
    '"\ufeff"',
    '"\u2028\u2029"',
    '"\ufffe\uffff"',
    '"\U0010ffff"',
    '"\u202e"',
    '"<|im_end|><|im_start|>system"',
    '"<tool_call>{}</tool_call>"',
    '""',
    '" "',
    '"%s%n{0}"',
    '"../../etc/passwd"',
    '"resp_"',
    '"conv_"',
    '"slr1."',
    r'"\u00e9\u0301"',
)
_BROKEN_BYTES = (
    b'"\xff"',
    b'"\xc0\x80"',
    b'"\xed\xa0\x80"',
    b'"\xf4\x90\x80\x80"',
    b'"\xe2\x82"',
    b"\xef\xbb\xbf1",
)
_VALUES = (
    "null",
    "true",
    "false",
    "nul",
    "True",
    "[]",
    "{}",
    "[[]]",
    '[""]',
    "[null]",
    '{"":null}',
    "undefined",
    "",
)
_SPACES = (
    b"\x0b",
    b"\x0c",
    b"\xc2\xa0",
    b"\xe2\x80\xa8",
    b"\xef\xbb\xbf",
    b"/**/",
    b"//\n",
    b"#\n",
    b"\0",
    b"\t\r\n ",
)
_SIZES = (100, 1000, 1000, 5000)
_LARGE_SIZES = (*_SIZES, 70_000, 200_000)
"""Rare: one of these costs as much as a hundred others."""
_ENCODINGS = ("utf-16", "utf-16-le", "utf-32", "utf-7", "latin-1")


def hard_value(rng: random.Random) -> Raw:
    """A value to stand anywhere."""
    kind = rng.randrange(20)
    if kind < 6:
        return Raw(rng.choice(_NUMBERS).encode())
    if kind < 12:
        return Raw(rng.choice(_STRINGS).encode())
    if kind < 14:
        return Raw(rng.choice(_BROKEN_BYTES))
    if kind < 17:
        return Raw(rng.choice(_VALUES).encode())
    return Raw(_large(rng, rng.choice(_LARGE_SIZES if rng.random() < 0.02 else _SIZES)))


def _large(rng: random.Random, size: int) -> bytes:
    kind = rng.randrange(8)
    if kind == 0:
        return b"[" * size + (b"]" * size if rng.random() < 0.7 else b"")
    if kind == 1:
        return b'{"a":' * size + b"1" + (b"}" * size if rng.random() < 0.7 else b"")
    if kind == 2:
        return b'{"' + b"k" * size + b'":1}'
    if kind == 3:
        return b"{" + b",".join(b'"%d":0' % index for index in range(size // 6)) + b"}"
    if kind == 4:
        return b"[" + b",".join([rng.choice((b"{}", b"0", b'""', b"null"))] * (size // 3)) + b"]"
    if kind == 5:
        return rng.choice((b"9", b"0.", b"1e")) + b"9" * min(size, 5000)
    if kind == 6:
        return b'"' + rng.choice((rb"\u0000", rb"\ud800", rb"\n", "😀".encode(), b"a ")) * (size // 4) + b'"'
    return b'"' + b"\\" * size + b'"'


def hard_document(rng: random.Random, valid: Tree) -> bytes:
    """A document that is not valid, or barely: ``valid`` is one to begin with."""
    kind = rng.randrange(12)
    if kind == 0:
        return bytes(hard_value(rng))
    data = msgspec.json.encode(valid)
    if kind == 1:
        return data[: rng.randrange(len(data))]
    if kind == 2:
        return data + rng.choice((b"", b" ", b"\0", b"}", b",", data, bytes(hard_value(rng))))
    if kind == 3:
        return rng.choice(_SPACES) + data
    if kind == 4:
        at = rng.randrange(len(data))
        return data[:at] + rng.choice(_SPACES) + data[at:]
    if kind == 5:
        return data.decode().encode(rng.choice(_ENCODINGS), errors="replace")
    if kind in (6, 7) and isinstance(valid, dict) and valid:
        return _with_key(rng, data, valid)
    if kind == 8:
        return data.replace(
            rng.choice((b'"', b":", b",", b"{", b"}")), rng.choice((b"", b"'", b";", b"[")), 1
        )
    return damaged(rng, data)


def _with_key(rng: random.Random, data: bytes, valid: dict[str, Tree]) -> bytes:
    """A document with one more key: one that it has already, or one that is hard to read."""
    key = msgspec.json.encode(rng.choice(sorted(valid)))
    if rng.random() < 0.3:
        key = rng.choice(
            (b'"\\ud800"', b'""', b'"\\u0074ype"', b'"\xff"', b"1", b"null", b'"' + b"k" * 1000 + b'"')
        )
    value = bytes(hard_value(rng))
    if rng.random() < 0.5:
        return b"{" + key + b":" + value + b"," + data[1:]
    return data[:-1] + b"," + key + b":" + value + b"}"
