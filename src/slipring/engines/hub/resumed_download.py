"""Downloads a file of a model hub, and goes on where an earlier process has stopped.

The hub's client goes on within one process, and removes what is unfinished at its end, because it cannot rely
on locks to keep other processes from writing to the same file. Here the file's digest is known and checked:
what two processes have spoilt is found and removed.
"""

import hashlib
import shutil
from pathlib import Path

from slipring.base.errors import StartupError
from slipring.engines.hub.gguf_variants import HubFile, gigabytes

_CHUNK = 1 << 20
_UNFINISHED = ".incomplete"
"""As the client calls such files, whose command ``hf cache prune`` removes them."""


class BlobDownload:
    """The download of one file into the place where the client looks for its content."""

    def __init__(self, repository: str, file: HubFile, folder: Path, lock: Path) -> None:
        """``folder``: of the client's cache, where it keeps the contents of a repository's files; ``lock``:
        the file that it locks while it writes this content."""
        self._repository = repository
        self._file = file
        self._content = folder / file.sha256
        self._unfinished = folder / f"{file.sha256}{_UNFINISHED}"
        self._lock = lock

    @property
    def held(self) -> int:
        """Bytes that earlier processes have left."""
        try:
            return min(self._unfinished.stat().st_size, self._file.size)
        except OSError:
            return 0

    def run(self, url: str) -> None:
        """Download what is missing, and check the whole. Raises ``StartupError``, and what the client raises
        before any content has arrived."""
        from huggingface_hub.utils import WeakFileLock  # type: ignore[attr-defined] # exported lazily

        for path in (self._content, self._lock):
            path.parent.mkdir(parents=True, exist_ok=True)
        with WeakFileLock(self._lock):
            if self._content.exists():  # another process has downloaded it meanwhile
                return
            self._receive(url)
            if sha256(self._unfinished) != self._file.sha256:
                self._unfinished.unlink()
                raise damaged(self._repository, self._file)
            self._unfinished.replace(self._content)

    def _receive(self, url: str) -> None:
        from httpx2 import HTTPError
        from huggingface_hub.file_download import http_get
        from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

        begin = self.held
        try:
            with self._unfinished.open("ab") as out:
                out.truncate(begin)
                http_get(
                    url,
                    out,
                    resume_size=begin,
                    headers=build_hf_headers(),
                    expected_size=self._file.size,
                    displayed_filename=self._file.path.rpartition("/")[2],
                )
        except (HTTPError, OSError) as error:
            if not self.held:
                raise
            reason = str(error).strip().partition("\n")[0] or type(error).__name__
            raise StartupError(
                f"{self._file.path} of {self._repository}: the download stopped at {gigabytes(self.held)} of"
                f" {gigabytes(self._file.size)}: {reason} (start again to go on from there)"
            ) from None


def require_room(directory: Path, size: int) -> None:
    """Raise ``StartupError`` if the disk of a directory, which may not exist yet, has no room for ``size``
    bytes."""
    if (free := free_bytes(directory)) < size:
        raise StartupError(
            f"{gigabytes(size)} are to be fetched into {directory}, whose disk has {gigabytes(free)} left:"
            " free some, or name another place with HF_HOME"
        )


def free_bytes(directory: Path) -> int:
    """Room on the disk of a directory, which may not exist yet."""
    existing = next(each for each in (directory, *directory.absolute().parents) if each.exists())
    return shutil.disk_usage(existing).free


def damaged(repository: str, file: HubFile) -> StartupError:
    """What to raise for a file of another content than the hub states."""
    return StartupError(
        f"{file.path} of {repository} was damaged on its way (its SHA-256 is not the one that the hub states)"
        " and is removed: start again to fetch it again"
    )


def sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()
