"""Server-sent events, cut out of the body that carries them."""


class Events:
    """Takes a body piece by piece and gives the data of the events that are whole."""

    __slots__ = ("_rest",)

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, chunk: bytes) -> list[bytes]:
        *blocks, self._rest = (self._rest + chunk.replace(b"\r", b"")).split(b"\n\n")
        return [data for block in blocks if (data := _data(block)) is not None]


def _data(block: bytes) -> bytes | None:
    """None for comments, and for the mark at the end."""
    lines = [line[5:].lstrip(b" ") for line in block.split(b"\n") if line.startswith(b"data:")]
    data = b"\n".join(lines)
    return data if lines and data != b"[DONE]" else None
