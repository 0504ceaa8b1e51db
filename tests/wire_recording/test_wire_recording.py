"""A recording has what clients receive, two recordings of one tree are equal, and differences are found."""

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.wire_recording.comparison import compare
from tests.wire_recording.normal_form import NormalForm
from tests.wire_recording.recordings import Lane, Recorded, read

ROOT = Path(__file__).parent.parent.parent
A_RESPONSE = "resp_0123456789abcdef0123456789abcdef"
ANOTHER = "resp_fedcba9876543210fedcba9876543210"

OF_EVERY_KIND = """
from openai import AsyncOpenAI

from tests.harness import serve
from tests.server.raw import open_raw


async def test_every_kind_of_client():
    async with serve("simulated:output_tokens=3,tool_calls=0") as server:
        async with server.connect() as socket:
            await socket.response(input="hello")
            await socket.turn(input="hello", stream_id="other")
            assert (await socket.error(model="unknown"))["status"] == 404
        assert (await server.post(input="hello"))[0] == 200
        assert (await server.post(input=1))[0] == 400
        await server.stream(input="hello")
        async with open_raw(server) as raw:
            await raw.create(input="hello")
            while (await raw.receive_event())["type"] != "response.completed":
                pass
        async with AsyncOpenAI(base_url=server.url, api_key="k") as client:
            await client.responses.create(model="simulated", input="hello", metadata={"by": "sdk"})


async def test_a_word():
    async with serve("simulated:output_tokens=3,tool_calls=0") as server:
        assert (await server.post(input="hello", metadata={"word": "WORD"}))[0] == 200
"""


def test_ids_are_numbered_by_first_appearance() -> None:
    form = NormalForm()
    assert form.of(f'{{"id":"{A_RESPONSE}"}}') == '{"id":"resp#1"}'
    assert form.of(f"No {ANOTHER}, but {A_RESPONSE}, on 127.0.0.1:4711.") == (
        "No resp#2, but resp#1, on 127.0.0.1:<port>."
    )


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"created_at": 1}, {"created_at": 2}),
        ({"timing": {"total_ms": 1.5}}, {"timing": {"total_ms": 2.5}}),
        ({"obfuscation": "abc"}, {"obfuscation": "xy"}),
        ({"encrypted_content": "abc"}, {"encrypted_content": "xy"}),
    ],
)
def test_what_differs_between_two_runs_has_one_normal_form(one: object, other: object) -> None:
    assert NormalForm().of(json.dumps(one)) == NormalForm().of(json.dumps(other))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ('{"a":1,"b":2}', '{"b":2,"a":1}'),
        ('{"a":1}', '{"a":1.0}'),
        ('{"a":null}', "{}"),
        ('{"created_at":1}', '{"created_at":1.0}'),
        ('{"created_at":1}', '{"created_at":null}'),
        (json.dumps({"a": "x" * 5000}), json.dumps({"a": "x" * 4999 + "y"})),
    ],
)
def test_what_a_client_can_tell_apart_has_two_normal_forms(one: str, other: str) -> None:
    assert NormalForm().of(one) != NormalForm().of(other)


def recorded(*lanes: Lane, outcome: str = "passed") -> dict[str, Recorded]:
    return {"tests/f.py::test": Recorded(outcome, frozenset(lanes))}


def test_a_changed_document_is_shown() -> None:
    found = compare([recorded(("POST /", "a", "old"))], recorded(("POST /", "a", "new")))
    assert found.differences == {"tests/f.py::test": "  POST /: document 2, character 0\n  - old\n  + new"}


@pytest.mark.parametrize("new", [(), (("a", "1"),), (("a", "1"), ("b", "2"), ("c", "3"))])
def test_a_lane_that_is_missing_or_new_is_a_difference(new: Sequence[Lane]) -> None:
    assert compare([recorded(("a", "1"), ("b", "2"))], recorded(*new)).differences


def test_of_an_unstable_test_only_what_the_old_recordings_share_is_compared() -> None:
    olds = [recorded(("a", "1"), ("b", "2")), recorded(("a", "1"), ("b", "3"))]
    found = compare(olds, recorded(("a", "1"), ("b", "4")))
    assert (list(found.unstable), found.differences) == (["tests/f.py::test"], {})
    assert compare(olds, recorded(("a", "0"), ("b", "3"))).differences


def test_tests_that_cannot_be_compared_are_listed() -> None:
    one = recorded(("a", "1"))
    assert compare([one], {}).in_one_only == {"tests/f.py": "  only in the old"}
    assert compare([{}], one).in_one_only == {"tests/f.py": "  only in the new"}
    more = {**one, "tests/f.py::more": one["tests/f.py::test"]}
    assert compare([one], more).in_one_only == {"tests/f.py::more": "  only in the new"}
    assert compare([one], recorded(outcome="failed")).failed == ["tests/f.py::test"]
    assert compare([one], recorded(outcome="generated")).generated == ["tests/f.py::test"]


def record(directory: Path, word: str) -> Path:
    directory.mkdir()
    (directory / "test_kinds.py").write_text(OF_EVERY_KIND.replace("WORD", word), encoding="utf-8")
    command = [
        *(sys.executable, "-m", "pytest", "-c", str(ROOT / "pyproject.toml"), "--rootdir", str(directory)),
        *("-p", "tests.conftest", "-p", "tests.wire_recording.plugin", "-p", "no:cacheprovider"),
        *("--record-wire", str(directory / "recording"), str(directory)),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    return directory / "recording"


def test_what_clients_of_every_kind_receive_is_recorded(tmp_path: Path) -> None:
    one = read(record(tmp_path / "one", "this"))
    other = read(record(tmp_path / "other", "that"))
    found = compare([one], other)
    assert (found.equal, list(found.differences)) == (1, ["test_kinds.py::test_a_word"])
    lanes = one["test_kinds.py::test_every_kind_of_client"].lanes
    whats = sorted(re.sub(r" content-type.*", "", lane[0]) for lane in lanes)
    assert whats == [
        "GET /v1/responses 101",
        "POST /v1/responses 200",
        "POST /v1/responses 200",
        "POST /v1/responses 200",
        "POST /v1/responses 400",
        "lane None",
        "lane None",
        "lane other",
    ]
