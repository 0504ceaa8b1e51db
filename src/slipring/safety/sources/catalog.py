"""The sources that exist, by kind. Opens the source of a configured check."""

from collections.abc import Callable
from typing import TypeVar

import msgspec

from slipring.base.errors import StartupError
from slipring.config.tables import CheckEntry
from slipring.safety.source_calls import Source, naming
from slipring.safety.sources.functions import GROUP, Functions, find_factory
from slipring.safety.sources.guard import Engines, Guard, GuardSettings
from slipring.safety.sources.moderations import Moderations, ModerationsSettings
from slipring.safety.sources.patterns import Patterns, PatternsSettings, PersonalData, PersonalDataSettings

T = TypeVar("T")


KINDS: dict[str, Callable[[CheckEntry, Engines], Source]] = {
    "guard": lambda entry, engines: Guard(
        _settings(entry, GuardSettings), engines, entry.context, at_once=entry.at_once
    ),
    "moderations": lambda entry, _: Moderations(_settings(entry, ModerationsSettings)),
    "patterns": lambda entry, _: Patterns(_settings(entry, PatternsSettings), entry.timeout_s),
    "pii": lambda entry, _: PersonalData(_settings(entry, PersonalDataSettings), entry.timeout_s),
}


def open_source(entry: CheckEntry, engines: Engines) -> Source:
    """Make the source of a check, without starting it. Raises ``StartupError``, which names the check."""
    with naming(entry):
        make = KINDS.get(entry.source)
        if make is not None:
            return make(entry, engines)
        factory = find_factory(entry.source)
        if factory is None:
            raise StartupError(
                f"source is unknown: it must be one of {', '.join(KINDS)}, python:MODULE:FACTORY, or the name"
                f" of an entry point of the group {GROUP}"
            )
        return Functions(entry.name, factory, msgspec.json.decode(entry.settings), entry.at_once)


def _settings(entry: CheckEntry, form: type[T]) -> T:
    try:
        return msgspec.json.decode(entry.settings, type=form)
    except msgspec.ValidationError as error:
        raise StartupError(f"settings: {_described(str(error))}") from None


def _described(message: str) -> str:
    """A message of msgspec, with the key in the place of its path."""
    what, _, path = message.partition(" - at `$")
    return f"{path.rstrip('`').lstrip('.')}: {what}" if path.strip("`.") else what
