"""The ledger counts bytes per tenant and in total."""

from hypothesis import given
from hypothesis import strategies as st

from slipring.core.byte_ledger import Ledger

TAKEN = st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 100)))


def test_bytes_fit_up_to_the_tenants_and_the_total_limit() -> None:
    ledger = Ledger(tenant_limit_bytes=10, limit_bytes=15)
    ledger.add("a", 10)
    assert not ledger.fits_tenant("a", 1)
    assert ledger.fits_tenant("b", 10)
    assert ledger.fits(5)
    assert not ledger.fits(6)


def test_the_tenant_with_the_most_bytes_is_found() -> None:
    ledger = Ledger(10, 10)
    assert ledger.largest() is None
    ledger.add("a", 1)
    ledger.add("b", 2)
    assert ledger.largest() == "b"


@given(TAKEN)
def test_removing_all_bytes_leaves_nothing_in_use(taken: list[tuple[str, int]]) -> None:
    ledger = Ledger(10, 10)
    for tenant, size in taken:
        ledger.add(tenant, size)
    assert ledger.used_bytes == sum(size for _, size in taken) == sum(map(ledger.used_by, "abc"))
    for tenant, size in taken:
        ledger.remove(tenant, size)
    assert ledger.used_bytes == 0
    assert ledger.largest() is None
