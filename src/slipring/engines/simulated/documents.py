"""Documents that fit a schema, with a place in them for something to be carried."""

from typing import Any

import msgspec
from msgspec import Struct

from slipring.engines.constraints.compiler import Compiler
from slipring.engines.simulated.schemas.instances import Unsatisfiable, instance
from slipring.errors import InvalidRequest
from slipring.protocol import wire

_CARRIED = "x" * 240
"""Stands for what may be carried: a mark, and words that make it longer."""


class Draft(Struct, frozen=True):
    """A document, and the property that takes any text."""

    plain: str
    """As it is where it carries nothing."""
    before: str = ""
    """Up to the text that it carries; empty: it carries nothing."""
    after: str = ""

    @property
    def carries(self) -> bool:
        return bool(self.before)

    def filled(self, text: str) -> str:
        """The document with a text in it, where it can take it; of its own text, where that is empty."""
        if not text or not self.carries:
            return self.plain
        return self.before + wire.encode(text).decode() + self.after


NOTHING = Draft("{}")


async def draft(compiler: Compiler, tenant: str, schema: bytes | None) -> Draft:
    """A document for a schema. It carries a text in its first string that is free to be any."""
    if schema is None:
        return NOTHING
    return Draft(*await compiler.run(tenant, "draft_document", schema))


def draft_document(schema: bytes) -> tuple[str, str, str]:
    """The fields of a ``Draft``. Takes any time and memory: a task of the sandbox."""
    read = msgspec.json.decode(schema)
    try:
        plain = wire.encode(instance(read)).decode()
    except Unsatisfiable as error:
        raise InvalidRequest(f"The simulated engine finds no value for the schema: {error}.") from error
    for name in _strings(read):
        try:
            document: Any = instance(_holding(read, name))
            return plain, *_parted(document, name)
        except Unsatisfiable:
            continue
    return plain, "", ""


def _parted(document: dict[str, Any], name: str) -> tuple[str, str]:
    """A document as JSON, without the value of one property: what comes before it and after it."""
    members = [wire.encode({key: value}).decode()[1:-1] for key, value in document.items() if key != name]
    names = list(document)
    at = names.index(name)
    lead = "".join(f"{member}," for member in members[:at])
    tail = "".join(f",{member}" for member in members[at:])
    return f"{{{lead}{wire.encode(name).decode()}:", f"{tail}}}"


def _strings(schema: Any) -> list[str]:
    """The names of an object's properties that are strings."""
    properties = schema.get("properties") if isinstance(schema, dict) else None
    if not isinstance(properties, dict):
        return []
    return [name for name, each in properties.items() if isinstance(each, dict) and _may_be_text(each)]


def _may_be_text(schema: dict[str, Any]) -> bool:
    kinds = schema.get("type")
    if "pattern" in schema:
        return False
    return kinds == "string" or (isinstance(kinds, list) and "string" in kinds)


def _holding(schema: dict[str, Any], name: str) -> dict[str, Any]:
    """The schema of the same objects where they hold a long text under this name."""
    properties = schema["properties"]
    held = {"allOf": [properties[name], {"const": _CARRIED}]}
    required = [*schema.get("required", ()), name]
    return {**schema, "properties": {**properties, name: held}, "required": list(dict.fromkeys(required))}
