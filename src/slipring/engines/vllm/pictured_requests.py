"""Requests with pictures to a vLLM server.

A server that was started with ``--enable-scale-out`` takes them beside ids, which have one placeholder for
each picture. It keeps pictures by their names: those of earlier turns are named, and not sent again unless
the server has dropped them. Any other server takes them by its chat endpoint, which renders all messages.
"""

import asyncio
import hashlib
from collections.abc import Sequence
from typing import Any, Literal

from msgspec import Raw

from slipring.core.generation import Job
from slipring.engines.chat.messages import Writer
from slipring.engines.chat.request_body import EMPTY, offered_tools, toolbox
from slipring.engines.grey_square import grey_square_url
from slipring.engines.remote.http_client import HttpClient, spliced
from slipring.engines.remote.http_failures import BadStatus, HttpFailure
from slipring.engines.tokens.job_rendering import data_urls, position_of
from slipring.prompts.rendering import Rendered
from slipring.protocol import wire

BY_IDS, BY_CHAT = "/inference/v1/generate", "/v1/chat/completions"
RESENT = "the server takes pictures by its chat endpoint only: all messages are sent again"
Way = Literal["ids", "chat"]
_ABSENT = (403, 404, 405, 501)
"""vLLM 0.32 answers with the first unless it was started with the flag."""
_REFUSED = (400, 422)


async def sees(client: HttpClient, model: str) -> bool:
    """Whether a server's model takes pictures: whether it tokenizes a message with one."""
    try:
        await _tokenize(client, model, [grey_square_url()])
    except HttpFailure:
        return False
    return True


async def refuses(client: HttpClient, model: str, urls: Sequence[str]) -> bool:
    """Whether a server refuses to tokenize a message with these pictures, which it decodes for that."""
    try:
        await _tokenize(client, model, urls)
    except BadStatus as error:
        return error.status in _REFUSED
    except HttpFailure:
        return False
    return False


async def _tokenize(client: HttpClient, model: str, urls: Sequence[str]) -> None:
    parts = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    asked = {"model": model, "messages": [{"role": "user", "content": parts}]}
    await client.query("/tokenize", [await asyncio.to_thread(wire.encode, asked)])


async def find_way(client: HttpClient) -> Way:
    """How a server takes pictures."""
    try:
        await client.query(BY_IDS, [b"{}"])
    except BadStatus as error:
        return "chat" if error.status in _ABSENT else "ids"
    except HttpFailure:
        return "chat"
    return "ids"


def known_digests(job: Job, sent: Rendered) -> frozenset[str]:
    """Which pictures of a context its parent has."""
    parent = position_of(job)
    return frozenset(parent.digests()).intersection(sent.digests()) if parent is not None else frozenset()


def content_parts(job: Job, sent: Rendered, salt: str, known: frozenset[str]) -> list[dict[str, Any]]:
    """The pictures of a context with their data, but for those that are known. Their names differ by tenant:
    a server that knows a picture answers sooner."""
    urls = data_urls(job, set(sent.digests()) - known)
    return [
        {
            "type": "image_url",
            "url": urls.get(digest),
            "uuid": hashlib.blake2b(f"{salt}{digest}".encode(), digest_size=32).hexdigest(),
        }
        for digest in sent.digests()
    ]


def chat_pieces(job: Job, fields: dict[str, Any]) -> list[bytes]:
    """The body of a request to the chat endpoint. The server's parsers of calls are left out: the answer is
    read by its ids."""
    messages = Writer().extend(None, tuple(job.context())).json()
    if job.head.instructions is not None:
        messages.insert(0, b'{"role":"system","content":' + bytes(job.head.instructions_json) + b"}")
    box = toolbox(offered_tools(job.offer), EMPTY)
    if box.tools:
        fields = {**fields, "tools": Raw(box.json), "tool_choice": "none"}
    return spliced(b'{"messages":[', messages, b"]," + wire.encode(fields)[1:])
