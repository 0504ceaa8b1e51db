"""Bytes per tenant and in all."""

from hypothesis import given
from hypothesis import strategies as st

from slipring.core.byte_ledger import Ledger

TAKEN = st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 100)))


def test_a_tenant_and_all_of_them_fit_up_to_their_bounds() -> None:
    ledger = Ledger(tenant_limit_bytes=10, limit_bytes=15)
    ledger.add("a", 10)
    assert not ledger.fits_tenant("a", 1)
    assert ledger.fits_tenant("b", 10)
    assert ledger.fits(5)
    assert not ledger.fits(6)


def test_the_largest_user_is_known() -> None:
    ledger = Ledger(10, 10)
    assert ledger.largest() is None
    ledger.add("a", 1)
    ledger.add("b", 2)
    assert ledger.largest() == "b"


@given(TAKEN)
def test_what_is_given_back_leaves_nothing(taken: list[tuple[str, int]]) -> None:
    ledger = Ledger(10, 10)
    for tenant, size in taken:
        ledger.add(tenant, size)
    assert ledger.used_bytes == sum(size for _, size in taken) == sum(map(ledger.used_by, "abc"))
    for tenant, size in taken:
        ledger.remove(tenant, size)
    assert ledger.used_bytes == 0
    assert ledger.largest() is None
