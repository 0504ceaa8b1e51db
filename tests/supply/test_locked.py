"""The lock files: complete, exact, with hashes, and without the name of an index."""

import re
import tomllib
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from supply import locked
from supply.audit import LOCKS
from supply.locked import LOCK, ROOT, Unlocked, read_lock

_PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
_EXTRAS: dict[str, list[str]] = _PROJECT["optional-dependencies"]


def required(*extras: str) -> list[Requirement]:
    """What slipring requires with some extras; an extra of slipring itself stands for what it requires."""
    found = [Requirement(text) for text in _PROJECT["dependencies"]]
    for extra in extras:
        for requirement in map(Requirement, _EXTRAS[extra]):
            found += required(*requirement.extras) if requirement.name == _PROJECT["name"] else [requirement]
    return found


@pytest.mark.parametrize("name", LOCKS)
def test_every_package_has_one_version_for_each_platform_and_hashes(name: str) -> None:
    packages = read_lock(name)
    assert packages
    assert all(package.hashes for package in packages)
    places = [(package.name, package.marker) for package in packages]
    assert len(set(places)) == len(places)


def test_no_lock_file_is_forgotten() -> None:
    assert sorted(path.name for path in LOCK.glob("*.txt")) == sorted(LOCKS)


@pytest.mark.parametrize("name", LOCKS)
def test_no_index_is_named(name: str) -> None:
    text = (LOCK / name).read_text(encoding="utf-8")
    assert "://" not in text
    assert not re.search(r"--(index|extra-index|find-links|trusted)", text)


@pytest.mark.parametrize(
    ("name", "extras"),
    [
        ("dev.txt", ("dev",)),
        ("run.txt", ("llama",)),
        ("container.txt", ("tokens", "postgres")),
        ("extras.txt", tuple(sorted(_EXTRAS.keys() - {"dev"}))),
    ],
)
def test_the_lock_has_what_the_project_requires(name: str, extras: tuple[str, ...]) -> None:
    versions: dict[str, list[str]] = {}
    for package in read_lock(name):
        versions.setdefault(canonicalize_name(package.name), []).append(package.version)
    for requirement in required(*extras):
        found = versions.get(canonicalize_name(requirement.name))
        assert found, f"{requirement} is not locked: run make lock"
        assert all(requirement.specifier.contains(version) for version in found), requirement


def test_users_and_developers_get_the_same_versions() -> None:
    versions = [{(each.name, each.version) for each in read_lock(name)} for name in ("dev.txt", "extras.txt")]
    names = [{name for name, _ in found} for found in versions]
    shared = names[0] & names[1]
    assert shared
    for name in shared:
        assert {each for each in versions[0] if each[0] == name} & {
            each for each in versions[1] if each[0] == name
        }


@pytest.mark.parametrize("line", ["aiohttp>=3", "aiohttp", "git+https://host/x", "--index-url x"])
def test_a_line_that_pins_nothing_is_refused(
    line: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bad.txt").write_text(f"{line}\n    --hash=sha256:{'0' * 64}\n", encoding="utf-8")
    monkeypatch.setattr(locked, "LOCK", tmp_path)
    with pytest.raises(Unlocked):
        read_lock("bad.txt")
