"""The server withstands the short attacks. `make test-attack` runs all of them, and measures latency as
well."""

import sys
from collections.abc import Iterator

import pytest

from tests.attack.catalog import ATTACKS
from tests.attack.runner import Campaign
from tests.attack.stage import Attack

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="memory and descriptors are read from /proc"
)
QUICK = [attack for attack in ATTACKS if attack.quick]


@pytest.fixture(scope="module")
def campaign() -> Iterator[Campaign]:
    """One server for the attacks with the same limits, as long as none impairs it."""
    with Campaign(print, seed=7, timed=False) as campaign:
        yield campaign


@pytest.mark.parametrize("attack", QUICK, ids=lambda attack: f"{attack.group}-{attack.name}")
def test_the_server_withstands_an_attack(attack: Attack, campaign: Campaign) -> None:
    outcome = campaign.run(attack)
    assert not outcome.faults, "\n".join([attack.sentence, *outcome.faults])


def test_names_of_attacks_are_unique_and_the_quick_ones_share_two_servers() -> None:
    names = [(attack.group, attack.name) for attack in ATTACKS]
    assert len(set(names)) == len(names)
    assert {attack.spec.engine for attack in QUICK} == {"simulated"}
    assert all(not (attack.spec.flags or attack.spec.descriptors) for attack in QUICK)
    limits = [dict(attack.spec.limits) for attack in QUICK]
    assert len([each for at, each in enumerate(limits) if each not in limits[:at]]) <= 2
