"""What the client of a connection has asked for beyond the API, by name, before it said anything else."""

from msgspec import Struct


class Betas(Struct, frozen=True):
    timing: bool = False
    """A ``slipring.timing`` event follows each response."""
    rollout: bool = False
    """``response.create`` may ask for a rollout, and ``response.append`` is understood."""
    inject: bool = False
    """``response.inject`` is understood."""


NONE = Betas()
