"""Heads that tenants used lately: which are found, and for how long."""

from msgspec import Raw

from slipring.core.chain.instructions_and_tools import Head, KnownHeads
from slipring.protocol.requests import CreateRequest
from slipring.protocol.tools.grammars_and_schemas import Definitions

LONG = 10.0


def asking(
    instructions: str | None = "Mend it.", tool: str = "run", model: str | None = "m"
) -> CreateRequest:
    tools = Raw(b'[{"type":"function","name":"%b"}]' % tool.encode())
    return CreateRequest(model=model, instructions=instructions, tools=tools)


def head_of(request: CreateRequest, *, of_server: bool = False) -> Head:
    if of_server:
        request.tools = Raw(b'[{"type":"function","name":"run"},{"type":"shell"}]')
    definitions = Definitions(max_grammars=1, max_grammar_bytes=1, max_schema_bytes=1000)
    return Head.read(request, None, definitions)


def kept(heads: KnownHeads, *tools: str, tenant: str = "t", now: float = 0.0) -> list[Head]:
    found = [head_of(asking(tool=tool)) for tool in tools]
    for head in found:
        heads.remember(tenant, "m", head, now)
    return found


def test_finds_the_head_of_a_request() -> None:
    heads = KnownHeads(LONG, 10**6)
    run, read = kept(heads, "run", "read")
    assert heads.find("t", asking()) is run
    assert heads.find("t", asking(tool="read")) is read
    assert heads.find("t", asking(tool="write")) is None


def test_finds_the_tools_where_the_instructions_are_others() -> None:
    heads = KnownHeads(LONG, 10**6)
    (head,) = kept(heads, "run")
    other = head_of(asking("Test it."))
    heads.remember("t", "m", other, 0.0)
    assert heads.find("t", asking()) is head
    assert heads.find("t", asking("Test it.")) is other
    assert heads.find("t", asking("Explain it.")) is other


def test_knows_a_head_for_its_tenant_and_its_model_only() -> None:
    heads = KnownHeads(LONG, 10**6)
    (head,) = kept(heads, "run")
    assert heads.find("another", asking()) is None
    assert heads.find("t", asking(model=None)) is None
    heads.remember("t", None, head, 0.0)
    assert heads.find("t", asking(model=None)) is head


def test_keeps_no_head_without_tools_or_with_those_of_a_server() -> None:
    heads = KnownHeads(LONG, 10**6)
    heads.remember("t", "m", Head("Mend it."), 0.0)
    heads.remember("t", "m", head_of(asking(), of_server=True), 0.0)
    assert heads.used_bytes == 0


def test_keeps_nothing_without_a_duration_or_a_limit() -> None:
    assert heads_after_one(KnownHeads(0.0, 10**6)) is None
    assert heads_after_one(KnownHeads(LONG, 0)) is None


def heads_after_one(heads: KnownHeads) -> Head | None:
    kept(heads, "run")
    assert heads.used_bytes == 0
    return heads.find("t", asking())


def test_forgets_a_head_that_was_not_used_for_long() -> None:
    heads = KnownHeads(LONG, 10**6)
    run, _ = kept(heads, "run", "read")
    heads.remember("t", "m", run, 5.0)
    heads.sweep(10.0)
    assert heads.find("t", asking()) is run
    assert heads.find("t", asking(tool="read")) is None
    heads.sweep(15.0)
    assert heads.find("t", asking()) is None
    assert heads.used_bytes == 0


def test_requests_that_ran_at_the_same_time_leave_their_head_once() -> None:
    heads = KnownHeads(LONG, 10**6)
    (first,) = kept(heads, "run")
    used_bytes = heads.used_bytes
    kept(heads, "run", now=5.0)
    assert heads.used_bytes == used_bytes
    heads.sweep(10.0)
    assert heads.find("t", asking()) is first


def test_forgets_all_heads_of_a_tenant() -> None:
    heads = KnownHeads(LONG, 10**6)
    kept(heads, "run", "read")
    (other,) = kept(heads, "run", tenant="u")
    heads.forget("t")
    heads.forget("t")
    assert heads.find("t", asking()) is None
    assert heads.find("u", asking()) is other


def test_keeps_eight_heads_of_a_tenant() -> None:
    heads = KnownHeads(LONG, 10**6)
    names = [f"tool_{number}" for number in range(8)]
    kept(heads, *names)
    assert heads.find("t", asking(tool=names[0])) is not None
    kept(heads, "ninth")
    assert heads.find("t", asking(tool=names[0])) is None
    assert heads.find("t", asking(tool=names[1])) is not None
    assert heads.find("t", asking(tool="ninth")) is not None


def test_a_tenant_with_too_many_heads_makes_room_itself() -> None:
    names = [f"tool_{number}" for number in range(9)]
    large = head_of(asking("x" * 10_000))
    heads = KnownHeads(LONG, 8 * head_of(asking(tool=names[0])).size_bytes + large.size_bytes)
    heads.remember("u", "m", large, 0.0)
    kept(heads, *names[:8])
    assert heads.used_bytes == heads.limit_bytes
    kept(heads, names[8])
    assert heads.find("t", asking(tool=names[0])) is None
    assert heads.find("u", asking("x" * 10_000)) is large


def test_keeps_within_its_bytes_at_the_cost_of_the_largest_tenant() -> None:
    size_bytes = head_of(asking(tool="a")).size_bytes
    heads = KnownHeads(LONG, 3 * size_bytes + size_bytes // 2)
    (small,) = kept(heads, "a", tenant="small")
    kept(heads, "a", "b")
    kept(heads, "c")
    assert heads.used_bytes == 3 * size_bytes
    assert heads.find("small", asking(tool="a")) is small
    assert heads.find("t", asking(tool="a")) is None
    assert heads.find("t", asking(tool="c")) is not None
