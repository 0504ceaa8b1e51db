"""Incremental UTF-8 decoding: one character may span several tokens."""

import codecs


class Utf8Stream:
    """Decodes UTF-8 piece by piece. Invalid bytes become U+FFFD."""

    __slots__ = ("_decoder", "is_waiting")

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.is_waiting = False
        """Whether the last bytes are an incomplete character."""

    def feed(self, data: bytes) -> str:
        """Return the text that ``data`` completes and hold back an incomplete character at its end."""
        if data.isascii() and not self.is_waiting:
            return data.decode("ascii")  # fast path: most output is ASCII
        text = self._decoder.decode(data)
        self.is_waiting = bool(self._decoder.getstate()[0])
        return text

    def finish(self) -> str:
        """Return U+FFFD if the data ended within a character, otherwise an empty string."""
        self.is_waiting = False
        return self._decoder.decode(b"", final=True)
