"""How servers of the Chat Completions API really answer, each by its documented or reported habits.

Every provider says the same text, makes the same two calls in parallel, and fails in its own ways. Its
`source` says where the habits are from. None of them has been recorded here: the payloads are written from
those descriptions.
"""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

TEXT = "Hello there."
CALLS = [("get_weather", {"city": "Rome"}), ("get_time", {"zone": "UTC"})]


@dataclass(frozen=True)
class Failure:
    """An answer that is no answer, and the code that a client of slipring gets for it."""

    name: str
    code: str
    body: Any
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    says: str = ""
    """What a client is shown of the server's message; empty: nothing."""
    logs: str = ""
    """What the log has."""


@dataclass(frozen=True)
class Provider:
    name: str
    source: str
    text: Sequence[Any]
    """The stream that says ``TEXT``: payloads, or lines as they are."""
    calls: Sequence[Any]
    """The stream that makes ``CALLS``."""
    failures: Sequence[Failure] = ()
    thought: str = ""
    """Reasoning before the text."""
    options: dict[str, Any] = field(default_factory=dict)
    """Options of the engine that this provider needs."""
    status: int = 200
    """Of its answers."""


def delta(finish_reason: str | None = None, **fields: Any) -> dict[str, Any]:
    return {"object": "chat.completion.chunk", "choices": [choice(finish_reason, **fields)]}


def choice(finish_reason: str | None, **fields: Any) -> dict[str, Any]:
    return {"index": 0, "delta": fields, "finish_reason": finish_reason}


def whole_call(number: int, **marks: Any) -> dict[str, Any]:
    name, arguments = CALLS[number]
    return {"type": "function", **marks, "function": {"name": name, "arguments": json.dumps(arguments)}}


def streamed_calls(**marks: Any) -> list[dict[str, Any]]:
    """Calls as OpenAI streams them: name first, arguments in pieces, by index."""
    chunks = []
    for number, (name, arguments) in enumerate(CALLS):
        text = json.dumps(arguments)
        opening = {"index": number, "id": f"call_{number}", "type": "function", **marks}
        chunks.append(delta(tool_calls=[{**opening, "function": {"name": name, "arguments": ""}}]))
        chunks += [
            delta(tool_calls=[{"index": number, "function": {"arguments": piece}}])
            for piece in (text[:6], text[6:])
        ]
    return chunks


def with_ids(first: str, later: str, index: int | None = None) -> list[dict[str, Any]]:
    """The same calls with ids in every piece, and all with one index."""
    chunks = streamed_calls()
    for chunk in chunks:
        [piece] = chunk["choices"][0]["delta"]["tool_calls"]
        number = piece["index"]
        piece["id"] = f"{first if 'name' in piece['function'] else later}_{number}"
        piece["index"] = number if index is None else index
    return chunks


WORDS = [delta(role="assistant", content=""), delta(content="Hello"), delta(content=" there.")]
USAGE = {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12}
LAST_USAGE = {"object": "chat.completion.chunk", "choices": [], "usage": USAGE}


def openai_error(message: str, kind: str, code: Any = None, **more: Any) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "param": None, "code": code, **more}}


PROVIDERS = [
    Provider(
        "openai",
        "its API reference, streaming and error codes",
        [*WORDS, delta("stop"), LAST_USAGE, "data: [DONE]"],
        [*streamed_calls(), delta("tool_calls"), LAST_USAGE, "data: [DONE]"],
        [
            Failure(
                "too long",
                "context_length_exceeded",
                openai_error(
                    "Your input exceeds the context window.",
                    "invalid_request_error",
                    "context_length_exceeded",
                ),
                400,
                {},
                "Your input exceeds",
            ),
            Failure(
                "no quota",
                "insufficient_quota",
                openai_error("You exceeded your current quota.", "insufficient_quota", "insufficient_quota"),
                429,
                {},
                "You exceeded",
            ),
            Failure(
                "too fast",
                "rate_limit_exceeded",
                openai_error("Rate limit reached.", "requests", "rate_limit_exceeded"),
                429,
                {"retry-after-ms": "700", "Retry-After": "1"},
                "Rate limit reached.",
            ),
            Failure(
                "no model",
                "model_not_found",
                openai_error("The model `x` does not exist.", "invalid_request_error", "model_not_found"),
                404,
                {},
                "does not exist",
            ),
            Failure(
                "wrong key",
                "server_error",
                openai_error(
                    "Incorrect API key provided: sk-abcdefghij.", "invalid_request_error", "invalid_api_key"
                ),
                status=401,
                logs="401 invalid_api_key invalid_request_error: Incorrect API key provided: (secret)",
            ),
        ],
    ),
    Provider(
        "ollama",
        "ollama/ollama issues 7881 (no index) and 15457 (every call has index 0); errors as a text",
        [*WORDS, delta("stop"), "data: [DONE]"],
        [
            delta(tool_calls=[whole_call(0, index=0, id="call_a1")]),
            delta(tool_calls=[whole_call(1, index=0, id="call_b2")]),
            delta("stop"),
            "data: [DONE]",
        ],
        [
            Failure(
                "no model",
                "model_not_found",
                {
                    "error": {
                        "message": "model 'x' not found",
                        "type": "api_error",
                        "param": None,
                        "code": None,
                    }
                },
                404,
                {},
                "not found",
            ),
            Failure(
                "in a stream",
                "server_error",
                ['data: {"error":"llama runner process has terminated"}'],
                logs="llama runner process has terminated",
            ),
        ],
    ),
    Provider(
        "ollama before 0.4.7",
        "ollama/ollama issue 7881: calls have no index; both calls in one chunk",
        [*WORDS, delta("stop"), "data: [DONE]"],
        [
            delta(tool_calls=[whole_call(0, id="call_a1"), whole_call(1, id="call_b2")]),
            delta("stop"),
            "data: [DONE]",
        ],
    ),
    Provider(
        "lm studio",
        "lmstudio-ai/lmstudio-bug-tracker: errors as events with status 200, reasoning in `reasoning`",
        [delta(role="assistant", reasoning="Hm."), *WORDS, delta("stop"), "data: [DONE]"],
        [*streamed_calls(), delta("tool_calls"), "data: [DONE]"],
        [
            Failure(
                "in a stream",
                "server_error",
                ["event: error", 'data: {"message":"Model has unloaded or crashed."}'],
                logs="Model has unloaded or crashed.",
            ),
        ],
        thought="Hm.",
    ),
    Provider(
        "llama-server",
        "ggml-org/llama.cpp pull 15780 (exceed_context_size_error); coddy-project/coddy-agent pull 106"
        " (`error:` lines with status 200, until late 2025)",
        [*WORDS, delta("stop"), {**LAST_USAGE, "timings": {"prompt_n": 9}}, "data: [DONE]"],
        [*streamed_calls(), delta("tool_calls"), "data: [DONE]"],
        [
            Failure(
                "too long",
                "context_length_exceeded",
                {
                    "error": {
                        "code": 500,
                        "message": "the request exceeds the available context size.",
                        "type": "exceed_context_size_error",
                        "n_prompt_tokens": 9,
                        "n_ctx": 8,
                    }
                },
                500,
                {},
                "the available context size",
            ),
            Failure(
                "too long, in a stream",
                "context_length_exceeded",
                [
                    'error: {"code":400,"message":"the request exceeds the available context size",'
                    '"type":"invalid_request_error"}',
                    "",
                    "data: [DONE]",
                ],
                says="the available context size",
            ),
            Failure(
                "loading",
                "server_error",
                {"error": {"code": 503, "message": "Loading model", "type": "unavailable_error"}},
                503,
                {},
                logs="503 unavailable_error: Loading model",
            ),
        ],
    ),
    Provider(
        "openrouter",
        "its pages Streaming and Errors: comments during a wait, errors as events with a reason,"
        " numbers as codes; reasoning_details are to be sent back",
        [
            ": OPENROUTER PROCESSING",
            "",
            delta(reasoning_details=[{"type": "reasoning.text", "text": "Hm."}]),
            *WORDS,
            delta("stop"),
            LAST_USAGE,
            "data: [DONE]",
        ],
        [": OPENROUTER PROCESSING", "", *streamed_calls(), delta("tool_calls"), "data: [DONE]"],
        [
            Failure(
                "no credit",
                "insufficient_quota",
                {"error": {"code": 402, "message": "Insufficient credits", "metadata": {}}},
                402,
                {},
                "Insufficient credits",
            ),
            Failure(
                "in a stream",
                "server_error",
                [
                    {
                        "id": "gen-1",
                        "error": {"code": 502, "message": "Provider disconnected"},
                        "choices": [choice("error", content="")],
                    }
                ],
                logs="502: Provider disconnected",
            ),
            Failure(
                "flagged",
                "server_error",
                {"error": {"code": 403, "message": "Input was flagged", "metadata": {"reasons": ["x"]}}},
                403,
                {},
                logs="403: Input was flagged",
            ),
        ],
        thought="Hm.",
    ),
    Provider(
        "azure",
        "langchain issue 18977, autogen issue 6465: a first chunk without choices, filters"
        " as choices without a delta",
        [
            {"choices": [], "id": "", "prompt_filter_results": [{"prompt_index": 0}]},
            *WORDS,
            {"choices": [{"index": 0, "finish_reason": None, "content_filter_results": {}}], "usage": None},
            delta("stop"),
            "data: [DONE]",
        ],
        [
            {"choices": [], "id": "", "prompt_filter_results": []},
            *streamed_calls(),
            delta("tool_calls"),
            "data: [DONE]",
        ],
        [
            Failure(
                "filtered",
                "invalid_prompt",
                openai_error(
                    "The response was filtered.", "invalid_request_error", "content_filter", status=400
                ),
                400,
                {},
                "The response was filtered.",
            ),
            Failure(
                "too fast",
                "rate_limit_exceeded",
                {"error": {"code": "429", "message": "Requests have exceeded call rate limit."}},
                429,
                {"Retry-After": "10"},
                "call rate limit",
            ),
        ],
    ),
    Provider(
        "gemini",
        "its page OpenAI compatibility; 0xsline/OpenChatCut issue 6 (lists); NVIDIA-NeMo/Gym issue 2374"
        " (signatures of calls); whole calls, all with index 0",
        [delta(role="assistant", content=TEXT), delta("stop"), "data: [DONE]"],
        [
            delta(
                role="assistant",
                tool_calls=[
                    whole_call(0, index=0, id="a", extra_content={"google": {"thought_signature": "c2ln"}}),
                    whole_call(1, index=0, id=""),
                ],
            ),
            delta("stop"),
            "data: [DONE]",
        ],
        [
            Failure(
                "too fast",
                "rate_limit_exceeded",
                [
                    {
                        "error": {
                            "code": 429,
                            "message": "Resource exhausted.",
                            "status": "RESOURCE_EXHAUSTED",
                            "details": [{"retryDelay": "31s"}],
                        }
                    }
                ],
                429,
                {},
                "Resource exhausted.",
            ),
            Failure(
                "too long",
                "context_length_exceeded",
                [
                    {
                        "error": {
                            "code": 400,
                            "status": "INVALID_ARGUMENT",
                            "message": "The input token count (9) exceeds the maximum (8).",
                        }
                    }
                ],
                400,
                {},
                "The input token count",
            ),
            Failure("cut off", "server_error", [delta(content="He"), delta("MALFORMED_FUNCTION_CALL")]),
        ],
    ),
    Provider(
        "mistral",
        "its API reference: messages at the top, `model_length`, whole calls, thinking as parts",
        [
            delta(
                role="assistant",
                content=[{"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}]}],
            ),
            *WORDS[1:],
            {**delta("stop"), "usage": USAGE},
            "data: [DONE]",
        ],
        [
            delta(
                tool_calls=[whole_call(0, index=0, id="D681PevKs"), whole_call(1, index=1, id="D681PevKt")]
            ),
            delta("tool_calls"),
            "data: [DONE]",
        ],
        [
            Failure(
                "too long",
                "context_length_exceeded",
                {
                    "object": "error",
                    "message": "Prompt contains 9 tokens, too large for model with 8 maximum context length",
                    "type": "invalid_request_error",
                    "code": "3051",
                },
                400,
                {},
                "too large for model",
            ),
            Failure(
                "too fast",
                "rate_limit_exceeded",
                {"message": "Requests rate limit exceeded"},
                429,
                {},
                "Requests rate limit exceeded",
            ),
        ],
        thought="Hm.",
        options={"stream_usage": False},
    ),
    Provider(
        "deepseek",
        "its pages Rate Limit (keep-alive comments, empty lines) and Error Codes; finish reason"
        " insufficient_system_resource of its API reference",
        [
            ": keep-alive",
            "",
            "",
            delta(reasoning_content="Hm."),
            *WORDS,
            {**delta("stop"), "usage": USAGE},
            "data: [DONE]",
        ],
        [*streamed_calls(), delta("tool_calls"), "data: [DONE]"],
        [
            Failure(
                "no balance",
                "insufficient_quota",
                openai_error("Insufficient Balance", "unknown_error", "invalid_request_error"),
                402,
                {},
                "Insufficient Balance",
            ),
            Failure(
                "overloaded", "server_error", [delta(content="He"), delta("insufficient_system_resource")]
            ),
        ],
        thought="Hm.",
    ),
    Provider(
        "groq",
        "its API reference and page Error Codes: usage in `x_groq`, reasoning in `reasoning`",
        [
            delta(role="assistant", content=""),
            delta(reasoning="Hm."),
            *WORDS[1:],
            {**delta("stop"), "x_groq": {"id": "req_1", "usage": USAGE}},
            "data: [DONE]",
        ],
        [
            delta(tool_calls=[whole_call(0, index=0, id="a"), whole_call(1, index=1, id="b")]),
            delta("tool_calls"),
            "data: [DONE]",
        ],
        [
            Failure(
                "failed call",
                "invalid_prompt",
                openai_error(
                    "Failed to call a function.",
                    "invalid_request_error",
                    "tool_use_failed",
                    failed_generation="<",
                ),
                400,
                {},
                "Failed to call a function.",
            ),
            Failure(
                "over capacity",
                "server_error",
                openai_error("Service over capacity", "internal_server_error"),
                498,
                {},
                logs="Service over capacity",
            ),
        ],
        thought="Hm.",
    ),
    Provider(
        "vllm",
        "its OpenAI server; NousResearch/hermes-agent issue 68451 (`error_type`, by a host of it)",
        [
            delta(role="assistant", content=""),
            delta(reasoning="Hm."),
            *WORDS[1:],
            delta("stop"),
            LAST_USAGE,
            "data: [DONE]",
        ],
        [*streamed_calls(), delta("tool_calls"), LAST_USAGE, "data: [DONE]"],
        [
            Failure(
                "too long",
                "context_length_exceeded",
                openai_error(
                    "This model's maximum context length is 8 tokens. However, you requested 9.",
                    "BadRequestError",
                    400,
                ),
                400,
                {},
                "maximum context length",
            ),
            Failure(
                "too long, in a stream",
                "context_length_exceeded",
                [{"error_type": "context_length_exceeded", "error_message": "too long"}],
                says="too long",
            ),
            Failure(
                "aborted",
                "server_error",
                [delta(content="He"), delta("abort"), "data: [DONE]"],
            ),
        ],
        thought="Hm.",
    ),
    Provider(
        "sglang",
        "its OpenAI server: errors as {object: error}, `abort` as a finish reason",
        [*WORDS, delta("stop", matched_stop=7), LAST_USAGE, "data: [DONE]"],
        [*streamed_calls(), delta("tool_calls"), "data: [DONE]"],
        [
            Failure(
                "too long",
                "context_length_exceeded",
                {
                    "object": "error",
                    "message": "The input (9 tokens) is longer than the model's context length (8 tokens).",
                    "type": "BadRequestError",
                    "param": None,
                    "code": 400,
                },
                400,
                {},
                "longer than the model's context length",
            ),
            Failure(
                "in a stream",
                "server_error",
                [{"object": "error", "message": "Out of memory", "type": "InternalServerError", "code": 500}],
                logs="500 InternalServerError: Out of memory",
            ),
        ],
    ),
    Provider(
        "gateways that number every call 0",
        "BerriAI/litellm#21331 (its bridge to the Responses API), maximhq/bifrost#1961, mcowger/plexus#691",
        [*WORDS, delta("stop"), LAST_USAGE, "data: [DONE]"],
        [*with_ids("call", "call", 0), delta("tool_calls"), LAST_USAGE, "data: [DONE]"],
    ),
    Provider(
        "poolside",
        "poolsideai/pool#9: the id of a call is another one after its first piece",
        [*WORDS, delta("stop"), LAST_USAGE, "data: [DONE]"],
        [*with_ids("call", "chatcmpl-tool"), delta("tool_calls"), LAST_USAGE, "data: [DONE]"],
    ),
    Provider(
        "one with types of its own",
        "openai's SDK takes any status of success and checks no types, so that such servers work with it",
        [
            {"choices": [{"index": 0, "delta": {"content": ["Hel", "lo"]}, "finish_reason": False}]},
            {
                "choices": [
                    {
                        "index": 0,
                        "delta": {"content": {"type": "text", "text": " the"}},
                        "finish_reason": False,
                    }
                ]
            },
            delta(content=[{"type": "text", "text": {"value": "re."}}], refusal=False),
            delta("stop", content={}),
            "data: [DONE]",
        ],
        [
            {
                "choices": [
                    {
                        "index": 0.0,
                        "delta": {
                            "content": [],
                            "tool_calls": {
                                "index": number,
                                "id": f"call_{number}",
                                "function": {"name": name, "arguments": arguments},
                            },
                        },
                        "finish_reason": False,
                    }
                ]
            }
            for number, (name, arguments) in enumerate(CALLS)
        ]
        + [delta("tool_calls"), "data: [DONE]"],
        status=201,
    ),
    Provider(
        "one that ignores stream",
        "several small servers, and caches in front of others",
        [
            {
                "whole": {
                    "object": "chat.completion",
                    "choices": [
                        {
                            "index": 0,
                            "finish_reason": "stop",
                            "message": {"role": "assistant", "content": TEXT},
                        }
                    ],
                    "usage": USAGE,
                }
            }
        ],
        [
            {
                "whole": {
                    "object": "chat.completion",
                    "choices": [
                        {
                            "index": 0,
                            "finish_reason": "tool_calls",
                            "message": {
                                "role": "assistant",
                                "content": None,
                                "tool_calls": [whole_call(0, id="a"), whole_call(1, id="b")],
                            },
                        }
                    ],
                }
            }
        ],
        [
            Failure(
                "an error with status 200",
                "rate_limit_exceeded",
                openai_error("Slow down.", "rate_limit_error"),
                says="Slow down.",
            ),
        ],
    ),
]


class ProviderServer:
    """Serves the scripted answers of a provider."""

    def __init__(self) -> None:
        self.url = ""
        self.answers: list[Failure | Sequence[Any]] = []
        self.status = 200
        """Of answers that are no failures."""
        self.requests: list[Any] = []

    async def __aenter__(self) -> "ProviderServer":
        app = web.Application()
        app.router.add_post("/v1/chat/completions", self._complete)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}/v1"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(await request.json())
        answer = self.answers.pop(0)
        if isinstance(answer, Failure):
            if answer.status != 200 or isinstance(answer.body, dict):
                return web.json_response(answer.body, status=answer.status, headers=answer.headers)
            answer = answer.body
        if isinstance(answer[0], dict) and "whole" in answer[0]:
            return web.json_response(answer[0]["whole"])
        stream = web.StreamResponse(status=self.status, headers={"Content-Type": "text/event-stream"})
        await stream.prepare(request)
        for line in answer:
            text = line if isinstance(line, str) else f"data: {json.dumps(line)}"
            end = "\n" if text.startswith("event:") else "\n\n"
            await stream.write((text + end).encode())
            await asyncio.sleep(0)
        return stream
