"""How errors of the core name the fields of a request of the Messages API."""

import pytest

from slipring.base.errors import ApiError, ContextLengthExceeded, ExternalConnectorError, Unavailable
from slipring.protocol.events import Error
from slipring.protocol.messages import errors
from slipring.protocol.messages.errors import Fields, dotted, styled_message
from slipring.protocol.messages.history import Place


@pytest.fixture
def fields() -> Fields:
    fields = Fields()
    # A text, a message of two blocks, a call, its result.
    places = [Place(0, ()), Place(2, (1, 1, 3)), Place(3, (0,)), Place(4, (2,))]
    places.append(Place(4, (2,), ("tools[7]", "messages[4].content[0].tool.definition")))
    fields.place = dict(enumerate(places)).get
    fields.tools = ["tools[1]", "mcp_servers[0]"]
    return fields


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("input", "messages"),
        ("input[0]", "messages.0.content"),
        ("input[0].content", "messages.0.content"),
        ("input[1].content[2].text", "messages.2.content.3.text"),
        ("input[1].content[9]", "messages.2.content.3"),
        ("input[1].content", "messages.2.content.1"),
        ("input[1].content[1].image_url", "messages.2.content.1.source"),
        ("input[1].content[1].file_data", "messages.2.content.1.source"),
        ("input[1].content[1].file_url", "messages.2.content.1.source"),
        ("input[1]", "messages.2.content.1"),
        ("input[2].arguments", "messages.3.content.0.input"),
        ("input[2].encrypted_content", "messages.3.content.0.signature"),
        ("input[3].call_id", "messages.4.content.2.tool_use_id"),
        ("input[3].output[1]", "messages.4.content.2.content"),
        ("input[4]", "messages.4.content.2"),
        ("input[4].tools[0]", "tools.7"),
        ("input[4].tools[0].parameters", "tools.7.input_schema"),
        ("input[4].tools[1].parameters.type", "messages.4.content.0.tool.definition.input_schema.type"),
        ("input[4].tools[2]", "messages.4.content.2.tools"),
        ("input[3].tools[0].name", "messages.4.content.2.tools"),
        ("input[5].content", "messages"),
        ("tools", "tools"),
        ("tools[0].parameters", "tools.1.input_schema"),
        ("tools[0]", "tools.1"),
        ("tools[1].server_label", "mcp_servers.0.name"),
        ("tools[1].allowed_tools[0]", "mcp_servers.0.tool_configuration.allowed_tools.0"),
        ("tools[2].name", "tools"),
        ("text.format.schema", "output_config.format.schema"),
        ("max_output_tokens", "max_tokens"),
        ("instructions", "system"),
        ("temperature", "temperature"),
    ],
)
def test_a_field_has_the_clients_name(fields: Fields, path: str, name: str) -> None:
    assert fields.name(path) == name


@pytest.mark.parametrize(
    ("message", "told"),
    [
        ("Missing required parameter: 'input[2].name'.", "messages.3.content.0.name: Field required"),
        ("Invalid 'tools[0].parameters': it is bad.", "tools.1.input_schema: it is bad."),
        ("Unknown parameter: 'temperature'.", "Unknown parameter: 'temperature'."),
        ("'input' and 'tools[1].server_url' differ.", "'messages' and 'mcp_servers.0.url' differ."),
        ("The tool 'stop' is not there.", "The tool 'stop' is not there."),
        ("It failed.", "It failed."),
    ],
)
def test_a_message_begins_with_the_field(fields: Fields, message: str, told: str) -> None:
    assert styled_message(message, fields.name, "input") == told


def test_dots() -> None:
    assert dotted("messages[2].content[0].text") == "messages.2.content.0.text"


def told(error: ApiError) -> tuple[int, str, str]:
    reply = errors.reply_of(Error.of(error), Fields(), "req")
    assert isinstance(reply.body, errors.MessagesError)
    return reply.status, reply.body.error.type, reply.body.error.message


def test_statuses() -> None:
    assert told(Unavailable("down")) == (529, "overloaded_error", "down")
    failed = (400, "invalid_request_error", "tools: the server fails")
    assert told(ExternalConnectorError("the server fails", param="tools")) == failed
    gone = ApiError("gone")
    gone.status = 410
    assert told(gone) == (410, "invalid_request_error", "gone")
    assert told(ApiError("oh")) == (500, "api_error", "oh")


def test_a_prompt_that_is_too_long_is_named_as_the_api_does() -> None:
    kind = "invalid_request_error"
    assert told(ContextLengthExceeded(20, 10)) == (400, kind, "prompt is too long: 20 tokens > 10 maximum")
    bounded = ContextLengthExceeded(20, 10, is_exact=False)
    assert told(bounded)[2] == "prompt is too long: 20 tokens > 10 maximum"
    other = ContextLengthExceeded(20, 10)
    other.message = "The engine says so."
    assert told(other)[2] == "prompt is too long: The engine says so."
