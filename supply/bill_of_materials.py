"""The bill of materials of the wheel, as CycloneDX JSON.

It lists the packages that the wheel and its extras are tested with, from the lock file ``extras.txt``, and
who requires whom. It contains no time and no random numbers, so the same lock gives the same file. ``make
lock`` writes it, and the wheel carries it in ``.dist-info/sboms``.
"""

import json
import sys
import tomllib
import uuid
from pathlib import Path
from typing import Any

from supply.locked import PROJECT, ROOT, Package, read_lock, version

PATH = ROOT / "supply" / "slipring.cdx.json"
_NAMESPACE = uuid.UUID("6f9b3c1e-5d0a-5b8e-9c57-0d9f5f3a7e21")


def bill_of_materials() -> dict[str, Any]:
    """The bill of this source tree."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    packages = read_lock("extras.txt")
    purl = f"pkg:pypi/{PROJECT}@{version()}"
    bill: dict[str, Any] = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "component": {
                "type": "application",
                "bom-ref": purl,
                "name": PROJECT,
                "version": version(),
                "description": project["description"],
                "purl": purl,
                "licenses": [{"license": {"id": project["license"]}}],
            }
        },
        "components": [_component(package) for package in packages],
        "dependencies": [
            {"ref": ref, "dependsOn": sorted(_required_by(name, packages))}
            for ref, name in [(purl, PROJECT), *((each.purl, each.name) for each in packages)]
        ],
    }
    content = json.dumps(bill, sort_keys=True)
    return {**bill, "serialNumber": f"urn:uuid:{uuid.uuid5(_NAMESPACE, content)}"}


def _component(package: Package) -> dict[str, Any]:
    component: dict[str, Any] = {
        "type": "library",
        "bom-ref": package.purl,
        "name": package.name,
        "version": package.version,
        "purl": package.purl,
    }
    if package.marker:
        component["properties"] = [{"name": "slipring:installed-if", "value": package.marker}]
    return component


def _required_by(name: str, packages: list[Package]) -> set[str]:
    return {package.purl for package in packages if name in package.parents}


def encode(bill: dict[str, Any]) -> str:
    return json.dumps(bill, indent=1, sort_keys=True) + "\n"


def main(path: Path = PATH) -> int:
    path.write_text(encode(bill_of_materials()), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
