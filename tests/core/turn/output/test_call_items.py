"""Calls of built-in tools: what clients see of them, and what the model reads."""

from typing import Any

import pytest

from slipring.core.generation import CallArguments, CallEnded, CallStarted, Delta, Text
from slipring.core.turn.output.call_items import OUTPUTS, RESULTS
from slipring.core.turn.output.search_results import passages_in
from tests.core.connection import Connection, Json, Seen, function, message, types
from tests.core.hosted_turns import begin, end_only, kinds, told

TOOLS: dict[str, Json] = {
    "web_search": {"type": "web_search"},
    "file_search": {"type": "file_search", "vector_store_ids": ["vs_1"]},
    "code_interpreter": {"type": "code_interpreter", "container": "cntr_own"},
}
KINDS = list(TOOLS)
ALL = list(TOOLS.values())


def usual(kind: str) -> str:
    """The arguments of a call, as a model writes them."""
    return '{"code":"6*7"}' if kind == "code_interpreter" else '{"query":"6*7"}'


def call(kind: str, arguments: str | None = None, *, whole: bool = True) -> list[Delta]:
    written = usual(kind) if arguments is None else arguments
    return [CallStarted("function", kind), CallArguments(written), CallEnded(whole)]


def last(connection: Connection) -> Json:
    response: Json = connection.order.responses[-1]
    return response


def shown(item: Json) -> Any:
    """The query or the code that an item shows."""
    if item["type"] == "code_interpreter_call":
        return item["code"]
    return item["action"]["queries"] if item["type"] == "web_search_call" else item["queries"]


@pytest.mark.parametrize("included", [True, False])
def test_items_begin_as_recorded_ones_do(included: bool) -> None:
    connection = Connection()
    begin(connection, tools=ALL, include=[OUTPUTS] if included else [])
    sent = [connection.generate(*call(kind)) for kind in KINDS]
    search, files, code = (events[0]["item"] for events in sent)
    assert search.keys() == {"id", "type", "status"}
    assert (files["queries"], files["results"]) == ([], None)
    assert (code["code"], code["outputs"]) == ("", [] if included else None)


def test_nothing_in_a_passage_is_null() -> None:
    bare, half, whole = passages_in(
        '[{"text":"a"},{"text":"b","file_id":null,"score":null,"attributes":null,"filename":"f"},'
        '{"text":"c","file_id":"i","filename":"f","score":0.5,"attributes":{"n":1}}]'
    )
    assert (bare.file_id, bare.filename, bare.score, bare.attributes) == ("", "", 0, {})
    assert (half.file_id, half.filename, half.score, half.attributes) == ("", "f", 0, {})
    assert (whole.file_id, whole.score, whole.attributes) == ("i", 0.5, {"n": 1})
    (other,) = passages_in('[{"text":null}]')
    assert other.text == '[{"text":null}]'


@pytest.mark.parametrize(
    ("kind", "event"),
    [
        ("web_search", "web_search_call.searching"),
        ("file_search", "file_search_call.searching"),
        ("code_interpreter", "code_interpreter_call.interpreting"),
    ],
)
def test_progress_of_a_call_repeats_that_it_runs(kind: str, event: str) -> None:
    connection = Connection()
    begin(connection, tools=ALL)
    sent = connection.finish(*call(kind))
    assert types(sent)[-1] == event
    (call_id,) = connection.calls
    assert types(connection.report_progress(call_id, 0.5, "half")) == [event]


@pytest.mark.parametrize(
    ("kind", "status"),
    [("web_search", "searching"), ("file_search", "searching"), ("code_interpreter", "interpreting")],
)
def test_a_call_past_the_budget_shows_what_the_model_wrote_and_never_ends(kind: str, status: str) -> None:
    connection = Connection()
    begin(connection, tools=ALL, max_tool_calls=1)
    connection.finish(*call(kind), *call(kind), *call(kind))
    end_only(connection)
    ran, refused, _ = connection.complete()["output"]
    assert (ran["status"], refused["status"]) == ("completed", status)
    assert shown(refused) == shown(ran) == ("6*7" if kind == "code_interpreter" else ["6*7"])
    connection.create(previous=last(connection)["id"])
    assert told(connection.job())[1:] == [f"call {kind}{usual(kind)}", "output 42", "ok", "hi"]


@pytest.mark.parametrize("arguments", ['{"query":7}', '{"q":"6*7"}', "[1]", "6*7", "", "[" * 100_000])
def test_arguments_in_another_form_are_an_empty_query(arguments: str) -> None:
    connection = Connection()
    begin(connection, tools=ALL)
    connection.finish(*call("web_search", arguments))
    (asked,) = connection.calls.values()
    assert (asked.call.tool, asked.call.arguments) == ("web_search", '{"q":""}')
    end_only(connection, "Nothing to look for.")
    assert told(connection.job())[-1] == "output Nothing to look for."
    search, _ = connection.complete()["output"]
    assert (search["action"]["query"], search["action"]["queries"]) == ("", [])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ends", ["engine", "cut"])
def test_a_call_that_is_broken_off_is_shown_and_left_out_of_contexts(kind: str, ends: str) -> None:
    connection = Connection()
    begin(connection, tools=ALL)
    started, arguments, ended = call(kind, '{"query":"6*', whole=False)
    if ends == "engine":
        connection.finish(Text("so"), started, arguments, ended, position=Seen(connection.job()))
    else:
        connection.finish(Text("so"), started, arguments, reason="max_output_tokens")
    assert not connection.calls
    _, item = last(connection)["output"]
    assert (item["status"], shown(item)) == ("incomplete", "" if kind == "code_interpreter" else [])
    connection.create(previous=last(connection)["id"])
    assert told(connection.job()) == ["hi", "so", "hi"]
    assert connection.job().parent.position is None, "it would cover a call that no item shows"


@pytest.mark.parametrize("result", ["See page 7.", "{}", "[7]", '[{"text":"a"},{"score":1}]', "[" * 100_000])
def test_a_search_result_in_another_form_is_one_passage(result: str) -> None:
    connection = Connection()
    begin(connection, tools=ALL, include=[RESULTS])
    connection.finish(*call("file_search"))
    end_only(connection, result)
    search, _ = connection.complete()["output"]
    (passage,) = search["results"]
    assert passage["text"] == result


def test_code_runs_in_the_container_that_the_client_names() -> None:
    connection = Connection()
    begin(connection, tools=ALL)
    connection.finish(*call("code_interpreter"))
    end_only(connection)
    assert connection.complete()["output"][0]["container_id"] == "cntr_own"


def test_a_history_that_is_sent_again_has_what_its_items_show() -> None:
    connection = Connection()
    found = [{"file_id": "f1", "text": "page 7"}]
    connection.create(
        tools=ALL,
        input=[
            message("look"),
            {"type": "file_search_call", "id": "fs_1", "queries": ["6", "7"], "results": found},
            {"type": "code_interpreter_call", "id": "ci_1", "code": "6*7", "outputs": [{"logs": "42"}]},
            {"type": "web_search_call", "id": "ws_1", "action": {"type": "search", "query": "rings"}},
            message("so?"),
        ],
    )
    connection.resolve()
    assert told(connection.job()) == [
        "look",
        'call file_search{"query":"6 7"}',
        'output [{"file_id":"f1","text":"page 7"}]',
        'call code_interpreter{"code":"6*7"}',
        "output 42",
        "so?",
    ]


def test_a_function_of_the_client_may_have_the_name_of_a_built_in_tool() -> None:
    connection = Connection()
    connection.create(tools=[function("web_search"), TOOLS["code_interpreter"]])
    connection.resolve()
    connection.finish(*call("web_search"))
    assert not connection.calls
    assert kinds(last(connection)) == ["function_call"]


def test_a_patch_that_was_cut_off_is_in_progress_even_if_it_can_be_read() -> None:
    """The API has no other status for it."""
    connection = Connection()
    connection.create(tools=[{"type": "apply_patch"}])
    written = CallArguments('{"type":"create_file","path":"a.txt","diff":"+a"}')
    connection.finish(CallStarted("apply_patch", "apply_patch"), written, reason="max_output_tokens")
    (patch,) = last(connection)["output"]
    assert (patch["status"], patch["operation"]["path"]) == ("in_progress", "")
