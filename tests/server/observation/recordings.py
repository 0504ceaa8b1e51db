"""Reads recordings in tests."""

import json
from pathlib import Path
from typing import Any


def paths(directory: Path) -> list[Path]:
    """All recordings, oldest first."""
    return sorted(directory.iterdir(), key=lambda path: int(path.stem.rpartition("-")[2]))


def files(directory: Path) -> list[list[dict[str, Any]]]:
    """The turns of every recording, oldest file first; the header is checked."""
    found = []
    for path in paths(directory):
        text = path.read_text()
        assert text.endswith("\n")
        header, *turns = map(json.loads, text.removesuffix("\n").split("\n"))
        assert list(header)[:2] == ["slipring_recording", "notice"]
        assert "holds content" in header["notice"]
        assert [turn["turn"] for turn in turns] == list(range(len(turns)))
        found.append(turns)
    return found


def only(directory: Path) -> list[dict[str, Any]]:
    """The turns of the only recording."""
    (turns,) = files(directory)
    return turns


def texts(turn: dict[str, Any]) -> list[str]:
    """The contents and outputs of a turn's input."""
    return [item.get("content", item.get("output")) for item in turn["input"]]


def sizes(directory: Path) -> list[int]:
    """The sizes of all recordings, in bytes."""
    return [path.stat().st_size for path in directory.iterdir()]
