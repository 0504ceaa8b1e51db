"""Approvals are good once."""

import pytest

from slipring.base.errors import InvalidRequest
from slipring.server.hosted_tools.approvals import claim
from tests.stores.conftest import StoreLocation


async def test_a_used_approval_is_refused() -> None:
    location = StoreLocation("memory")
    approvals = (await location.open()).approvals
    await claim(approvals, "t", ("mcpr_1", "mcpr_2"))
    with pytest.raises(InvalidRequest, match="already been used") as caught:
        await claim(approvals, "t", ("mcpr_3", "mcpr_2"))
    assert (caught.value.param, caught.value.code) == ("input", "invalid_value")
    await claim(approvals, "t", ("mcpr_3",))
    await location.close()
