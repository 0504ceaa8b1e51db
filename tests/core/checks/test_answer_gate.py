"""The gate: what is released when, for any order of deltas and verdicts."""

import json
from collections.abc import Iterable
from itertools import chain
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from slipring.core.checks.answer_gate import Gate, Inspection
from slipring.core.checks.policies import Action, Check, Mode, Policy, checks_of
from slipring.core.checks.text_windows import OVERLAP
from slipring.core.checks.verdicts import Kind, Subject, Verdict
from slipring.core.generation import (
    Annotated,
    CallArguments,
    CallEnded,
    CallStarted,
    Delta,
    Finished,
    RefusalText,
    Text,
    Thought,
    ThoughtSummary,
    UpstreamItemEnded,
    UpstreamItemEvent,
    UpstreamItemStarted,
)
from slipring.protocol.events import McpCallArgumentsDelta, McpCallArgumentsDone
from slipring.protocol.items.items import Item
from slipring.protocol.responses import Logprob

END = Finished("stop", input_tokens=1, cached_tokens=0, output_tokens=1)
QUESTION = Subject("input", "message", "a question", role="user")


def policy(action: Action = "block", mode: Mode = "hold", **fields: Any) -> Policy:
    return Policy((Check("guard", action=action, mode=mode, **fields),))


def verdicts(inspection: Inspection, refused: Iterable[str] = ()) -> list[list[Verdict]]:
    """The answer of all checks: they flag the texts that contain one of ``refused``."""
    return [
        [
            Verdict(check.name, check.version, flagged=any(word in subject.text for word in refused))
            for check in checks_of(inspection.policy, subject, inspection.when)
        ]
        for subject in inspection.subjects
    ]


def texts(inspections: Iterable[Inspection]) -> list[str]:
    return [subject.text for inspection in inspections for subject in inspection.subjects]


def only(inspections: list[Inspection]) -> Inspection:
    assert len(inspections) == 1
    return inspections[0]


# The input.


@pytest.mark.parametrize("mode", ["hold", "follow"])
@pytest.mark.parametrize("action", ["cut", "block"])
def test_nothing_is_released_until_the_input_has_passed(action: Action, mode: Mode):
    gate = Gate(policy(action, mode, subjects=("message",)))
    gate.inspect_input([QUESTION])
    asked = only(gate.take_due())
    assert asked.subjects == (QUESTION,)
    assert gate.take_due() == []
    call = [CallStarted("function", "f"), CallArguments("{}"), CallEnded()]
    assert gate.feed([Text("a"), *call]) == []
    assert gate.holds_input
    assert gate.judge(asked.ticket, verdicts(asked)) == [Text("a"), *call]
    assert gate.feed([END]) == [END]
    assert gate.is_settled


def test_input_that_is_only_reported_holds_back_nothing_but_the_end():
    gate = Gate(policy("flag", subjects=("message",)))
    gate.inspect_input([QUESTION])
    asked = only(gate.take_due())
    assert gate.feed([Text("a"), END]) == [Text("a")]
    assert not gate.is_settled
    assert gate.judge(asked.ticket, verdicts(asked, ["question"])) == [END]
    assert gate.decision is None
    assert [finding.check for finding in gate.report.findings] == ["guard"]


@pytest.mark.parametrize("action", ["cut", "block"])
def test_refused_input_blocks_the_turn(action: Action):
    gate = Gate(policy(action))
    gate.inspect_input([QUESTION])
    asked = only(gate.take_due())
    assert gate.feed([Text("a")]) == []
    assert gate.judge(asked.ticket, verdicts(asked, ["question"])) == []
    assert gate.decision is not None
    assert gate.decision.consequence == "block"
    error = gate.decision.error()
    assert (error.status, error.code) == (400, "invalid_prompt")
    assert "'guard'" in error.message
    assert "question" not in error.message
    assert gate.feed([Text("b"), END]) == []
    assert gate.take_due() == []


def test_input_that_no_check_inspects_is_not_waited_for():
    gate = Gate(policy(subjects=("tool_output",)))
    gate.inspect_input([QUESTION])
    assert gate.take_due() == []
    assert gate.feed([Text("a"), END]) == [Text("a"), END]


def test_input_that_is_added_later_is_waited_for_too():
    gate = Gate(policy(subjects=("message", "tool_output")))
    gate.inspect_input([QUESTION])
    first = only(gate.take_due())
    gate.judge(first.ticket, verdicts(first))
    assert gate.feed([Text("a"), END]) == [Text("a"), END]
    gate.inspect_input([Subject("input", "tool_output", "found", name="f")])
    second = only(gate.take_due())
    assert gate.feed([Text("b")]) == []
    assert gate.judge(second.ticket, verdicts(second)) == [Text("b")]


# Output that is held.


def test_text_is_released_up_to_what_the_next_window_repeats():
    gate = Gate(policy(subjects=("answer",)))
    first = "a" * 210 + ". "
    assert gate.feed([Text(first)]) == []
    asked = only(gate.take_due())
    assert texts([asked]) == [first]
    assert gate.judge(asked.ticket, verdicts(asked)) == [Text(first[:-OVERLAP])]
    assert gate.feed([Text("b"), END]) == []
    last = only(gate.take_due())
    assert texts([last]) == [first[-OVERLAP:] + "b"]
    assert gate.judge(last.ticket, verdicts(last)) == [Text(first[-OVERLAP:]), Text("b"), END]


def test_a_text_that_ends_with_its_last_window_is_released_to_its_end():
    gate = Gate(policy(subjects=("answer",)))
    gate.feed([Text("a" * 210 + ". ")])
    asked = only(gate.take_due())
    gate.judge(asked.ticket, verdicts(asked))
    assert gate.feed([Thought("t")]) == [Text(("a" * 210 + ". ")[-OVERLAP:]), Thought("t")]
    gate.feed([Text("b" * 210 + ". ")])
    asked = only(gate.take_due())
    assert gate.feed([END]) == []
    assert gate.judge(asked.ticket, verdicts(asked)) == [Text("b" * 210 + ". "), END]


def test_what_is_written_while_a_check_runs_makes_up_one_window():
    gate = Gate(policy(subjects=("answer", "reasoning")))
    gate.feed([Text("a" * 210 + ". ")])
    asked = only(gate.take_due())
    gate.feed([Text("b" * 210 + ". "), Text("c" * 210 + ". "), Thought("d" * 210 + ". ")])
    assert gate.take_due() == []
    gate.judge(asked.ticket, verdicts(asked))
    following = only(gate.take_due())
    assert [len(text) for text in texts([following])] == [OVERLAP + 424, 212]


def test_a_call_is_released_whole_and_with_what_follows_it():
    gate = Gate(policy(subjects=("call",)))
    assert gate.feed([Text("a"), CallStarted("function", "f")]) == [Text("a")]
    assert gate.feed([CallArguments('{"x"'), CallArguments(":1}")]) == []
    assert gate.take_due() == []
    assert gate.feed([CallEnded(), Thought("b"), Annotated(Raw(b"{}"))]) == []
    asked = only(gate.take_due())
    assert asked.subjects == (Subject("output", "call", 'f\n{"x":1}', name="f"),)
    released = gate.judge(asked.ticket, verdicts(asked))
    assert released[:1] == [CallStarted("function", "f")]
    assert released[-2:] == [Thought("b"), Annotated(Raw(b"{}"))]


def test_a_call_without_arguments_is_inspected_by_its_name():
    gate = Gate(policy(subjects=("call",)))
    assert gate.feed([CallStarted("function", "rm"), CallStarted("function", "ls"), END]) == []
    asked = only(gate.take_due())
    assert [(subject.name, subject.text) for subject in asked.subjects] == [("rm", "rm"), ("ls", "ls")]
    assert len(gate.judge(asked.ticket, verdicts(asked))) == 3


def test_a_delta_with_logprobs_is_not_split():
    gate = Gate(policy(subjects=("answer",)))
    logprobs = [Logprob("a", 0.0, [97], [])]
    gate.feed([Text("a" * 210 + ". ", logprobs)])
    asked = only(gate.take_due())
    assert gate.judge(asked.ticket, verdicts(asked)) == []
    assert gate.feed([END]) == [Text("a" * 210 + ". ", logprobs), END]


def test_a_cut_releases_what_had_passed_and_then_only_the_end():
    gate = Gate(policy("cut", subjects=("answer", "reasoning", "call")))
    gate.feed([Thought("fine"), Text("secret"), Text("more"), CallStarted("function", "f")])
    asked = only(gate.take_due())
    assert gate.judge(asked.ticket, verdicts(asked, ["secret"])) == [Thought("fine")]
    assert gate.decision is not None
    assert gate.decision.consequence == "cut"
    assert gate.feed([CallArguments("x"), CallEnded(), END]) == [END]
    assert gate.is_settled


def test_after_a_cut_the_input_can_still_be_blocked():
    gate = Gate(policy("cut"))
    gate.inspect_input([QUESTION])
    gate.feed([Text("secret"), END])
    of_input, of_output = gate.take_due()
    assert gate.judge(of_output.ticket, verdicts(of_output, ["secret"])) == []
    assert not gate.is_settled
    assert gate.judge(of_input.ticket, verdicts(of_input, ["question"])) == []
    assert gate.decision is not None
    assert (gate.decision.consequence, gate.decision.side) == ("block", "input")
    assert gate.is_settled


def test_after_a_cut_what_had_passed_waits_for_the_input():
    gate = Gate(policy("cut", subjects=("message", "answer")))
    gate.inspect_input([QUESTION])
    gate.feed([Thought("t"), Text("secret"), END])
    of_input, of_output = gate.take_due()
    assert gate.judge(of_output.ticket, verdicts(of_output, ["secret"])) == []
    assert gate.judge(of_input.ticket, verdicts(of_input)) == [Thought("t"), END]


# Output that is followed.


def test_followed_text_is_released_at_once_and_its_end_when_it_is_inspected():
    gate = Gate(policy("cut", "follow", subjects=("answer", "call")))
    assert gate.feed([Text("a"), CallStarted("function", "f")]) == [Text("a"), CallStarted("function", "f")]
    assert gate.feed([END]) == []
    first = only(gate.take_due())
    assert texts([first]) == ["a"]
    gate.judge(first.ticket, verdicts(first))
    second = only(gate.take_due())
    assert gate.judge(second.ticket, verdicts(second)) == [END]


def test_checks_that_hold_do_not_wait_for_checks_that_follow():
    both = Policy(
        (
            Check("fast", action="block", mode="hold", subjects=("answer",)),
            Check("slow", action="cut", mode="follow", subjects=("answer",)),
        )
    )
    gate = Gate(both)
    gate.feed([Text("a"), Thought("t")])
    fast, slow = gate.take_due()
    assert (fast.when, slow.when) == ("hold", "follow")
    assert gate.judge(fast.ticket, verdicts(fast)) == [Text("a"), Thought("t")]
    assert gate.judge(slow.ticket, verdicts(slow, ["a"])) == []
    assert gate.decision is not None
    assert gate.decision.check == "slow"


# Checks that fail, and answers that are none.


@pytest.mark.parametrize("answer", [[], [[]], [[Verdict("guard", "", flagged=False, failed="timeout")]]])
@pytest.mark.parametrize("on_error", ["open", "closed"])
def test_a_check_without_an_answer_fails_the_turn_or_lets_it_pass(answer: list[list[Verdict]], on_error: Any):
    gate = Gate(policy(on_error=on_error))
    gate.inspect_input([QUESTION])
    asked = only(gate.take_due())
    gate.judge(asked.ticket, answer)
    if on_error == "open":
        assert gate.decision is None
    else:
        assert gate.decision is not None
        error = gate.decision.error()
        assert (gate.decision.consequence, error.status) == ("fail", 503)


def test_a_second_answer_has_no_effect():
    gate = Gate(policy(subjects=("message",)))
    gate.inspect_input([QUESTION])
    asked = only(gate.take_due())
    gate.judge(asked.ticket, verdicts(asked))
    assert gate.judge(asked.ticket, verdicts(asked, ["question"])) == []
    assert gate.decision is None


# The bound.


def test_a_full_gate_says_so_until_a_verdict_arrives():
    gate = Gate(policy(subjects=("answer",)), most_bytes=500)
    gate.feed([Text("é" * 210 + ". ")])
    assert not gate.is_full
    gate.feed([Text("é" * 100)])
    assert gate.is_full
    asked = only(gate.take_due())
    gate.judge(asked.ticket, verdicts(asked))
    assert not gate.is_full


def test_a_gate_is_full_too_if_text_is_released_faster_than_it_is_inspected():
    gate = Gate(policy("cut", "follow", subjects=("answer",)), most_bytes=500)
    gate.feed([Text("a" * 210 + ". "), Text("b" * 400)])
    assert not gate.is_full
    gate.feed([Text("b" * 100)])
    assert gate.is_full


def test_an_incomplete_call_does_not_make_a_gate_full():
    gate = Gate(policy(subjects=("call",)), most_bytes=10)
    gate.feed([CallStarted("function", "f"), CallArguments("x" * 100)])
    assert not gate.is_full


# Any order.

_STRETCHES: dict[str, tuple[type, Kind]] = {
    "text": (Text, "answer"),
    "refusal": (RefusalText, "answer"),
    "thought": (Thought, "reasoning"),
    "summary": (ThoughtSummary, "reasoning"),
    "call": (CallArguments, "call"),
}
CHECKS = st.builds(
    Check,
    name=st.sampled_from(["one", "two"]),
    action=st.sampled_from(["flag", "cut", "block"]),
    mode=st.sampled_from(["hold", "follow", "audit"]),
    subjects=st.sets(st.sampled_from(["message", "answer", "reasoning", "call"]), min_size=1).map(tuple),
    on_error=st.sampled_from(["open", "closed"]),
)
POLICIES = st.lists(CHECKS, min_size=1, max_size=3).map(lambda checks: Policy(tuple(checks)))
ANSWERS = st.lists(
    st.tuples(
        st.sampled_from(sorted(_STRETCHES)),
        st.lists(st.tuples(st.integers(0, 120), st.sampled_from(["", ". ", "\n", " "])), max_size=8),
    ),
    max_size=5,
)


class Scene:
    """A gate, an engine and checks, in an order that a test chooses. Every letter occurs once in the answer,
    so that a released letter tells where it stood."""

    def __init__(self, policy: Policy, answer: list[tuple[str, list[tuple[int, str]]]]) -> None:
        self.policy = policy
        self.gate = Gate(policy)
        self.deltas: list[Delta] = []
        self._letters = map(chr, chain(range(0x4E00, 0x9FFF), range(0xAC00, 0xD7A3)))
        for stretch, pieces in answer:
            self._write(stretch, pieces)
        self.deltas.append(END)
        self.fed: list[Delta] = []
        self.released: list[Delta] = []
        self.flying: list[Inspection] = []
        self.inspected: list[tuple[Inspection, Subject]] = []
        self.refused: set[str] = set()
        """Letters of the windows that a check that holds has refused."""

    def _write(self, stretch: str, pieces: list[tuple[int, str]]) -> None:
        kind, _ = _STRETCHES[stretch]
        if kind is CallArguments:
            self.deltas.append(CallStarted("function", next(self._letters)))
        for length, end in pieces:
            self.deltas.append(kind("".join(next(self._letters) for _ in range(length)) + end))
        if kind is CallArguments:
            self.deltas.append(CallEnded())

    def ask(self, subjects: list[Subject]) -> None:
        self.gate.inspect_input(subjects)
        self._note([])

    def feed(self, count: int) -> None:
        new = self.deltas[len(self.fed) : len(self.fed) + count]
        self.fed += new
        self._note(self.gate.feed(new))

    def answer(self, number: int, flags: Any) -> None:
        """One of the inspections in flight ends. ``flags``: whether a check flags a text; None if it
        fails."""
        inspection = self.flying.pop(number % len(self.flying))
        given: list[list[Verdict]] = []
        for subject in inspection.subjects:
            checks = checks_of(self.policy, subject, inspection.when)
            answers = {check.name: flags(check, subject) for check in checks}
            given.append(
                [
                    Verdict(name, "", flagged=bool(flag), failed="died" if flag is None else None)
                    for name, flag in answers.items()
                ]
            )
            stops = any(answers[c.name] and c.action != "flag" for c in checks)
            if stops and inspection.when == "hold" and subject.side == "output":
                self.refused |= letters(subject.text) | letters(subject.name or "")
        self._note(self.gate.judge(inspection.ticket, given))

    def _note(self, released: list[Delta]) -> None:
        self.released += released
        due = self.gate.take_due()
        self.flying += due
        self.inspected += [(inspection, subject) for inspection in due for subject in inspection.subjects]

    @property
    def is_over(self) -> bool:
        return len(self.fed) == len(self.deltas) and not self.flying


def letters(text: str) -> set[str]:
    return {letter for letter in text if letter > "\u4000"}


def written(deltas: Iterable[Delta]) -> str:
    """All text of deltas, with a mark for each end of a stretch or a call."""
    return "".join(
        delta.name if isinstance(delta, CallStarted) else getattr(delta, "text", type(delta).__name__)
        for delta in deltas
    )


@given(st.data(), POLICIES, ANSWERS)
def test_no_letter_of_a_refused_window_is_ever_released(data: st.DataObject, policy: Policy, answer: Any):
    scene = Scene(policy, answer)
    scene.ask([QUESTION])
    holding = {inspection.ticket for inspection in scene.flying if inspection.when == "hold"}
    flag = st.sampled_from([False, False, False, True, None])
    while not scene.is_over:
        step = data.draw(st.integers(0, 5)) if scene.flying else 1
        if step and len(scene.fed) < len(scene.deltas):
            scene.feed(step)
        else:
            scene.answer(step, lambda check, subject: data.draw(flag))
        if holding & {inspection.ticket for inspection in scene.flying}:
            assert scene.released == []
        assert scene.released == [] or written(scene.deltas).startswith(written(scene.released[:-1]))
    gate, out = scene.gate, written(scene.released)
    assert not letters(out) & scene.refused
    assert gate.is_settled
    decision = gate.decision
    assert (END in scene.released) == (decision is None or decision.consequence == "cut")
    if decision is None:
        assert out == written(scene.deltas)
    else:
        assert written(scene.deltas).startswith(out.removesuffix("Finished"))
    for when in ("hold", "follow"):
        seen = [s for i, s in scene.inspected if i.when == when and s.side == "output"]
        assert sum(len(letters(subject.text)) for subject in seen) <= 2 * len(written(scene.deltas))


@given(
    st.data(),
    st.sampled_from(["text", "thought", "call"]),
    st.lists(st.tuples(st.integers(0, 90), st.sampled_from(["", ". ", "\n"])), min_size=1, max_size=12),
    st.integers(0, 200),
)
def test_a_secret_is_found_however_it_is_split_and_no_part_of_it_is_released(
    data: st.DataObject, stretch: str, pieces: list[tuple[int, str]], longest_match: int
):
    check = Check("secrets", action="cut", mode="hold", longest_match=longest_match)
    scene = Scene(Policy((check,)), [(stretch, pieces)])
    text = "".join(delta.text for delta in scene.deltas if isinstance(delta, Text | Thought | CallArguments))
    start = data.draw(st.integers(0, len(text)))
    secret = text[start : start + data.draw(st.integers(1, max(OVERLAP, longest_match)))]
    while not scene.is_over:
        step = data.draw(st.integers(0, 3)) if scene.flying else 1
        if step and len(scene.fed) < len(scene.deltas):
            scene.feed(step)
        else:
            scene.answer(step, lambda check, subject: bool(secret) and secret in subject.text)
    if letters(secret):
        assert scene.gate.decision is not None
        assert not letters(secret) & letters(written(scene.released))
    else:
        assert scene.released[-1] is END


# JSON.


def spelled(text: str) -> str:
    return "".join(f"\\u{ord(character):04x}" for character in text)


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, 1000])
def test_a_json_answer_is_inspected_as_its_reader_gets_it(size: int):
    gate = Gate(policy(subjects=("answer",)))
    gate.writes_json = True
    filler = '{"a":"' + "word " * 60
    written = filler + spelled("secret😀"[:6]) + r"\ud83d\ude00" + "word " * 60 + '"}'
    released: list[Delta] = []
    for at in range(0, len(written), size):
        released += gate.feed([Text(written[at : at + size])])
        for asked in gate.take_due():
            assert "\\" not in "".join(texts([asked]))
            released += gate.judge(asked.ticket, verdicts(asked, ["secret😀"]))
    released += gate.feed([END])
    while due := gate.take_due():
        for asked in due:
            released += gate.judge(asked.ticket, verdicts(asked, ["secret😀"]))
    assert gate.decision is not None
    sent = "".join(delta.text for delta in released if isinstance(delta, Text))
    assert filler.startswith(sent)


@pytest.mark.parametrize("size", [1, 4, 250])
def test_a_json_answer_that_passes_is_released_as_it_was_written(size: int):
    gate = Gate(policy(subjects=("answer",)))
    gate.writes_json = True
    written = '{"a":"' + (spelled("fine") + " word. ") * 60 + r"\ud83d"
    released: list[Delta] = []
    before_the_end = 0
    deltas = [Text(written[at : at + size]) for at in range(0, len(written), size)]
    for delta in [*deltas, END]:
        before_the_end = len(released)
        released += gate.feed([delta])
        while due := gate.take_due():
            for asked in due:
                released += gate.judge(asked.ticket, verdicts(asked))
    assert "".join(delta.text for delta in released if isinstance(delta, Text)) == written
    assert before_the_end > 0
    assert gate.is_settled


def test_a_plain_answer_is_inspected_as_it_was_written():
    gate = Gate(policy(subjects=("answer",)))
    gate.feed([Text(spelled("a")), END])
    assert texts(gate.take_due()) == [spelled("a")]


# What is inspected as a whole.


CITED = Annotated(Raw(b'{"type":"url_citation","title":"a secret"}'))


def test_an_annotation_waits_for_its_own_check_and_does_not_divide_the_text():
    gate = Gate(policy(subjects=("answer",)))
    assert gate.feed([Text("sec"), CITED, Text("ret"), END]) == []
    asked = gate.take_due()
    assert texts(asked) == ["a secret", "secret"]
    assert gate.judge(asked[1].ticket, verdicts(asked[1])) == [Text("sec")]
    assert gate.judge(asked[0].ticket, verdicts(asked[0])) == [CITED, Text("ret"), END]


def test_an_annotation_without_a_text_passes():
    gate = Gate(policy("flag", "follow", subjects=("answer",)))
    bare = Annotated(Raw(b'{"type":"url_citation"}'))
    assert gate.feed([bare, CITED]) == [bare, CITED]
    assert texts(gate.take_due()) == ["a secret"]


def upstream_item(**fields: Any) -> Item:
    given = {"type": "mcp_call", "id": "m", "server_label": "s", "name": "n", "arguments": "{}", **fields}
    return Item("mcp_call", json.dumps(given).encode(), "m")


BEGUN = UpstreamItemStarted(1, upstream_item(arguments=""))


def test_an_item_of_the_engines_server_is_released_whole():
    gate = Gate(policy())
    about = UpstreamItemEvent(1, McpCallArgumentsDelta, {"delta": '{"x":"\\u0061"}'})
    told = UpstreamItemEvent(1, McpCallArgumentsDone, {"arguments": '{"x":"\\u0062"}'})
    ended = UpstreamItemEnded(1, upstream_item(arguments='{"x":"a"}', output="found"))
    assert gate.feed([BEGUN, about, told, Text("b")]) == []
    assert gate.take_due() == []
    assert gate.feed([ended]) == []
    asked = only(gate.take_due())
    assert [(each.side, each.kind) for each in asked.subjects] == [
        ("output", "call"),
        ("input", "tool_output"),
    ]
    assert texts([asked]) == ['{"x":"a"}\n{"x":"b"}\ns\nn', "found"]
    assert gate.judge(asked.ticket, verdicts(asked)) == [BEGUN, about, told]
    rest = gate.feed([END])
    for each in gate.take_due():
        rest += gate.judge(each.ticket, verdicts(each))
    assert rest == [Text("b"), ended, END]


def test_an_item_that_is_broken_off_is_inspected_as_far_as_it_came():
    gate = Gate(policy())
    gate.feed([BEGUN, UpstreamItemEvent(1, McpCallArgumentsDelta, {"delta": "a secret"}), END])
    asked = only(gate.take_due())
    assert gate.judge(asked.ticket, verdicts(asked, ["secret"])) == []
    assert gate.decision is not None


def test_items_wait_for_nothing_if_nothing_can_refuse_them():
    gate = Gate(policy("flag", "follow"))
    ended = UpstreamItemEnded(1, upstream_item(output="found"))
    assert gate.feed([BEGUN, ended]) == [BEGUN, ended]
    assert texts(gate.take_due()) == ["s\nn\n{}", "found"]


def test_after_a_cut_items_that_were_not_released_are_dropped():
    gate = Gate(policy("cut", subjects=("answer", "call")))
    gate.feed(
        [Text("secret"), UpstreamItemStarted(1, upstream_item()), UpstreamItemEnded(1, upstream_item())]
    )
    of_item = only(gate.take_due())
    assert gate.feed([END]) == []
    of_text = only(gate.take_due())
    assert gate.judge(of_text.ticket, verdicts(of_text, ["secret"])) == [END]
    assert gate.judge(of_item.ticket, verdicts(of_item)) == []
    assert gate.is_settled


# Emissions.


def test_an_emission_waits_for_its_own_texts_and_for_the_input_and_the_answer_does_not_wait():
    gate = Gate(policy(subjects=("message", "tool_output")))
    emitted: list[str] = []
    gate.inspect_input([QUESTION])
    gate.hold(lambda: emitted.append("of the input"))
    gate.hold(lambda: emitted.append("a result"), [Subject("input", "tool_output", "found")])
    of_input, of_result = gate.take_due()
    assert gate.take_emissions() == []
    gate.judge(of_input.ticket, verdicts(of_input))
    assert gate.feed([Text("a"), END]) == [Text("a")]
    for emit in gate.take_emissions():
        emit()
    assert emitted == ["of the input"]
    assert not gate.is_settled
    assert gate.judge(of_result.ticket, verdicts(of_result)) == [END]
    assert not gate.is_settled
    for emit in gate.take_emissions():
        emit()
    assert emitted == ["of the input", "a result"]
    assert gate.is_settled


def test_what_is_refused_is_never_emitted():
    gate = Gate(policy(subjects=("tool_output",)))
    gate.hold(lambda: None, [Subject("input", "tool_output", "a secret")])
    gate.hold(lambda: None, [Subject("input", "tool_output", "fine")])
    refused, passed = gate.take_due()
    gate.judge(refused.ticket, verdicts(refused, ["secret"]))
    gate.judge(passed.ticket, verdicts(passed))
    assert gate.take_emissions() == []


def test_after_a_cut_what_was_held_besides_can_still_pass():
    gate = Gate(policy("cut", subjects=("answer", "tool_output")))
    gate.hold(lambda: None, [Subject("input", "tool_output", "fine")])
    gate.feed([Text("secret"), END])
    result, text = gate.take_due()
    assert gate.judge(text.ticket, verdicts(text, ["secret"])) == []
    assert gate.judge(result.ticket, verdicts(result)) == [END]
    assert len(gate.take_emissions()) == 1
