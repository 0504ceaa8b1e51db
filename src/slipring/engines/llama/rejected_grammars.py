"""Reads the log of llama.cpp to find the jobs whose grammar it does not enforce.

llama.cpp does not refuse a grammar that its llguidance rejects. It writes an error into its log and samples
without a grammar. Every grammar was compiled in a sandbox before, so this happens only if the llguidance of
the sandbox and that of llama.cpp differ.
"""

import logging
import re

log = logging.getLogger("slipring")

_ERROR = re.compile(r"\bE llg error: ")
_OF_SLOT = re.compile(r"\bslot\s+(\w+): id\s+(\d+) \|")


class RejectedGrammars:
    """Reads the log, line by line, and notes the slots whose grammar was rejected when their job began."""

    def __init__(self) -> None:
        self._slots: set[int] = set()
        self._is_pending = False

    def read(self, line: str) -> None:
        if _ERROR.search(line):
            self._is_pending = True
            log.warning(
                "llama.cpp does not enforce the grammar of an answer: its log of level debug says why"
            )
        elif self._is_pending and (of_slot := _OF_SLOT.search(line)) is not None:
            # The thread that rejects a grammar reports the beginning of that job next. If it reports another
            # thing, a running job has lost its grammar, and the log does not say which one.
            self._is_pending = False
            if of_slot[1].startswith("launch"):
                self._slots.add(int(of_slot[2]))

    def take(self, slot: int) -> bool:
        """Whether the grammar of the job that began last in a slot was rejected. True once for each job."""
        if slot not in self._slots:
            return False
        self._slots.discard(slot)
        return True
