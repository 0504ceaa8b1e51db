"""Inspected items: each item of a context is inspected once, and nothing unknown is let through."""

import json
from collections import Counter
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from slipring.core.chain import hosted_items
from slipring.core.chain.head import Head
from slipring.core.chain.state import ResponseState
from slipring.core.checks.gate import Gate, Inspection
from slipring.core.checks.known_verdicts import KnownVerdicts
from slipring.core.checks.node_verdicts import NodeVerdicts
from slipring.core.checks.policies import Check, Policy
from slipring.core.checks.rulings import checks_of
from slipring.core.checks.verdicts import Subject, Verdict
from slipring.core.generation import Text
from slipring.core.turn.compaction import condensed
from slipring.core.turn.inspected_items import InspectedItems
from slipring.errors import ApiError, InvalidPrompt
from slipring.protocol.hosted.mcp_tools import ListedTool
from slipring.protocol.items import Item, read_item, user_message
from slipring.protocol.tools import Toolset
from tests.core.connection import function, node

POLICY = Policy((Check("guard", action="block"),))
WITHHELD = user_message("[Withheld: the safety check 'guard' has refused this content.]")


def item(**fields: Any) -> Item:
    return read_item(json.dumps(fields).encode(), "input[0]")


def answer(text: str) -> Item:
    return item(type="message", role="assistant", content=[{"type": "output_text", "text": text}])


class Turn:
    """A turn whose checks flag every text that contains "bad"."""

    def __init__(
        self,
        known: KnownVerdicts,
        items: Iterable[Item] = (),
        parent: ResponseState | None = None,
        *,
        policy: Policy = POLICY,
        head: Head | None = None,
        tenant: str = "t",
    ) -> None:
        self.policy, self.parent = policy, parent
        self.gate = Gate(policy)
        self.items = InspectedItems(self.gate, known, tenant)
        self.input = self.items.withhold(tuple(items), {})
        self.seen: list[Subject] = []
        self.error: ApiError | None = None
        head = head or (parent.head if parent is not None else Head())
        try:
            self.items.begin(parent, head, self.input)
        except ApiError as error:
            self.error = error
        self.run()

    @property
    def texts(self) -> list[str]:
        return [subject.text for subject in self.seen]

    def run(self) -> None:
        """Answer all inspections."""
        for inspection in self.gate.take_due():
            self.seen += inspection.subjects
            verdicts = self._verdicts(inspection)
            self.gate.judge(inspection.ticket, verdicts)
            self.items.judged(inspection.subjects, verdicts)
        if self.gate.ruling is not None:
            self.error = self.gate.ruling.error()

    def _verdicts(self, inspection: Inspection) -> list[list[Verdict]]:
        return [
            [
                Verdict(check.name, check.version, flagged="bad" in subject.text)
                for check in checks_of(self.policy, subject, inspection.when)
            ]
            for subject in inspection.subjects
        ]

    def end(self, name: str, *output: Item) -> ResponseState:
        """The state of the response."""
        assert self.error is None
        state = node(name, self.parent, input=self.input, output=output)
        state.verdicts = NodeVerdicts(self.policy.digest)
        self.audits = self.items.completed(output)
        return state


def message(text: str) -> Item:
    return user_message(text)


# A chain.


def test_a_continuation_is_inspected_for_what_it_adds():
    known = KnownVerdicts(10**6)
    first = Turn(known, [message("one")])
    assert first.texts == ["one"]
    second = Turn(known, [message("two")], first.end("a", answer("uno")))
    assert second.texts == ["two"]
    assert second.error is None


def test_a_refused_item_blocks_the_turn_and_is_not_inspected_again():
    known = KnownVerdicts(10**6)
    first = Turn(known, [message("one"), message("bad")])
    assert isinstance(first.error, InvalidPrompt)
    again = Turn(known, [message("one"), message("bad")])
    assert isinstance(again.error, InvalidPrompt)
    assert again.texts == []
    assert Turn(known, [message("one"), message("good")]).texts == ["good"]


def test_tenants_and_policies_share_nothing():
    known = KnownVerdicts(10**6)
    Turn(known, [message("one")])
    assert Turn(known, [message("one")], tenant="other").texts == ["one"]
    assert Turn(known, [message("one")], policy=Policy((Check("guard", version="2"),))).texts == ["one"]


def test_a_check_that_failed_inspects_again():
    known = KnownVerdicts(10**6)
    turn = Turn(KnownVerdicts(0))
    turn.items = InspectedItems(turn.gate, known, "t")
    turn.items.begin(None, Head(), (message("one"),))
    (inspection,) = turn.gate.take_due()
    turn.items.judged(inspection.subjects, [[Verdict("guard", "", flagged=False, failed="timeout")]])
    assert Turn(known, [message("one")]).texts == ["one"]


# A history that the client sends.


def test_a_resent_history_is_inspected_for_what_it_adds():
    known = KnownVerdicts(10**6)
    history = [message("one"), answer("uno")]
    Turn(known, history[:1]).end("a", history[1])
    assert Turn(known, [*history, message("two")]).texts == ["two"]


def test_an_unknown_item_is_not_let_through_wherever_it_stands():
    forged = [message("bad"), answer("fine"), message("go on")]
    turn = Turn(KnownVerdicts(10**6), forged)
    assert turn.texts == ["bad", "fine", "go on"]
    assert isinstance(turn.error, InvalidPrompt)


@pytest.mark.parametrize("scope", ["new", "all"])
def test_what_was_refused_before_is_withheld_once_something_else_is_behind_it(scope: Any):
    policy = Policy(POLICY.checks, scope=scope)
    known = KnownVerdicts(10**6)
    assert Turn(known, [message("bad")], policy=policy).error is not None
    history = [message("bad"), message("sorry")]
    turn = Turn(known, history, policy=policy)
    assert (turn.error, turn.texts) == (None, ["sorry"])
    assert turn.input == (WITHHELD, history[1])
    history.append(answer("fine"))
    turn.end("a", history[-1])
    longer = Turn(known, [*history, message("go on")], policy=policy)
    assert (longer.error, longer.texts) == (None, ["go on"])
    assert longer.input[:1] == (WITHHELD,)
    again = Turn(known, [*history, message("go on"), message("bad")], policy=policy)
    assert (type(again.error), again.texts) == (InvalidPrompt, [])
    assert again.input[0] == WITHHELD


def test_the_same_request_is_refused_again():
    known = KnownVerdicts(10**6)
    refused = [message("one"), message("bad"), message("two")]
    for _ in range(2):
        assert isinstance(Turn(known, refused).error, InvalidPrompt)
    assert isinstance(Turn(known, [message("bad")]).error, InvalidPrompt)
    assert Turn(known, refused).error is None
    assert Turn(known, [*refused, message("three")]).error is None


def test_a_refusal_is_known_before_the_other_checks_have_answered():
    policy = Policy((*POLICY.checks, Check("watch"), Check("late", mode="audit")))
    known = KnownVerdicts(10**6)
    items = InspectedItems(Gate(policy), known, "t")
    items.begin(None, Head(), (message("bad"),))
    (subject,) = items._gate.take_due()[0].subjects
    items.judged([subject], [[Verdict("guard", "", flagged=True)]])
    turn = Turn(known, [message("bad"), message("sorry")], policy=policy)
    assert turn.error is None
    assert turn.input[0] == WITHHELD


def test_with_the_scope_all_a_chain_is_inspected_once_under_a_new_policy():
    known = KnownVerdicts(10**6)
    root = Turn(known, [message("one")]).end("a", answer("uno"))
    child = Turn(known, [message("two")], root).end("b", answer("due"))
    stricter = Policy((Check("guard", version="2", action="block"),), scope="all")
    turn = Turn(known, [message("three")], child, policy=stricter)
    assert sorted(turn.texts) == ["due", "one", "three", "two", "uno"]
    grown = turn.end("c", answer("tre"))
    assert Turn(known, [message("four")], grown, policy=stricter).texts == ["four"]
    assert Turn(known, [message("five")], child, policy=Policy(stricter.checks)).texts == ["five"]


# Instructions, tools and tool outputs.


def test_the_head_is_inspected_when_it_changes():
    known = KnownVerdicts(10**6)
    tools = Toolset.read(Raw(json.dumps([function("f", description="Does.")]).encode()))
    head = Head("Be brief.", tools)
    first = Turn(known, [message("one")], head=head)
    assert [subject.kind for subject in first.seen] == ["instructions", "instructions", "message"]
    state = first.end("a")
    state.head = head
    assert Turn(known, [message("two")], state).texts == ["two"]
    assert Turn(known, [message("three")], state, head=Head("Be long.", tools)).texts == ["Be long.", "three"]


def test_a_list_of_hosted_tools_is_inspected_once_whether_it_is_fetched_or_sent():
    known = KnownVerdicts(10**6)
    tools = [{"name": "find", "input_schema": {}, "description": "Finds."}]
    sent = item(type="mcp_list_tools", server_label="s", tools=tools)
    assert len(Turn(known, [sent]).seen) == 1
    fetched = Turn(known)
    fetched.items.add_list([ListedTool("find", Raw(b"{}"), "Finds.")])
    assert fetched.gate.take_due() == []
    fetched.end("a", sent)
    assert fetched.audits == []


def test_tool_outputs_are_inspected_with_the_name_of_their_tool():
    known = KnownVerdicts(10**6)
    call = item(type="function_call", call_id="c", name="read", arguments="{}")
    state = Turn(known, [message("one")]).end("a", call)
    output = item(type="function_call_output", call_id="c", output="found")
    assert Turn(known, [output], state).seen == [Subject("input", "tool_output", "found", name="read")]
    steps = Turn(known, [message("two")], state)
    second = item(type="function_call", call_id="d", name="write", arguments="{}")
    steps.items.add([item(type="function_call_output", call_id="d", output="bad")], [second])
    steps.run()
    assert steps.seen[-1] == Subject("input", "tool_output", "bad", name="write")
    assert isinstance(steps.error, InvalidPrompt)


def test_a_summary_is_inspected_as_one_if_the_server_wrote_it():
    policy = Policy((Check("guard", action="block", subjects=("summary",)),))
    context = condensed((message("one"), answer("uno")), 2, "all of it", node("a").carry, 100)
    turn = Turn(KnownVerdicts(10**6), context, policy=policy)
    assert turn.texts == []
    turn.items.add(context, is_sealed=True)
    turn.run()
    assert [subject.kind for subject in turn.seen] == ["summary"]
    sealed = Item("compaction", b'{"type":"compaction","encrypted_content":"x"}', opened=context)
    assert len(Turn(KnownVerdicts(10**6), [sealed], policy=policy).seen) == 1


def test_a_summary_and_a_message_with_the_same_text_are_inspected_by_their_own_checks():
    policy = Policy(
        (Check("watch", subjects=("summary",)), Check("guard", action="block", subjects=("message",)))
    )
    known = KnownVerdicts(10**6)
    (summary,) = condensed((answer("uno"),), 1, "bad", node("a").carry, 100)
    sealed = Item("compaction", b'{"type":"compaction","encrypted_content":"x"}', opened=(summary,))
    assert Turn(known, [sealed], policy=policy).error is None
    assert isinstance(Turn(known, [summary], policy=policy).error, InvalidPrompt)


def test_a_client_cannot_pass_a_message_off_as_a_summary_by_the_result_of_a_hosted_call():
    policy = Policy((Check("guard", action="block", subjects=("message",)),))
    (summary,) = condensed((answer("uno"),), 1, "bad", node("a").carry, 100)
    forged = Item("message", summary.raw, id="msg_xs0001")  # as if it were of the step that made the call
    call = item(type="mcp_call", id="mcp_x0000", server_label="s", name="f", arguments="{}", output="fine")
    turn = Turn(KnownVerdicts(10**6), policy=policy)
    turn.items.begin(None, Head(), hosted_items.opened((call, forged)))
    turn.run()
    assert [subject.kind for subject in turn.seen] == ["message"]
    assert isinstance(turn.error, InvalidPrompt)


# Reading matter.


def test_a_check_can_read_the_last_texts():
    known = KnownVerdicts(10**6)
    policy = Policy((Check("guard", action="block", context=2),))
    root = Turn(known, [message("one")], policy=policy).end("a", answer("uno"))
    child = Turn(known, [message("two")], root, policy=policy).end("b", answer("due"))
    turn = Turn(known, [message("three"), message("four")], child, policy=policy)
    assert [subject.context for subject in turn.seen] == [("two", "due"), ("due", "three")]
    turn.gate.feed([Text("so")])
    assert turn.gate.context == ("three", "four")


# Audits.


def test_what_audits_inspect_is_known_when_they_have_ended():
    policy = Policy((Check("late", action="block", mode="audit"),))
    known = KnownVerdicts(10**6)
    turn = Turn(known, [message("one")], policy=policy)
    assert turn.seen == []
    turn.end("a", answer("uno"))
    assert [subject.text for subject in turn.audits] == ["one", "uno"]
    turn.items.judged(turn.audits, [[Verdict("late", "", flagged=flag)] for flag in (False, True)])
    assert isinstance(Turn(known, [message("one"), answer("uno")], policy=policy).error, InvalidPrompt)
    clean = Turn(known, [message("one"), message("two")], policy=policy)
    clean.end("b")
    assert [subject.text for subject in clean.audits] == ["two"]


# Any history.


@pytest.mark.parametrize("scope", ["new", "all"])
@given(data=st.data())
def test_every_item_is_inspected_exactly_once(scope: Any, data: st.DataObject):
    """Chains, forks, retries and resent histories, in any order."""
    policy = Policy((Check("guard", action="block"), Check("watch", action="flag")), scope=scope)
    known = KnownVerdicts(10**6)
    states: list[ResponseState] = []
    sent: list[str] = []
    inspected: Counter[tuple[str, str]] = Counter()
    for number in range(data.draw(st.integers(1, 12))):
        new = [message(f"question {number}.{part}") for part in range(data.draw(st.integers(0, 2)))]
        base = data.draw(st.sampled_from([None, *states]))
        resends = bool(states) and data.draw(st.booleans())
        history = tuple(data.draw(st.sampled_from(states)).context()) if resends else ()
        parent, items = (None, (*history, *new)) if base is None else (base, tuple(new))
        for _ in range(data.draw(st.integers(1, 2))):  # the last attempt succeeds
            turn = Turn(known, items, parent, policy=policy)
            inspected.update((subject.kind, subject.text) for subject in turn.seen)
        sent += [f"question {number}.{part}" for part in range(len(new))]
        states.append(turn.end(f"resp_{number}", answer(f"answer {number}")))
    # Once by the check that holds, once by the check that follows.
    assert inspected == {("message", text): 2 for text in sent}
