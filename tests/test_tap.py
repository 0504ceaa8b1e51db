"""The tap reports malformed and misordered messages."""

import pytest

from slipring.server.transports.outbox import Outbox

ERROR = (
    b'{"type":"error","sequence_number":0,"status":400,"error":'
    b'{"type":"invalid_request_error","code":"invalid_json","message":"no","param":null}}'
)


async def _write(message: bytes) -> None:
    return


def _abort() -> None:
    return


@pytest.mark.parametrize(
    ("message", "is_fault"),
    [
        (ERROR, False),
        (b": keepalive\n\n", False),
        (ERROR.replace(b'"status":400,', b""), True),
        (b'{"type":"response.queued","sequence_number":0}', True),
        (b'event: error\ndata: {"type":"other"}\n\n', True),
        (b"hello", True),
    ],
)
async def test_a_malformed_message_is_reported(message: bytes, is_fault: bool, tap: list[str]) -> None:
    Outbox(_write, 1000, abort=_abort).post(message)
    assert bool(tap) is is_fault
    tap.clear()  # expected faults


async def test_a_message_out_of_order_is_reported(tap: list[str]) -> None:
    delta = (
        b'{"type":"response.function_call_arguments.delta","sequence_number":5,"output_index":0,'
        b'"item_id":"fc_1","delta":"{"}'
    )
    Outbox(_write, 1000, abort=_abort).post(delta)
    assert tap
    tap.clear()
