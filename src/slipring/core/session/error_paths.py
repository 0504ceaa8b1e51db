"""Where an error lies, in the terms of whoever sent the request.

A turn in a conversation has the conversation's items before its own, and one that continues a response that
was steered has what was added to that. Errors name places in both together.
"""

import re

from slipring.errors import ApiError

_PLACE = re.compile(r"input\[(\d+)\]")


def relocated(error: ApiError, before: int, whose: str = "conversation") -> ApiError:
    """An error about one of the items that follow ``before`` others, or about one of these, which came with
    another field."""
    if before and error.param is not None and (place := _PLACE.match(error.param)) is not None:
        index = int(place.group(1)) - before
        named = f"input[{index}]{error.param[place.end() :]}" if index >= 0 else whose
        error.message = error.message.replace(error.param, named)
        error.args = (error.message,)
        error.param = named
    return error
