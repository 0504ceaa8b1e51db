"""All checks of a server together: policies, several checks of one text, and how mistakes are reported."""

from typing import Any

import pytest

from slipring.base.errors import StartupError
from slipring.config.tables import CheckEntry, PolicyEntries
from slipring.core.checks.policies import NO_POLICY
from slipring.safety.inspector import Inspector
from tests.safety.checking import Clock, ControlledSource, said
from tests.safety.guarding import BAD, NO_ENGINES

A = CheckEntry("a", "controlled", action="block", mode="hold", on_error="closed", subjects=("message",))
B = CheckEntry("b", "controlled", subjects=("message", "answer"), context=2)


async def inspector(*entries: CheckEntry, **policies: Any) -> Inspector:
    made = Inspector(
        entries,
        PolicyEntries(**policies),
        NO_ENGINES,
        Clock(),
        cache_bytes=2**20,
        open_by_entry=lambda entry, engines: ControlledSource(),
    )
    await made.start()
    return made


def names(found: Inspector, **turn: Any) -> list[str]:
    policy = found.policy_of(**{"model": "guard", "tenant": "t"} | turn)
    return [check.name for check in policy.checks]


async def test_the_policy_of_a_key_precedes_that_of_its_tenant_model_and_server() -> None:
    found = await inspector(
        *(A, B),
        default=("a", "b"),
        models=(("guard", ("b",)),),
        tenants=(("t", ()),),
        keys=(("k", ("a",)),),
    )
    assert names(found, model="x", tenant="u") == ["a", "b"]
    assert names(found, tenant="u") == ["b"]
    assert names(found) == []
    assert names(found, key_id="k") == ["a"]
    assert names(found, key_id="other") == []


async def test_without_policies_all_checks_apply_and_without_checks_none() -> None:
    assert names(await inspector(A, B)) == ["a", "b"]
    assert (await inspector()).policy_of(model="m", tenant="t") == NO_POLICY


async def test_a_policy_has_everything_that_a_gate_needs() -> None:
    found = await inspector(A, B)
    a, b = found.policy_of(model="m", tenant="t").checks
    assert (a.action, a.mode, a.on_error, a.subjects) == ("block", "hold", "closed", ("message",))
    assert (b.action, b.mode, b.on_error, b.context) == ("flag", "follow", "open", 2)
    assert a.version
    assert found.checks == {"a": a, "b": b}


async def test_checks_inspect_by_themselves() -> None:
    found = await inspector(A, B)
    verdicts = [await found.inspect(name, [said(BAD), said("tea")], "t") for name in "ab"]
    assert [[(each.check, each.flagged) for each in own] for own in verdicts] == [
        [("a", True), ("a", False)],
        [("b", True), ("b", False)],
    ]
    assert [(each.name, each.flagged, each.passed) for each in found.status()] == [("a", 1, 1), ("b", 1, 1)]


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        (CheckEntry("x", "pattern"), "check 'x': source is unknown: it must be one of guard, moderations"),
        (CheckEntry("x", "patterns"), "check 'x': settings have neither patterns nor secrets"),
        (CheckEntry("x", "patterns", '{"secret":true}'), "check 'x': settings: .*unknown field `secret`"),
        (CheckEntry("x", "moderations"), "check 'x': settings: .*missing required field `url`"),
        (CheckEntry("x", "moderations", '{"url":"ftp://x"}'), "check 'x': settings: url: "),
        (CheckEntry("x", "guard", '{"model":"m","format":"llama-guard"}'), "check 'x': settings.model"),
        (
            CheckEntry("x", "python:tests.safety.checking:broken_factory"),
            "check 'x': its factory raised RuntimeError: no model",
        ),
    ],
)
async def test_a_check_that_cannot_start_is_named(entry: CheckEntry, reason: str) -> None:
    async def start() -> None:
        made = Inspector([entry], PolicyEntries(), NO_ENGINES, Clock(), cache_bytes=2**20)
        try:
            await made.start()
        finally:
            await made.close()

    with pytest.raises(StartupError, match=reason):
        await start()


async def test_a_policy_for_a_model_that_does_not_exist_is_refused() -> None:
    with pytest.raises(StartupError, match=r"policies\.models: The model 'no' does not exist here"):
        await inspector(A, models=(("no", ("a",)),))
