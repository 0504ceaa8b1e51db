"""From the bytes of tokens to text: a character may span tokens, and a model may write half of one."""

import codecs


class Utf8Stream:
    """Decodes UTF-8 piece by piece. Bytes that are no UTF-8 become U+FFFD."""

    __slots__ = ("_decoder", "is_waiting")

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.is_waiting = False
        """Whether a sequence is open."""

    def feed(self, data: bytes) -> str:
        """The text that ``data`` completes; a sequence that it leaves open is held back."""
        if data.isascii() and not self.is_waiting:
            return data.decode("ascii")  # most of what models write, without the steps of the decoder
        text = self._decoder.decode(data)
        self.is_waiting = bool(self._decoder.getstate()[0])
        return text

    def finish(self) -> str:
        """What is left: nothing, or U+FFFD for a sequence that was never completed."""
        self.is_waiting = False
        return self._decoder.decode(b"", final=True)
