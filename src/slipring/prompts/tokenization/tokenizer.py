"""Vocabularies: text to token ids and ids back to bytes.

Held in this process, made from a GGUF or from a ``tokenizer.json``; engines bring others. Two kinds of input
are kept apart for good: text, which can never become a control token whatever it says, and control tokens,
which the dialect names.
"""

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import tokenizers
from tokenizers import Regex, decoders, models, pre_tokenizers
from tokenizers.pre_tokenizers import ByteLevel, PreTokenizer, Split
from tokenizers.pre_tokenizers import Sequence as Cuts

from slipring.prompts.tokenization.token_budget import BOUNDLESS, Room
from slipring.prompts.tokenization.windows import WINDOW_CHARS, Windows, composes, is_splittable

_CONTROL, _USER_DEFINED = 3, 4
_SHORT = 16
"""What dialects write around texts. Longer ones could tell a tenant, by their speed, what others sent."""
_MOST_COMPOSED = 4
"""Characters that become one where they are composed."""
_COUNTED_AT_ONCE = 65_536
"""Characters that are counted before other threads have their turn."""
_LONGEST_SPELLING = 48
"""Bytes. What is to be spelled is a character or two, of which one token is known."""
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2 = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
_SPLITS: dict[str, tuple[str, ...]] = {
    "gpt-2": (_GPT2,),
    "smollm": (r"\p{N}", _GPT2),
    "llama-bpe": (_LLAMA3,),
    "llama3": (_LLAMA3,),
    "qwen2": (_QWEN2,),
}
"""How text is cut before merging, by the name that a GGUF gives."""


class UnknownVocabulary(ValueError):
    """This vocabulary cannot be built here; the engine's own tokenizer has to be asked."""


class Vocabulary(ABC):
    """Token ids and what they mean: the two ways in, text and control tokens, and the way out."""

    fingerprint: str
    """Names the vocabulary: ids made by vocabularies of one fingerprint mean the same."""
    is_local: bool = True
    """Whether everything is known in this process. If not, ``encode`` waits for somebody else's answer."""

    @abstractmethod
    def encode(self, text: str, room: Room = BOUNDLESS) -> list[int]:
        """The ids of a text. What looks like a control token in it is text like any other.

        A long text that has more tokens than there is room for is not tokenized to its end: that may raise
        ``TooManyTokens``.
        """

    @abstractmethod
    def least_tokens(self, text: str) -> int:
        """A number of tokens that a text has at least, told from its length."""

    @abstractmethod
    def control(self, token: str) -> int:
        """The id of a control token. ``KeyError``: this vocabulary has no such token."""

    @abstractmethod
    def has_control(self, token: str) -> bool:
        """Whether this vocabulary has such a control token."""

    @abstractmethod
    def control_tokens(self) -> Collection[str]:
        """The names of all control tokens."""

    @abstractmethod
    def bytes_of(self, id: int) -> bytes:
        """The bytes that a token stands for; a control token stands for none, unless it is visible."""

    def spell(self, data: bytes, count: int, last: Sequence[int]) -> list[int] | None:
        """Ids that, with ``last`` after them, say ``data``: exactly so many, or None if there are none."""
        return None


class Tokenizer(Vocabulary):
    """A vocabulary that is held in this process."""

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        control: Mapping[str, int],
        fingerprint: str,
        *,
        visible: Collection[str] = (),
    ) -> None:
        self._backend = backend
        self._control = dict(control)
        self._bytes = {id: token.encode() if token in visible else b"" for token, id in control.items()}
        """Of control tokens, of which visible ones, such as Qwen's ``<tool_call>``, are text once a model has
        written them; and of words that models have said, which they say again and again."""
        self._words: dict[bytes, int] | None = None
        self._short = lru_cache(maxsize=4096)(self._encode)
        self._windows = Windows(backend) if is_splittable(backend) else None
        self._lengths = _Lengths(backend)
        self.fingerprint = fingerprint

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, Any]) -> "Tokenizer":
        """Build the tokenizer that a GGUF describes."""
        kind = metadata.get("tokenizer.ggml.model")
        name = metadata.get("tokenizer.ggml.pre", "")
        if kind != "gpt2" or name not in _SPLITS:
            raise UnknownVocabulary(f"vocabulary '{kind}' with pre-tokenizer '{name}'")
        tokens: list[str] = metadata.get("tokenizer.ggml.tokens", [])
        merges: list[str] = metadata.get("tokenizer.ggml.merges", [])
        types: list[int] = metadata.get("tokenizer.ggml.token_type", [])
        if not tokens or len(types) != len(tokens):
            raise UnknownVocabulary(f"{len(tokens)} tokens of {len(types)} types")
        control = {token: id for id, token in enumerate(tokens) if types[id] in (_CONTROL, _USER_DEFINED)}
        vocabulary = {token: id for id, token in enumerate(tokens) if token not in control}
        pairs = [(left, right) for left, _, right in (merge.partition(" ") for merge in merges)]
        backend = tokenizers.Tokenizer(
            models.BPE(
                vocab=vocabulary,
                merges=[pair for pair in pairs if _can_merge(pair, vocabulary)],
                ignore_merges=name in ("llama-bpe", "llama3"),
            )
        )
        backend.pre_tokenizer = _pre_tokenizer(_SPLITS[name])
        backend.decoder = decoders.ByteLevel()
        digest = hashlib.sha256(f"{name}\n".encode() + "\n".join([*tokens, *merges]).encode())
        visible = {token for token, id in control.items() if types[id] == _USER_DEFINED}
        return cls(backend, control, digest.hexdigest(), visible=visible)

    @classmethod
    def from_json(cls, text: str) -> "Tokenizer":
        """Load a ``tokenizer.json``. Its added tokens are the control tokens."""
        described = json.loads(text)
        model = described["model"]
        if model.get("type") != "BPE":
            raise UnknownVocabulary(f"tokenizer.json of model '{model.get('type')}'")
        added = described["added_tokens"]
        control = {token["content"]: token["id"] for token in added}
        # Text must not be searched for control tokens, nor find them among words, nor become the unknown one.
        vocabulary = {token: id for token, id in model["vocab"].items() if token not in control}
        if not _BYTE_OF.keys() >= set("".join(vocabulary)):
            raise UnknownVocabulary("tokenizer.json whose words are not written as bytes")
        pairs = [tuple(merge.split(" ", 1) if isinstance(merge, str) else merge) for merge in model["merges"]]
        model["vocab"], model["unk_token"] = vocabulary, None
        model["merges"] = [pair for pair in pairs if _can_merge(pair, vocabulary)]
        described["added_tokens"] = []
        described["post_processor"] = described["truncation"] = described["padding"] = None
        backend = tokenizers.Tokenizer.from_str(json.dumps(described))
        visible = {token["content"] for token in added if not token["special"]}
        return cls(backend, control, hashlib.sha256(text.encode()).hexdigest(), visible=visible)

    def encode(self, text: str, room: Room = BOUNDLESS) -> list[int]:
        if len(text) <= _SHORT:
            return list(self._short(text))
        if len(text) <= WINDOW_CHARS:
            return self._encode(text)
        if self._windows is not None:
            return self._windows.encode(text, room)
        room.require_splittable(len(text))
        return self._encode(text)

    def least_tokens(self, text: str) -> int:
        return self._lengths.least_tokens(text)

    def _encode(self, text: str) -> list[int]:
        # Where in the text each token lies is nobody's business, and a sixth of the work.
        return self._backend.encode_batch_fast([text], add_special_tokens=False)[0].ids if text else []

    def control(self, token: str) -> int:
        return self._control[token]

    def has_control(self, token: str) -> bool:
        return token in self._control

    def control_tokens(self) -> Collection[str]:
        return self._control.keys()

    def bytes_of(self, id: int) -> bytes:
        said = self._bytes.get(id)
        if said is None:
            token = self._backend.id_to_token(id)
            if token is None:
                return b""
            said = self._bytes[id] = _spelled(token)
        return said

    def spell(self, data: bytes, count: int, last: Sequence[int]) -> list[int] | None:
        ending = self._said(last)
        if not 0 < count <= len(data) - len(ending) <= _LONGEST_SPELLING or not data.endswith(ending):
            return None
        # Several spellings may fit. What is most likely is the usual one of the whole.
        usual = self.encode(data.decode("utf-8", "ignore"))
        known = [id for id in last if self.bytes_of(id)]
        if len(usual) == count + len(known) and usual[count:] == known and self._said(usual) == data:
            return usual[:count]
        if self._words is None:
            ids = self._backend.get_vocab(with_added_tokens=False).values()
            self._words = {self.bytes_of(id): id for id in ids}
        return _split(data.removesuffix(ending), count, self._words)

    def _said(self, ids: Iterable[int]) -> bytes:
        return b"".join(map(self.bytes_of, ids))


class _Lengths:
    """How long the words of a vocabulary are, and which characters have none."""

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        words = backend.get_vocab(with_added_tokens=False)
        self._longest = 1
        for word in words:
            if len(word.encode()) > self._longest:
                self._longest = max(self._longest, len(_spelled(word)))
        if composes(backend):
            self._longest *= _MOST_COMPOSED
        missing = {byte for letter, byte in _BYTE_OF.items() if letter not in words}
        self._silent = [chr(byte) for byte in missing if byte < 0x80]
        """Characters that no token is made of."""
        # Every other character ends with one of these bytes.
        self._is_sure = missing.isdisjoint(range(0x80, 0xC0))

    def least_tokens(self, text: str) -> int:
        if not self._is_sure:
            return 0
        silent = 0
        for start in range(0, len(text), _COUNTED_AT_ONCE):
            piece = text[start : start + _COUNTED_AT_ONCE]
            silent += sum(map(piece.count, self._silent))
        return -((silent - len(text)) // self._longest)


def _spelled(token: str) -> bytes:
    try:
        return bytes(map(_BYTE_OF.__getitem__, token))
    except KeyError:
        return token.encode()  # a word that was added as it is, not in the alphabet of bytes


def _split(data: bytes, count: int, words: Mapping[bytes, int]) -> list[int] | None:
    """The ids of ``count`` words that are ``data`` together."""
    hopeless: set[tuple[int, int]] = set()  # so many bytes in so many words: tried once, and not again

    def split(rest: bytes, count: int) -> list[int] | None:
        if count == 1:
            return [words[rest]] if rest in words else None
        if (len(rest), count) in hopeless:
            return None
        for end in range(1, len(rest) - count + 2):
            if rest[:end] in words and (ids := split(rest[end:], count - 1)) is not None:
                return [words[rest[:end]], *ids]
        hopeless.add((len(rest), count))
        return None

    return split(data, count)


def _can_merge(pair: tuple[str, ...], vocabulary: Mapping[str, int]) -> bool:
    """Whether both halves and the whole are words of text: a merge must not make a control token."""
    return "".join(pair) in vocabulary and all(half in vocabulary for half in pair)


def _pre_tokenizer(patterns: tuple[str, ...]) -> PreTokenizer:
    cuts: list[PreTokenizer] = [Split(Regex(pattern), behavior="isolated") for pattern in patterns]
    return Cuts([*cuts, ByteLevel(add_prefix_space=False, use_regex=False)])


def _byte_alphabet() -> dict[str, int]:
    """The characters that byte-level vocabularies write bytes with: printable ones stand for themselves."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in plain]
    alphabet = {chr(byte): byte for byte in plain}
    alphabet.update({chr(256 + index): byte for index, byte in enumerate(others)})
    return alphabet


_BYTE_OF = _byte_alphabet()
assert set(_BYTE_OF) == set(pre_tokenizers.ByteLevel.alphabet())
