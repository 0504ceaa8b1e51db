"""How connections end."""

from msgspec import Struct

from slipring.errors import ApiError


class Ending(Struct, frozen=True):
    """Why and how a connection is about to end."""

    error: ApiError
    code: int
    deadline: float
