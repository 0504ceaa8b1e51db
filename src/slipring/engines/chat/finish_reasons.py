"""The finish reasons of Chat Completions servers: which mean that an answer is complete, cut off or
failed.
"""

from typing import Literal

Reason = Literal["stop", "max_output_tokens", "content_filter"]
_ENDED = ("stop", "tool_calls", "tool_use", "function_call", "end_turn", "stop_sequence", "eos", "eos_token")
_TOO_LONG = (
    *("length", "max_tokens", "max_output_tokens", "model_length", "context_length"),
    "model_context_window_exceeded",
)

_FILTERED = (
    *("content_filter", "sensitive", "safety", "recitation", "blocklist", "prohibited_content", "spii"),
    *("image_safety", "refusal"),
)

FAILED_REASONS = frozenset(
    {
        *("error", "abort", "aborted", "cancelled", "canceled", "network_error", "timeout"),
        *("insufficient_system_resource", "malformed_function_call", "unexpected_tool_call"),
    }
)

FINISH_REASONS: dict[str, Reason] = {
    **dict.fromkeys(_ENDED, "stop"),
    **dict.fromkeys(_TOO_LONG, "max_output_tokens"),
    **dict.fromkeys(_FILTERED, "content_filter"),
}
"""Finish reasons, in lower case, of answers that are complete or were cut off. After those in
``FAILED_REASONS`` an answer has failed. After any other it is complete if its calls are."""
