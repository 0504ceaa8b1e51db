"""Colours, dashes and markers of modes, and the CSS that both kinds of reports share.

HTTP modes have warm colours, all others cold ones. Colours differ in lightness as well as in hue, so that
they can be distinguished with any kind of colour vision; dashes and markers work without colours. Modes take
their colours from the classes ``m0``, ``m1`` …, which differ between light and dark. The colours of the page
are those of the live page.
"""

from collections.abc import Sequence

from msgspec import Struct

from slipring.commands.bench.report import scripts
from slipring.commands.bench.results import ModeDescription

HTTP = "http"
"""Prefix of the names of HTTP modes."""
LIGHT = ("#a62b00", "#c07c00", "#d6279b", "#0a3f8f", "#0a9a7a", "#7b3ff2")
DARK = ("#d9642c", "#ffe06b", "#f0459a", "#3f84ff", "#98f5e1", "#b9a4ff")
_PLOT_STYLE = """
.grid{stroke:var(--rule)}.axis{stroke:var(--soft)}.mark{fill:var(--mode)}.band{fill:var(--mode);opacity:.16}
.line{fill:none;stroke:var(--mode);stroke-width:2;stroke-linejoin:round}
"""
_FAMILY = 3
_DASHES = ("7 3", "2 3", "1 4", None, "10 3 2 3", "5 2 1 2 1 2")
"""By colour: the first mode that is not HTTP has a solid line."""
_MARKS = ("circle", "square", "triangle", "diamond", "cross", "bar")


class Style(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Line style of a mode."""

    css: str
    """Class that sets the colour."""
    mark: str
    dash: str | None = None
    """None for a solid line."""


def styles(modes: Sequence[ModeDescription]) -> dict[str, Style]:
    """Styles by mode name. The same modes in the same order have the same styles in every report."""
    found: dict[str, Style] = {}
    used = [0, 0]
    for index, mode in enumerate(modes):
        family = 0 if mode.name.startswith(HTTP) else 1
        colour = family * _FAMILY + used[family] % _FAMILY
        used[family] += 1
        found[mode.name] = Style(css=f"m{colour}", dash=_DASHES[colour], mark=_MARKS[index % len(_MARKS)])
    return found


def css() -> str:
    """Colours of page and modes, light and dark, and the style of plots. Print is always light."""
    light, dark = _variables(LIGHT), _variables(DARK)
    classes = "".join(f".m{index}{{--mode:var(--m{index})}}" for index in range(len(LIGHT)))
    schemes = f":root{{{light}}}@media screen and (prefers-color-scheme:dark){{:root{{{dark}}}}}"
    return f"{scripts.colours()}{schemes}{classes}{_PLOT_STYLE}"


def _variables(modes: tuple[str, ...]) -> str:
    return "".join(f"--m{index}:{colour};" for index, colour in enumerate(modes))
