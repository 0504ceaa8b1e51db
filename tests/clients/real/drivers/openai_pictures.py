"""openai-python with an image in a message and one in a tool's output: python openai_pictures.py
responses|chat MESSAGE.png OUTPUT.png. Prints one line of JSON."""

import base64
import json
import os
import sys
from pathlib import Path

from openai import OpenAI
from openai.types.chat import ChatCompletionMessageParam, ChatCompletionToolParam
from openai.types.chat.chat_completion_message_function_tool_call_param import Function
from openai.types.responses import FunctionToolParam

MODEL = os.environ["OPENAI_MODEL"]
LOOK: Function = {"name": "look", "arguments": "{}"}
PARAMETERS: dict[str, object] = {"type": "object", "properties": {}, "additionalProperties": False}


def data_url(path: str) -> str:
    return f"data:image/png;base64,{base64.b64encode(Path(path).read_bytes()).decode()}"


def by_responses(client: OpenAI, sent: str, returned: str) -> str:
    tool: FunctionToolParam = {"type": "function", "name": "look", "parameters": PARAMETERS, "strict": True}
    first = client.responses.create(
        model=MODEL,
        tools=[tool],
        input=[
            {
                "role": "user",
                "content": [
                    {"type": "input_text", "text": "Is it the same?"},
                    {"type": "input_image", "image_url": sent, "detail": "high"},
                ],
            }
        ],
    )
    (call,) = [item for item in first.output if item.type == "function_call"]
    second = client.responses.create(
        model=MODEL,
        tools=[tool],
        previous_response_id=first.id,
        input=[
            {
                "type": "function_call_output",
                "call_id": call.call_id,
                "output": [{"type": "input_image", "image_url": returned}],
            }
        ],
    )
    return second.output_text


def by_chat(client: OpenAI, sent: str, returned: str) -> str:
    tool: ChatCompletionToolParam = {
        "type": "function",
        "function": {"name": "look", "parameters": PARAMETERS},
    }
    messages: list[ChatCompletionMessageParam] = [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "Is it the same?"},
                {"type": "image_url", "image_url": {"url": sent, "detail": "high"}},
            ],
        }
    ]
    first = client.chat.completions.create(model=MODEL, tools=[tool], messages=messages)
    (call,) = first.choices[0].message.tool_calls or []
    # Outputs are texts in the types of this API: an image follows as a message of the user.
    messages += [
        {"role": "assistant", "tool_calls": [{"id": call.id, "type": "function", "function": LOOK}]},
        {"role": "tool", "tool_call_id": call.id, "content": "See the image."},
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": returned}}]},
    ]
    second = client.chat.completions.create(model=MODEL, tools=[tool], messages=messages)
    return second.choices[0].message.content or ""


with OpenAI() as opened:
    how, *paths = sys.argv[1:]
    urls = [data_url(path) for path in paths]
    print(json.dumps({"text": {"responses": by_responses, "chat": by_chat}[how](opened, *urls)}))
