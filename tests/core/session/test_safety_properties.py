"""Any interleaving of turns and verdicts: nothing refused is seen again, and each item is inspected once.

Two connections of one tenant run turns on two lanes each, under a policy that Hypothesis chooses. Engine,
checks and store work in any order. Every word that clients and engines write occurs once, so that it tells
where it comes from. A check refuses every text that contains a word that begins with "bad".
"""

import json
import re
from collections import Counter, deque
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from slipring.core.betas import Betas
from slipring.core.chain.state import ResponseState
from slipring.core.checks.answer_gate import Gate
from slipring.core.checks.policies import KINDS, Check, Policy, Scope
from slipring.core.generation import CallArguments, CallEnded, CallStarted, Delta, Finished, Text, Thought
from slipring.core.session.actions import Generate, Inspect
from slipring.core.turn.turn import Turn
from tests.core.connection import Connection, Json, Server, call_output, function, message, verdicts_of

LANES = [None, "a"]
UNSHRUNK = [phase for phase in Phase if phase not in (Phase.shrink, Phase.explain)]
"""A failed run is shown as it was found: making it smaller takes minutes, more than a test has."""
_WORD = re.compile(r"(?:good|bad)\d+")
CHECKS = st.builds(
    Check,
    name=st.just("guard"),
    action=st.sampled_from(["cut", "block"]),
    mode=st.sampled_from(["hold", "hold", "follow"]),
    on_error=st.sampled_from(["open", "closed"]),
    before=st.booleans(),
    ending=st.sampled_from(["incomplete", "refusal"]),
    subjects=st.sampled_from([KINDS, ("message", "tool_output"), ("answer", "call", "reasoning")]),
)


class Safety(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.words = 0
        self.calls = 0
        self.refused: set[str] = set()
        """Words of refused windows of answers, under a check that holds."""
        self.sent: set[str] = set()
        """Words in events, those that were sent in pieces included."""
        self.pieces: dict[str, str] = {}
        """By item: what has been sent of its text, its thought or its arguments."""
        self.blocked: set[str] = set()
        """Words of refused input."""
        self.read: set[str] = set()
        """Words that engines have read."""
        self.refused_messages: list[str] = []
        self.inspected: Counter[str] = Counter()
        """By word of the input: how often the check that may refuse was asked about it, and has answered."""
        self.unsure: set[str] = set()
        """Words of texts that the check failed on, so that they are inspected again whenever they are sent;
        and of answers that were cut after they had been released."""
        self.unanswered: set[str] = set()
        """Responses that the check has failed on."""
        self.broken_off: set[str] = set()
        """Responses whose engine has failed within an answer, or before the check had answered."""
        self.writing: set[Turn] = set()
        """Turns whose engine has begun an answer."""
        self.made: list[tuple[Connection, str | None, str]] = []

    @initialize(check=CHECKS, watches=st.booleans(), scope=st.sampled_from(["new", "all"]))
    def begin(self, check, watches, scope):
        self._serve(check, watches, scope)

    def _serve(self, check: Check, watches: bool, scope: Scope) -> None:
        watch = [Check("watch", action="flag", subjects=("message", "answer"))] if watches else []
        self.check = check
        self.server = Server()
        self.server.policy = Policy((check, *watch), scope)
        self.connections = [
            Connection(self.server, betas=Betas(rollout=True), on_start=self._start) for _ in range(2)
        ]

    def _text(self, count: int, bad: int) -> str:
        """New words, the one with this number bad."""
        words = []
        for number in range(count):
            self.words += 1
            words.append(f"{'bad' if number == bad else 'good'}{self.words:05d}")
        return " ".join(words) + ". "

    # Clients.

    @rule(
        who=st.integers(0, 1),
        lane=st.sampled_from(LANES),
        pick=st.integers(0, 9),
        how=st.sampled_from(
            ["new", "continue", "resend", "resend", "warm up", "roll out", "store", "insist"]
        ),
        bad=st.integers(0, 9),
    )
    def create(self, who, lane, pick, how, bad):
        connection = self.connections[who]
        fields: Json = {"input": [message(self._text(3, bad))], "tools": [function("f")]}
        made = [made for made in self.made if made[0] is connection]
        if how == "insist" and self.refused_messages:
            refused = self.refused_messages[pick % len(self.refused_messages)]
            fields["input"] = [message(refused), *fields["input"]]
        if how in ("continue", "resend") and made:
            _, _, response_id = made[pick % len(made)]
            state = connection.cache.find(response_id)
            if state is None or state.carry.open_calls:
                return
            if how == "continue":
                fields["previous_response_id"] = response_id
            else:
                fields["input"] = [*(json.loads(item.raw) for item in state.context()), *fields["input"]]
        connection.create(
            lane, **fields, generate=how != "warm up", rollout=how == "roll out", store=how == "store"
        )
        self._look()

    @precondition(lambda self: any(self._paused()))
    @rule(pick=st.integers(0, 9), bad=st.integers(0, 3))
    def append(self, pick, bad):
        paused = list(self._paused())
        connection, turn = paused[pick % len(paused)]
        outputs = [call_output(call_id, self._text(2, bad)) for call_id in turn.open_calls]
        connection.append(turn.output.response_id, *outputs)
        self._look()

    @rule(who=st.integers(0, 1), bad=st.integers(0, 3))
    def roll_out(self, who, bad):
        """A rollout calls a tool and gets its output, if its lane is free."""
        connection = self.connections[who]
        connection.create("b", input=[message(self._text(2, -1))], tools=[function("f")], rollout=True)
        self._judge_all(connection)
        for turn in [turn for turn in connection.starts if turn.asked.lane == "b"]:
            call = [CallStarted("function", "f"), CallArguments(self._text(1, -1)), CallEnded()]
            connection.finish(*call, lane="b")
            self._judge_all(connection)
            if turn.is_paused and turn.open_calls:
                outputs = [call_output(call_id, self._text(2, bad)) for call_id in turn.open_calls]
                connection.append(turn.output.response_id, *outputs)
        self._look()

    def _judge_all(self, connection: Connection) -> None:
        while connection.inspections:
            self._judge(connection, 0, fails=False)

    def _paused(self) -> Iterator[tuple[Connection, Turn]]:
        for connection in self.connections:
            for turn in connection.session.running_and_queued():
                if turn.is_paused:
                    yield connection, turn

    # The engine, the store and the checks.

    @precondition(lambda self: any(connection.starts for connection in self.connections))
    @rule(
        pick=st.integers(0, 9),
        kind=st.sampled_from(["text", "text", "long text", "thought", "call"]),
        bad=st.integers(0, 40),
        ends=st.booleans(),
    )
    def generate(self, pick, kind, bad, ends):
        running = [(c, turn) for c in self.connections for turn in c.starts]
        connection, turn = running[pick % len(running)]
        deltas: list[Delta] = []
        if connection.starts[turn].job.generate:
            words = self._text(60 if kind == "long text" else 8, bad)
            if kind == "call":
                deltas = [CallStarted("function", "f"), CallArguments(words), CallEnded()]
            else:
                deltas = [
                    (Thought if kind == "thought" else Text)(words[i : i + 7])
                    for i in range(0, len(words), 7)
                ]
        if ends or not deltas or turn.progress.stop.asked:
            self.writing.discard(turn)
            connection.finish(*deltas, lane=turn.asked.lane)
        else:
            self.writing.add(turn)
            connection.generate(*deltas, lane=turn.asked.lane)
        self._look()

    @precondition(lambda self: any(connection.inspections for connection in self.connections))
    @rule(pick=st.integers(0, 9), fails=st.sampled_from([False, False, False, True]))
    def judge(self, pick, fails):
        flying = [(c, number) for c in self.connections for number in range(len(c.inspections))]
        connection, number = flying[pick % len(flying)]
        self._judge(connection, number, fails=fails)

    def _judge(self, connection: Connection, number: int, *, fails: bool) -> None:
        inspect = connection.inspections[number]
        flags: dict[str, str | None] = {"guard": None} if fails else {}
        self._note(inspect, flags)
        connection.inspect(number, **flags)
        self._look()

    def _note(self, inspect: Inspect, flags: dict[str, str | None]) -> None:
        verdicts = verdicts_of(inspect.inspection, flags)
        for subject, given in zip(inspect.inspection.subjects, verdicts, strict=True):
            words = set(_WORD.findall(subject.text))
            guard = next((verdict for verdict in given if verdict.check == "guard"), None)
            if guard is None:
                continue
            if guard.failed is not None:
                self.unanswered.add(inspect.turn.output.response_id)
                self.unsure |= words
            elif subject.side == "input":
                self.inspected.update(words - self.unsure)
                refused = words - self._kept() if guard.flagged else set()
                self.blocked |= refused
                assert not (self.check.before and refused & self.read), "an engine has read refused words"
                if guard.flagged and subject.kind == "message":
                    self.refused_messages.append(subject.text)
            elif guard.flagged and self.check.mode == "hold":
                self.refused |= words

    def _kept(self) -> set[str]:
        """The words of all responses that can be continued."""
        return {
            word
            for state in self._states()
            for item in (*state.input, *state.output)
            for word in _WORD.findall(item.raw.decode())
        }

    def _states(self) -> list[ResponseState]:
        cached = (state for connection in self.connections for state in connection.cache.states())
        return [*self.server.store.values(), *cached]

    @precondition(lambda self: any(connection.saves for connection in self.connections))
    @rule(pick=st.integers(0, 9))
    def save(self, pick):
        saving = [(c, turn) for c in self.connections for turn in c.saves]
        connection, turn = saving[pick % len(saving)]
        connection.save(turn.asked.lane)
        self._look()

    @precondition(lambda self: any(connection.starts for connection in self.connections))
    @rule(pick=st.integers(0, 9))
    def fail(self, pick):
        running = [(c, turn) for c in self.connections for turn in c.starts]
        connection, turn = running[pick % len(running)]
        if turn in self.writing or any(each.turn is turn for each in connection.inspections):
            self.broken_off.add(turn.output.response_id)
        connection.fail(turn.asked.lane)
        self._look()

    # What must hold.

    def _start(self, start: Generate) -> None:
        """No engine reads what was refused before it got its job."""
        context = set(_WORD.findall(b" ".join(item.raw for item in start.job.context()).decode()))
        assert not self.blocked & context, "an engine reads refused words"
        self.read |= context

    def _look(self) -> None:
        """Note the responses that have ended, and compare what clients have received."""
        for connection in self.connections:
            while connection.events:
                event = connection.events.pop(0)
                kind = event["type"]
                if kind in ("response.completed", "response.incomplete"):
                    if kind == "response.incomplete" or self.check.ending == "refusal":
                        self.unsure |= set(_WORD.findall(json.dumps(event)))
                    self.made.append((connection, event.get("stream_id"), event["response"]["id"]))
                if kind == "error" or kind == "response.failed":
                    error = event["error"] if kind == "error" else event["response"]["error"]
                    assert not _WORD.search(error["message"])
                self.sent.update(_WORD.findall(json.dumps(event)))
                if kind.endswith(".delta"):
                    self.pieces[event["item_id"]] = self.pieces.get(event["item_id"], "") + event["delta"]
                    self.sent.update(_WORD.findall(self.pieces[event["item_id"]]))
        # Also what was sent before it was refused.
        assert not self.sent & self.refused, "refused words were sent"

    @invariant()
    def nothing_refused_is_kept(self):
        if not hasattr(self, "server"):
            return
        for state in self._states():
            output = {word for item in state.output for word in _WORD.findall(item.raw.decode())}
            given = {word for item in state.input for word in _WORD.findall(item.raw.decode())}
            assert not output & self.refused
            assert not (output | given) & self.blocked
            assert state.verdicts is not None
            if state.id in self.unanswered:
                assert state.verdicts.policy == b""
            elif state.id not in self.broken_off or state.verdicts.policy:
                assert state.verdicts.policy == self.server.policy.digest

    @invariant()
    def every_item_is_inspected_once(self):
        assert all(count == 1 for count in self.inspected.values()), self.inspected

    def teardown(self):
        if not hasattr(self, "server"):
            return
        for connection in self.connections:
            while self._work(connection):
                self._look()
            paused = [turn for c, turn in self._paused() if c is connection]
            assert connection.session.in_flight == len(paused)
            assert all(turn.open_calls for turn in paused), "it has all outputs, and does not go on"
        self.nothing_refused_is_kept()
        self.every_item_is_inspected_once()

    def _work(self, connection: Connection) -> bool:
        """Do something that is left to do; returns whether there was anything."""
        if connection.inspections:
            self._judge(connection, 0, fails=False)
        elif connection.starts:
            connection.finish(lane=next(iter(connection.starts)).asked.lane)
        elif connection.saves:
            connection.save(next(iter(connection.saves)).asked.lane)
        elif connection.loads:  # of a parent that another turn has evicted
            connection.load(next(iter(connection.loads)).asked.lane)
        else:
            return False
        return True


Safety.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None, phases=UNSHRUNK)
TestSafety = Safety.TestCase


class Holding(Safety):
    """The machine with a check that holds every answer."""

    @initialize()
    def begin(self):
        self._serve(
            Check("guard", action="cut", mode="hold", subjects=("answer",)), watches=False, scope="new"
        )


def test_the_machine_notices_a_gate_that_holds_nothing_back(monkeypatch):
    monkeypatch.setattr(Gate, "_take_passed", take_all)
    soon = settings(Safety.TestCase.settings, max_examples=20, report_multiple_bugs=False, database=None)
    with pytest.raises(AssertionError, match="refused words were sent"):
        run_state_machine_as_test(Holding, settings=soon)


def take_all(gate: Gate) -> list[Any]:
    """What ``Gate._take_passed`` would take if everything had passed."""
    taken = [held for held in gate._held if not isinstance(held.delta, Finished)]
    gate._held = deque(held for held in gate._held if isinstance(held.delta, Finished))
    gate._held_bytes = 0
    return taken
