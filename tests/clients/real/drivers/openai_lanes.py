"""openai-python's own lanes (``responses_websocket``), driven: python openai_lanes.py sync|async."""

import asyncio
import json
import os
import sys
from typing import Any

from openai import AsyncOpenAI, OpenAI
from openai.lib.responses_websocket import (
    AsyncResponsesWebSocketSession,
    ResponsesWebSocketLimits,
    ResponsesWebSocketSession,
)
from openai.types.responses import Response

LIMITS = ResponsesWebSocketLimits(
    max_lanes=8, max_events_per_lane=512, max_events=2048, max_bytes_per_lane=1 << 24, max_bytes=1 << 25
)
WISHES = {"happy": "End it well.", "sad": "End it badly."}


def create(words: str, parent: str | None = None) -> Any:
    """Return the fields of a create; the lane adds its name."""
    fields = {"model": os.environ["OPENAI_MODEL"], "input": words, "store": False, "max_output_tokens": 12}
    if parent:
        fields["previous_response_id"] = parent
    return {"type": "response.create", **fields}


def summary(parent: Response, endings: list[Response]) -> dict[str, Any]:
    return {
        "parent": parent.id,
        "parents": [ending.previous_response_id for ending in endings],
        "texts": [ending.output_text for ending in endings],
    }


def run() -> dict[str, Any]:
    with (
        OpenAI() as client,
        client.responses.connect() as connection,
        ResponsesWebSocketSession(connection, limits=LIMITS) as session,
    ):
        main = session.lane("main")
        main.send(create("Begin a story."))
        parent = main.get_final_response(timeout=30)
        lanes = {name: session.lane(name) for name in WISHES}
        for name, lane in lanes.items():
            lane.send(create(WISHES[name], parent.id))
        return summary(parent, [lane.get_final_response(timeout=30) for lane in lanes.values()])


async def run_async() -> dict[str, Any]:
    async with (
        AsyncOpenAI() as client,
        client.responses.connect() as connection,
        AsyncResponsesWebSocketSession(connection, limits=LIMITS) as session,
    ):
        main = session.lane("main")
        await main.send(create("Begin a story."))
        parent = await main.get_final_response()
        lanes = {name: session.lane(name) for name in WISHES}
        for name, lane in lanes.items():
            await lane.send(create(WISHES[name], parent.id))
        endings = await asyncio.gather(*(lane.get_final_response() for lane in lanes.values()))
        return summary(parent, list(endings))


print(json.dumps(asyncio.run(run_async()) if sys.argv[1] == "async" else run()))
