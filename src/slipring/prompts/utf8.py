"""From the bytes of tokens to text: a character may span tokens, and a model may write half of one."""

import codecs


class Utf8Stream:
    """Decodes UTF-8 piece by piece. Bytes that are no UTF-8 become U+FFFD."""

    __slots__ = ("_decoder",)

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, data: bytes) -> str:
        """The text that ``data`` completes; a sequence that it leaves open is held back."""
        return self._decoder.decode(data)

    @property
    def is_waiting(self) -> bool:
        """Whether a sequence is open."""
        return bool(self._decoder.getstate()[0])

    def finish(self) -> str:
        """What is left: nothing, or U+FFFD for a sequence that was never completed."""
        return self._decoder.decode(b"", final=True)
