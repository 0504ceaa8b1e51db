"""Colours, dashes and markers of modes and stages, and the CSS that both kinds of reports share.

HTTP modes have warm colours, all others cold ones. Colours differ in lightness as well as in hue, so that
they can be distinguished with any kind of colour vision; dashes and markers work without colours. Modes take
their colours from the classes ``m0``, ``m1`` …, which differ between light and dark; stages look the same in
both.
"""

from collections.abc import Sequence

from msgspec import Struct

from slipring.bench.results import ModeDescription

HTTP = "http"
"""Prefix of the names of HTTP modes."""
LIGHT = ("#a62b00", "#c07c00", "#d6279b", "#0a3f8f", "#0a9a7a", "#7b3ff2")
DARK = ("#d9642c", "#ffe06b", "#f0459a", "#3f84ff", "#98f5e1", "#b9a4ff")
_LIGHT_PAGE = {"paper": "#fff", "ink": "#16191d", "soft": "#525a64", "rule": "#d5dae0"}
_DARK_PAGE = {"paper": "#111418", "ink": "#e8ebef", "soft": "#a8b1bc", "rule": "#343b44"}
_PLOT_STYLE = """
.grid{stroke:var(--rule)}.axis{stroke:var(--soft)}.mark{fill:var(--mode)}.band{fill:var(--mode);opacity:.16}
.line{fill:none;stroke:var(--mode);stroke-width:2;stroke-linejoin:round}
"""
_FAMILY = 3
_DASHES = ("7 3", "2 3", "1 4", None, "10 3 2 3", "5 2 1 2 1 2")
"""By colour: the first mode that is not HTTP has a solid line."""
_MARKS = ("circle", "square", "triangle", "diamond", "cross", "bar")
_STAGES = {
    "decode": "#332288",
    "queue": "#ddcc77",
    "resolve": "#117733",
    "validate": "#88ccee",
    "weigh": "#999933",
    "compact": "#661100",
    "render": "#cc6677",
    "engine_queue": "#44aa99",
    "prefill": "#aa4499",
    "generate": "#b8bec6",
    "store": "#6699cc",
    "terminal": "#882255",
}
_UNKNOWN = ("#44aa99", "#cc6677", "#ddcc77", "#332288", "#88ccee", "#117733", "#aa4499", "#999933")
OUTSIDE_COLOUR = "#7a828c"
REST_COLOUR = "#4b5563"


class Style(Struct, frozen=True, kw_only=True):
    """Line style of a mode."""

    css: str
    """Class that sets the colour."""
    dash: str | None
    mark: str


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
    light, dark = _variables(_LIGHT_PAGE, LIGHT), _variables(_DARK_PAGE, DARK)
    classes = "".join(f".m{index}{{--mode:var(--m{index})}}" for index in range(len(LIGHT)))
    schemes = f":root{{{light}}}@media screen and (prefers-color-scheme:dark){{:root{{{dark}}}}}"
    return f"{schemes}{classes}{_PLOT_STYLE}"


def _variables(page: dict[str, str], modes: tuple[str, ...]) -> str:
    colours = page | {f"m{index}": colour for index, colour in enumerate(modes)}
    return "".join(f"--{name}:{colour};" for name, colour in colours.items())


def stage_colours(names: Sequence[str]) -> dict[str, str]:
    unknown = [name for name in names if name not in _STAGES]
    return {
        name: _STAGES[name] if name in _STAGES else _UNKNOWN[unknown.index(name) % len(_UNKNOWN)]
        for name in names
    }


def ink_on(colour: str) -> str:
    """Black or white, whichever has more contrast on this colour."""
    return "#000" if luminance(colour) > 0.18 else "#fff"


def luminance(colour: str) -> float:
    """Relative luminance of #rrggbb, as defined by WCAG."""
    shares = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4 for share in shares]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
