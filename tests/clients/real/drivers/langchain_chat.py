"""LangChain's chat model for OpenAI, driven: python langchain_chat.py SCENARIO. Prints one line of JSON."""

import json
import os
import sys
from typing import Any

from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel


def chat(*, responses: bool = True, **settings: Any) -> ChatOpenAI:
    """The model at OPENAI_BASE_URL, with the key OPENAI_API_KEY, by Responses or by Chat Completions."""
    return ChatOpenAI(
        model=os.environ["OPENAI_MODEL"], use_responses_api=responses, max_retries=0, **settings
    )


@tool  # type: ignore[untyped-decorator]
def get_weather(city: str) -> str:
    """Weather of a city."""
    return f"sunny in {city}"


class Weather(BaseModel):
    """The weather of a city"""

    city: str


def tools(*, streaming: bool, responses: bool = True) -> dict[str, Any]:
    """Run a tool loop. With ``use_previous_response_id``, the package omits items that the server already
    has."""
    settings = {"use_previous_response_id": True} if responses else {}
    model = chat(responses=responses, streaming=streaming, **settings).bind_tools([get_weather])
    messages: list[Any] = [HumanMessage("weather in Paris?")]
    calls = 0
    while True:
        answer = model.invoke(messages)
        messages.append(answer)
        if not answer.tool_calls:
            return {"text": answer.text, "calls": calls}
        for call in answer.tool_calls:
            calls += 1
            messages.append(ToolMessage(get_weather.invoke(call["args"]), tool_call_id=call["id"]))


def talk() -> dict[str, Any]:
    answer = chat(max_tokens=12).invoke("Hello!")
    return {"text": answer.text, "usage": answer.usage_metadata}


def parsed() -> dict[str, Any]:
    """Have an answer of a schema, by Chat Completions."""
    model = chat(responses=False).with_structured_output(Weather, method="json_schema")
    return {"city": model.invoke("Where?").city}


SCENARIOS = {
    "plain": lambda: tools(streaming=False),
    "streamed": lambda: tools(streaming=True),
    "chat": lambda: tools(streaming=False, responses=False),
    "chat streamed": lambda: tools(streaming=True, responses=False),
    "parsed": parsed,
    "talk": talk,
}
print(json.dumps(SCENARIOS[sys.argv[1]]()))
