"""Which replica behind a router has answered: by a header of the plugin or of the router."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

HEADER = "x-slipring-replica"
"""What slipring's plugin for vLLM adds to all answers: the name of the replica, and the tokens that its KV
cache holds, as in ``3f9a;kv_tokens=75000``."""


_SMG = "x-smg-routed-worker-id"


DEFAULT_HEADERS = f"{HEADER};{_SMG}"


_KV_TOKENS = "kv_tokens="


_LONGEST_NAME = 256


class Replica(NamedTuple):
    """A replica, and how many tokens its KV cache holds, if it says so."""

    name: str
    kv_tokens: int | None


def read_names(option: str) -> list[str]:
    """The headers that an option lists, in lower case."""
    return [name.strip().lower() for name in option.split(";") if name.strip()]


def answering_replica(headers: Mapping[str, str], names: Sequence[str]) -> Replica | None:
    """The replica that the first of these headers names which is there; None if there is none."""
    value = next((value for name in names if (value := headers.get(name, "").strip())), "")
    name, _, rest = value.partition(";")
    if not name.strip():
        return None
    size = rest.strip().removeprefix(_KV_TOKENS)
    has_size = rest.strip().startswith(_KV_TOKENS) and size.isdecimal() and len(size) < 16
    return Replica(name.strip()[:_LONGEST_NAME], int(size) or None if has_size else None)
