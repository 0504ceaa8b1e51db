"""The progress of the engine's current job, as the job's first deltas report it."""

from slipring.core.generation import Accepted, Begun, Delta, Prefilled
from slipring.core.turn.stages import Stages

_REPORTS = frozenset({Accepted, Begun, Prefilled})
"""Deltas that report progress before the first output."""


class JobProgress:
    """How far the engine is with the current job of a turn, up to its first output.

    Each report ends a stage of the turn.
    """

    __slots__ = ("_stages", "accepted", "is_begun", "is_prefilled", "is_rendered")

    def __init__(self, stages: Stages) -> None:
        self._stages = stages
        self.accepted: Accepted | None = None
        """What the engine said when it accepted the jobs so far; None before the response is created."""
        self.is_rendered = self.is_begun = self.is_prefilled = False

    def read(self, deltas: list[Delta], *, has_ended: bool) -> list[Delta]:
        """Take the reports out of a job's first deltas; returns the others. ``has_ended``: these are the
        last."""
        if not self.is_rendered:
            self.is_rendered = True
            accepted = next((delta for delta in deltas if type(delta) is Accepted), Accepted())
            self.accepted = accepted if self.accepted is None else accepted.after(self.accepted)
            self._stages.lap("render")
        kinds = set(map(type, deltas))
        if Begun in kinds:
            self.is_begun = True
            self._stages.lap("engine_queue")
        rest = [delta for delta in deltas if type(delta) not in _REPORTS]
        if rest or has_ended or Prefilled in kinds:
            self.is_begun = self.is_prefilled = True
            self._stages.lap("prefill")
        return rest

    def open(self) -> None:
        """The response is created, before or with the first report."""
        self.accepted = Accepted()

    def end_job(self) -> None:
        """The next job begins anew."""
        self.is_rendered = self.is_begun = self.is_prefilled = False
