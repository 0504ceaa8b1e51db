"""Draws inputs: from valid ones, and from those that reached code which no input had reached before."""

import random
import re
from collections.abc import Callable

import msgspec

from tests.fuzz.frames import api_seeds, trees
from tests.fuzz.frames.inputs import (
    LEVELS,
    Bytes,
    Input,
    Level,
    Message,
    Request,
    Settle,
    Step,
    Text,
    body_step,
    message,
)
from tests.fuzz.frames.json_text import hard_document
from tests.fuzz.frames.raw_frames import RawFrames, damaged
from tests.fuzz.frames.seeds import BEGIN, BETAS, REQUESTS, SEQUENCES, Tree

_EVENTS = tuple(event for sequence in SEQUENCES for event in sequence if not isinstance(event, str))
_BODIES = tuple(body for _, _, body in REQUESTS if body is not None)
_OTHERS = {
    "/v1/messages": api_seeds.MESSAGES,
    "/v1/messages/count_tokens": api_seeds.MESSAGES,
    "/v1/chat/completions": api_seeds.CHAT,
}
_MOST_KEPT = 1000
"""Of one level."""
_MESSAGES = 200
"""In an input of the level ``json``."""
_SEQUENCES = (3, 10)
_REQUESTS = (4, 16)
_PIECES = (40, 160)
_HEADERS = (
    {"OpenAI-Beta": BETAS},
    {"OpenAI-Beta": ",=,slipring_timing=v1;q=0, slipring_timing"},
    {"Content-Encoding": "gzip"},
    {"Content-Encoding": "deflate"},
    {"Content-Encoding": "br"},
    {"Content-Encoding": "zstd"},
    {"Content-Encoding": "unknown"},
    {"Content-Type": "text/plain; charset=utf-16"},
    {"Content-Type": "multipart/form-data"},
    {"Content-Type": "application/json; charset=nonsense"},
    {"traceparent": "00-0-0-0"},
    {"traceparent": "ff-" + "f" * 32 + "-" + "0" * 16 + "-zz", "tracestate": "=,=;"},
    {"Accept": "text/event-stream", "Accept-Encoding": "identity;q=0"},
    {"Cookie": 'a="\\777"; =; b'},
    {"Range": "bytes=5-1"},
    {"If-Modified-Since": "never"},
    {"anthropic-version": "2023-06-01", "anthropic-beta": ",=,a;b"},
    {"x-api-key": "wrong"},
)
_OTHER_BETAS = (
    "",
    "slipring_zero_retention=v1",
    ",=,;",
    "slipring_timing=v2,slipring_rollout=v1 ,slipring_rollout",
)
_QUERY_VALUES = (
    "",
    "-1",
    "0",
    "101",
    "1e3",
    "99999999999999999999",
    "%00",
    "%ff",
    "true",
    "asc",
    "%F0%9F%98%80",
)


class Corpus:
    """The inputs that are worth changing, and the random changes."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.kept: dict[Level, list[Input]] = {level: [] for level in LEVELS}
        self._raw = RawFrames(self.rng, self._small_message)
        self._fresh: dict[Level, Callable[[], tuple[Step, ...]]] = {
            "raw": self._raw_steps,
            "json": self._json_steps,
            "events": self._event_steps,
            "http": self._http_steps,
        }
        self._compress = False

    def keep(self, reached: Input) -> None:
        """Keep an input that reached something new."""
        kept = self.kept[reached.level]
        kept.append(reached)
        if len(kept) > _MOST_KEPT:
            del kept[self.rng.randrange(_MOST_KEPT // 2)]

    @property
    def size(self) -> int:
        return sum(map(len, self.kept.values()))

    def draw(self, level: Level) -> Input:
        """The next input of a level."""
        rng, kept = self.rng, self.kept[level]
        self._compress = rng.random() < 0.3
        betas = BETAS if rng.random() < 0.8 else rng.choice(_OTHER_BETAS)
        if level == "raw" or not kept or rng.random() < 0.4:
            steps = self._fresh[level]()
        else:
            # The newest half is drawn as often as all the others.
            steps = self._changed(rng.choice(kept[len(kept) // 2 :] if rng.random() < 0.5 else kept))
        return Input(level, steps, betas, self._compress)

    def _changed(self, parent: Input) -> tuple[Step, ...]:
        rng = self.rng
        steps = list(parent.steps)
        if rng.random() < 0.3:
            other = rng.choice(self.kept[parent.level]).steps
            cut = rng.randrange(len(other) + 1)
            steps = steps[: rng.randrange(len(steps) + 1)] + list(other[cut:])
        if rng.random() < 0.2 and len(steps) > 1:
            first, second = rng.randrange(len(steps)), rng.randrange(len(steps))
            steps[first], steps[second] = steps[second], steps[first]
        most = 2 * _MESSAGES
        share = rng.choice((0.1, 0.3, 0.8))
        return tuple(self._changed_step(step) if rng.random() < share else step for step in steps[:most])

    def _changed_step(self, step: Step) -> Step:
        if isinstance(step, Text):
            return message(self._changed_json(step.text.encode(), _EVENTS))
        if isinstance(step, Message):
            return Message(damaged(self.rng, bytes.fromhex(step.hex)).hex(), step.binary)
        if isinstance(step, Request) and (body := step.body) is not None:
            changed = self._changed_json(body, _others(step.path))
            return body_step(step.method, step.path, changed, step.headers)
        return step

    def _changed_json(self, data: bytes, others: tuple[Tree, ...]) -> bytes:
        rng = self.rng
        if rng.random() < 0.15:
            return damaged(rng, data)
        try:
            tree = msgspec.json.decode(data)
        except (ValueError, RecursionError):
            return damaged(rng, data)
        if rng.random() < 0.1:
            return hard_document(rng, tree)
        return msgspec.json.encode(trees.changed(rng, tree, others, hard=0.15))

    # New inputs of each level.

    def _small_message(self) -> bytes:
        rng = self.rng
        event = rng.choice(_EVENTS)
        data = hard_document(rng, event) if rng.random() < 0.8 else msgspec.json.encode(event)
        return data[:3000]

    def _raw_steps(self) -> tuple[Step, ...]:
        rng, raw = self.rng, self._raw
        steps: list[Step] = []
        for _ in range(rng.randrange(*_PIECES)):
            data, frames = b"", 0
            for _ in range(rng.choice((1, 1, 2, 6))):
                piece, count = raw.legal(compress=self._compress)
                data, frames = data + piece, frames + count
            if rng.random() < 0.2:  # in two writes, which may arrive apart
                cut = rng.randrange(len(data) + 1)
                steps += [Bytes(data[:cut].hex(), 0), Bytes(data[cut:].hex(), frames)]
            else:
                steps.append(Bytes(data.hex(), frames))
        if rng.random() < 0.85:
            last = raw.poison(compress=self._compress)
            steps.append(Bytes((raw.damaged(last) if rng.random() < 0.3 else last).hex()))
        return tuple(steps)

    def _json_steps(self) -> tuple[Step, ...]:
        return tuple(self._hard_message() for _ in range(_MESSAGES))

    def _hard_message(self) -> Step:
        rng = self.rng
        event = rng.choice(_EVENTS)
        if rng.random() < 0.75:
            data = hard_document(rng, event)
        else:
            data = msgspec.json.encode(trees.changed(rng, event, _EVENTS, hard=0.8))
        return Message(data.hex(), binary=True) if rng.random() < 0.1 else message(data)

    def _event_steps(self) -> tuple[Step, ...]:
        rng = self.rng
        steps: list[Step] = []
        for _ in range(rng.randrange(*_SEQUENCES)):
            share = rng.choice((0.2, 0.6, 0.9))
            for event in rng.choice(SEQUENCES):
                if isinstance(event, str):
                    steps.append(Settle("begun" if event == BEGIN else "answered"))
                    continue
                changes = rng.random() < share
                tree = trees.changed(rng, event, _EVENTS, hard=0.1) if changes else event
                if isinstance(tree, dict) and rng.random() < 0.15:
                    tree = {**tree, "stream_id": rng.choice(("a", "b", "lane-1", "c"))}
                steps.append(message(msgspec.json.encode(tree)))
        return tuple(steps)

    def _http_steps(self) -> tuple[Step, ...]:
        rng = self.rng
        return tuple(self._request(*rng.choice(REQUESTS)) for _ in range(rng.randrange(*_REQUESTS)))

    def _request(self, method: str, path: str, body: Tree) -> Step:
        rng = self.rng
        headers = dict(rng.choice(_HEADERS)) if rng.random() < 0.3 else {}
        if rng.random() < 0.05:
            path = path.replace("@", rng.choice(("%00", "%ff", "..", "/", "%2F", "a" * 300)))
        if "?" in path and rng.random() < 0.5:
            path = re.sub("=[^&]*", lambda _: f"={rng.choice(_QUERY_VALUES)}", path, count=rng.randrange(3))
        if body is None:
            return Request(method, path, headers=headers)
        chance = rng.random()
        if chance < 0.3:
            data = hard_document(rng, body)
        elif chance < 0.9:
            data = msgspec.json.encode(trees.changed(rng, body, _others(path), hard=0.2))
        else:
            data = msgspec.json.encode(body)
        return body_step(method, path, data, headers)


def _others(path: str) -> tuple[Tree, ...]:
    """What parts of a request to a path are taken from: mostly bodies of its own API."""
    return _OTHERS.get(path.partition("?")[0], _BODIES)


def valid_inputs() -> list[Input]:
    """What the fuzzer begins with, unchanged: every sequence of events, and every request."""
    found = []
    for sequence in SEQUENCES:
        steps = (
            message(msgspec.json.encode(event))
            if not isinstance(event, str)
            else Settle("begun" if event == BEGIN else "answered")
            for event in sequence
        )
        found.append(Input("events", tuple(steps), BETAS))
    requests = (
        body_step(method, path, msgspec.json.encode(body), {}) if body is not None else Request(method, path)
        for method, path, body in REQUESTS
    )
    found.append(Input("http", tuple(requests)))
    return found
