"""Finds, fetches and checks the files of models on a hub, in the cache that all programs of its client share.

The hub's client honours ``HF_ENDPOINT``, ``HF_HOME``, ``HF_TOKEN`` and ``HF_HUB_OFFLINE``, and shows its
progress on a terminal. It goes on with a download within one process, and removes what is unfinished at its
end, because it cannot rely on locks to keep other processes from writing to the same file. Here a file goes
on where an earlier process has stopped, because its digest is known and checked: what two processes have
spoilt is found and removed.
"""

import hashlib
import logging
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from slipring.base.errors import StartupError
from slipring.engines.hub.projectors import with_projector
from slipring.engines.hub.quantization_and_memory import (
    HubFile,
    Variant,
    choose_variant,
    gigabytes,
    variants_of,
)

if TYPE_CHECKING:
    from huggingface_hub import CachedFileInfo
    from huggingface_hub.errors import HfHubHTTPError

log = logging.getLogger("slipring")
_NAME = re.compile(r"([\w-][\w.-]*/[\w-][\w.-]*)(?::([\w.-]+))?")
_TOKENIZER_FILES = (
    *("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"),
    *("generation_config.json", "config.json"),
)
_TIMEOUT_S = 30
_CHUNK = 1 << 20
_UNFINISHED = ".incomplete"
"""As the client calls such files, whose command ``hf cache prune`` removes them."""


class HubName(Struct, frozen=True):
    """``ORG/REPO[:QUANTIZATION]``."""

    repository: str
    quantization: str = ""


class HeldModel(Struct, frozen=True):
    """A GGUF model in the cache."""

    name: str
    """As ``slipring serve --model`` takes it."""
    path: str
    size: int
    used_at: float
    """Unix time of the last access."""


def hub_name(text: str) -> HubName | None:
    """Read the name of a model on a hub; None if ``text`` is none: a path that exists, or another form."""
    found = _NAME.fullmatch(text)
    if found is None or text.endswith(".gguf") or Path(text).exists():
        return None
    return HubName(found[1], found[2] or "")


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


class ModelHub:
    """A hub and its cache on this machine. Blocks while it downloads."""

    def __init__(
        self,
        endpoint: str | None = None,
        cache: Path | None = None,
        before_download: Callable[[], None] = lambda: None,
    ) -> None:
        """None: what the hub's client takes from the environment. ``before_download`` is called before each
        model of which something is fetched; what it raises ends the fetching."""
        self._endpoint = endpoint
        self._cache = cache
        self._before_download = before_download

    def find_gguf(self, name: HubName, memory: int | None, *, sees: bool = False) -> Variant:
        """The variant of a GGUF model to serve; ``sees``: with its projector, if the repository has one and
        ``memory`` holds both. Raises ``StartupError``."""
        with _failures(name.repository):
            files = self._files(name.repository)
        variants = variants_of(files)
        variant = choose_variant(name.repository, variants, name.quantization, memory)
        return with_projector(variant, variants, files, memory) if sees else variant

    def find_tokenizer(self, repository: str) -> list[HubFile]:
        """The files that describe a model's tokenizer and template. Raises ``StartupError``."""
        with _failures(repository):
            files = [file for file in self._files(repository) if file.path in _TOKENIZER_FILES]
        if all(file.path != _TOKENIZER_FILES[0] for file in files):
            raise StartupError(
                f"{repository} has no {_TOKENIZER_FILES[0]}; tokenizer= takes a model that has one, or a"
                " directory"
            )
        return files

    def fetch_gguf(
        self, name: HubName, memory: int | None, *, sees: bool = False
    ) -> tuple[Variant, str, str]:
        """Fetch the variant that ``find_gguf`` finds, if the cache does not have it. Returns it, the path of
        its (first) file and that of its projector, empty without one. Raises ``StartupError``."""
        variant = self.find_gguf(name, memory, sees=sees)
        paths = self._fetch_all(name.repository, variant.loaded)
        return variant, paths[0], "" if variant.projector is None else paths[-1]

    def fetch_tokenizer(self, repository: str) -> str:
        """Fetch the files that describe a model's tokenizer and template. Returns their directory. Raises
        ``StartupError``."""
        paths = self._fetch_all(repository, self.find_tokenizer(repository))
        return str(Path(paths[0]).parent)

    def missing_bytes(self, repository: str, files: Sequence[HubFile]) -> int:
        """How much of the files is still to be fetched."""
        missing = (file for file in files if self._held_path(repository, file) is None)
        return sum(file.size - self._blob(repository, file).held for file in missing)

    @property
    def room(self) -> int:
        """Bytes that the disk of the cache has left."""
        return free_bytes(self._directory)

    @property
    def _directory(self) -> Path:
        from huggingface_hub.constants import HF_HUB_CACHE

        return self._cache or Path(HF_HUB_CACHE)

    def fetch_description(self, name: HubName) -> str:
        """Fetch what describes a model without its weights, if the repository has that, else a GGUF file.
        Returns the path of a directory or a file. Raises ``StartupError``."""
        with _failures(name.repository):
            has_tokenizer = not name.quantization and any(
                file.path == _TOKENIZER_FILES[0] for file in self._files(name.repository)
            )
        if has_tokenizer:
            return self.fetch_tokenizer(name.repository)
        return self.fetch_gguf(name, None)[1]

    def held(self) -> list[HeldModel]:
        """The GGUF models in the cache, by name. Raises ``StartupError``."""
        with _failures("the cache of models"):
            return sorted(self._held(), key=lambda model: model.name.lower())

    def _held(self) -> Iterator[HeldModel]:
        for repository, directory, files in self._cached():
            for variant in variants_of(HubFile(path, each.size_on_disk) for path, each in files.items()):
                first = variant.files[0].path
                name = f"{repository}:{variant.quantization}" if variant.quantization else repository
                used_at = files[first].blob_last_accessed
                yield HeldModel(name, str(directory / first), variant.size, used_at)

    def _cached(self) -> "Iterator[tuple[str, Path, dict[str, CachedFileInfo]]]":
        """The newest revision of each model in the cache: its name, its directory, its files by path."""
        from huggingface_hub import CacheNotFound, scan_cache_dir

        try:
            repositories = scan_cache_dir(self._cache).repos
        except CacheNotFound:
            return
        for each in repositories:
            newest = max(each.revisions, key=lambda revision: revision.last_modified, default=None)
            if each.repo_type == "model" and newest is not None:
                place = newest.snapshot_path
                yield each.repo_id, place, {str(f.file_path.relative_to(place)): f for f in newest.files}

    def _files(self, repository: str) -> list[HubFile]:
        """The files of a repository: by the hub's list, or by the cache if the hub cannot be reached."""
        try:
            return self._list(repository)
        except _Unreachable as error:
            cached = [each for name, _, each in self._cached() if name == repository]
            if not cached:
                raise StartupError(f"{error}, and {repository} is not in the cache") from None
            log.warning("%s; using what the cache has of %s", error, repository)
            return [HubFile(path, each.size_on_disk) for path, each in cached[0].items()]

    def _list(self, repository: str) -> list[HubFile]:
        from httpx2 import HTTPError
        from huggingface_hub import HfApi
        from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

        try:
            info = HfApi(endpoint=self._endpoint).model_info(
                repository, files_metadata=True, timeout=_TIMEOUT_S
            )
        except OfflineModeIsEnabled:
            raise _Unreachable("HF_HUB_OFFLINE is set") from None
        except HfHubHTTPError as error:
            if error.response is None or error.response.status_code < 500:
                raise
            raise _Unreachable(f"the model hub answers {error.response.status_code}") from None
        except HTTPError as error:
            raise _Unreachable(f"the model hub cannot be reached ({error})") from None
        return [
            HubFile(each.rfilename, each.size or 0, each.lfs.sha256 if each.lfs else "")
            for each in info.siblings or ()
        ]

    def _held_path(self, repository: str, file: HubFile) -> str | None:
        from huggingface_hub import try_to_load_from_cache

        held = try_to_load_from_cache(repository, file.path, cache_dir=self._cache)
        return held if isinstance(held, str) else None

    def _blob(self, repository: str, file: HubFile) -> BlobDownload:
        folder = f"models--{repository.replace('/', '--')}"
        lock = self._directory / ".locks" / folder / f"{file.sha256}.lock"
        return BlobDownload(repository, file, self._directory / folder / "blobs", lock)

    def _fetch_all(self, repository: str, files: Sequence[HubFile]) -> list[str]:
        """Fetch what the cache does not have. Returns the paths of all files."""
        with _failures(repository):
            if missing := self.missing_bytes(repository, files):
                self._before_download()
                require_room(self._directory, missing)
            return [self._fetch(repository, file) for file in files]

    def _fetch(self, repository: str, file: HubFile) -> str:
        """Fetch one file, and check what was fetched now against the digest that the hub states."""
        from huggingface_hub import hf_hub_download

        held = self._held_path(repository, file)
        is_checked = held is None and self._download(repository, file)
        # Names the content in the client's cache. Fetches it only if that has not been done above, or if the
        # hub has a newer one.
        path = hf_hub_download(repository, file.path, endpoint=self._endpoint, cache_dir=self._cache)
        if path != held and file.sha256 and not is_checked and sha256(Path(path)) != file.sha256:
            Path(path).resolve().unlink(missing_ok=True)
            Path(path).unlink(missing_ok=True)
            raise damaged(repository, file)
        return path

    def _download(self, repository: str, file: HubFile) -> bool:
        """Download and check the content of one file, so that a download that stops goes on the next time.
        Returns False for what only the client can fetch: contents without a digest, and larger ones than the
        hub gives as a whole."""
        from huggingface_hub import get_hf_file_metadata, hf_hub_url
        from huggingface_hub.constants import MAX_HTTP_DOWNLOAD_SIZE

        blob = self._blob(repository, file)
        if held := blob.held:
            size = f"{gigabytes(file.size)}, of which {gigabytes(held)} are there"
        else:
            size = gigabytes(file.size)
        log.info("fetching %s of %s (%s)", file.path, repository, size)
        if not file.sha256 or file.size > MAX_HTTP_DOWNLOAD_SIZE:
            return False
        url = hf_hub_url(repository, file.path, endpoint=self._endpoint)
        if get_hf_file_metadata(url, endpoint=self._endpoint).etag != file.sha256:
            return False
        blob.run(url)
        return True


class _Unreachable(Exception):
    """The hub does not answer."""


@contextmanager
def _failures(repository: str) -> Iterator[None]:
    """Raise what the hub's client raises as a ``StartupError`` of one line."""
    try:
        from httpx2 import HTTPError
        from huggingface_hub import errors
    except ModuleNotFoundError:
        raise StartupError(
            f"{repository}: huggingface_hub is not installed, which fetches models from a hub"
            " (pip install '.[llama]' in a checkout of slipring)"
        ) from None
    try:
        yield
    except errors.GatedRepoError:
        raise StartupError(
            f"{repository} is gated: accept its conditions on the hub, then set HF_TOKEN (or: hf auth login)"
        ) from None
    except errors.HfHubHTTPError as error:
        raise _refusal(repository, error) from None
    except errors.LocalEntryNotFoundError:
        raise StartupError(f"the model hub cannot be reached, and {repository} is not in the cache") from None
    except (HTTPError, OSError, ValueError) as error:  # its own errors are of these kinds
        raise StartupError(f"{repository} cannot be read: {_first_line(error)}") from None


def _refusal(repository: str, error: "HfHubHTTPError") -> StartupError:
    """What a hub's answer means to who has named the repository."""
    from huggingface_hub import get_token
    from huggingface_hub.errors import RepositoryNotFoundError

    has_token = get_token() is not None
    response = error.response
    is_unknown = response is not None and response.headers.get("X-Error-Code") == "RepoNotFound"
    if response is not None and response.status_code == 401 and has_token and not is_unknown:
        return StartupError(
            f"{repository}: the hub refuses your token: set HF_TOKEN to a valid one (or: hf auth login), or"
            " remove it to read public models (unset HF_TOKEN; hf auth logout)"
        )
    if isinstance(error, RepositoryNotFoundError):
        private = "one that your token may not read" if has_token else "a private one needs HF_TOKEN"
        return StartupError(f"{repository}: no such file, and no such model on the hub ({private})")
    return StartupError(f"{repository} cannot be read: {_first_line(error)}")


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), repr(error))
