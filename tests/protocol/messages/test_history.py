"""Messages as items: which item each block becomes, and what makes no difference."""

import json
from typing import Any

import pytest
from msgspec import Raw

from slipring.base.errors import InvalidRequest
from slipring.protocol.items.items import MOST_ITEMS
from slipring.protocol.messages.history import History, Place, Places
from slipring.protocol.messages.tools import LoadedTools, Tools
from slipring.protocol.requests import read_pieces

Json = dict[str, Any]
PNG = {"type": "base64", "media_type": "image/png", "data": "AAAA"}
USE = {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"a": 1}}
MCP_USE = {"type": "mcp_tool_use", "id": "mcp_1", "name": "f", "server_name": "s", "input": {}}
SEARCH = {"type": "server_tool_use", "id": "ws_1", "name": "web_search", "input": {"query": "q"}}
CODE = {"type": "server_tool_use", "id": "ci_1", "name": "code_execution", "input": {"code": "1"}}
FOUND = [{"type": "web_search_result", "url": "https://a.example", "title": "A", "encrypted_content": ""}]
PRINTED = {"type": "code_execution_result", "stdout": "2", "stderr": "!", "return_code": 0, "content": []}


def history(*messages: Json, ours: str = "ours", **spelling: Any) -> History:
    read = History(lambda signature: signature == ours, LoadedTools(Tools()))
    read.read(Raw(json.dumps(messages, **spelling).encode()))
    return read


def items(*messages: Json, ours: str = "ours") -> list[Json]:
    """The items, which the core must accept."""
    read = history(*messages, {"role": "user", "content": "end"}, ours=ours)
    return [json.loads(item) for item in written(read)[:-1]]


def written(read: History) -> list[bytes]:
    return [item.raw for item in read_pieces(read.pieces)]


def user(*content: Json) -> Json:
    return {"role": "user", "content": list(content)}


def assistant(*content: Json) -> Json:
    return {"role": "assistant", "content": list(content)}


def text(words: str, **fields: Any) -> Json:
    return {"type": "text", "text": words, **fields}


def message(role: str, content: Any) -> Json:
    return {"type": "message", "role": role, "content": content}


def result(content: Any = None, **fields: Any) -> Json:
    sent = {} if content is None else {"content": content}
    return {"type": "tool_result", "tool_use_id": "toolu_1", **sent, **fields}


def output(*blocks: Any, **fields: Any) -> Any:
    """What the model reads of a result."""
    *_, item = items(assistant(USE), user(result(*blocks, **fields)))
    assert (item["type"], item["call_id"]) == ("function_call_output", "call_0")
    return item["output"]


def part(words: str) -> Json:
    return {"type": "input_text", "text": words}


def image(url: str | None, file_id: str | None = None) -> Json:
    return {"type": "input_image", "image_url": url, "file_id": file_id, "detail": None}


def test_texts_become_messages() -> None:
    assert items(
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b"},
        user(text("c"), text("d")),
        assistant(text("e"), text("f")),
        {"role": "system", "content": "g"},
        {"role": "system", "content": [text("h"), text("")]},
        {"role": "system", "content": [text("i"), text("j")], "clear_at": "never"},
    ) == [
        message("user", "a"),
        message("assistant", "b"),
        message("user", [part("c"), part("d")]),
        message("assistant", [{"type": "output_text", "text": "e"}, {"type": "output_text", "text": "f"}]),
        message("developer", "g"),
        message("developer", "h"),
        message("developer", [part("i"), part("j")]),
    ]


def test_the_order_of_blocks_is_kept() -> None:
    two = {**USE, "id": "toolu_2"}
    thought = {"type": "thinking", "thinking": "hm", "signature": "ours"}
    found = items(
        assistant(thought, text("I look"), USE, two),
        user(result("1"), {**result("2"), "tool_use_id": "toolu_2"}, text("and?"), text("go on")),
    )
    assert [item["type"] for item in found] == [
        *("reasoning", "message", "function_call", "function_call"),
        *("function_call_output", "function_call_output", "message"),
    ]
    assert found[2] == {"type": "function_call", "call_id": "call_0", "name": "f", "arguments": '{"a":1}'}
    assert found[-1] == message("user", [part("and?"), part("go on")])


def test_text_before_a_result_is_a_message_of_its_own() -> None:
    found = items(
        assistant(USE), user(text("here"), result("1")), assistant(text("x"), USE), user(result("1"))
    )
    assert [item["type"] for item in found] == [
        *("function_call", "message", "function_call_output"),
        *("message", "function_call", "function_call_output"),
    ]


@pytest.mark.parametrize(
    "other",
    [
        user(text("hi")),
        user(text("hi", cache_control={"type": "ephemeral"})),
        user(text(""), text("hi", citations=None)),
        {"content": "hi", "role": "user"},
    ],
)
def test_what_is_no_content_changes_no_byte(other: Json) -> None:
    first = written(history({"role": "user", "content": "hi"}))
    assert written(history(other)) == first
    assert written(history(other, indent=2)) == first


@pytest.mark.parametrize(
    "other",
    [
        result([text("1")]),
        result("1", is_error=False, cache_control={"type": "ephemeral"}),
        result([text("1", cache_control=None)], is_error=None),
    ],
)
def test_a_result_has_the_same_bytes_however_it_is_written(other: Json) -> None:
    first = written(history(assistant(USE), user(result("1"))))
    again = history(assistant({**USE, "caller": {"type": "direct"}}), user(other), indent=1)
    assert written(again) == first


def test_results() -> None:
    assert output() == ""
    assert output("") == ""
    assert output([]) == ""
    assert output([text("a"), {"type": "image", "source": PNG}]) == [
        part("a"),
        image("data:image/png;base64,AAAA"),
    ]
    page = {"type": "search_result", "source": "https://a", "title": "A", "content": [text("x"), text("y")]}
    assert output([page]) == "Search result: A\nSource: https://a\n\nx\ny"


def test_a_failed_call_says_that_it_failed() -> None:
    assert output("no such file", is_error=True) == "Error: no such file"
    assert output("Error: no such file", is_error=True) == "Error: no such file"
    assert output("<tool_use_error>x", is_error=True) == "<tool_use_error>x"
    assert output(is_error=True) == "Error:"
    shown = output([{"type": "image", "source": PNG}], is_error=True)
    assert shown == [part("Error:"), image("data:image/png;base64,AAAA")]


def test_an_answer_without_words_has_no_message() -> None:
    assert [item["type"] for item in items(assistant(text(""), USE), user(result("1")))] == [
        "function_call",
        "function_call_output",
    ]


def test_too_many_messages_are_counted_before_they_are_read() -> None:
    with pytest.raises(InvalidRequest, match="more than 20000 messages"):
        history(*[{}] * (MOST_ITEMS + 1))


def test_images_and_documents() -> None:
    def shown(**source: Any) -> Any:
        return items(user({"type": "image", "source": source}))[0]["content"]

    assert shown(type="url", url="https://a") == [image("https://a")]
    assert shown(type="file", file_id="f") == [image(None, "f")]

    def read(source: Json, **fields: Any) -> Any:
        return items(user({"type": "document", "source": source, **fields}))[0]["content"]

    plain = {"type": "text", "media_type": "text/plain", "data": "words"}
    assert read(plain) == "words"
    assert read(plain, title="T") == "Document: T\n\nwords"
    assert read(plain, title="T", context="C") == "Document: T\nC\n\nwords"
    assert read({"type": "content", "content": "words"}, context="C") == [part("C\n\n"), part("words")]
    blocks = [text("a"), {"type": "image", "source": PNG}]
    assert read({"type": "content", "content": blocks}) == [part("a"), image("data:image/png;base64,AAAA")]

    def file(**fields: Any) -> list[Json]:
        return [
            {
                "type": "input_file",
                "file_id": None,
                "file_url": None,
                "file_data": None,
                "filename": None,
                "detail": None,
                **fields,
            }
        ]

    pdf = {"type": "base64", "media_type": "application/pdf", "data": "AAAA"}
    data = "data:application/pdf;base64,AAAA"
    assert read(pdf) == file(file_data=data, filename="document.pdf")
    assert read({"type": "url", "url": "https://a"}) == file(file_url="https://a")
    assert read({"type": "file", "file_id": "f"}) == file(file_id="f")


def test_a_thought_that_was_sealed_here_is_what_was_sealed() -> None:
    (item,) = items(assistant({"type": "thinking", "thinking": "edited", "signature": "ours"}))
    assert item == {"type": "reasoning", "summary": [], "encrypted_content": "ours"}
    assert items(assistant({"type": "redacted_thinking", "data": "ours"})) == [item]


@pytest.mark.parametrize("signature", ["theirs", "", "slr1.damaged"])
def test_any_other_thought_is_what_its_text_says(signature: str) -> None:
    (item,) = items(assistant({"type": "thinking", "thinking": "hm", "signature": signature}))
    assert item == {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]}
    assert items(assistant({"type": "thinking", "thinking": "", "signature": signature})) == []
    assert items(assistant({"type": "redacted_thinking", "data": signature})) == []


def test_a_hosted_call_and_its_result_are_one_item() -> None:
    done = {"type": "mcp_tool_result", "tool_use_id": "mcp_1", "content": [text("a"), text("b")]}
    call = {"type": "mcp_call", "id": "mcp_1", "server_label": "s", "name": "f", "arguments": "{}"}
    assert items(assistant(MCP_USE, text("so"), done)) == [
        {**call, "status": "completed", "output": "a\nb"},
        message("assistant", "so"),
    ]
    failed = {**done, "content": "no", "is_error": True}
    assert items(assistant(MCP_USE, failed)) == [{**call, "status": "failed", "error": "no"}]
    bare = {"type": "mcp_tool_result", "tool_use_id": "mcp_1"}
    assert items(assistant(MCP_USE, bare)) == [{**call, "status": "completed", "output": ""}]
    assert items(assistant(MCP_USE)) == [{**call, "status": "incomplete"}]


def test_searches_and_code() -> None:
    found = {"type": "web_search_tool_result", "tool_use_id": "ws_1", "content": FOUND}
    action = {"type": "search", "query": "q", "queries": ["q"]}
    sources = [{"type": "url", "url": "https://a.example"}]
    searched = {"type": "web_search_call", "id": "ws_1", "status": "completed"}
    assert items(assistant(SEARCH, found)) == [{**searched, "action": {**action, "sources": sources}}]
    failure = {**found, "content": {"type": "web_search_tool_result_error", "error_code": "unavailable"}}
    for results in ((), (failure,)):
        assert items(assistant(SEARCH, *results)) == [{**searched, "status": "failed", "action": action}]

    printed = {"type": "code_execution_tool_result", "tool_use_id": "ci_1", "content": PRINTED}
    ran = {"type": "code_interpreter_call", "id": "ci_1", "code": "1", "container_id": ""}
    logs = [{"type": "logs", "logs": "2!"}]
    assert items(assistant(CODE, printed)) == [{**ran, "status": "completed", "outputs": logs}]
    broken = {**printed, "content": {"type": "code_execution_tool_result_error", "error_code": "unavailable"}}
    for outcomes in ((), (broken,)):
        assert items(assistant(CODE, *outcomes)) == [{**ran, "status": "failed", "outputs": None}]


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([], "messages"),
        ([user()], "messages"),
        ([{"role": "user", "content": ""}], "messages"),
        ([{"role": "assistant", "content": "so"}], "messages"),
        ([{"role": "assistant", "content": ""}], "messages"),
        ([{"role": "tool", "content": "x"}], "messages[0].role"),
        ([{"role": "user"}], "messages[0].content"),
        ([user(text("a"), {"type": "container_upload"})], "messages[0].content[1].type"),
        ([user(text("a"), {"type": "text"})], "messages[0].content[1].text"),
        ([user({"type": "thinking", "thinking": "x"})], "messages[0].content[0].type"),
        ([assistant({"type": "image", "source": PNG})], "messages[0].content[0].type"),
        ([assistant({**USE, "input": "x"})], "messages[0].content[0].input"),
        ([assistant({**USE, "input": None})], "messages[0].content[0].input"),
        (
            [
                assistant(
                    MCP_USE,
                    {"type": "mcp_tool_result", "tool_use_id": "mcp_1", "content": [{"type": "image"}]},
                )
            ],
            "messages[0].content[1].content[0].type",
        ),
        (
            [assistant(SEARCH, {"type": "web_search_tool_result", "tool_use_id": "ws_1", "content": [1]})],
            "messages[0].content[1].content[0]",
        ),
        (
            [assistant(CODE, {"type": "code_execution_tool_result", "tool_use_id": "ci_1", "content": 1})],
            "messages[0].content[1].content",
        ),
        ([assistant({**SEARCH, "name": "web_fetch"})], "messages[0].content[0].name"),
        ([user(result([{"type": "container_upload"}]))], "messages[0].content[0].content[0].type"),
        ([{"role": "system", "content": "x", "clear_at": "next_user_message"}], "messages[0].clear_at"),
        ([{"role": "user", "content": "x"}] * (MOST_ITEMS + 1), "messages"),
    ],
)
def test_bad_messages_are_refused_by_their_field(messages: list[Json], param: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        history(*messages)
    assert refusal.value.param == param


def test_ids_only_say_which_result_answers_which_call() -> None:
    def asked(first: str, second: str) -> list[Json]:
        return items(
            assistant({**USE, "id": first}, {**USE, "id": second}),
            user({**result("2"), "tool_use_id": second}, {**result("1"), "tool_use_id": first}),
            assistant({**USE, "id": first}),
            user({**result("3"), "tool_use_id": first}),
        )

    found = asked("toolu_1", "toolu_2")
    assert asked("other", "ids") == found
    outputs = [(each["call_id"], each["output"]) for each in found if each["type"] == "function_call_output"]
    assert outputs == [("call_1", "2"), ("call_0", "1"), ("call_2", "3")]


def test_results_of_calls_with_the_same_id_come_in_the_order_of_the_calls() -> None:
    found = items(assistant(USE, USE), user(result("1"), result("2")))
    assert [(each["call_id"], each["output"]) for each in found[2:]] == [("call_0", "1"), ("call_1", "2")]


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([assistant(USE), user(text("and?"))], "messages[0].content[0]"),
        ([assistant(text("a"), USE, {**USE, "id": "b"}), user(result())], "messages[0].content[2]"),
        ([assistant(USE), user(result(), result())], "messages[1].content[1].tool_use_id"),
        ([user(result()), assistant(USE), user(result())], "messages[0].content[0].tool_use_id"),
    ],
)
def test_each_call_has_one_result(messages: list[Json], param: str) -> None:
    with pytest.raises(InvalidRequest, match=r"'(toolu_1|b)'") as refusal:
        history(*messages)
    assert refusal.value.param == param


def test_the_place_of_a_system_text_is_its_block() -> None:
    places = Places(history({"role": "system", "content": [text(""), text("a")]}).pieces)
    assert places.find(0) == Place(0, (1,))
    assert places.find(1) is None
