"""Colours, dashes and marks: which mode and which stage has which.

HTTP is warm, the rest is cold. Colours differ in lightness as well as in hue, so that they are told apart
with any kind of colour vision; without colours, dashes and marks tell modes apart. Colours of modes are those
of classes ``m0``…, light and dark; those of stages are the same on both.
"""

from collections.abc import Sequence

from msgspec import Struct

from slipring.bench.results import Mode

HTTP = "http"
"""What names of modes begin with that speak it."""
LIGHT = ("#a62b00", "#c07c00", "#d6279b", "#0a3f8f", "#0a9a7a", "#7b3ff2")
DARK = ("#d9642c", "#ffe06b", "#f0459a", "#3f84ff", "#98f5e1", "#b9a4ff")
_FAMILY = 3
_DASHES = ("7 3", "2 3", "1 4", None, "10 3 2 3", "5 2 1 2 1 2")
"""By colour: the first that is not HTTP is drawn without."""
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
NO_STAGE = "#7a828c"
REST_OF_STAGES = "#4b5563"


class Style(Struct, frozen=True, kw_only=True):
    """How a mode is drawn."""

    css: str
    """The class that gives it its colour."""
    dash: str | None
    mark: str


def styles(modes: Sequence[Mode]) -> dict[str, Style]:
    """By the names of the modes. The same modes in the same order look the same in every report."""
    found: dict[str, Style] = {}
    used = [0, 0]
    for index, mode in enumerate(modes):
        family = 0 if mode.name.startswith(HTTP) else 1
        colour = family * _FAMILY + used[family] % _FAMILY
        used[family] += 1
        found[mode.name] = Style(css=f"m{colour}", dash=_DASHES[colour], mark=_MARKS[index % len(_MARKS)])
    return found


def stage_colours(names: Sequence[str]) -> dict[str, str]:
    unknown = [name for name in names if name not in _STAGES]
    return {
        name: _STAGES[name] if name in _STAGES else _UNKNOWN[unknown.index(name) % len(_UNKNOWN)]
        for name in names
    }


def ink_on(colour: str) -> str:
    """Black or white, whichever is better read on it."""
    return "#000" if luminance(colour) > 0.18 else "#fff"


def luminance(colour: str) -> float:
    """Relative, as WCAG has it, of #rrggbb."""
    shares = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4 for share in shares]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
