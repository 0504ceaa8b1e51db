"""Options of ``slipring top``, read from flags and environment variables."""

import argparse
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from slipring.commands.argument_parser import UsageError
from slipring.commands.client_environment import is_web_url

KEY_VARIABLE = "SLIPRING_ADMIN_KEY"
_URL = "http://127.0.0.1:9464"

Output = Literal["screen", "text", "json", "json_lines"]


@dataclass(frozen=True, slots=True)
class TopOptions:
    """The server to watch, and what to write. The repr omits the key."""

    url: str = _URL
    """Base URL of the admin listener, without a slash at its end."""
    key: str = field(default="", repr=False)
    output: Output = "screen"

    @property
    def address(self) -> str:
        """The URL as short as it is understood."""
        return self.url.removeprefix("http://")

    @property
    def is_once(self) -> bool:
        """Whether one snapshot is written."""
        return self.output in ("text", "json")


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags that ``from_namespace`` reads."""
    parser.add_argument(
        "--url", default=_URL, help="URL of the server's admin listener (default: %(default)s)"
    )
    parser.add_argument(
        "--admin-key",
        metavar="KEY",
        help=f"key of the admin listener, if it has one (default: ${KEY_VARIABLE}, which other users of the"
        " machine cannot see, unlike this flag)",
    )
    parser.add_argument("--once", action="store_true", help="print one snapshot as text and exit")
    parser.add_argument(
        "--json", action="store_true", help="print JSON: a line per update, or one object with --once"
    )


def from_namespace(namespace: argparse.Namespace, environ: Mapping[str, str]) -> TopOptions:
    """Build the options from parsed flags and the environment. Raises ``UsageError``."""
    flag = namespace.admin_key
    key = (environ.get(KEY_VARIABLE, "") if flag is None else flag).strip()
    if not (key.isascii() and key.isprintable()):
        name = KEY_VARIABLE if flag is None else "--admin-key"
        raise UsageError(f"{name}: a key consists of printable ASCII characters")
    output: Output = "json" if namespace.json else "text"
    if not namespace.once:
        output = "json_lines" if namespace.json else "screen"
    return TopOptions(url=_base_url(namespace.url), key=key, output=output)


def _base_url(text: str) -> str:
    """The URL with a scheme and without a slash at its end: HOST:PORT alone means HTTP."""
    url = text.strip().rstrip("/")
    if "://" not in url:
        url = f"http://{url}"
    if not is_web_url(url) or not url.isprintable() or "?" in url or "#" in url:
        raise UsageError("--url: must be http://HOST:PORT or https://HOST:PORT")
    return url
