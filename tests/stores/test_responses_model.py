"""Random chains with forks, deletes, prunes and restarts, compared with a simple model."""

import itertools

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slipring.core.chain.instructions_and_tools import Head
from slipring.core.chain.state import Carry, OpenCall, ResponseState
from slipring.stores.store import Store
from tests.stores.conftest import StoreLocation
from tests.stores.samples import HEAD, TokenPositions, Tokens, same, state

OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(["make", "make", "make", "save", "save", "delete", "prune", "restart"]),
        st.integers(0, 99),
        st.integers(0, 3),
    ),
    min_size=5,
    max_size=30,
)
HEADS = (None, HEAD, Head(instructions="Otherwise."), None)
CARRIES = (None, None, Carry(open_calls={"c": OpenCall("function_call")}), Carry(effort="low"))
_tenants = itertools.count()


def make(name: str, parent: ResponseState | None, choice: int) -> ResponseState:
    before = parent.position.ids if parent is not None and isinstance(parent.position, Tokens) else ()
    position = Tokens((*before, choice)) if choice != 3 else None
    return state(name, parent, head=HEADS[choice], carry=CARRIES[choice], position=position)


class Model:
    """Every response that was created, and which of them can be found."""

    def __init__(self, tenant: str) -> None:
        self.tenant = tenant
        self.made: list[ResponseState] = []
        self.found: set[str] = set()
        self.deleted: set[str] = set()

    async def check(self, store: Store) -> None:
        for each in self.made:
            loaded = await store.responses.load(self.tenant, each.id)
            if each.id in self.found:
                assert same(loaded, each)
            else:
                assert loaded is None

    async def step(self, store: Store, what: str, where: int, choice: int) -> None:
        if what == "make" or not self.made:
            parent = self.made[where % len(self.made)] if self.made and where % 5 else None
            self.made.append(make(f"resp_{len(self.made)}", parent, choice))
            return
        each = self.made[where % len(self.made)]
        if what == "delete":
            assert await store.responses.delete(self.tenant, each.id) is (each.id in self.found)
            if each.id in self.found:
                self.found.discard(each.id)
                self.deleted.add(each.id)
        elif what == "save" and each.id not in self.deleted:
            await store.responses.save(self.tenant, each)
            self.found.add(each.id)
        elif what == "prune":
            await store.pruning.step(0, limit=1 + choice)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(operations=OPERATIONS)
async def test_the_store_behaves_like_the_model(
    location: StoreLocation, operations: list[tuple[str, int, int]]
) -> None:
    model = Model(f"tenant_{next(_tenants)}")
    store = await location.open(positions=TokenPositions())
    for what, where, choice in operations:
        if what == "restart" and store.is_shared:
            await store.close()
            store = await location.open(positions=TokenPositions(), recent_bytes=choice * 4000)
        await model.step(store, what, where, choice)
    await model.check(store)
    for name in model.found:
        assert await store.responses.delete(model.tenant, name)
    while await store.pruning.step(0):
        pass
    for table in ("responses", "heads"):
        assert await store._database.read(f"SELECT count(*) FROM slipring_{table}") == [(0,)]
    await store.close()
