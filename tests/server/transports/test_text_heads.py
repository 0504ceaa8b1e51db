"""Encoded frames, decoded by the rules of RFC 6455, 5.2."""

import pytest

from slipring.server.transports.websocket import text_head


def read(data: bytes) -> list[bytes]:
    messages = []
    while data:
        assert data[0] == 0x81, "a whole text frame"
        size, at = data[1], 2
        if size >= 126:
            at = 4 if size == 126 else 10
            assert size <= 127, "no mask"
            size = int.from_bytes(data[2:at])
            assert size >= (126 if at == 4 else 65536), "the shortest form there is"
        messages.append(data[at : at + size])
        assert len(messages[-1]) == size
        data = data[at + size :]
    return messages


@pytest.mark.parametrize("sizes", [(), (0,), (125, 126), (65535, 1, 65536), (7, 200_000, 7)])
def test_frames_decode_to_the_messages_that_were_encoded(sizes: tuple[int, ...]) -> None:
    messages = [b"x" * size for size in sizes]
    assert read(b"".join(text_head(len(message)) + message for message in messages)) == messages
