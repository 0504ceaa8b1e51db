"""What requests of the Messages API ask for."""

from typing import Any

import pytest

from slipring.base.errors import InvalidRequest
from slipring.protocol.messages import requests
from slipring.protocol.messages.requests import MessagesTranslation
from slipring.protocol.wire import encode


def read(**fields: Any) -> requests.CountRequest:
    return requests.read_create(encode({"model": "m", "max_tokens": 1, "messages": [], **fields}))


@pytest.mark.parametrize(
    ("thinking", "asked", "effort"),
    [
        (None, None, "none"),
        (None, "high", "none"),
        ({"type": "disabled"}, "high", "none"),
        ({"type": "enabled", "budget_tokens": 1024}, None, "low"),
        ({"type": "enabled", "budget_tokens": 10_000}, None, "medium"),
        ({"type": "enabled", "budget_tokens": 31_999}, None, "high"),
        ({"type": "enabled", "budget_tokens": 31_999}, "low", "low"),
        ({"type": "adaptive"}, None, None),
        ({"type": "adaptive"}, "max", "max"),
        ({"type": "between_tools"}, None, None),
    ],
)
def test_how_much_a_model_thinks(thinking: Any, asked: str | None, effort: str | None) -> None:
    assert requests.effort_of(read(thinking=thinking, output_config={"effort": asked})) == effort


@pytest.mark.parametrize(
    ("edits", "context"),
    [(None, None), ([], None), ([{"type": "clear_thinking_20251015", "keep": "all"}], "all_turns")],
)
def test_whose_thoughts_a_model_reads(edits: Any, context: str | None) -> None:
    body = {"model": "m", "max_tokens": 1, "messages": [{"role": "user", "content": "x"}]}
    managed = None if edits is None else {"edits": edits}
    create = MessagesTranslation("r").read(encode({**body, "context_management": managed}))
    assert create.reasoning is not None
    assert create.reasoning.context == context


BILLING = "x-anthropic-billing-header: cc_version=2.1.197; cch=1;"


@pytest.mark.parametrize(
    ("system", "instructions"),
    [
        (None, None),
        ("", None),
        ("Be kind", "Be kind"),
        ([BILLING, "Be kind"], "Be kind"),
        ([f"{BILLING}\nBe quick", "Be kind"], "Be quick\n\nBe kind"),
        ([BILLING], None),
        # Nothing else is dropped, and nothing in another place.
        (["Be kind", BILLING], f"Be kind\n\n{BILLING}"),
        ([f"Be kind\n{BILLING}"], f"Be kind\n{BILLING}"),
        (BILLING, BILLING),
    ],
)
def test_instructions_without_the_line_for_billing(system: Any, instructions: str | None) -> None:
    sent = [{"type": "text", "text": text} for text in system] if isinstance(system, list) else system
    assert requests.instructions_of(read(system=sent).system) == instructions


def test_the_user_is_passed_on() -> None:
    def create(user: str) -> Any:
        messages = [{"role": "user", "content": "x"}]
        body = {"model": "m", "max_tokens": 1, "messages": messages, "metadata": {"user_id": user}}
        return MessagesTranslation("req").read(encode(body))

    short, long = create("u"), create("u" * 200)
    assert (short.safety_identifier, short.user) == ("u", None)
    assert (long.safety_identifier, long.user) == (None, "u" * 200)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"system": [{"text": "x"}]}, "system.0.type"),
        ({"messages": [{"role": "system", "content": [{"text": "x"}]}]}, "messages.0.content.0.type"),
        (
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [
                            {"type": "search_result", "source": "", "title": "", "content": [{"text": ""}]}
                        ],
                    }
                ]
            },
            "messages.0.content.0.content.0.type",
        ),
    ],
)
def test_a_text_needs_its_type_also_where_no_other_block_may_stand(
    fields: dict[str, Any], param: str
) -> None:
    body = {"model": "m", "max_tokens": 1, "messages": [{"role": "user", "content": "x"}], **fields}
    with pytest.raises(InvalidRequest, match="Field required") as found:
        MessagesTranslation("req").read(encode(body))
    assert found.value.param == param
