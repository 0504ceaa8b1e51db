"""The tables of checks and policies: what they mean, and that mistakes are named without their values."""

from typing import Any

import pytest

from slipring.config.tables import CheckEntry, PolicyEntries, TableError, read_checks, read_policies
from slipring.core.checks.policies import KINDS

SMALL = {"name": "a", "source": "patterns"}
TWO = (CheckEntry("a", "patterns"), CheckEntry("b", "patterns"))


def read(**fields: Any) -> CheckEntry:
    (entry,) = read_checks([SMALL | fields])
    return entry


def test_the_action_decides_the_defaults() -> None:
    assert [(entry.mode, entry.on_error) for entry in (read(), read(action="cut"), read(action="block"))] == [
        ("follow", "open"),
        ("follow", "closed"),
        ("hold", "closed"),
    ]
    assert read(action="block", mode="audit", on_error="open").mode == "audit"
    assert read() == CheckEntry("a", "patterns")


def test_subjects_are_kinds_or_whole_sides() -> None:
    assert read().subjects == KINDS
    assert read(subjects=["output", "tool_output"]).subjects == ("tool_output", "answer", "call", "reasoning")


def test_all_keys_are_read() -> None:
    entry = read(
        settings={"patterns": {"x": "y"}},
        thresholds={"*": 1, "x": 0.5},
        before=True,
        context=3,
        ending="refusal",
        timeout_s=1,
        max_chars=500,
        at_once=2,
    )
    assert entry.settings == '{"patterns":{"x":"y"}}'
    assert entry.thresholds == (("*", 1.0), ("x", 0.5))
    assert (entry.before, entry.context, entry.ending) == (True, 3, "refusal")
    assert (entry.timeout_s, entry.max_chars, entry.at_once) == (1.0, 500, 2)
    assert "patterns" not in repr(entry).replace("source='patterns'", "")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"action": "stop"}, "check 'a': 'action' must be one of flag, cut, block"),
        ({"mode": 1}, "check 'a': 'mode' must be one of hold, follow, audit"),
        ({"on_error": "fail"}, "check 'a': 'on_error' must be one of open, closed"),
        ({"ending": ""}, "check 'a': 'ending' must be one of incomplete, refusal"),
        ({"subjects": []}, "check 'a': 'subjects' must be a list of some of input, output, message"),
        ({"subjects": ["user"]}, "check 'a': 'subjects' must be a list"),
        ({"thresholds": {"x": 2}}, "check 'a': 'thresholds' must be a table of numbers from 0 to 1"),
        ({"settings": []}, "check 'a': 'settings' must be a table"),
        ({"before": 1}, "check 'a': 'before' must be true or false"),
        ({"context": -1}, "check 'a': 'context' must be a whole number, 0 or more"),
        ({"at_once": 0}, "check 'a': 'at_once' must be a whole number, 1 or more"),
        ({"timeout_s": 0}, "check 'a': 'timeout_s' must be a number above 0"),
        ({"timeout_s": float("inf")}, "check 'a': 'timeout_s' must be a number above 0"),
        ({"timeout": 1}, "check 'a': unknown key 'timeout'"),
        ({"name": "secret value!"}, r"check\[0\]: 'name' must be a name"),
        ({"source": ""}, "check 'a': 'source' must be a string and not empty"),
    ],
)
def test_a_mistake_is_named(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(TableError, match=f"^{message}") as raised:
        read(**fields)
    assert "secret value" not in str(raised.value)


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ({"name": "a"}, "check: must be tables"),
        ([1], "check: must be tables"),
        ([{"name": "a"}], "check 'a': 'source' is missing"),
        ([{"source": "x"}], r"check\[0\]: 'name' is missing"),
        ([SMALL, SMALL], "check: the name 'a' is given twice"),
    ],
)
def test_tables_of_another_form_are_refused(tables: object, message: str) -> None:
    with pytest.raises(TableError, match=f"^{message}"):
        read_checks(tables)


def test_policies_name_checks() -> None:
    given = {"default": ["a"], "models": {"m": ["b", "b"]}, "tenants": {"t": []}, "keys": {"k": ["a", "b"]}}
    assert read_policies(given, TWO) == PolicyEntries(
        ("a",), (("m", ("b",)),), (("t", ()),), (("k", ("a", "b")),)
    )
    assert read_policies({}, TWO) == PolicyEntries()
    assert read_policies({"scope": "all"}, TWO) == PolicyEntries(scope="all")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([], "policies: must be a table"),
        ({"model": {}}, "policies: unknown key 'model'"),
        ({"default": "a"}, "policies.default: must be a list of names of checks"),
        ({"default": ["c"]}, "policies.default: there is no check 'c'"),
        ({"models": ["a"]}, "policies.models: must be a table of lists of checks"),
        ({"keys": {"k": ["x"]}}, "policies.keys.k: there is no check 'x'"),
        ({"scope": "some"}, "policies: 'scope' must be one of new, all"),
    ],
)
def test_policies_that_make_no_sense_are_refused(given: object, message: str) -> None:
    with pytest.raises(TableError, match=f"^{message}"):
        read_policies(given, TWO)
