"""The texts of the project for places where its files are not beside them: the package index shows the
README, the page of a release its changes. Links to files of the project lead there to its published source.

Hatchling reads this file by its path when it builds the package, so that it imports nothing of the project.
"""

import re
import tomllib
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_RELATIVE = re.compile(r"\]\((?![a-z]+:|#)")


def published(text: str, root: Path) -> str:
    """A text of the project's root, whose links lead to the published files of this version."""
    settings = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["tool"]
    source = (root / settings["hatch"]["version"]["path"]).read_text(encoding="utf-8")
    (version,) = re.findall(r'^__version__ = "(.+)"$', source, re.MULTILINE)
    return _RELATIVE.sub(f"]({settings['slipring']['files'].format(version=version)}/", text)


class Readme(MetadataHookInterface):
    """The description of the package."""

    def update(self, metadata: dict[str, Any]) -> None:
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": published(text, Path(self.root))}
