"""Where the data of pictures and documents stands in an item."""

import base64
import json
from hashlib import blake2b

import pytest

from slipring.protocol.items.data_spans import LEAST_BYTES, data_spans
from slipring.protocol.items.items import read_item

PDF = base64.b64encode(b"%PDF-1.7\n" + bytes(LEAST_BYTES)).decode()
PICTURE = "A" * LEAST_BYTES


@pytest.mark.parametrize(
    ("part", "data"),
    [
        ({"type": "input_file", "filename": "a.pdf", "file_data": PDF}, PDF),
        ({"type": "input_file", "file_data": f"data:application/pdf;base64,{PDF}"}, PDF),
        ({"type": "input_image", "image_url": f"data:image/png;BASE64,{PICTURE}"}, PICTURE),
    ],
    ids=["a PDF by itself", "a PDF as a data URL", "a picture"],
)
def test_data_is_found_with_its_digest(part: dict[str, str], data: str) -> None:
    item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Read."}, part]}
    raw = json.dumps(item).encode()
    (span,) = data_spans(read_item(raw, "input[0]"))
    assert raw[span.start : span.end].decode() == data
    assert span.digest == blake2b(data.encode(), digest_size=len(span.digest)).digest()


def test_less_data_stays_in_its_item() -> None:
    part = {"type": "input_file", "file_data": "JVBERi0" + "A" * (LEAST_BYTES - 8)}
    item = {
        "type": "message",
        "role": "user",
        "content": [part, {"type": "input_text", "text": "x" * LEAST_BYTES}],
    }
    assert data_spans(read_item(json.dumps(item).encode(), "input[0]")) == ()
