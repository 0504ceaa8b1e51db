"""Inspected items: each item of a context is inspected once, and nothing unknown is let through."""

import json
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw, structs

from slipring.base.errors import ApiError, InvalidPrompt
from slipring.core.chain import hosted_items_in_context
from slipring.core.chain.instructions_and_tools import Head
from slipring.core.chain.state import ResponseState
from slipring.core.checks.answer_gate import Gate, Inspection
from slipring.core.checks.inspected_texts import list_text
from slipring.core.checks.known_verdicts import KnownVerdicts
from slipring.core.checks.policies import Check, Policy, checks_of
from slipring.core.checks.verdicts import NodeVerdicts, Subject, Verdict
from slipring.core.generation import Finished, Job, Settings, Text
from slipring.core.turn.compaction import condensed
from slipring.core.turn.turn_checks import InspectedItems
from slipring.protocol.items.items import Item, read_item, user_message
from slipring.protocol.tools.mcp_tools import ListedTool
from slipring.protocol.tools.tool_choice import Offer
from slipring.protocol.tools.toolset import Toolset
from tests.core.connection import PLAIN, function, node

POLICY = Policy((Check("guard", action="block"),))
FINISHED = Finished(reason="stop", input_tokens=0, cached_tokens=0, output_tokens=0)
_JOB = Job("r1", "t", PLAIN, Head(), None, (), Offer(), Settings())
WITHHELD = user_message("[Withheld: the safety check 'guard' has refused this content.]")


def item(**fields: Any) -> Item:
    return read_item(json.dumps(fields).encode(), "input[0]")


def answer(text: str) -> Item:
    return item(type="message", role="assistant", content=[{"type": "output_text", "text": text}])


def is_bad(subject: Subject) -> bool:
    return "bad" in subject.text


def read_by(check: Check, subject: Subject) -> Subject:
    """What a check sees of a subject: the server gives it as much context as it reads."""
    return structs.replace(subject, context=subject.context[max(len(subject.context) - check.context, 0) :])


class Turn:
    """A turn whose checks flag every text that contains "bad", or what else they are given for."""

    def __init__(
        self,
        known: KnownVerdicts,
        items: Iterable[Item] = (),
        parent: ResponseState | None = None,
        *,
        policy: Policy = POLICY,
        head: Head | None = None,
        tenant: str = "t",
        flags: Callable[[Subject], bool] = is_bad,
    ) -> None:
        self.policy, self.parent, self.flags = policy, parent, flags
        self.gate = Gate(policy)
        self.items = InspectedItems(self.gate, known, tenant)
        self.input = self.items.withhold(parent, tuple(items), {})
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
        if self.gate.decision is not None:
            self.error = self.gate.decision.error()

    def _verdicts(self, inspection: Inspection) -> list[list[Verdict]]:
        return [
            [
                Verdict(check.name, check.version, flagged=self.flags(read_by(check, subject)))
                for check in checks_of(self.policy, subject, inspection.when)
            ]
            for subject in inspection.subjects
        ]

    def resume(self, items: Iterable[Item], step: ResponseState | None) -> None:
        """Go on with these items behind a step."""
        if step is not None and step is not self.parent:
            self.items.end_step(step.output)
        self.items.resume(structs.replace(_JOB, parent=step, input=tuple(items)))
        self.run()

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
    fetched.items.add_list(list_text("s", [ListedTool("find", Raw(b"{}"), "Finds.")], None))
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
    answered = item(type="function_call_output", call_id="d", output="bad")
    steps.resume([answered], step=node("b", output=(second,)))
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
    turn.items.begin(None, Head(), hosted_items_in_context.opened((call, forged)))
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


def test_a_verdict_holds_for_the_texts_that_the_check_read():
    """The word alone is fine, and so is what surrounds it; together they are not."""

    def leaks(subject: Subject) -> bool:
        return subject.text == "api" and "ok" in subject.context

    policy = Policy((Check("guard", action="block", context=3),))
    known = KnownVerdicts(10**6)
    assert Turn(known, [message("api")], policy=policy, flags=leaks).error is None
    assert isinstance(
        Turn(known, [message("ok"), message("api")], policy=policy, flags=leaks).error, ApiError
    )
    # What was flagged in one context is not refused in another.
    assert Turn(known, [message("no"), message("api")], policy=policy, flags=leaks).error is None
    root = Turn(known, [message("ok")], policy=policy, flags=leaks).end("a", answer("well"))
    assert isinstance(Turn(known, [message("api")], root, policy=policy, flags=leaks).error, ApiError)
    fork = Turn(known, [message("why")], policy=policy, flags=leaks).end("b", answer("well"))
    assert Turn(known, [message("api")], fork, policy=policy, flags=leaks).error is None
    # It is withheld where it was refused, and what follows it is read behind the placeholder.
    turn = Turn(known, [message("ok"), message("api"), message("hm")], policy=policy, flags=leaks)
    assert (turn.error, turn.input[1]) == (None, WITHHELD)
    assert [(each.text, each.context[-1:]) for each in turn.seen] == [
        ("hm", ("[Withheld: the safety check 'guard' has refused this content.]",))
    ]


def test_the_uninspected_end_of_a_chain_is_read_behind_its_beginning():
    policy = Policy((Check("guard", action="block", context=3),), scope="all")
    known = KnownVerdicts(10**6)
    root = Turn(known, [message("one")], policy=policy).end("a", answer("uno"))
    unanswered = Turn(known, [message("two")], root).end("b", answer("due"))
    turn = Turn(known, [message("three")], unanswered, policy=policy)
    assert [(subject.text, subject.context) for subject in turn.seen] == [
        ("two", ("one", "uno")),
        ("due", ("one", "uno", "two")),
        ("three", ("uno", "two", "due")),
    ]


def test_an_output_is_known_by_the_name_of_its_tool():
    def is_secret(subject: Subject) -> bool:
        return subject.name == "vault"

    def history(name: str) -> list[Item]:
        call = item(type="function_call", call_id="c", name=name, arguments="{}")
        return [message("go"), call, item(type="function_call_output", call_id="c", output="found")]

    policy = Policy((Check("guard", action="block", subjects=("tool_output",)),))
    known = KnownVerdicts(10**6)
    assert Turn(known, history("files"), policy=policy, flags=is_secret).error is None
    assert isinstance(Turn(known, history("vault"), policy=policy, flags=is_secret).error, InvalidPrompt)
    assert Turn(known, history("files"), policy=policy, flags=is_secret).seen == []


def test_instructions_and_tools_are_no_texts_of_the_conversation():
    policy = Policy((Check("guard", action="block", context=2),))
    more = item(type="additional_tools", role="developer", tools=[function("f")])
    turn = Turn(KnownVerdicts(10**6), [message("one"), more, message("two")], policy=policy, head=Head("Be."))
    assert [(subject.kind, subject.context) for subject in turn.seen] == [
        ("instructions", ()),
        ("message", ()),
        ("instructions", ()),
        ("message", ("one",)),
    ]


def test_a_step_is_read_behind_what_the_one_before_has_written():
    policy = Policy((Check("guard", action="block", context=4),))
    known = KnownVerdicts(10**6)
    call = item(type="function_call", call_id="c", name="read", arguments="{}")
    output = item(type="function_call_output", call_id="c", output="found")
    turn = Turn(known, [message("go")], policy=policy)
    turn.resume([output], step=node("s", output=(call,)))
    assert [subject.context for subject in turn.seen] == [(), ("go", "read\n{}")]
    turn.end("a", call, output, answer("done"))
    history = [message("go"), call, output, answer("done")]
    assert Turn(known, [*history, message("more")], policy=policy).texts == ["more"]


def test_results_of_approved_calls_stand_where_the_input_does():
    policy = Policy((Check("guard", action="block", context=4),))
    known = KnownVerdicts(10**6)
    parent = Turn(known, [message("one")], policy=policy).end("a", answer("uno"))
    turn = Turn(known, [message("go")], parent, policy=policy)
    turn.seen.clear()
    turn.resume([message("go"), item(type="function_call_output", call_id="c", output="found")], step=parent)
    assert [(subject.text, subject.context) for subject in turn.seen] == [("found", ("one", "uno", "go"))]


def test_a_check_that_gave_no_answer_about_an_answer_inspects_it_when_it_comes_back():
    policy = Policy((Check("guard", action="block", mode="hold", on_error="open"),))
    known = KnownVerdicts(10**6)
    turn = Turn(known, [message("one")], policy=policy)
    turn.gate.feed([Text("uno"), FINISHED])
    for inspection in turn.gate.take_due():
        turn.gate.judge(inspection.ticket, [[Verdict("guard", "", flagged=False, failed="timeout")]])
    turn.end("a", answer("uno"))
    assert Turn(known, [message("one"), answer("uno"), message("two")], policy=policy).texts == ["uno", "two"]


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


def test_an_audit_reads_the_texts_before_an_answer():
    policy = Policy((Check("late", action="block", mode="audit", context=2),))
    turn = Turn(KnownVerdicts(10**6), [message("one"), message("two")], policy=policy)
    turn.end("a", answer("uno"))
    assert [subject.context for subject in turn.audits] == [(), ("one",), ("one", "two")]


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


_WORDS = ("a", "b", "c")


def _any_verdict(subject: Subject) -> bool:
    """Depends on all that a check sees, except for what the server has written itself."""
    if subject.kind in ("answer", "call") or subject.text.startswith("[Withheld"):
        return False
    seen = (subject.kind, subject.role, subject.name, subject.text, *subject.context)
    return crc32(repr(seen).encode()) % 5 == 0


@st.composite
def _items(draw: st.DrawFn) -> list[Item]:
    items: list[Item] = []
    for number in range(draw(st.integers(1, 4))):
        kind = draw(st.sampled_from(["user", "system", "answer", "tool"]))
        text = draw(st.sampled_from(_WORDS))
        if kind == "tool":
            call_id, name = f"c{number}", draw(st.sampled_from(["f", "g"]))
            items.append(item(type="function_call", call_id=call_id, name=name, arguments="{}"))
            items.append(item(type="function_call_output", call_id=call_id, output=text))
        elif kind == "answer":
            items.append(answer(text))
        else:
            items.append(item(type="message", role=kind, content=text))
    return items


@pytest.mark.parametrize("scope", ["new", "all"])
@given(data=st.data())
def test_remembered_verdicts_are_those_that_the_checks_would_give(scope: Any, data: st.DataObject):
    """Chains, forks, retries and resent histories: with what is remembered, every turn ends as without."""
    of_outputs = Check("outputs", action="block", subjects=("tool_output",), context=3)
    of_messages = Check("messages", action="block", subjects=("message",), context=1)
    plain = Check("plain", action="block", subjects=("tool_output", "message"), version="2")
    checks = data.draw(st.lists(st.sampled_from([of_outputs, of_messages, plain]), min_size=1, unique=True))
    policy = Policy(tuple(checks), scope=scope)
    known = KnownVerdicts(10**6)
    states: list[ResponseState] = []

    def turn(memory: KnownVerdicts, items: Iterable[Item], parent: ResponseState | None) -> Turn:
        return Turn(memory, items, parent, policy=policy, flags=_any_verdict)

    for number in range(data.draw(st.integers(1, 8))):
        base = data.draw(st.sampled_from([None, *states]))
        resends = base is not None and data.draw(st.booleans())
        parent = None if resends else base
        items = [*(base.context() if resends else ()), *data.draw(_items())]
        remembering = turn(known, items, parent)
        fresh = turn(KnownVerdicts(0), items, parent)
        if remembering.input == tuple(items):
            assert type(remembering.error) is type(fresh.error)
        else:
            assert fresh.error is not None
            again = turn(KnownVerdicts(0), remembering.input, parent)
            assert type(remembering.error) is type(again.error)
        if remembering.error is None:
            states.append(remembering.end(f"resp_{number}", answer(data.draw(st.sampled_from(_WORDS)))))
