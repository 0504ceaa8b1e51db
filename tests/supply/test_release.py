"""What ``python -m supply.release`` finds, writes and states."""

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from slipring import __version__
from supply import bill_of_materials, locked, release
from supply.locked import ROOT
from supply.readme import Readme, published
from supply.release import NotReady, changes_of, set_version, statement

CHANGES = """# Changelog

## [Unreleased]

## [2.0.0]

### Added

- Two.

## [1.0.0] - 2026-01-01

- One.
"""


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the files that name the version."""
    for name in (*release.NAMED_IN, "src/slipring/__init__.py", "pyproject.toml"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / "CHANGELOG.md").write_text(CHANGES.replace("2.0.0", __version__))
    shutil.copytree(ROOT / "supply" / "lock", tmp_path / "supply" / "lock")
    for module in (release, locked, bill_of_materials):
        monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(release, "VERSION_FILE", tmp_path / "src" / "slipring" / "__init__.py")
    monkeypatch.setattr(release, "CHANGELOG", tmp_path / "CHANGELOG.md")
    monkeypatch.setattr(release, "BILL", tmp_path / "bill.json")
    return tmp_path


def test_the_version_is_read_without_importing() -> None:
    assert locked.version() == __version__


def test_the_changes_of_a_version() -> None:
    assert changes_of(CHANGES, "2.0.0") == ("", "### Added\n\n- Two.")
    assert changes_of(CHANGES, "1.0.0") == ("2026-01-01", "- One.")
    assert changes_of(CHANGES, "Unreleased") == ("", "")
    with pytest.raises(NotReady, match=r"no section \[3\.0\.0\]"):
        changes_of(CHANGES, "3.0.0")


@pytest.mark.parametrize("unreleased", ["", "- New.\n"])
def test_a_version_is_written_everywhere_at_once(tree: Path, unreleased: str) -> None:
    text = CHANGES.replace("2.0.0", __version__).replace("[Unreleased]\n", f"[Unreleased]\n\n{unreleased}")
    (tree / "CHANGELOG.md").write_text(text)
    set_version("9.1.0rc1", "2030-01-02")
    assert locked.version() == "9.1.0rc1"
    for name in (*release.NAMED_IN, "bill.json"):
        text = (tree / name).read_text()
        assert ("9.1.0rc1" in text, f"slipring:{__version__}" in text) == (True, False), name
    changes = (tree / "CHANGELOG.md").read_text()
    date, section = changes_of(changes, "9.1.0rc1")
    assert (date, section) == ("2030-01-02", unreleased.strip() or "### Added\n\n- Two.")
    assert changes_of(changes, "Unreleased") == ("", "")
    assert changes_of(changes, "1.0.0") == ("2026-01-01", "- One.")


def test_what_is_no_version_is_refused(tree: Path) -> None:
    with pytest.raises(NotReady, match="v1 is no version"):
        set_version("v1", "2030-01-02")


def test_what_speaks_against_a_release(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(release, "_git", lambda *arguments: "")
    set_version("9.1.0", "2030-01-02")
    (tree / "pyproject.toml").write_text((tree / "pyproject.toml").read_text().replace(".example", ".org"))
    assert release.problems() == []
    monkeypatch.setattr(release, "_git", lambda *arguments: " M a")
    (tree / "bill.json").write_text("{}")
    (tree / release.NAMED_IN[0]).write_text("")
    text = (tree / "CHANGELOG.md").read_text().replace(" - 2030-01-02", "")
    (tree / "CHANGELOG.md").write_text(text.replace("[Unreleased]\n", "[Unreleased]\n\n- More.\n"))
    found = "\n".join(release.problems())
    for problem in ("no date", "Unreleased", "does not name 9.1.0", "make lock", "not committed"):
        assert problem in found
    (tree / "CHANGELOG.md").write_text("")
    assert "no section [9.1.0]" in release.problems()[0]


def test_the_statement_names_what_was_built_and_from_what(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(release, "_git", lambda *arguments: "a" * 40)
    (tmp_path / "a.whl").write_bytes(b"a")
    made = statement([tmp_path / "a.whl"])
    assert made["subject"] == [{"name": "a.whl", "digest": {"sha256": hashlib.sha256(b"a").hexdigest()}}]
    source, *locks = made["predicate"]["buildDefinition"]["resolvedDependencies"]
    assert source["digest"] == {"gitCommit": "a" * 40}
    assert [each["uri"] for each in locks] == ["file:supply/lock/build.txt", "file:supply/lock/extras.txt"]


def test_links_of_texts_without_their_files_lead_to_the_published_ones() -> None:
    text = published("[a](docs/a.md#b) ![c](docs/c.svg) [d](https://d.example) [e](#e)", ROOT)
    base = f"https://slipring.example/source/blob/v{__version__}"
    assert text == f"[a]({base}/docs/a.md#b) ![c]({base}/docs/c.svg) [d](https://d.example) [e](#e)"


def test_the_description_of_the_package_is_the_readme() -> None:
    metadata: dict[str, Any] = {}
    Readme(str(ROOT), {}).update(metadata)
    assert metadata["readme"]["text"].startswith("# slipring\n")
    assert "](docs/" not in metadata["readme"]["text"]


def test_the_bill_of_an_installation_names_the_version() -> None:
    bill = json.loads(release.named('{"metadata": {"component": {"name": "slipring"}}}'))
    assert bill["metadata"]["component"]["purl"] == f"pkg:pypi/slipring@{__version__}"
