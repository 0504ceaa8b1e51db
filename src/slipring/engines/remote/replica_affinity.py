"""What keeps a chain on one replica behind a router, and which replica has answered.

Routers keep chains on a replica by keys in headers; salts separate tenants in its cache. An answer names its
replica in a header of slipring's plugin or of the router.
"""

import hmac
import os
import secrets
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from slipring.core.generation import Job

_SECRET = os.environ.get("SLIPRING_AFFINITY_SECRET", "").encode() or secrets.token_bytes(32)
_KEYED = hmac.new(_SECRET, digestmod="sha256")
"""To be copied: making one takes several times as long."""
DYNAMO_SESSION = "x-dynamo-session-id"
"""The header by which Dynamo knows branches of a chain. The others keep a chain together with its forks."""
_DYNAMO_PARENT = "x-dynamo-parent-session-id"
USUAL_AFFINITY_HEADERS = ("x-session-id", "x-smg-routing-key", DYNAMO_SESSION)
DYNAMO_FINAL = "x-dynamo-session-final"
"""On a request of its own: its branch has ended."""
REPLICA_HEADER = "x-slipring-replica"
"""What slipring's plugin for vLLM adds to all answers: the name of the replica, and the tokens that its KV
cache holds, as in ``3f9a;kv_tokens=75000``."""
_SMG_REPLICA_HEADER = "x-smg-routed-worker-id"
REPLICA_HEADERS = f"{REPLICA_HEADER};{_SMG_REPLICA_HEADER}"
_KV_TOKENS = "kv_tokens="
_LONGEST_NAME = 256


def affinity_key(job: Job) -> str:
    """A keyed hash, the same for all turns of a chain or of all chains with one `prompt_cache_key`."""
    root = job.parent.root_id if job.parent is not None else job.response_id
    return _keyed_hash(f"{job.tenant}\0{job.cache_key if job.cache_key is not None else root}")


def branch_keys(job: Job) -> list[str]:
    """Keyed hashes of the job's branch and, if that is a fork, of the branch that it forks from. The branch
    that a chain begins with has the key of the chain."""

    return [
        affinity_key(job) if branch.parent is None else _keyed_hash(f"{job.tenant}\0{branch.id}")
        for branch in (job.branch, job.branch.parent)
        if branch is not None
    ]


def affinity_headers(job: Job, names: Sequence[str]) -> dict[str, str]:
    """The headers with these names, by which routers keep a chain on one replica."""
    headers = dict.fromkeys(names, affinity_key(job))
    if DYNAMO_SESSION in headers:
        headers.update(zip((DYNAMO_SESSION, _DYNAMO_PARENT), branch_keys(job), strict=False))
    return headers


def tenant_salt(tenant: str) -> str:
    """A keyed hash that separates tenants in prefix caches that take a salt."""
    return _keyed_hash(f"salt\0{tenant}")


@lru_cache(maxsize=4096)
def _keyed_hash(text: str) -> str:
    # Cached: all turns of a chain ask for the same.
    keyed = _KEYED.copy()
    keyed.update(text.encode())
    return keyed.hexdigest()[:32]


class Replica(NamedTuple):
    """A replica, and how many tokens its KV cache holds, if it says so."""

    name: str
    kv_tokens: int | None


def read_header_names(option: str) -> list[str]:
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
