"""Stop sequences: end the text of an answer before the first of them, for every engine.

Engines are not sent the sequences: servers differ in which they take, where they look for them, and whether
they report which one it was. Here only the text that the client sees counts: no thought and no call.
"""

from collections.abc import Awaitable

from msgspec import structs

from slipring.core.generation import Delta, Emit, Finished, Job, Text
from slipring.protocol.responses import Logprob


def watched(job: Job, emit: Emit) -> Emit:
    """What the engine emits to, for a job with stop sequences: one of them may end its text."""
    return _Watch(job, job.settings.stop, emit).emit if job.generate and not job.is_summary else emit


class _Watch:
    """Emits the deltas of a job up to the first stop sequence, and asks the engine to end there.

    The end of a text that may be the beginning of a sequence is held back until it is known.
    """

    def __init__(self, job: Job, sequences: tuple[str, ...], emit: Emit) -> None:
        self._job = job
        self._sequences = sequences
        self._longest = max(map(len, sequences))
        self._emit = emit
        self._held: list[Text] = []
        self._found: str | None = None

    def emit(self, deltas: list[Delta]) -> Awaitable[None] | None:
        passed: list[Delta] = []
        for delta in deltas:
            if isinstance(delta, Finished):
                passed += [*self._take(), self._ended(delta)]
            elif self._found is not None:
                continue
            elif isinstance(delta, Text):
                self._held.append(delta)
                passed += self._release()
            else:
                passed += [*self._take(), delta]
        if self._found is not None:
            self._job.stop.asked = True  # again with every batch: the core may have reset it
        return self._emit(passed) if passed else None

    def _release(self) -> list[Text]:
        """The held text up to a sequence, or up to what may be the beginning of one."""
        text = "".join([held.text for held in self._held])
        starts = {sequence: at for sequence in self._sequences if (at := text.find(sequence)) >= 0}
        if not starts:
            return self._take(len(text) - self._begun(text))
        # The one that is complete first, and of those the longest: so the pieces of the text do not matter.
        self._found = min(starts, key=lambda each: (starts[each] + len(each), starts[each]))
        released = self._take(starts[self._found])
        if rest := starts[self._found] - sum(len(each.text) for each in released):
            released.append(_cut(self._held[0], rest))
        self._held = []
        return released

    def _begun(self, text: str) -> int:
        """How many characters at the end of a text may be the beginning of a sequence."""
        for length in range(min(self._longest - 1, len(text)), 0, -1):
            end = text[-length:]
            if any(sequence.startswith(end) for sequence in self._sequences):
                return length
        return 0

    def _take(self, length: int | None = None) -> list[Text]:
        """Take the first characters of the held text, or all of it. What has log probabilities is not
        divided: it is held as a whole."""
        taken: list[Text] = []
        while self._held and (length is None or length > 0):
            first = self._held[0]
            if length is not None and len(first.text) > length:
                if first.logprobs:
                    break
                taken.append(Text(first.text[:length]))
                self._held[0] = Text(first.text[length:])
                break
            taken.append(self._held.pop(0))
            length = None if length is None else length - len(first.text)
        return taken

    def _ended(self, finished: Finished) -> Finished:
        """The end of the job. The engine has read more than the client sees, so no later response continues
        from its state of the answer."""
        if self._found is None:
            return finished
        return structs.replace(finished, reason="stop", stop_sequence=self._found, position=None)


def _cut(text: Text, length: int) -> Text:
    """The beginning of a text, with the log probabilities of the tokens that are in it as a whole."""
    logprobs: list[Logprob] = []
    end = 0
    for logprob in text.logprobs:
        end += len(logprob.token)
        if end > length:
            break
        logprobs.append(logprob)
    return Text(text.text[:length], logprobs)
