"""The values that engines and the core exchange."""

import pytest
from msgspec import structs

from slipring.core.chain.instructions_and_tools import Head
from slipring.core.chain.state import Branch
from slipring.core.generation import Accepted, Defaults, Finished, Job, Settings
from slipring.protocol.tools.tool_choice import Offer
from tests.core.connection import PLAIN, node

ALL = Defaults(temperature=0.5, top_p=0.9, max_output_tokens=10, effort="low")
ZERO = Defaults(temperature=0.0, top_p=0.0, max_output_tokens=0, effort="none")


@pytest.mark.parametrize(
    ("first", "second", "result"),
    [
        (Defaults(), ALL, ALL),
        (ALL, Defaults(), ALL),
        (ZERO, ALL, ZERO),
        (Defaults(top_p=0.1), ALL, Defaults(temperature=0.5, top_p=0.1, max_output_tokens=10, effort="low")),
    ],
)
def test_defaults_fill_only_what_is_absent(first: Defaults, second: Defaults, result: Defaults) -> None:
    assert first.over(second) == result


def test_the_counts_of_two_jobs_of_a_response_are_added() -> None:
    first, second = Accepted(5, "new head", 1), Accepted(7, None, 2)
    assert second.after(first) == Accepted(12, "new head", 3)
    ended = Finished("stop", 10, 4, 3, 1).after(Finished("steered", 20, 5, 2, 2))
    assert ended == Finished("stop", 30, 9, 5, 3)


def test_a_job_belongs_to_the_branch_of_its_parent_unless_it_forks() -> None:
    first = Job("r1", "t", PLAIN, Head(), None, (), Offer(), Settings())
    parent = node("r1")
    assert first.branch == Branch("r1")
    following = structs.replace(first, response_id="r2", parent=parent)
    assert following.branch is parent.branch
    assert structs.replace(following, fork=True).branch == Branch("r2", parent.branch)
    # Each history that a client sends again replaces the one before, and continues its branch.
    assert structs.replace(following, recognised=True).branch is parent.branch
