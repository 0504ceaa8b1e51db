"""The line on a terminal that shows how far a load is."""

from typing import Any

from slipring.base.progress_line import ProgressLine, bar
from slipring.commands.bench.load.service_level import Level


class LoadProgress(ProgressLine):
    """Shows the current level on a terminal, and reports the level that broke."""

    def __init__(self, levels: int, **line: Any) -> None:
        """``levels``: their number, if none breaks."""
        super().__init__(**line)
        self._levels = levels
        self._done = 0

    def endpoint_opened(self) -> None:
        self.show("trying the endpoint")

    def level_started(self, connections: int, seconds: float) -> None:
        text = f"level {bar(self._done, self._levels)}: {connections} connections for {seconds:g} s"
        self.show(text, restarts=True)

    def level_finished(self, level: Level) -> None:
        self._done += 1
        if level.broken is not None:
            self.report(f"{level.connections} connections: {level.broken}")

    def phase_started(self, what: str, seconds: float) -> None:
        self.show(f"{what} for {seconds:g} s", restarts=True)
