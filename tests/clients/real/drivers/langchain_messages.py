"""LangChain's chat model for Anthropic: python langchain_messages.py SCENARIO. Prints one line of JSON."""

import json
import os
import sys
from typing import Any

from langchain_anthropic import ChatAnthropic
from langchain_core.messages import HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from pydantic import BaseModel

THINKING = {"type": "enabled", "budget_tokens": 2048}


def chat(**settings: Any) -> ChatAnthropic:
    """The model at ANTHROPIC_BASE_URL, with the key ANTHROPIC_API_KEY."""
    bound = {"max_tokens": 4096, **settings}
    return ChatAnthropic(model=os.environ["ANTHROPIC_MODEL"], max_retries=0, **bound)


@tool  # type: ignore[untyped-decorator]
def get_weather(city: str) -> str:
    """Weather of a city."""
    return f"sunny in {city}"


class Weather(BaseModel):
    """The weather of a city"""

    city: str


def tools(*, streaming: bool) -> dict[str, Any]:
    """Run a tool loop with thoughts, and ask once more after it."""
    model = chat(streaming=streaming, thinking=THINKING).bind_tools([get_weather])
    messages: list[Any] = [SystemMessage("Be short."), HumanMessage("weather in Paris?")]
    calls, texts, cached = 0, [], []
    while len(texts) < 2:
        answer = model.invoke(messages)
        messages.append(answer)
        cached.append(answer.usage_metadata["input_token_details"]["cache_read"])
        for call in answer.tool_calls:
            calls += 1
            messages.append(ToolMessage(get_weather.invoke(call["args"]), tool_call_id=call["id"]))
        if not answer.tool_calls:
            texts.append(answer.text)
            messages.append(HumanMessage("And tomorrow?"))
    return {"texts": texts, "calls": calls, "cached": cached}


def talk() -> dict[str, Any]:
    model = chat(max_tokens=12)
    answer = model.invoke("Hello!")
    counted = model.get_num_tokens_from_messages([HumanMessage("Hello!")])
    return {"text": answer.text, "usage": answer.usage_metadata, "counted": counted}


def parsed(method: str) -> dict[str, Any]:
    """Have an answer of a schema: by a tool that must be called, or by a format."""
    return {"city": chat().with_structured_output(Weather, method=method).invoke("Where?").city}


SCENARIOS = {
    "plain": lambda: tools(streaming=False),
    "streamed": lambda: tools(streaming=True),
    "by tool": lambda: parsed("function_calling"),
    "by format": lambda: parsed("json_schema"),
    "talk": talk,
}
print(json.dumps(SCENARIOS[sys.argv[1]]()))
