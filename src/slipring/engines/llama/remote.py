"""A llama-server that is asked: somebody else's, or our own for a vocabulary that cannot be built here.

Calls here wait for their answers. They are made at start, before anybody is served, and by renderers, which
run in threads where their vocabulary is not local.
"""

import json
import urllib.error
import urllib.request
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import lru_cache
from hashlib import sha256
from typing import Any

from slipring.errors import StartupError, Unavailable
from slipring.prompts.tokenizer import Vocabulary

_TIMEOUT_S = 30.0
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))
_SHORT = 200
_LOOKALIKES = (
    *("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>"),
    *("<tools>", "</tools>", "<|python_tag|>"),
)
"""Tokens that llama-server finds in plain text where a vocabulary calls them user defined."""


class External:
    """The address of a llama-server that somebody else runs."""

    trouble: str | None = None

    def __init__(self, url: str, key: str) -> None:
        self.url = url.rstrip("/")
        self.key = key

    def suspect(self) -> None:
        """It is not ours to end."""
        return


def ask(url: str, key: str, path: str, body: object = None) -> Any:
    """Wait for an answer of a llama-server. ``OSError`` or ``ValueError``: there is none that can be used."""
    headers = {"Content-Type": "application/json"}
    if key:
        headers["Authorization"] = f"Bearer {key}"
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url + path, data=data, headers=headers)
    with _OPENER.open(request, timeout=_TIMEOUT_S) as answer:
        return json.loads(answer.read())


def describe(url: str, key: str) -> dict[str, Any]:
    """What a llama-server says about itself and its model."""
    try:
        properties: dict[str, Any] = ask(url, key, "/props")
        models = ask(url, key, "/v1/models")["data"]
        return {**properties, "model": models[0]}
    except urllib.error.HTTPError as error:
        raise StartupError(f"--engine llama: {url} answers with {error.code} {error.reason}") from None
    except OSError as error:
        said = getattr(error, "reason", error)
        raise StartupError(f"--engine llama: cannot reach {url}: {said}") from None
    except (ValueError, LookupError, TypeError):
        raise StartupError(f"--engine llama: {url} does not answer like a llama-server") from None


def understands_llguidance(url: str, key: str) -> bool:
    """Whether a llama-server was built with llguidance, whose grammars can be combined."""
    asked = {"prompt": [0], "n_predict": 1, "cache_prompt": False, "grammar": '%llguidance {}\nstart: "a"\n'}
    try:
        ask(url, key, "/completion", asked)
    except (OSError, ValueError):
        return False
    return True


class RemoteVocabulary(Vocabulary):
    """A vocabulary behind ``/tokenize``. Only deltas are ever sent there."""

    is_local = False

    def __init__(
        self, where: Callable[[], tuple[str, str]], name: str, control: Mapping[str, int] | None = None
    ) -> None:
        """``where`` gives address and key; ``name`` tells this vocabulary from others; ``control`` are the
        control tokens that are known."""
        self._where = where
        self._control = dict(control or {})
        self.fingerprint = sha256(name.encode()).hexdigest()
        self._tokenize_short = lru_cache(maxsize=4096)(self._tokenize)
        self._find_control = lru_cache(maxsize=256)(self._ask_control)

    def encode(self, text: str) -> list[int]:
        ids: list[int] = []
        for piece in _without_lookalikes(text):
            tokenize = self._tokenize_short if len(piece) <= _SHORT else self._tokenize
            ids += tokenize(piece, False)
        return ids

    def learn_control(self, names: Iterable[str]) -> None:
        """Find out which of these are control tokens."""
        self._control |= {name: id for name in names if (id := self._find_control(name)) is not None}

    def control(self, token: str) -> int:
        found = self._control[token] if token in self._control else self._find_control(token)
        if found is None:
            raise KeyError(token)
        return found

    def has_control(self, token: str) -> bool:
        return token in self._control or self._find_control(token) is not None

    def control_tokens(self) -> Collection[str]:
        return self._control.keys()

    def bytes_of(self, id: int) -> bytes:
        raise NotImplementedError("what a token says is told by the engine, with the token")

    def _ask_control(self, token: str) -> int | None:
        ids = self._tokenize(token, True)
        # One token, and not because it is an ordinary word.
        return ids[0] if len(ids) == 1 and self.encode(token) != list(ids) else None

    def _tokenize(self, text: str, special: bool) -> tuple[int, ...]:
        url, key = self._where()
        asked = {"content": text, "add_special": False, "parse_special": special}
        try:
            return tuple(ask(url, key, "/tokenize", asked)["tokens"]) if text else ()
        except (OSError, ValueError, LookupError) as error:
            raise Unavailable("The engine's tokenizer is gone; it will be back.") from error


def _without_lookalikes(text: str) -> list[str]:
    """A text in pieces none of which holds a look-alike of a token: each is cut in the middle."""
    pieces = [text]
    for lookalike in _LOOKALIKES:
        middle = len(lookalike) // 2
        cut = f"{lookalike[:middle]}\0{lookalike[middle:]}"
        pieces = [
            part
            for piece in pieces
            for part in (piece.replace(lookalike, cut).split("\0") if lookalike in piece else [piece])
        ]
    return pieces
