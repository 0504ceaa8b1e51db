"""PgBouncer: the machine's own, or one unpacked from the packages of its Debian or Ubuntu.

Nothing is installed on the machine, and no rights are needed: `apt-get download` fetches the package of
PgBouncer and those libraries of it that the machine lacks, and `dpkg -x` unpacks them into a directory.
"""

import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

_LIBRARIES = ("libc-ares", "libcares", "libevent")
"""How the names of the packages begin that a machine without PgBouncer may lack."""
_DEPENDENCY = re.compile(r"Depends: (\S+)")
PREPARES_FROM = (1, 21)
"""The first version that keeps track of prepared statements in transaction mode."""


class CannotUnpack(Exception):
    """There is no PgBouncer, and no package of it. The message says why."""


class Program:
    """A PgBouncer that can be started."""

    def __init__(self, path: Path, libraries: Path | None = None) -> None:
        self.path = path
        self.environment = dict(os.environ)
        if libraries is not None:
            self.environment["LD_LIBRARY_PATH"] = str(libraries)
        told = subprocess.run(
            [path, "--version"], env=self.environment, capture_output=True, text=True, check=True
        )
        self.version = told.stdout.split()[1]

    @property
    def pool_mode(self) -> str:
        """The mode in which connections are shared most, of those that slipring can use."""
        numbers = tuple(int(part) for part in self.version.split(".")[:2])
        return "transaction" if numbers >= PREPARES_FROM else "session"


def find(directory: Path) -> Program:
    """Return the machine's PgBouncer, or unpack one into a directory."""
    here = os.environ.get("PGBOUNCER") or shutil.which("pgbouncer", path=f"{os.environ['PATH']}:/usr/sbin")
    return Program(Path(here)) if here else _unpacked(directory)


def _unpacked(directory: Path) -> Program:
    try:
        listed = _output("apt-cache", "depends", "pgbouncer")
    except (OSError, subprocess.CalledProcessError):
        raise CannotUnpack("there is no pgbouncer on PATH, and no Debian package of it either") from None
    needed = [name for name in _DEPENDENCY.findall(listed) if name.startswith(_LIBRARIES)]
    with tempfile.TemporaryDirectory() as downloads:
        for name in ("pgbouncer", *needed):
            # A library that is there in a version that the archive no longer has is not downloaded.
            done = subprocess.run(["apt-get", "download", name], cwd=downloads, capture_output=True)
            if done.returncode and name == "pgbouncer":
                raise CannotUnpack(f"apt-get download {name}: {done.stderr.decode().strip()}")
        for package in Path(downloads).glob("*.deb"):
            _output("dpkg", "-x", str(package), str(directory))
    libraries = next((path.parent for path in directory.glob("usr/lib/*/lib*.so*")), None)
    return Program(directory / "usr" / "sbin" / "pgbouncer", libraries)


def _output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
