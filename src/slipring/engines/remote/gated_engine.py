"""An engine whose jobs pass a gate, because the server behind it can fail."""

from slipring.engines.base import Engine
from slipring.engines.remote.admission_and_retries import Admission
from slipring.observation import live


class GatedEngine(Engine):
    """Has the trouble of its gate, and shows operators the gate's queue and breaker."""

    _gate: Admission

    @property
    def trouble(self) -> str | None:
        return self._gate.trouble

    def status(self) -> live.Engine:
        return self._gate.described(super().status())
