"""A llama-server that is asked: somebody else's, or our own for a vocabulary that cannot be built here."""

from collections.abc import Callable, Mapping
from typing import Any

from slipring.engines.remote.startup_queries import ask, at_start
from slipring.engines.tokens.remote_vocabulary import MARKS, AskedVocabulary, apart, starts_of, tokenizing

_MARKS = starts_of(MARKS)


class External:
    """The address of a llama-server that somebody else runs."""

    trouble: str | None = None

    def __init__(self, url: str, key: str) -> None:
        self.url = url.rstrip("/")
        self.key = key

    def suspect(self) -> None:
        """It is not ours to end."""
        return

    async def start(self, on_loss: Callable[[], None]) -> None:
        """It runs already, and does not say when it has lost something."""
        return

    async def close(self) -> None:
        return


def describe(url: str, key: str) -> dict[str, Any]:
    """What a llama-server says about itself and its model."""
    with at_start("llama", url, "a llama-server"):
        properties: dict[str, Any] = ask(url, key, "/props")
        models = ask(url, key, "/v1/models")["data"]
        return {**properties, "model": models[0]}


def understands_llguidance(url: str, key: str) -> bool:
    """Whether a llama-server was built with llguidance, whose grammars can be combined."""
    asked = {"prompt": [0], "n_predict": 1, "cache_prompt": False, "grammar": '%llguidance {}\nstart: "a"\n'}
    try:
        ask(url, key, "/completion", asked)
    except (OSError, ValueError):
        return False
    return True


class RemoteVocabulary(AskedVocabulary):
    """A vocabulary behind llama-server's ``/tokenize``."""

    def __init__(
        self, where: Callable[[], tuple[str, str]], name: str, control: Mapping[str, int] | None = None
    ) -> None:
        """``where`` gives address and key."""
        super().__init__(name, control)
        self._where = where

    def _pieces(self, text: str) -> list[str]:
        # Tokens that a vocabulary calls user defined are found in any text.
        return apart(text, _MARKS)

    def _tokenize_text(self, text: str) -> tuple[int, ...]:
        return self._tokenize(text, False)

    def _ask_control(self, token: str) -> int | None:
        ids = self._tokenize(token, True)
        # One token, and not because it is an ordinary word.
        return ids[0] if len(ids) == 1 and self.encode(token) != list(ids) else None

    def _tokenize(self, text: str, special: bool) -> tuple[int, ...]:
        url, key = self._where()
        asked = {"content": text, "add_special": False, "parse_special": special}
        with tokenizing():
            return tuple(ask(url, key, "/tokenize", asked)["tokens"]) if text else ()
