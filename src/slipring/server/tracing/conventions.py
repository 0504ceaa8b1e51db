"""The names in traces: those of the GenAI conventions, and slipring's own.

The ``gen_ai`` names are those of ``docs/gen-ai/client-inference.md`` in the repository
open-telemetry/semantic-conventions-genai at commit ac48b1f9df15fdf281b96cccf15eb707e1fc1868, where their
status is Development. ``error.type`` and ``service.…`` are from the semantic conventions 1.44.0. The GenAI
conventions describe the client's span and define none for a server: the span of a turn has the same
attributes, and is of kind SERVER. No package contains the current names, so they are written out here.
"""

SCOPE = "slipring"
"""Name of the instrumentation scope."""

# Resource.
SERVICE_NAME = "service.name"
SERVICE_VERSION = "service.version"
SERVICE_INSTANCE = "service.instance.id"

# The span of a turn, by the conventions.
ERROR_TYPE = "error.type"
OPERATION = "gen_ai.operation.name"
PROVIDER = "gen_ai.provider.name"
REQUEST_MODEL = "gen_ai.request.model"
REQUEST_STREAM = "gen_ai.request.stream"
PREVIOUS_RESPONSE = "gen_ai.request.previous_response.id"
RESPONSE_ID = "gen_ai.response.id"
RESPONSE_MODEL = "gen_ai.response.model"
COMPACTED = "gen_ai.conversation.compacted"
INPUT_TOKENS = "gen_ai.usage.input_tokens"
CACHED_TOKENS = "gen_ai.usage.cache_read.input_tokens"
OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
REASONING_TOKENS = "gen_ai.usage.reasoning.output_tokens"

# Content, by the conventions; only if it is switched on.
SYSTEM_INSTRUCTIONS = "gen_ai.system_instructions"
INPUT_MESSAGES = "gen_ai.input.messages"
OUTPUT_MESSAGES = "gen_ai.output.messages"

CHAT = "chat"
"""The operation of every turn, and the first word of its span's name."""
PROVIDER_NAME = "slipring"

# The span of a turn, what the conventions do not have.
STATUS = "slipring.status"
TRANSPORT = "slipring.transport"
CONNECTION = "slipring.connection"
LANE = "slipring.lane"
TENANT = "slipring.tenant"
KEY_ID = "slipring.key.id"
MARKS = "slipring.marks"
FALLBACK = "slipring.fallback"
REQUEST_BYTES = "slipring.request_bytes"
HISTORY_BYTES = "slipring.history_bytes"
INPUT_ITEMS = "slipring.input_items"
RECOGNISED_ITEMS = "slipring.recognised_items"
DROPPED_ITEMS = "slipring.dropped_items"
RENDERED_TOKENS = "slipring.rendered_tokens"
SEND_MS = "slipring.send_ms"
OMITTED_ITEMS = "slipring.content.omitted_items"
LINK = "slipring.link"
PREVIOUS = "previous_response"
"""Value of ``LINK`` on a link to the span of the response that a turn continues."""
