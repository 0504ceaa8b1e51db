"""Rows are decoded to the states that they were encoded from, those of the first release included."""

from msgspec import Raw

from slipring.core.chain.instructions_and_tools import Head
from slipring.core.chain.state import Carry, OpenCall
from slipring.protocol.items.items import Item
from slipring.protocol.requests import TextFormat
from slipring.stores import response_codec
from slipring.stores.pictures import Detached
from slipring.stores.response_codec import Record
from tests.stores.samples import HEAD, TOOLS, chain, message, same, state

FORMAT = TextFormat(kind="json_object", echo=Raw(b'{"type":"json_object"}'))
CARRY = Carry({"c": OpenCall("function_call")}, TOOLS.callables, "high", FORMAT)
SEALED = Item(
    type="compaction",
    raw=b'{"type":"compaction","encrypted_content":"x"}',
    opened=(message(None, "all"),),
)

# Existing databases hold rows like this one, so it must stay readable.
FIRST = Record(
    id="resp_0",
    head=b"\x15y\xa6\xf68\n\xd7u\xb6zD\xa9\xbe=\x9a\xd3XH\xc2\xd9[\xdf\xf2\x9a\xdd|R\x825\x01\xbbV",
    response=b'{"id":"resp_0","created_at":0,"model":"m","instructions":null,"previous_response_id":null,'
    b'"tools":null,"tool_choice":"auto","parallel_tool_calls":true,"reasoning":{"effort":null,"summary":null},'
    b'"text":{"format":{"type":"text"},"verbosity":"medium"},"store":true,"metadata":{},'
    b'"truncation":"disabled","temperature":1.0,"top_p":1.0,"top_logprobs":0,"presence_penalty":0.0,'
    b'"frequency_penalty":0.0,"service_tier":"default","max_output_tokens":null,"max_tool_calls":null,'
    b'"prompt_cache_key":null,"safety_identifier":null,"user":null,"status":"completed","output":[],'
    b'"usage":null,"error":null,"incomplete_details":null,"completed_at":null,"background":false,'
    b'"object":"response"}',
    input=b'\x91\x85\xa4type\xaacompaction\xa3raw\xc4-{"type":"compaction","encrypted_content":"x"}\xa2id\xc0'
    b"\xa7call_id\xc0\xa6opened\x91\x85\xa4type\xa7message\xa3raw\xc45"
    b'{"type":"message","role":"assistant","content":"all"}\xa2id\xc0\xa7call_id\xc0\xa6opened\xc0',
    output=b"\x91\x85\xa4type\xa7message\xa3raw\xc4N"
    b'{"id":"msg_00000","type":"message","role":"assistant","content":"I am resp_0"}'
    b"\xa2id\xa9msg_00000\xa7call_id\xc0\xa6opened\xc0",
    carry=b'{"open_calls":{"c":{"type":"function_call","required":true}},"tools":[{"kind":"function",'
    b'"name":"add","namespace":null,"definition":{"type":"function","name":"add","description":"Adds.",'
    b'"parameters":{"type":"object"},"strict":null}}],"effort":"high","format":{"kind":"json_object",'
    b'"echo":{"type":"json_object"},"schema":null}}',
    position=None,
)
INSTRUCTIONS = b"Be brief.\x00\xc3\x9cnd h\xc3\xb6flich."
DEFINITIONS = (
    b'[{"type":"function","name":"add","parameters":{"type":"object"},"description":"Adds."},'
    b'{"type":"web_search"}]'
)


def test_rows_of_the_first_release_can_be_read() -> None:
    head = response_codec.read_head(INSTRUCTIONS, DEFINITIONS)
    assert head.digest == FIRST.head
    first = state("resp_0", head=HEAD, carry=CARRY, given=(SEALED,))
    assert same(response_codec.rebuild(FIRST, None, head, None), first)


def test_different_heads_have_different_digests() -> None:
    heads = [
        Head(),
        Head(instructions=""),
        Head(instructions="[]"),
        Head(instructions="x"),
        Head(tools=TOOLS),
        HEAD,
    ]
    assert len({head.digest for head in heads}) == len(heads)
    for head in heads:
        again = response_codec.read_head(*response_codec.head_columns(head))
        assert (again.instructions, again.tools.raw) == (head.instructions, head.tools.raw)
        assert bytes(again.tools.echo) == bytes(head.tools.echo)


def test_a_carry_is_encoded_as_the_difference_to_its_parent() -> None:
    root = Carry()
    assert response_codec.pack_carry(root, None) is None
    assert response_codec.pack_carry(CARRY, CARRY) is None
    answered = Carry({}, CARRY.tools, CARRY.effort, CARRY.format)
    delta = response_codec.pack_carry(answered, CARRY)
    assert delta == b'{"open_calls":{}}'
    again = response_codec.unpack_carry(delta, CARRY)
    assert again.tools is CARRY.tools
    assert again.format is CARRY.format
    assert (again.open_calls, again.effort) == ({}, "high")
    plain = response_codec.pack_carry(root, CARRY)
    assert plain == b'{"open_calls":{},"tools":[],"effort":null,"format":null}'
    assert response_codec.unpack_carry(plain, CARRY) == root


def test_answers_to_approval_requests_are_encoded_without_those_of_the_parent() -> None:
    before = Carry(answered={f"mcpr_{number}": True for number in range(100)})
    after = Carry(answered={**before.answered, "mcpr_x": False})
    delta = response_codec.pack_carry(after, before)
    assert delta == b'{"answered":{"mcpr_x":false}}'
    assert response_codec.unpack_carry(delta, before) == after


def test_a_row_does_not_grow_with_its_chain() -> None:
    states = chain(100, "resp_x")
    sizes = {
        sum(len(part) for part in response_codec.columns(each, None, Detached()) if isinstance(part, bytes))
        for each in states[11:]
    }
    assert len(sizes) == 1
