"""Records what independent implementations write and read, and compares slipring with it.

``python -m tests.prompts.oracles.live --tools .venv-oracles`` needs an environment with these packages:
``make test-oracles`` sets it up. ``--templates`` names a directory of official templates, which are compared
as well. ``--write`` writes the recordings that the ordinary tests are compared with.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from slipring.engines.tokens.template_choice import builtin_template
from slipring.prompts.templates.detection.probes import common_prefix
from tests.prompts.oracles.comparison import (
    Comparison,
    Difference,
    family_renderer,
    family_vocabulary,
    own_template,
)
from tests.prompts.oracles.conversations import PROMPTS
from tests.prompts.oracles.differences import reason_for
from tests.prompts.oracles.families import FAMILIES, Family
from tests.prompts.vocabulary import qwen2, qwen2_metadata

ROOT = Path(__file__).parents[3]
FOLDER = Path(__file__).parent


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.prompts.oracles.live")
    parser.add_argument("--tools", type=Path, required=True, help="the environment with the oracles")
    parser.add_argument("--templates", type=Path, help="a directory of official templates")
    parser.add_argument("--write", action="store_true", help="write the recordings of the ordinary tests")
    parser.add_argument("--only", default="", help="families, separated by commas")
    options = parser.parse_args()
    failures = 0
    names = options.only.split(",") if options.only else [*FAMILIES]
    with TemporaryDirectory(prefix="slipring-oracles-") as folder:
        record(options.tools, Path(folder), names)
        for name in names:
            recording = json.loads(Path(folder, f"{name}.json").read_text())
            failures += compare_family(name, FAMILIES[name], recording, options)
    return 1 if failures else 0


def record(tools: Path, folder: Path, names: Sequence[str]) -> None:
    """Run the recorder in the environment of the oracles."""
    described = json.loads(qwen2()._backend.to_str())
    described["added_tokens"] = []
    vocabulary = folder / "vocabulary.json"
    vocabulary.write_text(json.dumps(described))
    python = str(tools / "bin" / "python")
    command = [python, "-m", "tests.prompts.oracles.record", str(vocabulary), str(folder), *names]
    subprocess.run(command, check=True, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)})


def compare_family(name: str, family: Family, recording: dict[str, Any], options: argparse.Namespace) -> int:
    """Print the differences of a family and return how many are not meant."""
    vocabulary = family_vocabulary(qwen2_metadata(), family)
    has_ids = family.oracle == "renderers" and family.variant != "gpt-oss"
    unmeant = 0
    for source, template in sources(family, options.templates):
        comparison = Comparison(
            family,
            family_renderer(family, template, vocabulary),
            recording,
            has_ids=has_ids,
            has_tools=family.has_tools(source),
        )
        keeping = Comparison(
            family,
            family_renderer(family, template, vocabulary, keeps_thoughts=True),
            recording,
            has_ids=has_ids,
            has_tools=family.has_tools(source),
        )
        found = [*comparison.differences(), *keeping.kept_thoughts()]
        reasons = {each.case: reason_for(name, source, each.case) for each in found}
        wrong = [each for each in found if reasons[each.case] is None]
        unmeant += len(wrong)
        cases = len(recording["prompts"]) + len(recording["chains"])
        print(f"{name:14} {source:9} {cases:3} cases, {len(found):2} meant or not, {len(wrong):2} faults")
        for each in wrong:
            print(_shown(each))
        if options.write and source == ("builtin" if family.builtin else "own"):
            # Recordings have no ids.
            texts = {case: reason for case, reason in reasons.items() if not case.endswith(": ids")}
            meant = {case: reason for case, reason in texts.items() if reason is not None}
            write(name, family, recording, meant)
    return unmeant


def sources(family: Family, templates: Path | None) -> Iterator[tuple[str, str]]:
    """The templates that are compared, and where they come from."""
    if family.builtin:
        yield "builtin", builtin_template(family.builtin)
    if family.own:
        yield "own", own_template(family)
    path = templates / f"{family.official}.jinja" if templates is not None else None
    if path is not None and path.exists():
        yield "official", path.read_text()


def write(name: str, family: Family, recording: dict[str, Any], meant: dict[str, str]) -> None:
    """Write what the ordinary tests need: texts without ids, and no words of official templates."""
    kept = {
        name: each
        for name, each in recording["prompts"].items()
        if family.builtin or family.own_tools or not _has_tools(name)
    }
    unsaid = {f"prompt: {name}" for name in kept} & meant.keys()
    golden = {
        "oracle": recording["oracle"],
        "stops": recording["stops"],
        "differs": meant,
        "prompts": {
            name: {"text": "" if f"prompt: {name}" in unsaid else each["text"]} for name, each in kept.items()
        },
        "chains": {name: [_entry(each) for each in chain] for name, chain in recording["chains"].items()},
    }
    text = json.dumps(golden, ensure_ascii=False, indent=1)
    (FOLDER / f"{name}.json").write_text(text + "\n")


def _has_tools(name: str) -> bool:
    return bool(PROMPTS[name].get("tools"))


def _entry(entry: dict[str, Any]) -> dict[str, Any]:
    texts = {key: {"text": entry[key]["text"]} for key in ("added", "kept", "emitted") if key in entry}
    return texts | {key: entry[key] for key in ("parsed",) if key in entry}


def _shown(difference: Difference) -> str:
    """A difference, from shortly before the place where the texts differ."""
    ours, theirs = (each if isinstance(each, str) else repr(each) for each in difference[1:])
    at = max(len(common_prefix(ours, theirs)) - 40, 0)
    ours, theirs = ours[at : at + 160], theirs[at : at + 160]
    return f"    {difference.case}\n      ours:   {ours!r}\n      theirs: {theirs!r}"


if __name__ == "__main__":
    sys.exit(main())
