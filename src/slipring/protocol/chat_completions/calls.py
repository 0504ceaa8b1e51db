"""What a model calls: a function or a custom tool, in the messages of a client as in an answer."""

from msgspec import Struct


class CalledFunction(Struct):
    name: str
    arguments: str = ""


class CalledCustomTool(Struct):
    name: str
    input: str
