"""How ``KIND:ADDRESS,name=value…`` is read for every engine: addresses, and options as fields of a dataclass.

An option is a field made by ``option``, with its type, default, least value or choices, and a sentence for
the reference. The options that say how contexts are written for a model are declared here, apart from what
reads them: the simulated engine has them, and serves from an installation without the packages that tokenize.
Errors are ``StartupError`` with one line.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, TypeVar
from urllib.parse import urlsplit, urlunsplit

from slipring.base.errors import StartupError, suggestion

T = TypeVar("T")
TEMPLATE, KEEP = "template", "keep"


def option(default: object, meaning: str, *, least: int = 0, choices: Sequence[str] = ()) -> Any:
    """A field of an options dataclass. ``least`` bounds numbers; ``choices`` are all values of a text."""
    metadata = {"help": meaning, "least": least, "choices": choices}
    return dataclasses.field(default=default, metadata=metadata)


class Address(NamedTuple):
    """Where a server is. A query goes with every request."""

    url: str
    """The base: without a query, and without a slash at its end."""
    query: str


def read_address(kind: str, text: str, example: str, *, path: str = "") -> tuple[Address, list[str]]:
    """Split what follows ``KIND:`` into the address of a server and ``name=value`` pairs. ``example``: an
    address for the message; ``path``: for addresses that have none. Raises ``StartupError`` if the first part
    is not an address."""
    address, *pairs = text.split(",")
    demand = f"--engine {kind}: needs the address of a server, as in {kind}:{example}"
    if any(map(str.isspace, address.strip())):
        raise StartupError(f"{demand}, without spaces; options follow after commas, as in ,model=NAME")
    if not address.startswith(("http://", "https://")) or not urlsplit(address).netloc:
        raise StartupError(f"{demand}, not '{address}'" if address else demand)
    parts = urlsplit(address)
    if "@" in parts.netloc:
        raise StartupError(
            f"--engine {kind}: the address names a user or a password, which every user of this machine could"
            " read: name a variable that holds `Basic …` with key_env=, and key_header=Authorization"
        )
    base = urlunsplit((parts.scheme, parts.netloc, parts.path.rstrip("/") or path, "", ""))
    return Address(base, parts.query), pairs


def read_pairs(kind: str, options: type[T], pairs: list[str]) -> dict[str, Any]:
    """Parse ``name=value`` pairs into values for the fields of an options dataclass."""
    fields = {field.name: field for field in _options_of(options)}
    values: dict[str, Any] = {}
    for pair in filter(None, pairs):
        name, separator, value = pair.partition("=")
        if name not in fields:
            hint = suggestion(name, fields)
            raise StartupError(f"--engine {kind}: unknown option '{name}'{hint} (known: {', '.join(fields)})")
        if not separator:
            raise StartupError(f"--engine {kind}: option '{name}' needs a value, as in {name}=1")
        values[name] = _convert(kind, fields[name], value)
    return values


def reference(options: type[Any], beyond: type[Any] | None = None) -> str:
    """The options as a Markdown table, for docs/engines; only those that ``beyond`` does not have."""
    known = {field.name for field in _options_of(beyond)} if beyond is not None else set()
    rows = [
        f"| `{field.name}` | {_shown(field.default)} | {field.metadata['help']} |"
        for field in _options_of(options)
        if field.name not in known
    ]
    return "\n".join(["| option | default | meaning |", "|---|---|---|", *rows])


def _options_of(options: type[Any]) -> list["dataclasses.Field[Any]"]:
    return [field for field in dataclasses.fields(options) if "help" in field.metadata]


def _convert(kind: str, field: "dataclasses.Field[Any]", value: str) -> object:
    if field.type is str:
        if (choices := field.metadata["choices"]) and value not in choices:
            *others, last = filter(None, choices)
            known = f"{', '.join(others)} or {last}" if others else last
            raise StartupError(f"--engine {kind}: option '{field.name}' must be {known}, not '{value}'")
        return value
    if field.type is bool:
        if value not in ("true", "false"):
            raise StartupError(f"--engine {kind}: option '{field.name}' must be true or false, not '{value}'")
        return value == "true"
    least = field.metadata["least"]
    try:
        number = int(value) if field.type is int else float(value)
    except ValueError:
        number = math.nan
    if not (math.isfinite(number) and number >= least):
        raise StartupError(
            f"--engine {kind}: option '{field.name}' must be a number >= {least}, not '{value}'"
        )
    return number


def _shown(default: object) -> str:
    return str(default).lower().removesuffix(".0") or "none"


class RenderingOptions(Protocol):
    """What the options of every token engine have."""

    @property
    def dialect(self) -> str: ...

    @property
    def thinking(self) -> str: ...

    @property
    def variables(self) -> str: ...


def dialect_option() -> Any:
    return option(
        "", "how contexts are written: template, or a format's name; empty: in the model's own format"
    )


def thinking_option() -> Any:
    return option(
        TEMPLATE,
        "thoughts of earlier turns when the user speaks: template (as the model's template says) or keep",
        choices=(TEMPLATE, KEEP),
    )


def variables_option() -> Any:
    return option("", "further variables of the model's template, as in `name:value;name:value`")
