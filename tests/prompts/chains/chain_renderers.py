"""The renderers whose chains are compared: families, built-in templates, and templates in a directory."""

from collections.abc import Iterator
from datetime import date
from functools import cache
from pathlib import Path

from slipring.engines.tokens.template_choice import NAMES as BUILTIN
from slipring.engines.tokens.template_choice import builtin_template
from slipring.prompts.templates.jinja_engines import TemplateError
from slipring.prompts.templates.template_renderer import TemplateRenderer
from tests.prompts.oracles import comparison
from tests.prompts.templates.family_renderers import TODAY, family_renderer
from tests.prompts.templates.family_templates import NAMES as FAMILIES
from tests.prompts.templates.official import renderer_of

_ORACLES = Path(comparison.__file__).parent / "templates"
OTHERS = sorted(path.stem for path in _ORACLES.glob("*.jinja"))
NAMES = (*FAMILIES, *(f"built-in {name}" for name in BUILTIN), *(f"oracle {name}" for name in OTHERS))
DAY: date = TODAY


@cache
def renderer_named(name: str) -> TemplateRenderer:
    """The renderer of one of ``NAMES``."""
    kind, _, rest = name.partition(" ")
    if kind == "built-in":
        return renderer_of(builtin_template(rest), DAY)
    if kind == "oracle":
        return renderer_of((_ORACLES / f"{rest}.jinja").read_text(), DAY)
    return family_renderer(name)


def renderers_in(folder: Path) -> Iterator[tuple[str, TemplateRenderer]]:
    """The renderers of the templates in a directory, without those that are unusable."""
    for path in sorted(folder.glob("*.jinja")):
        try:
            yield path.stem, renderer_of(path.read_text(), DAY)
        except TemplateError as error:
            print(f"{path.stem}: {error}")
