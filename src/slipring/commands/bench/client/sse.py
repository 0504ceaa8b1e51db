"""Parses server-sent events out of an HTTP body."""


class SseParser:
    """Takes a body chunk by chunk and returns the data of every complete event."""

    __slots__ = ("_rest",)

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, chunk: bytes) -> list[bytes]:
        *blocks, self._rest = (self._rest + chunk.replace(b"\r", b"")).split(b"\n\n")
        return [data for block in blocks if (data := _data(block)) is not None]


def _data(block: bytes) -> bytes | None:
    """None for comments and for ``[DONE]``."""
    lines = [line[5:].lstrip(b" ") for line in block.split(b"\n") if line.startswith(b"data:")]
    data = b"\n".join(lines)
    return data if lines and data != b"[DONE]" else None
