"""Known verdicts: by tenant, policy and item, within a bound."""

from slipring.core.checks.known_verdicts import Known, KnownVerdicts
from slipring.core.checks.verdicts import Verdict

PASSED = (Verdict("guard", "1", flagged=False, scores={"violence": 0.1}),)
FLAGGED = (Verdict("guard", "1", flagged=True, scores={"violence": 0.9}, categories=("violence",)),)


def test_verdicts_are_found_by_tenant_policy_and_item():
    known = KnownVerdicts(10_000)
    known.remember("a", b"policy", b"item", FLAGGED)
    assert known.find("a", b"policy", b"item") == Known(FLAGGED)
    assert known.find("b", b"policy", b"item") is None
    assert known.find("a", b"other!", b"item") is None
    assert known.find("a", b"policy", b"else") is None


def test_of_an_item_that_no_check_flags_only_that_is_kept():
    known = KnownVerdicts(10_000)
    known.remember("a", b"policy", b"item", PASSED)
    assert known.find("a", b"policy", b"item") == Known()


def test_the_largest_tenant_loses_what_was_used_longest_ago():
    known = KnownVerdicts(1100)
    for number in range(3):
        known.remember("a", b"policy", b"%d" % number, PASSED)
    known.find("a", b"policy", b"0")
    known.remember("b", b"policy", b"0", PASSED)
    known.remember("b", b"policy", b"1", PASSED)
    assert [known.find("a", b"policy", b"%d" % number) for number in range(3)] == [Known(), None, Known()]
    assert known.find("b", b"policy", b"1") == Known()
    assert (len(known), known.used_bytes) == (4, 1000)


def test_new_verdicts_replace_older_ones_and_nothing_fits_without_room():
    known = KnownVerdicts(1000)
    known.remember("a", b"policy", b"item", FLAGGED)
    used_bytes = known.used_bytes
    known.remember("a", b"policy", b"item", FLAGGED)
    assert known.used_bytes == used_bytes
    known.remember("a", b"policy", b"item", PASSED)
    assert known.find("a", b"policy", b"item") == Known()
    nothing = KnownVerdicts(0)
    nothing.remember("a", b"policy", b"item", PASSED)
    assert nothing.find("a", b"policy", b"item") is None
    assert len(nothing) == nothing.used_bytes == 0


def test_flagged_items_are_counted_by_tenant():
    known = KnownVerdicts(1000)
    assert not known.has_flagged("a")
    known.remember("a", b"policy", b"item", FLAGGED, b"behind")
    assert known.find("a", b"policy", b"item") == Known(FLAGGED, b"behind")
    assert known.has_flagged("a")
    assert not known.has_flagged("b")
    known.remember("a", b"policy", b"item", PASSED)
    assert not known.has_flagged("a")
    known.remember("a", b"policy", b"item", FLAGGED)
    for number in range(4):
        known.remember("a", b"policy", b"%d" % number, PASSED)
    assert known.find("a", b"policy", b"item") is None
    assert not known.has_flagged("a")
