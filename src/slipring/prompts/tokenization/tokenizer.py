"""Vocabularies: text to token ids, and ids back to bytes.

``Vocabulary`` is the interface. ``Tokenizer`` implements it in this process, from a GGUF file's metadata or
a ``tokenizer.json``; engines implement it with their server's tokenizer. Text and control tokens are encoded
by different methods: text never becomes a control token, whatever it contains.
"""

import hashlib
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers.pre_tokenizers import ByteLevel, PreTokenizer, Split
from tokenizers.pre_tokenizers import Sequence as PreTokenizerSequence

from slipring.prompts.tokenization.fast_encoder import WORTH_LOADING_CHARS, FastEncoder
from slipring.prompts.tokenization.gguf_pre_tokenizers import NEWLINES, PRE_TOKENIZERS
from slipring.prompts.tokenization.token_budget import UNLIMITED, TokenBudget
from slipring.prompts.tokenization.windowed_encoder import (
    PLAIN_SPACES,
    SPACE,
    WINDOW_CHARS,
    WindowedEncoder,
    certain_chars,
    composes,
    is_splittable,
    splits_of_words,
)

_UNKNOWN, _CONTROL, _USER_DEFINED = 2, 3, 4
_BYTE = re.compile("<0x([0-9A-F]{2})>")
_ALL_BYTES = frozenset(f"<0x{byte:02X}>" for byte in range(256))
_CACHED_CHARS = 16
"""Characters of a text that is cached: enough for what templates write around messages. Caching longer texts
would let one tenant find out by timing what others sent."""
_NEVER = 2**63
_MOST_COMPOSED = 4
"""How many characters normalization may compose into one."""
_COUNT_STEP_CHARS = 65_536
"""Counted in one call, which keeps the GIL; between calls, other threads can run."""
_MAX_SPELLED_BYTES = 48
"""Enough for ``spell``, which is asked for a character or two."""


class UnknownVocabulary(ValueError):
    """This vocabulary cannot be built in this process; the engine's own tokenizer must be used."""


class Vocabulary(ABC):
    """Encodes text and control tokens to ids, and decodes ids to bytes."""

    fingerprint: str
    """Identifies the vocabulary: equal fingerprints mean equal ids."""
    is_local: bool = True
    """Whether ``encode`` works in this process. If False, it waits for a server."""

    @property
    def size(self) -> int | None:
        """How many tokens there are, control tokens included; None if that is not known here."""
        return None

    @abstractmethod
    def encode(self, text: str, budget: TokenBudget = UNLIMITED) -> list[int]:
        """Return the ids of a text. What looks like a control token is encoded as text.

        May raise ``TooManyTokens`` for a text that exceeds the budget: it is then not tokenized to its end.
        """

    @abstractmethod
    def least_tokens(self, text: str) -> int:
        """A lower bound of the number of tokens, computed from the length of the text."""

    def certain_chars(self, text: str) -> int:
        """How many characters of a text that may still grow have the same ids whatever follows. May be less
        than possible."""
        return certain_chars(text)

    @abstractmethod
    def control(self, token: str) -> int:
        """The id of a control token. Raises ``KeyError`` if the vocabulary does not have it."""

    @abstractmethod
    def has_control(self, token: str) -> bool:
        """Whether the vocabulary has this control token."""

    @abstractmethod
    def control_tokens(self) -> Collection[str]:
        """The names of all control tokens."""

    @abstractmethod
    def bytes_of(self, id: int) -> bytes:
        """The bytes of a token; empty for control tokens, except for visible ones."""

    def is_worth_accelerating(self) -> bool:
        """Whether so much text was encoded that ``accelerate`` should be called; True only once."""
        return False

    def accelerate(self) -> None:
        """Make ``encode`` faster. Takes seconds, in a thread of the caller; ``encode`` works meanwhile."""
        return

    def spell(self, data: bytes, count: int, last: Sequence[int]) -> list[int] | None:
        """Find exactly ``count`` ids that, followed by ``last``, decode to ``data``; None if not found."""
        return None


class Tokenizer(Vocabulary):
    """A BPE vocabulary in this process: of bytes, or of characters with bytes for those that it lacks."""

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        control: Mapping[str, int],
        fingerprint: str,
        *,
        visible: Collection[str] = (),
        has_characters: bool = False,
    ) -> None:
        """``has_characters``: whether the words consist of characters, as in SentencePiece, not of bytes."""
        self._backend = backend
        self._word_bytes = _character_bytes if has_characters else _byte_level_bytes
        self._control = dict(control)
        self._bytes = {id: token.encode() if token in visible else b"" for token, id in control.items()}
        """Bytes by id: of control tokens (visible ones, such as Qwen's ``<tool_call>``, are text in a model's
        output), and of words that ``bytes_of`` has decoded before."""
        self._words: dict[bytes, int] | None = None
        self._fast: FastEncoder | None = None
        self._chars_until_fast = WORTH_LOADING_CHARS
        self._short = lru_cache(maxsize=4096)(self._encode)
        self._windows: WindowedEncoder | None = None
        if has_characters:
            cuts = splits_of_words(backend.get_vocab(with_added_tokens=True))
            self._windows = WindowedEncoder(backend, self._encode, cuts=cuts)
        elif is_splittable(backend):
            self._windows = WindowedEncoder(backend, self._encode)
        self._lengths = _Lengths(backend, self._word_bytes)
        self.fingerprint = fingerprint

    def certain_chars(self, text: str) -> int:
        return certain_chars(text) if self._windows is None else self._windows.certain_chars(text)

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, Any]) -> "Tokenizer":
        """Build a tokenizer from GGUF metadata. Raises ``UnknownVocabulary`` if it is not supported."""
        kind = metadata.get("tokenizer.ggml.model")
        name = "gemma4" if kind == "gemma4" else metadata.get("tokenizer.ggml.pre", "")
        if kind != "gemma4" and (kind != "gpt2" or name not in PRE_TOKENIZERS):
            raise UnknownVocabulary(f"vocabulary '{kind}' with pre-tokenizer '{name}'")
        tokens: list[str] = metadata.get("tokenizer.ggml.tokens", [])
        # Of the same merge twice, the first counts to llama.cpp and the last to tokenizers.
        merges = list(dict.fromkeys(metadata.get("tokenizer.ggml.merges", [])))
        types: list[int] = metadata.get("tokenizer.ggml.token_type", [])
        if not tokens or len(types) != len(tokens):
            raise UnknownVocabulary(f"{len(tokens)} tokens of {len(types)} types")
        digest = hashlib.sha256(f"{name}\n".encode() + "\n".join([*tokens, *merges]).encode())
        if kind == "gemma4":
            return cls._of_characters(tokens, merges, types, digest.hexdigest())
        control = {token: id for id, token in enumerate(tokens) if types[id] in (_CONTROL, _USER_DEFINED)}
        vocabulary = {token: id for id, token in enumerate(tokens) if token not in control}
        ignore_merges = PRE_TOKENIZERS[name].ignore_merges
        model = models.BPE(vocabulary, _merges(merges, vocabulary), ignore_merges=ignore_merges)
        backend = tokenizers.Tokenizer(model)
        backend.pre_tokenizer = _pre_tokenizer(PRE_TOKENIZERS[name].patterns)
        backend.decoder = decoders.ByteLevel()
        visible = {token for token, id in control.items() if types[id] == _USER_DEFINED}
        return cls(backend, control, digest.hexdigest(), visible=visible)

    @classmethod
    def _of_characters(
        cls, tokens: Sequence[str], merges: Sequence[str], types: Sequence[int], fingerprint: str
    ) -> "Tokenizer":
        """Build the vocabulary of a GGUF file of Gemma 4. llama.cpp splits it at line ends."""
        user_defined = {token for id, token in enumerate(tokens) if types[id] == _USER_DEFINED}
        blanks = set(filter(_is_blank, user_defined))
        control = {
            token: id
            for id, token in enumerate(tokens)
            if types[id] in (_UNKNOWN, _CONTROL, _USER_DEFINED) and token not in blanks
        }
        vocabulary = {token: id for id, token in enumerate(tokens) if token not in control}
        _require_all_bytes(vocabulary)
        model = models.BPE(vocabulary, _merges(merges, vocabulary), byte_fallback=True)
        backend = tokenizers.Tokenizer(model)
        backend.normalizer = normalizers.Replace(" ", SPACE)
        backend.pre_tokenizer = Split(Regex(NEWLINES), behavior="isolated")
        backend.add_tokens([AddedToken(blank, normalized=False) for blank in sorted(blanks)])
        # To llama.cpp a known number of line ends is one token, whatever the merges make of them.
        lines = [token for token in vocabulary if not token.strip("\n")]
        found = backend.encode_batch_fast(lines, add_special_tokens=False)
        if [each.ids for each in found] != [[vocabulary[line]] for line in lines]:
            raise UnknownVocabulary("line ends that no merges produce")
        return cls(backend, control, fingerprint, visible=user_defined - blanks, has_characters=True)

    @classmethod
    def from_json(cls, text: str) -> "Tokenizer":
        """Load a ``tokenizer.json``; its added tokens are the control tokens.

        Raises ``UnknownVocabulary`` unless it is BPE of bytes, or of characters like Gemma's.
        """
        config = json.loads(text)
        model = config["model"]
        if model.get("type") != "BPE":
            raise UnknownVocabulary(f"tokenizer.json of model '{model.get('type')}'")
        has_characters = bool(model.get("byte_fallback"))
        # In a vocabulary of characters, line ends and spaces that are added tokens are text.
        blanks = [token for token in config["added_tokens"] if has_characters and _is_blank(token["content"])]
        added = [token for token in config["added_tokens"] if token not in blanks]
        control = {token["content"]: token["id"] for token in added}
        # Remove control tokens and the unknown token from the model, so that no text can be encoded as one.
        vocabulary = {token: id for token, id in model["vocab"].items() if token not in control}
        if has_characters:
            _require_all_bytes(vocabulary)
            _require_plain_spaces(config["normalizer"], config["pre_tokenizer"])
        elif not _BYTE_OF.keys() >= set("".join(vocabulary)):
            raise UnknownVocabulary("tokenizer.json whose words are not byte-level")
        model["vocab"], model["unk_token"] = vocabulary, None
        model["merges"] = _merges(model["merges"], vocabulary)
        config["added_tokens"] = blanks
        config["post_processor"] = config["truncation"] = config["padding"] = None
        backend = tokenizers.Tokenizer.from_str(json.dumps(config))
        visible = {token["content"] for token in added if not token["special"]}
        fingerprint = hashlib.sha256(text.encode()).hexdigest()
        return cls(backend, control, fingerprint, visible=visible, has_characters=has_characters)

    def encode(self, text: str, budget: TokenBudget = UNLIMITED) -> list[int]:
        if len(text) <= _CACHED_CHARS:
            return list(self._short(text))
        if len(text) <= WINDOW_CHARS:
            return self._encode(text)
        if self._windows is not None:
            return self._windows.encode(text, budget)
        budget.require_splittable(len(text))
        return self._encode(text)

    def least_tokens(self, text: str) -> int:
        return self._lengths.least_tokens(text)

    def is_worth_accelerating(self) -> bool:
        is_due = self._chars_until_fast <= 0
        if is_due:
            self._chars_until_fast = _NEVER
        return is_due

    def accelerate(self) -> None:
        self._fast = FastEncoder.load(self._backend)

    def _encode(self, text: str) -> list[int]:
        if self._fast is None:
            self._chars_until_fast -= len(text)
        elif (ids := self._fast.encode(text)) is not None:
            return ids
        # The fast variant computes no offsets, which are a sixth of the work.
        return self._backend.encode_batch_fast([text], add_special_tokens=False)[0].ids if text else []

    def control(self, token: str) -> int:
        return self._control[token]

    def has_control(self, token: str) -> bool:
        return token in self._control

    def control_tokens(self) -> Collection[str]:
        return self._control.keys()

    def bytes_of(self, id: int) -> bytes:
        data = self._bytes.get(id)
        if data is None:
            token = self._backend.id_to_token(id)
            if token is None:
                return b""
            data = self._bytes[id] = self._word_bytes(token)
        return data

    def spell(self, data: bytes, count: int, last: Sequence[int]) -> list[int] | None:
        ending = self._decode(last)
        if not 0 < count <= len(data) - len(ending) <= _MAX_SPELLED_BYTES or not data.endswith(ending):
            return None
        # Several splits may fit. The most likely is what the tokenizer makes of the whole.
        usual = self.encode(data.decode("utf-8", "ignore"))
        known = [id for id in last if self.bytes_of(id)]
        if len(usual) == count + len(known) and usual[count:] == known and self._decode(usual) == data:
            return usual[:count]
        if self._words is None:
            ids = sorted(self._backend.get_vocab(with_added_tokens=False).values())
            self._words = {self.bytes_of(id): id for id in ids}
        return _split(data.removesuffix(ending), count, self._words)

    @property
    def size(self) -> int:
        """How many tokens there are, control tokens included."""
        return self._backend.get_vocab_size() + len(self._control)

    @property
    def pre_tokenizer(self) -> str:
        """The names of the steps that split a text before its words are encoded; empty if there is none."""
        splitting = self._backend.pre_tokenizer
        steps: Any = splitting if isinstance(splitting, PreTokenizerSequence) else filter(None, [splitting])
        return ", ".join(type(step).__name__ for step in steps)

    def _decode(self, ids: Iterable[int]) -> bytes:
        return b"".join(map(self.bytes_of, ids))


class _Lengths:
    """Computes lower bounds of token counts from the length of a vocabulary's words."""

    def __init__(self, backend: tokenizers.Tokenizer, word_bytes: Callable[[str], bytes]) -> None:
        words = backend.get_vocab(with_added_tokens=False)
        self._longest = 1
        for word in words:
            if len(word.encode()) > self._longest:
                self._longest = max(self._longest, len(word_bytes(word)))
        if composes(backend):
            self._longest *= _MOST_COMPOSED
        self._dropped: list[str] = []
        """ASCII characters that no token contains: they are dropped when text is encoded."""
        self._covers_unicode = True
        if words.keys() >= _ALL_BYTES:
            return
        missing = {byte for letter, byte in _BYTE_OF.items() if letter not in words}
        self._dropped = [chr(byte) for byte in missing if byte < 0x80]
        # Every character outside ASCII ends with one of these bytes.
        self._covers_unicode = missing.isdisjoint(range(0x80, 0xC0))

    def least_tokens(self, text: str) -> int:
        if not self._covers_unicode:
            return 0
        dropped = 0
        for start in range(0, len(text), _COUNT_STEP_CHARS):
            piece = text[start : start + _COUNT_STEP_CHARS]
            dropped += sum(map(piece.count, self._dropped))
        return -((dropped - len(text)) // self._longest)


def _byte_level_bytes(word: str) -> bytes:
    try:
        return bytes(map(_BYTE_OF.__getitem__, word))
    except KeyError:
        return word.encode()  # a word that is stored as plain text, not in the byte alphabet


def _character_bytes(word: str) -> bytes:
    byte = _BYTE.fullmatch(word)
    return bytes([int(byte[1], 16)]) if byte else word.replace(SPACE, " ").encode()


def _is_blank(token: str) -> bool:
    return not token.strip(f" \t\r\n{SPACE}")


def _require_all_bytes(vocabulary: Mapping[str, int]) -> None:
    if not vocabulary.keys() >= _ALL_BYTES:
        raise UnknownVocabulary("a vocabulary of characters without a token for every byte")


def _require_plain_spaces(normalizer: Any, splitting: Any) -> None:
    """Raise ``UnknownVocabulary`` unless normalization writes a space as one character and nothing else, and
    no splitting depends on more than that."""
    # The normalizer leaves no space to split at.
    is_idle = splitting is None or (splitting["type"] == "Split" and splitting["pattern"] == {"String": " "})
    if normalizer != PLAIN_SPACES or not is_idle:
        raise UnknownVocabulary("tokenizer.json of characters with another treatment of spaces than Gemma's")


def _split(data: bytes, count: int, words: Mapping[bytes, int]) -> list[int] | None:
    """Split ``data`` into ``count`` words and return their ids; None if that is not possible."""
    failed: set[tuple[int, int]] = set()  # remaining bytes and words that are known not to work

    def split(rest: bytes, count: int) -> list[int] | None:
        if count == 1:
            return [words[rest]] if rest in words else None
        if (len(rest), count) in failed:
            return None
        for end in range(1, len(rest) - count + 2):
            if rest[:end] in words and (ids := split(rest[end:], count - 1)) is not None:
                return [words[rest[:end]], *ids]
        failed.add((len(rest), count))
        return None

    return split(data, count)


def _merges(given: Sequence[Any], vocabulary: Mapping[str, int]) -> list[tuple[str, str]]:
    """The merges, each written as a text or as a pair, of which both halves and the result are words: a merge
    must not produce a control token."""
    pairs = (merge.split(" ", 1) if isinstance(merge, str) else merge for merge in given)
    return [
        (pair[0], pair[1])
        for pair in pairs
        if len(pair) == 2
        and pair[0] + pair[1] in vocabulary
        and pair[0] in vocabulary
        and pair[1] in vocabulary
    ]


def _pre_tokenizer(patterns: tuple[str, ...]) -> PreTokenizer:
    steps: list[PreTokenizer] = [Split(Regex(pattern), behavior="isolated") for pattern in patterns]
    return PreTokenizerSequence([*steps, ByteLevel(add_prefix_space=False, use_regex=False)])


def _byte_alphabet() -> dict[str, int]:
    """The characters that represent bytes in byte-level vocabularies: printable ones represent themselves."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in plain]
    alphabet = {chr(byte): byte for byte in plain}
    alphabet.update({chr(256 + index): byte for index, byte in enumerate(others)})
    return alphabet


_BYTE_OF = _byte_alphabet()
assert set(_BYTE_OF) == set(pre_tokenizers.ByteLevel.alphabet())
