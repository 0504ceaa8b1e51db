"""Conversations that slipring and independent implementations write and read.

Plain data: it is used by slipring's tests and by the recorder, which runs in an environment without slipring.
A message is a dict with ``role`` and ``content``; an assistant's may have ``thoughts`` and ``calls``, pairs
of a name and arguments. A message of the role ``tool`` answers the calls one after the other.
"""

from typing import Any

Message = dict[str, Any]
Step = dict[str, Any]
"""A step of a chain: ``new`` messages, and the ``answer`` of the model, which the last step does not have."""

TOOLS: list[dict[str, Any]] = [
    {
        "name": "get_weather",
        "description": "Tells the weather.",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "Name of a city."},
                "days": {"type": "integer"},
            },
            "required": ["city"],
        },
    },
    {
        "name": "run",
        "description": "Runs a command.",
        "parameters": {
            "type": "object",
            "properties": {
                "command": {"type": "string"},
                "timeout": {"type": "number"},
                "shell": {"type": "boolean"},
                "paths": {"type": "array", "items": {"type": "string"}},
                "options": {"type": "object"},
            },
            "required": ["command"],
        },
    },
    {"name": "ping", "description": "Pings.", "parameters": {"type": "object", "properties": {}}},
]

SYSTEM: Message = {"role": "system", "content": "Be brief."}
QUESTION: Message = {"role": "user", "content": "What is the weather in Rome?"}
THANKS: Message = {"role": "user", "content": "Thanks. And in Oslo?"}
OUTPUT: Message = {"role": "tool", "content": "Sunny, 21 degrees."}
JSON_OUTPUT: Message = {"role": "tool", "content": '{"sky": "grey", "degrees": 9}'}
WEATHER = ("get_weather", {"city": "Rome", "days": 2})
OTHER_WEATHER = ("get_weather", {"city": "Oslo"})


def answer(text: str = "", *, thoughts: str = "", calls: list[Any] | None = None) -> Message:
    return {"role": "assistant", "content": text, "thoughts": thoughts, "calls": calls or []}


def _calls(*calls: Any, text: str = "", thoughts: str = "") -> list[Step]:
    """A question, an answer with calls, and their outputs."""
    outputs = [OUTPUT, JSON_OUTPUT, OUTPUT][: len(calls)]
    return [
        {"new": [QUESTION], "answer": answer(text, thoughts=thoughts, calls=list(calls))},
        {"new": outputs},
    ]


PROMPTS: dict[str, dict[str, Any]] = {
    "question": {"messages": [QUESTION]},
    "system": {"messages": [SYSTEM, QUESTION]},
    "effort none": {"messages": [QUESTION], "effort": "none"},
    "effort low": {"messages": [QUESTION], "effort": "low"},
    "effort high": {"messages": [QUESTION], "effort": "high"},
    "dialogue": {"messages": [SYSTEM, QUESTION, answer("It is sunny."), THANKS]},
    "dialogue with thoughts": {"messages": [QUESTION, answer("It is sunny.", thoughts="Easy."), THANKS]},
    "tools": {"messages": [QUESTION], "tools": True},
    "system and tools": {"messages": [SYSTEM, QUESTION], "tools": True},
    "tools, effort none": {"messages": [QUESTION], "tools": True, "effort": "none"},
    "tools, effort high": {"messages": [QUESTION], "tools": True, "effort": "high"},
    "call": {"messages": [QUESTION, answer(calls=[WEATHER]), OUTPUT], "tools": True},
    "thoughts and call": {
        "messages": [QUESTION, answer(thoughts="I need a tool.", calls=[WEATHER]), OUTPUT],
        "tools": True,
    },
    "calls": {
        "messages": [QUESTION, answer("Wait.", calls=[WEATHER, OTHER_WEATHER]), OUTPUT, JSON_OUTPUT],
        "tools": True,
    },
    "loop": {
        "messages": [
            *(SYSTEM, QUESTION, answer(thoughts="I need a tool.", calls=[WEATHER]), OUTPUT),
            *(answer("It is sunny.", thoughts="So it is."), THANKS),
            *(answer(thoughts="Again.", calls=[OTHER_WEATHER]), JSON_OUTPUT),
        ],
        "tools": True,
    },
}
"""Whole conversations. Those with an effort are written only by families that have a switch for it."""

CHAINS: dict[str, list[Step]] = {
    "call": _calls(WEATHER),
    "thoughts, call": _calls(WEATHER, thoughts="I need a tool."),
    "text, call": _calls(WEATHER, text="Let me look."),
    "thoughts, text, call": _calls(WEATHER, thoughts="I need a tool.\nQuick.", text="Let me look."),
    "two calls": _calls(WEATHER, OTHER_WEATHER),
    "thoughts, three calls": _calls(WEATHER, ("ping", {}), OTHER_WEATHER, thoughts="All of them."),
    "no arguments": _calls(("ping", {})),
    "strings that look like JSON": _calls(
        ("run", {"command": '{"a": [1, true]}'}), ("run", {"command": "7"})
    ),
    "strings with lines and marks": _calls(("run", {"command": "  a <b> 'c' \"d\"\n\n\\e & é → 世界"})),
    "values of all types": _calls(
        (
            "run",
            {
                "command": "true",
                "timeout": 1.5,
                "shell": False,
                "paths": ["a", "1"],
                "options": {"n": None, "deep": {"x": [1, 2]}, "s": "y"},
            },
        )
    ),
    "loop of two": [
        {"new": [SYSTEM, QUESTION], "answer": answer(thoughts="I need a tool.", calls=[WEATHER])},
        {"new": [OUTPUT], "answer": answer(thoughts="Another one.", calls=[OTHER_WEATHER])},
        {"new": [JSON_OUTPUT], "answer": answer("Sunny, and grey.", thoughts="That is all.")},
    ],
    "text, user": [{"new": [QUESTION], "answer": answer("It is sunny.")}, {"new": [THANKS]}],
    "thoughts, text, user": [
        {"new": [QUESTION], "answer": answer("It is sunny.", thoughts="Easy.")},
        {"new": [THANKS]},
    ],
    "output and user": [
        {"new": [QUESTION], "answer": answer(calls=[WEATHER])},
        {"new": [OUTPUT, THANKS]},
    ],
}
"""Conversations whose answers are kept as the model emits them. All have tools."""
