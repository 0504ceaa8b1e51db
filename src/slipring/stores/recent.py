"""States of stored responses that are kept in memory, bounded in bytes.

They spare whoever continues a chain of this process its reading, and keep what a store cannot: an engine's
live position. Whether a response may still be found is not known here: another process may have deleted it.
"""

from collections import OrderedDict

from slipring.core.cache import Retention
from slipring.core.state import ResponseState


class RecentStates:
    """The states that were used last. What several share is counted once."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._used_bytes = 0
        self._retention = Retention()
        self._states: OrderedDict[tuple[str, str], ResponseState] = OrderedDict()

    @property
    def used_bytes(self) -> int:
        return self._used_bytes

    def __len__(self) -> int:
        return len(self._states)

    def find(self, tenant: str, response_id: str) -> ResponseState | None:
        state = self._states.get((tenant, response_id))
        if state is not None:
            self._states.move_to_end((tenant, response_id))
        return state

    def remember(self, tenant: str, state: ResponseState) -> None:
        self.forget(tenant, state.id)
        self._states[tenant, state.id] = state
        self._used_bytes += self._retention.hold(state)
        while self._used_bytes > self._limit_bytes and self._states:
            _, oldest = self._states.popitem(last=False)
            self._used_bytes -= self._retention.release(oldest)

    def forget(self, tenant: str, response_id: str) -> None:
        state = self._states.pop((tenant, response_id), None)
        if state is not None:
            self._used_bytes -= self._retention.release(state)
