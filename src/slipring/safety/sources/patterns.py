"""Sources that match regular expressions, in the child process of a sandbox: own patterns, well-known formats
of secrets, and the recognizers of Presidio for personal data."""

import importlib.util
import re
from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta, Struct

from slipring.base.errors import ApiError, InvalidRequest, StartupError, TooExpensive
from slipring.core.checks.verdicts import Subject
from slipring.safety.source_calls import Findings, SourceFailed
from slipring.safety.sources.pattern_matching import VALIDATORS
from slipring.safety.sources.secret_formats import LONGEST, SECRET_FORMATS
from slipring.sandbox.pipe_messages import SandboxLimits
from slipring.sandbox.sandbox import Sandbox

_MIB = 2**20
_MATCHES = "find_matches", "slipring.safety.sources.pattern_matching"
_PERSONAL_DATA = "find_personal_data", "slipring.safety.sources.personal_data_matching"
_MAX_TEXT_BYTES = 64 * _MIB
_WAITING = 1024
"""Calls of one tenant that wait. The inspector bounds them before."""
_MIN_MEMORY_BYTES = 256 * _MIB
_PRESIDIO_MEMORY_BYTES = 1024 * _MIB
"""Presidio imports spaCy."""
RECOGNIZERS = (
    *("CreditCardRecognizer", "EmailRecognizer", "IbanRecognizer", "IpRecognizer", "PhoneRecognizer"),
    *("CryptoRecognizer", "UsSsnRecognizer"),
)
"""The default. Each finds what is written as usual with a score that is flagged by default."""


class PatternSettings(Struct, frozen=True, forbid_unknown_fields=True):
    regex: str
    validator: str = ""


class PatternsSettings(Struct, frozen=True, forbid_unknown_fields=True):
    patterns: dict[str, str | PatternSettings] = {}
    """Regular expressions of Python by category."""
    secrets: bool = False
    """Whether well-known formats of secrets are matched, too."""
    longest_match: Annotated[int, Meta(ge=1)] = 200
    """The most characters that a match of ``patterns`` has. Longer matches are found too, but the beginning
    of one may have been sent before."""


class PersonalDataSettings(Struct, frozen=True, forbid_unknown_fields=True):
    recognizers: tuple[str, ...] = RECOGNIZERS
    """Names of classes in ``presidio_analyzer.predefined_recognizers`` that need no language model."""


class SandboxedMatcher:
    """Calls a function in a sandbox, with fixed options and the texts of subjects."""

    def __init__(self, function: tuple[str, str], options: object, limits: SandboxLimits) -> None:
        """``function``: its name and its module."""
        self._task, module = function
        self._options = options
        self._sandbox = Sandbox(limits, {self._task: module})
        self.version = ""
        self.longest_match = 0

    async def start(self) -> None:
        """Start the child: imports take longer than a check may."""
        try:
            await self._call([""], "")
        except SourceFailed as error:
            raise StartupError(str(error)) from None

    async def close(self) -> None:
        await self._sandbox.close()

    async def inspect(self, subjects: Sequence[Subject], tenant: str) -> list[Findings]:
        found = await self._call([subject.text for subject in subjects], tenant)
        return [Findings(scores) for scores in found]

    async def _call(self, texts: list[str], tenant: str) -> list[dict[str, float]]:
        try:
            found: list[dict[str, float]] = await self._sandbox.run(tenant, self._task, self._options, texts)
        except TooExpensive:
            raise SourceFailed("matching takes too long, or too much memory") from None
        except InvalidRequest as error:
            raise SourceFailed(error.message) from None
        except ApiError as error:
            raise SourceFailed(f"the process that matches patterns failed: {error.code}") from None
        return found


def _limits(timeout_s: float, memory_bytes: int, processes: int) -> SandboxLimits:
    return SandboxLimits(
        # Texts on which one tenant's calls run into the limit must not let the texts of others time out.
        timeout_s=timeout_s / 4,
        memory_bytes=memory_bytes,
        processes=processes,
        waiting=_WAITING,
        call_bytes=_MAX_TEXT_BYTES,
        result_bytes=_MAX_TEXT_BYTES,
        cache_bytes=0,  # the inspector has a cache
        niceness=0,  # turns wait for it
    )


class Patterns(SandboxedMatcher):
    """Flags texts that contain a match of a pattern, with the pattern's category."""

    def __init__(self, settings: PatternsSettings, timeout_s: float) -> None:
        """``timeout_s``: how long the caller waits for a call; a quarter of it is its processor time. Raises
        ``StartupError``."""
        own = [_read_pattern(category, given) for category, given in settings.patterns.items()]
        secrets = [each.as_pattern() for each in SECRET_FORMATS] if settings.secrets else []
        if not own and not secrets:
            raise StartupError("settings have neither patterns nor secrets = true")
        super().__init__(_MATCHES, own + secrets, _limits(timeout_s, _MIN_MEMORY_BYTES, processes=2))
        self.longest_match = max(settings.longest_match if own else 0, LONGEST if secrets else 0)


def _read_pattern(category: str, given: str | PatternSettings) -> list[str]:
    pattern = PatternSettings(given) if isinstance(given, str) else given
    where = f"settings.patterns.{category}"
    try:
        compiled = re.compile(pattern.regex)
    except re.error as error:
        raise StartupError(f"{where} is not a regular expression: {error}") from None
    if compiled.match("") is not None:
        raise StartupError(f"{where} matches the empty text, and so every text")
    if pattern.validator and pattern.validator not in VALIDATORS:
        raise StartupError(f"{where}.validator must be one of {', '.join(VALIDATORS)}")
    return [category, pattern.regex, pattern.validator]


class PersonalData(SandboxedMatcher):
    """Scores personal data by kind, such as ``EMAIL_ADDRESS``, with Presidio's pattern recognizers."""

    def __init__(self, settings: PersonalDataSettings, timeout_s: float) -> None:
        """Raises ``StartupError``."""
        if importlib.util.find_spec("presidio_analyzer") is None:
            raise StartupError(
                "presidio-analyzer is not installed (pip install '.[pii]' in a checkout of slipring)"
            )
        super().__init__(
            _PERSONAL_DATA,
            list(settings.recognizers),
            _limits(timeout_s, _PRESIDIO_MEMORY_BYTES, processes=1),
        )
