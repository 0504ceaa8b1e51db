"""The bill of materials: of this tree, in the wheel, and the same as the wheel's metadata."""

import json
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest
from hatchling.builders.wheel import WheelBuilder
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from supply.bill_of_materials import PATH, bill_of_materials, encode
from supply.locked import ROOT

_RUN_MAKE_LOCK = "pyproject.toml or a lock file has changed: run make lock"


def test_the_bill_is_that_of_this_tree() -> None:
    assert PATH.read_text(encoding="utf-8") == encode(bill_of_materials()), _RUN_MAKE_LOCK


def test_the_bill_is_whole() -> None:
    bill = bill_of_materials()
    refs = [bill["metadata"]["component"]["bom-ref"], *(each["bom-ref"] for each in bill["components"])]
    assert len(set(refs)) == len(refs)
    assert [each["ref"] for each in bill["dependencies"]] == refs
    required = {ref for each in bill["dependencies"] for ref in each["dependsOn"]}
    assert required == set(refs[1:]), "every package is there because another requires it"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    (path,) = WheelBuilder(str(ROOT)).build(directory=str(tmp_path_factory.mktemp("dist")))
    return Path(path)


def test_the_wheel_carries_the_bill_and_agrees_with_it(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if ".dist-info/sboms/" in name]
        bill = json.loads(archive.read(name))
        (described,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        metadata = Parser().parsestr(archive.read(described).decode())
    component = bill["metadata"]["component"]
    assert (component["name"], component["version"]) == (metadata["Name"], metadata["Version"])
    assert component["licenses"] == [{"license": {"id": metadata["License-Expression"]}}]
    versions: dict[str, list[str]] = {}
    for each in bill["components"]:
        versions.setdefault(canonicalize_name(each["name"]), []).append(each["version"])
    for requirement in map(Requirement, metadata.get_all("Requires-Dist", [])):
        if 'extra == "dev"' in str(requirement.marker) or "extra == 'dev'" in str(requirement.marker):
            continue
        found = versions[canonicalize_name(requirement.name)]
        assert all(requirement.specifier.contains(version) for version in found), requirement
    direct = {canonicalize_name(each) for each in _direct(bill)}
    assert direct == {
        canonicalize_name(requirement.name)
        for requirement in map(Requirement, metadata.get_all("Requires-Dist", []))
        if "dev" not in str(requirement.marker)
    }


def _direct(bill: dict[str, list[dict[str, list[str]]]]) -> list[str]:
    (own, *_) = bill["dependencies"]
    return [ref.removeprefix("pkg:pypi/").partition("@")[0] for ref in own["dependsOn"]]
