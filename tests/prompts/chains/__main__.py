"""Compares many histories: ``python -m tests.prompts.chains --help``."""

import argparse
import random
import sys
from collections.abc import Iterator
from pathlib import Path

from hypothesis import HealthCheck, Phase, given, seed, settings

from slipring.prompts.templates.template_renderer import TemplateRenderer
from tests.prompts.chains.chain_machine import ChainMachine, Difference
from tests.prompts.chains.chain_renderers import DAY, NAMES, renderer_named, renderers_in
from tests.prompts.chains.histories import HISTORIES, History

_SHOWN = 3
"""How many kinds of differences are printed for a template."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.prompts.chains")
    parser.add_argument("--examples", type=int, default=400, help="histories for each template")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--templates", type=Path, default=None, help="a directory of official templates")
    parser.add_argument("names", nargs="*", help="some of the templates")
    arguments = parser.parse_args()
    chosen = arguments.seed if arguments.seed is not None else random.randrange(10**6)
    print(f"seed {chosen}, {arguments.examples} histories for each template")
    found = 0
    for name, renderer in _renderers(arguments.templates, arguments.names):
        found += _compare(name, renderer, arguments.examples, chosen)
    return 1 if found else 0


def _renderers(folder: Path | None, names: list[str]) -> Iterator[tuple[str, TemplateRenderer]]:
    if folder is None:
        yield from ((name, renderer_named(name)) for name in names or NAMES)
    else:
        yield from (each for each in renderers_in(folder) if not names or each[0] in names)


def _compare(name: str, renderer: TemplateRenderer, examples: int, chosen: int) -> int:
    """Print the shortest history with each kind of difference. Returns how many histories have one."""
    shortest: dict[str, tuple[History, Difference]] = {}
    counts = {"histories": 0, "appended": 0, "in full": 0}

    @settings(
        max_examples=examples,
        derandomize=False,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @seed(chosen)
    @given(HISTORIES)
    def compare(history: History) -> None:
        machine = ChainMachine(renderer, history, DAY)
        first = next(machine.differences(), None)
        counts["appended"] += machine.appended
        counts["in full"] += machine.in_full
        if first is not None:
            counts["histories"] += 1
            kind = first.kind()
            if kind not in shortest or len(history.turns) < len(shortest[kind][0].turns):
                shortest[kind] = (history, first)

    compare()
    choices = ", ".join(choice.name for choice in renderer.chain_choices) or "none"
    print(
        f"{name:50} appended {counts['appended']:5}, in full {counts['in full']:5}, choices: {choices}",
        flush=True,
    )
    for history, difference in sorted(shortest.values(), key=lambda found: len(found[0].turns))[:_SHOWN]:
        print(f"  {history}\n  {difference}", flush=True)
    return counts["histories"]


if __name__ == "__main__":
    sys.exit(main())
