"""``make audit``: advisories in files, and an index that has none."""

import json
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from supply.audit import CLEAN, UNREACHABLE, UNREADABLE, VULNERABLE, find, locked_packages, main
from supply.locked import Package


def advisory(name: str, *events: dict[str, str], **fields: Any) -> dict[str, Any]:
    affected = {
        "package": {"ecosystem": "PyPI", "name": name},
        "ranges": [{"type": "ECOSYSTEM", "events": list(events)}],
    }
    return {"id": "PYSEC-1", "affected": [affected], **fields}


def at(version: str) -> Package:
    return Package("some-package", version, "", (), ())


@pytest.mark.parametrize(
    ("version", "events", "is_found"),
    [
        ("1.5", [{"introduced": "0"}, {"fixed": "2"}], True),
        ("0.0.1.dev1", [{"introduced": "0"}, {"fixed": "2"}], True),
        ("2", [{"introduced": "0"}, {"fixed": "2"}], False),
        ("2.0.post1", [{"introduced": "0"}, {"fixed": "2"}], False),
        ("2.0rc1", [{"introduced": "0"}, {"fixed": "2"}], True),
        ("1.9", [{"introduced": "1.5"}], True),
        ("1.4", [{"introduced": "1.5"}], False),
        ("2", [{"introduced": "1"}, {"last_affected": "2"}], True),
        ("2.1", [{"introduced": "1"}, {"last_affected": "2"}], False),
        ("3.5", [{"introduced": "1"}, {"fixed": "2"}, {"introduced": "3"}, {"fixed": "4"}], True),
        ("2.5", [{"introduced": "3"}, {"fixed": "4"}, {"introduced": "1"}, {"fixed": "2"}], False),
        ("10.0", [{"introduced": "9"}, {"fixed": "11"}], True),
    ],
)
def test_a_version_is_in_a_range(version: str, events: list[dict[str, str]], is_found: bool) -> None:
    assert bool(find([at(version)], [advisory("Some_Package", *events)])) == is_found


def test_listed_versions_other_ecosystems_and_withdrawn_advisories() -> None:
    listed = {
        "id": "X",
        "affected": [{"package": {"ecosystem": "PyPI", "name": "some.package"}, "versions": ["1.0"]}],
    }
    foreign = {
        "id": "Y",
        "affected": [{"package": {"ecosystem": "npm", "name": "some-package"}, "versions": ["1.0"]}],
    }
    withdrawn = advisory("some-package", {"introduced": "0"}, withdrawn="2026-01-01T00:00:00Z")
    assert [found.advisory for found in find([at("1.0"), at("1.1")], [listed, foreign, withdrawn])] == ["X"]


@pytest.mark.parametrize("form", ["file", "list", "directory", "zip"])
def test_advisories_in_files_of_every_form(
    form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    victim = next(package for package in locked_packages() if package.name == "aiohttp")
    record = advisory("aiohttp", {"introduced": "0"}, {"fixed": "99"})
    text = json.dumps([record] if form == "list" else record)
    path = tmp_path / "advisories"
    if form == "directory":
        (path / "PyPI").mkdir(parents=True)
        (path / "PyPI" / "one.json").write_text(text, encoding="utf-8")
    elif form == "zip":
        path = path.with_suffix(".zip")
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("one.json", text)
    else:
        path.write_text(text, encoding="utf-8")
    assert main(["--advisories", str(path)]) == VULNERABLE
    assert capsys.readouterr().out == f"aiohttp {victim.version}: PYSEC-1 (fixed in 99)\n"


def test_nothing_is_found_in_advisories_of_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "one.json"
    path.write_text(json.dumps(advisory("no-such-package", {"introduced": "0"})), encoding="utf-8")
    assert main(["--advisories", str(path)]) == CLEAN
    assert "no known vulnerability" in capsys.readouterr().out


@pytest.mark.parametrize("text", ["", "[]", "{}", "no JSON", '[{"affected": []}]'])
def test_what_is_no_advisory_is_not_taken_for_a_clean_bill(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "one.json"
    path.write_text(text, encoding="utf-8")
    assert main(["--advisories", str(path)]) == UNREADABLE
    assert main(["--advisories", str(tmp_path / "absent.json")]) == UNREADABLE
    assert main(["--advisories", str(tmp_path / "absent.zip")]) == UNREADABLE
    assert capsys.readouterr().out == ""


def auditor(directory: Path, printed: str) -> str:
    """A stand-in for pip-audit that prints what one printed."""
    path = directory / "pip-audit"
    path.write_text(f"#!{sys.executable}\nprint({printed!r})\n", encoding="utf-8")
    path.chmod(0o700)
    return str(path)


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        ([{"name": "a", "version": "1", "vulns": []}], CLEAN),
        ([{"name": "a", "version": "1", "vulns": [{"id": "PYSEC-1", "fix_versions": []}]}], VULNERABLE),
        ([{"name": "a", "skip_reason": "not found"}], UNREACHABLE),
        ([{"name": "a", "version": "1", "vulns": []}, {"name": "b", "skip_reason": "x"}], UNREACHABLE),
        ([], UNREACHABLE),
        (None, UNREACHABLE),
    ],
)
def test_an_index_that_knows_nothing_is_not_taken_for_a_clean_bill(
    asked: Any, code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tool = auditor(tmp_path, json.dumps({"dependencies": asked}) if asked is not None else "")
    assert main(["--tool", tool]) == code
    assert ("make audit ADVISORIES=" in capsys.readouterr().err) == (code == UNREACHABLE)
