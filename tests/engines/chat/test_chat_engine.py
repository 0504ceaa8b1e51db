"""The chat engine: items as messages and back, and the forms of Chat Completions that servers send."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw, structs

from slipring.base.errors import ApiError, InvalidRequest, RateLimited, ServerError, StartupError
from slipring.core.chain.instructions_and_tools import Head
from slipring.core.chain.state import ResponseState
from slipring.core.generation import (
    CallArguments,
    CallEnded,
    CallStarted,
    Delta,
    Finished,
    Job,
    Model,
    Prefilled,
    RefusalText,
    Settings,
    Text,
    Thought,
)
from slipring.engines.catalog import open_engine
from slipring.engines.chat.answer import ChatAnswer
from slipring.engines.chat.engine import ChatEngine
from slipring.engines.chat.options import ChatOptions, read_options
from slipring.engines.chat.request_body import (
    EMPTY_TOOLBOX,
    MessageWriter,
    Request,
    Written,
    toolbox,
    write_request,
)
from slipring.engines.chat.returned_fields import Details
from slipring.engines.remote.retries_and_breaker import Retryable
from slipring.protocol.items.items import CALL_OF_OUTPUT, Item, short_id
from slipring.protocol.tools.tool_choice import Offer
from slipring.protocol.tools.toolset import Toolset
from tests.core.connection import PLAIN
from tests.engines.fakes.chat import FakeChatServer, Send
from tests.engines.fakes.server import Call, HangUp, Refuse, Say, Stop, Think, started
from tests.harness import WEATHER, Running, serve
from tests.pictures import PIXEL
from tests.prompts.test_rendering import ITEMS, after
from tests.prompts.vocabulary import call, item, message, output

Json = dict[str, Any]
ASK = {"input": "hello", "store": False}
ADD = {"type": "function", "name": "add", "parameters": {"type": "object"}, "description": "Adds"}
GRAMMAR = {"type": "grammar", "syntax": "regex", "definition": "[a-z]+"}
SHELL = {"type": "custom", "name": "shell", "description": "Runs", "format": GRAMMAR}
FILES = {"type": "namespace", "name": "files", "tools": [ADD, SHELL]}
OPTIONS = ChatOptions(url="http://127.0.0.1:9/v1", model="m")
WRITER = MessageWriter()
IMAGE = PIXEL
SCREENSHOT = {"type": "computer_screenshot"}


def tools_of(*definitions: Json) -> Toolset:
    return Toolset.read(Raw(json.dumps(definitions).encode()))


def job(*items: Item, parent: ResponseState | None = None, **fields: Any) -> Job:
    head = fields.pop("head", Head())
    return Job(
        response_id="r",
        tenant="t",
        model=fields.pop("model", PLAIN),
        head=head,
        parent=parent,
        input=items,
        offer=fields.pop("offer", Offer(tools=head.tools.callables)),
        settings=Settings(**fields.pop("settings", {})),
        **fields,
    )


def written(job: Job, writer: MessageWriter = WRITER, **options: Any) -> Request:
    return write_request(job, ChatOptions(url=OPTIONS.url, model="m", **options), writer)


def body_of(job: Job, writer: MessageWriter = WRITER, **options: Any) -> Json:
    body: Json = json.loads(b"".join(written(job, writer, **options).pieces))
    return body


def messages_of(*items: Item, writer: MessageWriter = WRITER, **fields: Any) -> list[Json]:
    messages: list[Json] = body_of(job(*items, **fields), writer, images=True, image_urls=True)["messages"]
    return messages


def tool_call(name: str, arguments: str, call_id: str = "c") -> Json:
    function = {"name": name, "arguments": arguments}
    return {"id": short_id(call_id), "function": function, "type": "function"}


def test_messages_keep_their_roles() -> None:
    items = [message(role, role) for role in ("system", "developer", "user", "assistant", "user")]
    assert messages_of(*items, head=Head("Be kind.")) == [
        {"role": "system", "content": "Be kind."},
        {"role": "system", "content": "system"},
        {"role": "system", "content": "developer"},
        {"role": "user", "content": "user"},
        {"role": "assistant", "content": "assistant"},
        {"role": "user", "content": "user"},
    ]


def test_text_and_calls_of_an_exchange_are_one_message_and_outputs_follow() -> None:
    items = [
        message("user", "Rome and Oslo?"),
        item("reasoning", summary=[], content=[{"type": "reasoning_text", "text": "hm"}]),
        message("assistant", "I look."),
        call("weather", '{"city":"Rome"}'),
        item("custom_tool_call", call_id="d", name="shell", input='ls "x"', namespace="files"),
        output("sunny"),
        item("custom_tool_call_output", call_id="d", output=[{"type": "input_text", "text": "none"}]),
    ]
    calls = [
        tool_call("weather", '{"city":"Rome"}'),
        tool_call("files__shell", '{"input":"ls \\"x\\""}', "d"),
    ]
    assert messages_of(*items)[1:] == [
        {"role": "assistant", "content": "I look.", "tool_calls": calls},
        {"role": "tool", "content": "sunny", "tool_call_id": short_id("c")},
        {"role": "tool", "content": "none", "tool_call_id": short_id("d")},
    ]
    assert messages_of(*items, writer=MessageWriter(send_reasoning=True))[1]["reasoning_content"] == "hm"


def test_a_call_without_text_has_null_content() -> None:
    first = messages_of(call("f", ""), output("x"))[0]
    assert first == {"role": "assistant", "content": None, "tool_calls": [tool_call("f", "{}")]}


BROKEN = ['{"city": "Os', "in Oslo", '["Oslo"]', '"Oslo"', "null", "53190", '{"city": NaN}', "[" * 100_000]


@pytest.mark.parametrize("arguments", BROKEN)
def test_arguments_that_are_no_object_become_the_argument_input(arguments: str) -> None:
    """Servers decode the arguments of a history, and refuse the request if they cannot."""
    first = messages_of(call("f", arguments), output("x"))[0]
    assert json.loads(first["tool_calls"][0]["function"]["arguments"]) == {"input": arguments}


@pytest.mark.parametrize(
    "arguments", [' {"a" : [1.0, {"b": "\\u00e9"}]}', '{"a": ' + "[" * 90 + "]" * 90 + "}"]
)
def test_arguments_that_are_an_object_are_sent_as_they_are(arguments: str) -> None:
    first = messages_of(call("f", arguments), output("x"))[0]
    assert first["tool_calls"][0]["function"]["arguments"] == arguments


def test_calls_without_outputs_are_left_out_and_late_outputs_are_user_messages() -> None:
    cut_off = call("f", '{"a', status="incomplete")
    assert messages_of(message("user", "a"), cut_off, message("user", "b"), output("late")) == [
        {"role": "user", "content": "a"},
        {"role": "user", "content": "b"},
        {"role": "user", "content": "The output of an earlier tool call:\nlate"},
    ]


def test_items_that_are_not_for_models_are_not_sent() -> None:
    silent = [
        item("configuration_update", reasoning={"effort": "low"}),
        item("additional_tools", tools=[ADD]),
        item("web_search_call", id="w"),
        item("reasoning", summary=[]),
    ]
    assert messages_of(call("f"), *silent, call("f"), output("x")) == messages_of(call("f"), output("x"))


def test_images_are_sent_at_their_place_in_a_message() -> None:
    parts = [
        {"type": "input_text", "text": "What is this?"},
        {"type": "input_image", "image_url": IMAGE, "detail": "low"},
        {"type": "input_image", "image_url": "https://example.com/a.png"},
    ]
    assert messages_of(item("message", role="user", content=parts))[0]["content"] == [
        {"type": "text", "text": "What is this?"},
        {"type": "image_url", "image_url": {"url": IMAGE, "detail": "low"}},
        {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}},
    ]


def test_images_that_a_tool_returns_follow_its_outputs() -> None:
    shown = item("function_call_output", call_id="c", output=[{"type": "input_image", "image_url": IMAGE}])
    second = item("function_call", call_id="d", name="f", arguments="{}")
    text = item("function_call_output", call_id="d", output="text")
    emitted = messages_of(call("f"), second, shown, text)
    assert [each["role"] for each in emitted] == ["assistant", "tool", "tool", "user"]
    assert emitted[-1]["content"][1] == {"type": "image_url", "image_url": {"url": IMAGE}}


def test_a_screenshot_follows_the_call_of_the_computer() -> None:
    made = item("computer_call", call_id="c", actions=[{"type": "screenshot"}])
    shown = item("computer_call_output", call_id="c", output={**SCREENSHOT, "image_url": IMAGE})
    asked, answered, seen = messages_of(made, shown)
    (called,) = asked["tool_calls"]
    assert called["function"] == {"name": "computer", "arguments": '{"actions":[{"type":"screenshot"}]}'}
    assert (answered["role"], answered["tool_call_id"]) == ("tool", called["id"])
    assert (seen["role"], seen["content"][1]) == ("user", {"type": "image_url", "image_url": {"url": IMAGE}})


@pytest.mark.parametrize(
    ("field", "images"), [("image_url", False), ("file_id", True)], ids=["no images", "no files"]
)
def test_a_screenshot_that_cannot_be_sent_is_refused_by_name(field: str, images: bool) -> None:
    made = item("computer_call", call_id="c", actions=[])
    shown = item("computer_call_output", call_id="c", output={**SCREENSHOT, field: IMAGE})
    with pytest.raises(InvalidRequest) as refused:
        body_of(job(made, shown), images=images)
    assert refused.value.param == f"input[1].output.{field}"


@pytest.mark.parametrize(
    ("part", "role", "images"),
    [
        ({"type": "input_image", "image_url": IMAGE}, "user", False),
        ({"type": "input_image", "file_id": "file-1"}, "user", True),
        ({"type": "input_image", "image_url": "ftp://example.com/a.png"}, "user", True),
        ({"type": "input_image", "image_url": "https://example.com/a.png"}, "user", True),
        ({"type": "input_file", "file_id": "file-1"}, "user", True),
    ],
)
def test_parts_that_cannot_be_sent_are_refused_by_name(part: Json, role: str, images: bool) -> None:
    shown = item("message", role=role, content=[{"type": "input_text", "text": "a"}, part])
    with pytest.raises(InvalidRequest) as refused:
        body_of(job(message("user", "a"), shown), images=images)
    assert refused.value.param == "input[1].content[1]"
    parent = after(job(shown), None)
    with pytest.raises(InvalidRequest) as refused:
        body_of(job(message("user", "a"), parent=parent), images=images)
    assert refused.value.param == "previous_response_id"


WORDS = ITEMS.filter(lambda item: item.type not in CALL_OF_OUTPUT)
"""Items of a model's answer, as opposed to the client's."""
STEPS = st.lists(st.tuples(st.lists(ITEMS, max_size=4), st.lists(WORDS, max_size=3)), min_size=1, max_size=5)


@given(STEPS, st.sampled_from([None, "Be kind."]), st.booleans())
def test_spliced_bodies_equal_bodies_encoded_at_once(
    steps: list[tuple[list[Item], list[Item]]], instructions: str | None, forgets: bool
) -> None:
    head = Head(instructions, tools_of(WEATHER, FILES))
    parent: ResponseState | None = None
    whole: list[Item] = []
    for asked, answered in steps:
        whole += asked
        turn = job(*asked, parent=parent, head=head, offer=Offer(tools=head.tools.callables))
        request = written(turn)
        assert request.fallback is None
        at_once = written(job(*whole, head=head, offer=turn.offer))
        # Tools that items bring are the core's to carry, and there is no core here.
        assert messages(request) == messages(at_once)
        whole += answered
        parent = after(turn, request.position, output=tuple(answered))
        assert parent.size_bytes > 0
    again = after(job(head=head), None)
    if forgets:
        request = written(job(*whole, parent=again, head=head))
        assert request.fallback is not None
        assert messages(request) == messages(written(job(*whole, head=head)))


def test_only_new_items_are_encoded(monkeypatch: pytest.MonkeyPatch) -> None:
    units: list[int] = []
    write = MessageWriter._write

    def counting(self: MessageWriter, unit: Any, fields: Any) -> bytes:
        units.append(len(unit.items))
        return write(self, unit, fields)

    monkeypatch.setattr(MessageWriter, "_write", counting)
    parent = None
    for number in range(5):
        asked = [message("user", "go")] if not number else [output(f"o{number}")]
        request = written(job(*asked, parent=parent))
        parent = after(job(*asked, parent=parent), request.position, output=(call("f", f'{{"n":{number}}}'),))
    assert units == [1, 2, 2, 2, 2]


def test_a_changed_head_changes_the_system_message_and_the_tools_alone() -> None:
    first = job(message("user", "a"), head=Head("One.", tools_of(ADD)))
    request = written(first)
    parent = after(first, request.position, output=(message("assistant", "b"),))
    more = job(message("user", "c"), parent=parent, head=Head("Two.", tools_of(WEATHER)))
    assert written(more).fallback is None
    body = body_of(more)
    assert [each["content"] for each in body["messages"]] == ["Two.", "a", "b", "c"]
    assert [tool["function"]["name"] for tool in body["tools"]] == ["get_weather"]


def test_tools_that_stay_the_same_are_encoded_once() -> None:
    head = Head(None, tools_of(ADD))
    first = job(message("user", "a"), head=head)
    position = written(first).position
    again = written(job(message("user", "b"), parent=after(first, position), head=head)).position
    assert again.toolbox is position.toolbox
    assert again.unshared_bytes(position) == again.size_bytes - position.size_bytes > 0
    assert position.unshared_bytes(object()) == position.size_bytes
    alone = written(first).position
    assert alone.unshared_bytes(position) == alone.size_bytes


def test_a_position_of_another_engine_is_encoded_again() -> None:
    first = job(message("user", "a"))
    parent = after(first, written(first, MessageWriter(send_reasoning=True)).position)
    request = written(job(message("user", "b"), parent=parent))
    assert request.fallback is not None
    assert [each["content"] for each in json.loads(b"".join(request.pieces))["messages"]] == ["a", "b"]


def messages(request: Request) -> bytes:
    return request.pieces[1]


def test_every_kind_of_tool_is_sent_as_a_function() -> None:
    head = Head(None, tools_of(WEATHER, FILES))
    weather, add, shell = (
        tool["function"] for tool in body_of(job(message("user", "a"), head=head))["tools"]
    )
    assert weather == {key: WEATHER[key] for key in ("name", "description", "parameters", "strict")}
    assert add == {"name": "files__add", "description": "Adds", "parameters": {"type": "object"}}
    assert shell["name"] == "files__shell"
    assert shell["parameters"]["required"] == ["input"]
    assert "format" in shell["description"]


def test_tools_whose_flat_names_are_equal_are_refused() -> None:
    twin = {**ADD, "name": "files__add"}
    with pytest.raises(InvalidRequest) as refused:
        body_of(job(message("user", "a"), head=Head(None, tools_of(FILES, twin))))
    assert refused.value.param == "tools"


@pytest.mark.parametrize(
    ("offered", "required", "sent", "choice"),
    [
        ([], False, None, None),
        ([WEATHER, ADD], False, ["get_weather", "add"], None),
        ([WEATHER, ADD], True, ["get_weather", "add"], "required"),
        ([ADD], False, ["add"], None),
        ([ADD], True, ["add"], "required"),
        ([ADD, ADD], False, ["add"], None),
    ],
)
def test_the_offer_becomes_a_list_and_a_choice(
    offered: list[Json], required: bool, sent: list[str] | None, choice: Any
) -> None:
    offer = Offer(tools=tuple(t for o in offered for t in tools_of(o).callables), required=required)
    body = body_of(job(message("user", "a"), head=Head(None, tools_of(WEATHER, ADD)), offer=offer))
    names = [tool["function"]["name"] for tool in body["tools"]] if "tools" in body else None
    assert (names, body.get("tool_choice")) == (sent, choice)
    assert "parallel_tool_calls" not in body


def test_calls_one_at_a_time_are_asked_for_only_if_the_client_does() -> None:
    head, settings = Head(None, tools_of(ADD)), {"parallel_tool_calls": False}
    assert body_of(job(message("user", "a"), head=head, settings=settings))["parallel_tool_calls"] is False
    assert "parallel_tool_calls" not in body_of(job(message("user", "a"), settings=settings))


def test_added_tools_are_sent_with_the_others() -> None:
    head, added = Head(None, tools_of(ADD)), item("additional_tools", tools=[WEATHER])
    offer = Offer(tools=(*tools_of(ADD).callables, *tools_of(WEATHER).callables))
    body = body_of(job(added, message("user", "a"), head=head, offer=offer))
    assert [tool["function"]["name"] for tool in body["tools"]] == ["add", "get_weather"]


def test_only_settings_of_the_client_are_sent() -> None:
    assert body_of(job(message("user", "a"))) == {
        "model": PLAIN.name,
        "messages": [{"role": "user", "content": "a"}],
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    assert "stream_options" not in body_of(job(message("user", "a")), stream_usage=False)


def test_settings_have_their_fields() -> None:
    asked = {
        "temperature": 0.0,
        "top_p": 0.5,
        "presence_penalty": 1.0,
        "frequency_penalty": -1.0,
        "seed": 7,
    }
    settings = {**asked, "max_output_tokens": 9, "effort": "low", "logprobs": True, "top_logprobs": 2}
    body = body_of(job(message("user", "a"), settings=settings))
    assert asked.items() <= body.items()
    assert (body["max_tokens"], body["reasoning_effort"]) == (9, "low")
    assert (body["logprobs"], body["top_logprobs"]) == (True, 2)
    body = body_of(job(message("user", "a"), settings=settings), max_tokens_field="max_completion_tokens")
    assert (body["max_completion_tokens"], "max_tokens" in body) == (9, False)


def test_the_servers_own_name_of_a_model_is_sent() -> None:
    model = Model("nice", "chat", PLAIN.capabilities, own_name="vendor/model:7b")
    assert body_of(job(message("user", "a"), model=model))["model"] == "vendor/model:7b"


def test_a_cache_key_is_never_the_clients_own() -> None:
    asked = job(message("user", "a"), cache_key="mine")
    assert "prompt_cache_key" not in body_of(asked)
    key = body_of(asked, send_cache_key=True)["prompt_cache_key"]
    assert key
    assert "mine" not in key
    salt = body_of(asked, send_cache_salt=True)["cache_salt"]
    assert salt == body_of(job(), send_cache_salt=True)["cache_salt"] != key


def test_truncation_is_refused() -> None:
    with pytest.raises(InvalidRequest) as refused:
        body_of(job(message("user", "a"), settings={"truncation": "auto"}))
    assert (refused.value.param, refused.value.code) == ("truncation", "unsupported_parameter")


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("http://127.0.0.1:11434", "http://127.0.0.1:11434/v1"),
        ("http://127.0.0.1:11434/", "http://127.0.0.1:11434/v1"),
        ("https://openrouter.ai/api/v1/", "https://openrouter.ai/api/v1"),
    ],
)
def test_an_address_without_a_path_gets_v1(text: str, url: str) -> None:
    assert read_options(f"{text},model=m").url == url


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "needs the address of a server"),
        ("model=m", "needs the address of a server"),
        ("http://a,max_tokens_field=n", "must be max_tokens or max_completion_tokens"),
        ("http://a,images=yes", "must be true or false"),
        ("http://a,think_tags=maybe", "must be false, true or opened"),
        ("http://a,what=1", "unknown option 'what'"),
    ],
)
def test_unusable_options_fail_with_one_line(text: str, complaint: str) -> None:
    with pytest.raises(StartupError, match=complaint):
        read_options(text)


async def test_models_are_named_or_listed_by_the_server() -> None:
    engine = open_engine("chat:http://127.0.0.1:9,model=a;b/c:7b,images=true")
    assert [model.name for model in engine.models()] == ["a", "b/c:7b"]
    assert engine.models()[0].capabilities.images
    fake = FakeChatServer()
    fake.models = ["one", "two"]
    await fake.start()
    try:
        async with started(open_engine(f"chat:{fake.url}")) as asked:
            assert [model.name for model in asked.models()] == ["one", "two"]
        fake.models = []
        with pytest.raises(StartupError, match="lists no models"):
            async with started(open_engine(f"chat:{fake.url}")):
                pass
        with pytest.raises(StartupError, match="answers with 404 Not Found"):
            async with started(open_engine(f"chat:{fake.url}/v2")):
                pass
    finally:
        await fake.close()
    with pytest.raises(StartupError, match=r"cannot reach http://127.0.0.1:9/v1: Connection refused$"):
        async with started(ChatEngine(ChatOptions(url="http://127.0.0.1:9/v1"))):
            pass


HEAD = Head(None, tools_of(WEATHER, FILES, {**SHELL, "name": "run"}))
BOX = toolbox(HEAD.tools.callables, EMPTY_TOOLBOX)


def deltas_of(*payloads: Any, reason: str | None = "stop", think_tags: str = "false") -> list[Delta]:
    """The deltas that payloads give, text and arguments joined."""
    answer = ChatAnswer(Written(WRITER, WRITER.extend(None, ()), BOX), think_tags=think_tags)
    ending = [delta_of(finish_reason=reason)] if reason else []
    deltas: list[Delta] = []
    for payload in (*payloads, *ending):
        deltas += taken(answer, payload)
    deltas += answer.finish()
    assert isinstance(deltas[0], Prefilled)
    return joined(deltas[1:])


def taken(answer: ChatAnswer, payload: Json) -> list[Delta]:
    """The deltas of one payload. Raises the failure that it reports."""
    deltas, fault = answer.read([json.dumps(payload).encode()])
    if fault is not None:
        raise fault
    return deltas


def joined(deltas: list[Delta]) -> list[Delta]:
    whole: list[Delta] = []
    for delta in deltas:
        last = whole[-1] if whole else None
        if isinstance(delta, CallArguments | Text | Thought | RefusalText) and type(last) is type(delta):
            whole[-1] = type(delta)(last.text + delta.text)
        else:
            whole.append(delta)
    return whole


def delta_of(finish_reason: Any = None, **fields: Any) -> Json:
    choice = {"index": 0, "delta": fields, "finish_reason": finish_reason}
    return {"choices": [choice]}


def pieces_of(*calls: Json) -> Json:
    return delta_of(tool_calls=list(calls))


def content_of(*payloads: Any, **options: Any) -> list[Delta]:
    """The deltas of payloads without ``Finished``."""
    *deltas, finished = deltas_of(*payloads, **options)
    assert isinstance(finished, Finished)
    return deltas


EXPECTED = {
    "get_weather": CallStarted("function", "get_weather"),
    "files__add": CallStarted("function", "add", "files"),
    "files__shell": CallStarted("custom", "shell", "files"),
    "run": CallStarted("custom", "run"),
    "nobody_offered": CallStarted("function", "nobody_offered", is_offered=False),
}
WRITTEN = st.tuples(
    st.sampled_from(list(EXPECTED)),
    st.text(max_size=12),
)


@st.composite
def streams(draw: st.DrawFn) -> tuple[list[tuple[str, str]], list[Json]]:
    """Calls, and chunks that send them: cut anywhere, interleaved in any order."""
    calls = draw(st.lists(WRITTEN, min_size=1, max_size=4))
    queues: list[list[Json]] = []
    for index, (name, text) in enumerate(calls):
        arguments = json.dumps({"input": text}, ensure_ascii=draw(st.booleans()))
        functions = [{"name": piece} for piece in cut(draw, name)]
        functions += [{"arguments": piece} for piece in cut(draw, arguments)]
        if draw(st.booleans()):
            functions[0]["arguments"] = ""
        queue = [{"index": index, "function": function} for function in functions]
        queue[0]["id"] = f"call_{index}"
        queues.append(queue)
    sent: list[Json] = []
    begun = 0
    while any(queues):
        choices = [number for number, queue in enumerate(queues) if queue and number <= begun]
        number = draw(st.sampled_from(choices))
        begun = max(begun, number + 1)
        sent.append(queues[number].pop(0))
    return calls, sent


def cut(draw: st.DrawFn, text: str) -> list[str]:
    places = sorted(draw(st.sets(st.integers(1, max(len(text) - 1, 1)), max_size=3)))
    return [
        text[start:end]
        for start, end in zip([0, *places], [*places, len(text)], strict=True)
        if text[start:end]
    ]


@given(streams(), st.integers(1, 4))
def test_calls_are_assembled_however_their_pieces_are_cut_and_mixed(
    stream: tuple[list[tuple[str, str]], list[Json]], at_once: int
) -> None:
    calls, sent = stream
    chunks = [pieces_of(*sent[at : at + at_once]) for at in range(0, len(sent), at_once)]
    emitted = content_of(*chunks, reason="tool_calls")
    assert emitted[::3] == [EXPECTED[name] for name, _ in calls]
    assert emitted[2::3] == [CallEnded()] * len(calls)
    for (name, text), arguments in zip(calls, emitted[1::3], strict=True):
        assert isinstance(arguments, CallArguments)
        if EXPECTED[name].kind == "custom":
            assert arguments.text == text
        else:
            assert json.loads(arguments.text) == {"input": text}


def test_arguments_are_emitted_as_they_come_and_their_last_brace_ends_the_call() -> None:
    answer = ChatAnswer(Written(WRITER, WRITER.extend(None, ()), BOX))
    taken(answer, pieces_of({"index": 0, "id": "a", "function": {"name": "get_weather", "arguments": ""}}))
    started = taken(answer, pieces_of({"index": 0, "function": {"arguments": '{"city":'}}))
    assert started == [CallStarted("function", "get_weather"), CallArguments('{"city":')]
    assert taken(answer, pieces_of({"index": 0, "function": {"arguments": '"Rome"}'}})) == [
        CallArguments('"Rome"}'),
        CallEnded(),
    ]
    second = {"index": 1, "id": "b", "function": {"name": "files__add", "arguments": "{"}}
    assert taken(answer, pieces_of(second)) == [CallStarted("function", "add", "files"), CallArguments("{")]
    assert taken(answer, pieces_of({"index": 0, "function": {"arguments": " "}})) == []
    assert taken(answer, pieces_of({"index": 1, "function": {"arguments": '"a": "}'}})) == [
        CallArguments('"a": "}')
    ]
    assert taken(answer, pieces_of({"index": 1, "function": {"arguments": '"}\n'}})) == [
        CallArguments('"}\n'),
        CallEnded(),
    ]


def test_an_empty_object_ends_a_call_only_when_something_else_begins() -> None:
    """Some servers send one before the arguments."""
    answer = ChatAnswer(Written(WRITER, WRITER.extend(None, ()), BOX))
    empty = {"function": {"name": "get_weather", "arguments": "{}"}}
    started = taken(answer, pieces_of({"index": 0, "id": "a", **empty}))
    assert started[1:] == [EXPECTED["get_weather"], CallArguments("{")]
    ended = [CallArguments("}"), CallEnded()]
    assert taken(answer, pieces_of({"index": 1, "id": "b", **empty})) == [*ended, *started[1:]]
    assert taken(answer, delta_of(content="so")) == [*ended, Text("so")]


@pytest.mark.parametrize("empty", [["{}"], ["{", "}"], ["{ ", "}"]])
@pytest.mark.parametrize(
    "arguments", [['{"city":"Rome"}'], [' {"ci', 'ty":"Rome"}'], ["{", '"city":"Rome"}']]
)
def test_arguments_replace_an_empty_object_before_them(empty: list[str], arguments: list[str]) -> None:
    name = {"index": 0, "function": {"name": "get_weather", "arguments": ""}}
    rest = [{"index": 0, "function": {"arguments": text}} for text in (*empty, *arguments)]
    started, text, ended = content_of(*map(pieces_of, [name, *rest]))
    assert isinstance(text, CallArguments)
    assert (started, json.loads(text.text), ended) == (EXPECTED["get_weather"], {"city": "Rome"}, CallEnded())


def calls_of(*pieces: Json) -> list[tuple[str, Any]]:
    """The calls of pieces: names and arguments."""
    deltas = content_of(*map(pieces_of, pieces))
    names = [each.name for each in deltas if isinstance(each, CallStarted)]
    texts = [each.text for each in deltas if isinstance(each, CallArguments)]
    return list(zip(names, map(json.loads, texts), strict=True))


@pytest.mark.parametrize("first_id", [None, "", "call_0"])
@pytest.mark.parametrize("index", [0, None])
@pytest.mark.parametrize("second", ["get_weather", "nobody_offered"])
def test_parallel_calls_in_one_place_are_told_apart(
    first_id: str | None, index: int | None, second: str
) -> None:
    marks = {"index": index, "id": first_id}
    calls = [("get_weather", '{"city":"Rome"}'), (second, '{"city":"Oslo"}')]
    whole = [{**marks, "function": {"name": name, "arguments": text}} for name, text in calls]
    expected = [(name, json.loads(text)) for name, text in calls]
    assert calls_of(*whole) == expected
    named = [
        {**marks, "function": function}
        for name, text in calls
        for function in ({"name": name, "arguments": text[:5]}, {"arguments": text[5:]})
    ]
    assert calls_of(*named) == expected


@pytest.mark.parametrize("index", [0, None])
@pytest.mark.parametrize("second", ["get_weather", "no_args"])
@pytest.mark.parametrize("arguments", ["", None, "{}", '{"city":"Oslo"}'])
def test_calls_without_arguments_in_one_place_are_told_apart_by_their_ids(
    index: int | None, second: str, arguments: str | None
) -> None:
    """Proxies that number all calls 0 begin each with its id, its name and no arguments."""
    begun = [
        {"index": index, "id": id, "function": {"name": name, "arguments": ""}}
        for id, name in (("a", "no_args"), ("b", second))
    ]
    last = {"index": index, "function": {"arguments": arguments}}
    assert calls_of(*begun, last) == [("no_args", {}), (second, json.loads(arguments or "{}"))]


def test_a_call_that_a_server_repeats_as_a_whole_is_one_call() -> None:
    call = {"index": 0, "id": "a", "function": {"name": "get_weather", "arguments": '{"city":"Rome"}'}}
    assert calls_of(call, call) == [("get_weather", {"city": "Rome"})]


def test_arguments_that_belong_to_no_call_fail_the_answer() -> None:
    call = {"index": 0, "id": "a", "function": {"name": "get_weather", "arguments": '{"city":"Rome"}'}}
    with pytest.raises(ServerError, match="told apart"):
        content_of(pieces_of(call), pieces_of({"index": 0, "function": {"arguments": '{"city":"Oslo"}'}}))


@pytest.mark.parametrize(
    "reason",
    ["abort", "cancelled", "network_error", "insufficient_system_resource", "MALFORMED_FUNCTION_CALL"],
)
def test_an_answer_that_the_server_gave_up_fails(reason: str) -> None:
    with pytest.raises(ServerError, match=reason):
        deltas_of(delta_of(content="a"), reason=reason)


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        *[
            (name, "content_filter")
            for name in ("sensitive", "SAFETY", "content_filter: RECITATION", "refusal")
        ],
        *[(name, "max_output_tokens") for name in ("MAX_TOKENS", "length", "model_context_window_exceeded")],
        *[(name, "stop") for name in ("STOP", "tool_calls", "end_turn", "something_new")],
    ],
)
def test_finish_reasons_of_many_servers(reason: str, expected: str) -> None:
    finished = deltas_of(delta_of(content="a"), reason=reason)[-1]
    assert isinstance(finished, Finished)
    assert finished.reason == expected


def test_an_unknown_finish_reason_is_no_success_of_an_unfinished_call() -> None:
    half = {"index": 0, "id": "a", "function": {"name": "get_weather", "arguments": '{"city":"Ro'}}
    with pytest.raises(ServerError, match="something_new"):
        content_of(pieces_of(half), reason="something_new")


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        ({"prompt_tokens": 7.0, "completion_tokens": 2}, (7, 0, 2, 0)),
        ({"prompt_tokens": None, "completion_tokens": "2"}, (0, 0, 0, 0)),
        ([], (0, 0, 0, 0)),
        ({"prompt_tokens": 7, "prompt_tokens_details": [], "completion_tokens_details": None}, (7, 0, 0, 0)),
        ({"prompt_tokens": 7, "prompt_tokens_details": {"cached_tokens": 9}}, (7, 7, 0, 0)),
        ({"prompt_tokens": -1, "completion_tokens": float(2**60)}, (0, 0, 0, 0)),
    ],
)
def test_usage_in_odd_forms_fails_no_answer(usage: Any, expected: tuple[int, int, int, int]) -> None:
    finished = deltas_of(delta_of(content="a"), {"choices": [], "usage": usage})[-1]
    assert isinstance(finished, Finished)
    counts = finished.input_tokens, finished.cached_tokens, finished.output_tokens, finished.reasoning_tokens
    assert counts == expected


def read_of(*payloads: bytes) -> tuple[list[Delta], ApiError | None]:
    answer = ChatAnswer(Written(WRITER, WRITER.extend(None, ()), BOX))
    return answer.read(payloads)


def test_surrogate_pairs_that_a_server_splits_are_joined() -> None:
    chunks = [
        b'{"choices":[{"delta":{"content":"%s"}}]}' % text for text in (b"a\\ud83d", b"\\uDE00b", b"\\udc00!")
    ]
    deltas, fault = read_of(*chunks)
    assert fault is None
    assert "".join(each.text for each in deltas if isinstance(each, Text)) == "a\U0001f600b\ufffd!"


@pytest.mark.parametrize(
    "payload",
    [
        b'{"object":"error","message":"too hot","code":400}',
        b'{"message":"too hot","type":"BadRequestError"}',
        b'{"type":"error","error":{"type":"invalid_request_error","message":"too hot"}}',
        b'{"error":[{"message":"too hot","code":400}]}',
        b'{"detail":"too hot","code":"400"}',
    ],
)
def test_errors_in_a_stream_are_recognised(payload: bytes) -> None:
    _, fault = read_of(payload)
    assert isinstance(fault, InvalidRequest)
    assert "too hot" in fault.message


def test_an_answer_that_is_not_streamed_is_read() -> None:
    call = {"id": "a", "type": "function", "function": {"name": "get_weather", "arguments": "{}"}}
    message = {"role": "assistant", "content": "Well.", "tool_calls": [call]}
    whole = {"choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}]}
    answer = ChatAnswer(Written(WRITER, WRITER.extend(None, ()), BOX))
    deltas, fault = answer.read([json.dumps(whole).encode()])
    assert fault is None
    assert joined([*deltas, *answer.finish()])[1:-1] == [
        Text("Well."),
        EXPECTED["get_weather"],
        CallArguments("{}"),
        CallEnded(),
    ]


@pytest.mark.parametrize(
    ("arguments", "is_complete"), [('{"city":"Ro', False), ('{"city":"Rome"}', True), ("{}", True)]
)
def test_a_call_that_a_limit_cut_off_is_incomplete(arguments: str, is_complete: bool) -> None:
    function = {"name": "get_weather", "arguments": arguments}
    emitted = content_of(pieces_of({"index": 0, "function": function}), reason="length")
    assert emitted == [EXPECTED["get_weather"], CallArguments(arguments), CallEnded(is_complete)]


@pytest.mark.parametrize("arguments", [{"city": "Rome"}, '{"city":"Rome"}'])
@pytest.mark.parametrize("marks", [{}, {"id": "x"}, {"index": 0}, {"index": None, "id": None}])
def test_a_call_may_come_whole(marks: Json, arguments: Any) -> None:
    first = {**marks, "function": {"name": "get_weather", "arguments": arguments}}
    second = {**first, **({"index": 1} if marks.get("index") == 0 else {})}
    if marks.get("id"):
        second["id"] = "y"
    started, text, ended, *again = content_of(pieces_of(first), pieces_of(second))
    assert started == EXPECTED["get_weather"]
    assert json.loads(text.text) == {"city": "Rome"}
    assert again == [started, text, ended]
    assert ended == CallEnded()


def test_calls_that_share_an_index_are_separated_by_name_and_id() -> None:
    one = {"index": 0, "id": "x", "function": {"name": "get_weather", "arguments": "{}"}}
    assert len(content_of(pieces_of(one), pieces_of({**one, "id": "y"}))) == 6


def test_a_changed_id_without_a_name_or_a_repeated_name_begins_no_other_call() -> None:
    """Poolside changes the id of a call after its first piece."""
    first = {"index": 0, "id": "x", "function": {"name": "get_weather", "arguments": ""}}
    rest = [
        first,
        {"index": 0, "id": "z", "function": {"arguments": "{"}},
        {"index": 0, "id": "x", "function": {"name": "get_weather", "arguments": "}"}},
    ]
    assert content_of(pieces_of(first), *map(pieces_of, rest)) == [
        EXPECTED["get_weather"],
        CallArguments("{}"),
        CallEnded(),
    ]


def test_a_call_without_arguments_has_an_empty_object() -> None:
    named = {"index": 0, "id": "x", "function": {"name": "get_weather"}}
    assert content_of(pieces_of(named)) == [EXPECTED["get_weather"], CallArguments("{}"), CallEnded()]
    assert content_of(pieces_of(named), reason="length") == [EXPECTED["get_weather"], CallEnded(False)]


def test_the_input_of_a_custom_tool_is_taken_out_of_its_object() -> None:
    def shell(arguments: str, reason: str = "stop") -> Delta:
        function = {"name": "run", "arguments": arguments}
        return content_of(pieces_of({"index": 0, "function": function}), reason=reason)[1]

    assert shell('{"input": "ls"}') == CallArguments("ls")
    assert shell('"ls"') == CallArguments("ls")
    assert shell('{"command": "ls"}') == CallArguments('{"command": "ls"}')
    assert shell('{"input": "ls -', "length") == CallArguments("ls -")


def test_text_within_a_call_is_emitted_after_it() -> None:
    half = [
        {"index": 0, "function": {"name": "get_weather", "arguments": "{"}},
        {"index": 0, "function": {"arguments": "}"}},
    ]
    emitted = content_of(
        pieces_of(half[0]), delta_of(content="well"), pieces_of(half[1]), delta_of(content=" yes")
    )
    assert emitted == [EXPECTED["get_weather"], CallArguments("{}"), CallEnded(), Text("well yes")]


def test_text_between_calls_stays_between_them() -> None:
    whole = {"index": 0, "function": {"name": "get_weather", "arguments": "{}"}}
    emitted = content_of(
        delta_of(content="a"), pieces_of(whole), delta_of(content="b"), pieces_of({**whole, "index": 1})
    )
    assert [type(delta) for delta in emitted] == [
        Text,
        CallStarted,
        CallArguments,
        CallEnded,
        Text,
        CallStarted,
        CallArguments,
        CallEnded,
    ]


def test_a_call_without_a_name_fails() -> None:
    with pytest.raises(ServerError):
        deltas_of(pieces_of({"index": 0, "function": {"arguments": "{}"}}))
    assert content_of(pieces_of({"index": 0, "id": "x"}), reason="length") == []


@pytest.mark.parametrize(
    "fields",
    [
        {"reasoning_content": "hm"},
        {"reasoning": "hm"},
        {"reasoning": "hm", "reasoning_details": [{"type": "reasoning.text", "text": "hm"}]},
        {"reasoning_details": [{"type": "reasoning.text", "text": "hm"}]},
        {"reasoning_details": [{"type": "reasoning.summary", "summary": "hm"}]},
        {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}]},
    ],
)
def test_reasoning_is_found_under_all_its_names(fields: Json) -> None:
    assert content_of(delta_of(**fields), delta_of(content="yes")) == [Thought("hm"), Text("yes")]


def test_content_may_come_in_parts() -> None:
    assert content_of(delta_of(content=[{"type": "text", "text": "yes"}])) == [Text("yes")]


def test_refusals_become_refusal_deltas() -> None:
    assert content_of(delta_of(refusal="I can"), delta_of(refusal="not")) == [RefusalText("I cannot")]


def test_think_tags_are_parsed_if_the_option_is_set() -> None:
    chunks = [delta_of(content=piece) for piece in ("<th", "ink>\nhm", "</think>", "\n\nyes")]
    assert content_of(*chunks, think_tags="true") == [Thought("hm"), Text("yes")]
    assert content_of(*chunks) == [Text("<think>\nhm</think>\n\nyes")]
    opened = [delta_of(content=piece) for piece in ("hm", "</thi", "nk>\n\nyes")]
    assert content_of(*opened, think_tags="opened") == [Thought("hm"), Text("yes")]
    assert content_of(*chunks, think_tags="opened") == [Thought("hm"), Text("yes")]
    call = {"index": 0, "function": {"name": "get_weather", "arguments": "{}"}}
    emitted = content_of(delta_of(content="yes\n"), pieces_of(call), think_tags="true")
    assert emitted == [Text("yes"), EXPECTED["get_weather"], CallArguments("{}"), CallEnded()]


@pytest.mark.parametrize(
    ("reason", "meaning"),
    [
        ("stop", "stop"),
        ("tool_calls", "stop"),
        ("eos", "stop"),
        ("length", "max_output_tokens"),
        ("model_length", "max_output_tokens"),
        ("content_filter", "content_filter"),
    ],
)
def test_finish_reasons_are_translated(reason: str, meaning: str) -> None:
    finished = deltas_of(reason=reason)[-1]
    assert isinstance(finished, Finished)
    assert finished.reason == meaning


def test_an_answer_without_a_finish_reason_fails() -> None:
    with pytest.raises(ServerError, match="without a finish reason"):
        deltas_of(delta_of(content="a"), reason=None)
    with pytest.raises(ServerError, match="ended its answer early"):
        deltas_of(reason="error")


def test_counts_are_the_servers_or_zero() -> None:
    usage = {
        "prompt_tokens": 10,
        "completion_tokens": 5,
        "prompt_tokens_details": {"cached_tokens": 12},
        "completion_tokens_details": {"reasoning_tokens": 2},
    }
    finished = deltas_of(delta_of(content="a"), delta_of("stop"), {"choices": [], "usage": usage})[-1]
    assert isinstance(finished, Finished)
    assert (finished.input_tokens, finished.cached_tokens) == (10, 10)
    assert (finished.output_tokens, finished.reasoning_tokens) == (5, 2)
    assert finished.position is not None
    finished = deltas_of(delta_of(content="a"))[-1]
    assert isinstance(finished, Finished)
    assert (finished.input_tokens, finished.cached_tokens, finished.output_tokens) == (0, 0, 0)
    nulls = {
        "prompt_tokens": 3,
        "completion_tokens": None,
        "prompt_tokens_details": {"cached_tokens": None},
    }
    finished = deltas_of(delta_of("stop"), {"usage": nulls})[-1]
    assert isinstance(finished, Finished)
    assert (finished.input_tokens, finished.cached_tokens) == (3, 0)


def test_logprobs_come_with_their_text() -> None:
    answer = ChatAnswer(Written(WRITER, WRITER.extend(None, ()), BOX), logprobs=True)
    token = {"token": "yes", "logprob": -0.5, "bytes": None, "top_logprobs": []}
    half = {**token, "token": "\\xf0", "top_logprobs": [{"token": "no", "logprob": -1.0, "bytes": [110]}]}
    silent = {"delta": {"content": ""}, "logprobs": {"content": [half]}}
    spoken = {"delta": {"content": "yes"}, "logprobs": {"content": [token]}}
    for choice in (silent, spoken):
        deltas = taken(answer, {"choices": [choice]})
    text = deltas[-1]
    assert isinstance(text, Text)
    assert [logprob.token for logprob in text.logprobs] == ["\\xf0", "yes"]
    assert text.logprobs[0].top_logprobs[0].bytes == [110]


def test_choices_other_than_the_first_are_ignored() -> None:
    other = {"choices": [{"index": 1, "delta": {"content": "b"}}]}
    assert content_of(delta_of(content="a"), other) == [Text("a")]


def read(*payloads: bytes) -> list[Delta]:
    answer = ChatAnswer(Written(WRITER, WRITER.extend(None, ()), BOX))
    deltas, fault = answer.read(payloads)
    if fault is not None:
        raise fault
    return deltas


def test_empty_chunks_are_no_first_token() -> None:
    role = b'{"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}'
    assert read(role, b"{}", b'{"choices":[],"usage":null}') == []


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ({"message": "slow", "code": 429}, RateLimited),
        ({"message": "slow", "code": "rate_limit_exceeded"}, RateLimited),
        ({"message": "gone", "code": 502}, Retryable),
        ({"message": "oops", "type": "server_error"}, Retryable),
        ("oops", Retryable),
        ({"message": "long", "type": "invalid_request_error"}, InvalidRequest),
        ({"message": "long", "code": "context_length_exceeded"}, InvalidRequest),
        ({"message": "long", "type": "BadRequestError", "code": 400}, InvalidRequest),
    ],
)
def test_an_error_in_the_stream_means_the_same_as_its_http_status(error: Any, kind: type[ApiError]) -> None:
    with pytest.raises(kind):
        read(json.dumps({"error": error}).encode())


@pytest.mark.parametrize("payload", [b"", b"[]", b"<html>", b'{"choices": 1}', b'{"choices":[{"delta":5}]}'])
def test_a_malformed_chunk_fails(payload: bytes) -> None:
    with pytest.raises(ServerError):
        read(payload)


@pytest.mark.parametrize(
    "payload",
    [
        b'{"choices":[{"delta":{"content":"a\\ud83d',
        b'{"choices":[{"delta":{"content":"\\ud83d"}}],"x":' + b"1" * 5000 + b"}",
    ],
)
def test_a_chunk_that_is_cut_within_a_character_fails(payload: bytes) -> None:
    with pytest.raises(ServerError):
        read(payload)


def test_why_an_answer_cannot_be_read_is_for_operators() -> None:
    with pytest.raises(ServerError) as failed:
        read(b'{"choices":[{"delta":{"content":"private"},"message":7}]}')
    assert "message" in failed.value.detail
    assert "private" not in failed.value.detail


@pytest.mark.parametrize(
    ("payload", "kind"),
    [
        (b'[{"error":{"code":429,"message":"slow"}}]', RateLimited),
        (b'"overloaded"', Retryable),
        (b'{"object":"error","message":"cut \\ud83d","code":400}', InvalidRequest),
    ],
)
def test_errors_in_the_stream_that_are_no_objects_or_no_unicode(payload: bytes, kind: type[ApiError]) -> None:
    with pytest.raises(kind):
        read(payload)


def test_half_of_a_character_joins_only_the_chunk_that_follows() -> None:
    first, plain, last = (
        b'{"choices":[{"delta":{"content":"%s"}}]}' % text for text in (b"a\\ud83d", b"b", b"\\ude00c")
    )
    assert joined(read(first, last)) == [Prefilled(), Text("a\U0001f600c")]
    assert joined(read(first, plain, last)) == [Prefilled(), Text("ab\ufffdc")]


def test_halves_of_characters_are_not_collected() -> None:
    answer = ChatAnswer(Written(WRITER, WRITER.extend(None, ()), BOX))
    for number in range(100):
        answer.read([b'{"x%d":"\\ud83d","choices":[{"delta":{"content":"\\ud83d"}}]}' % number])
    assert len(answer._halves) == 2


@pytest.mark.parametrize(
    "choice",
    [
        {"index": None, "delta": {"content": "a"}},
        {"delta": {"content": "a"}, "logprobs": []},
        {"delta": {"content": "a"}, "logprobs": {"content": [{"token": "a", "logprob": None}]}},
        {"delta": {"content": "a", "reasoning_details": {"x": 1}}},
        {"delta": {"content": "a", "reasoning_details": ["x", None]}},
    ],
)
def test_fields_of_other_types_that_nothing_depends_on_fail_no_answer(choice: Any) -> None:
    answer = ChatAnswer(Written(WRITER, WRITER.extend(None, ()), BOX), logprobs=True)
    deltas, fault = answer.read([json.dumps({"choices": [choice]}).encode()])
    assert (deltas, fault) == ([Prefilled(), Text("a")], None)


@pytest.mark.parametrize(
    "content",
    [
        {"text": "ab"},
        {"type": "text", "text": {"value": "ab", "annotations": []}},
        {"content": [{"text": "a"}, "b"]},
        ["a", "b"],
        ["a", {"type": "text", "text": "b"}, None],
        [{"text": ["a", "b"]}],
    ],
)
def test_content_in_other_forms_is_read_as_the_text_that_it_has(content: Any) -> None:
    assert content_of(delta_of(content=content)) == [Text("ab")]
    assert content_of({"choices": [{"message": {"content": "ab"}}]}) == [Text("ab")]
    whole = json.dumps({"choices": [{"message": {"content": content}, "finish_reason": "stop"}]})
    assert read(whole.encode()) == [Prefilled(), Text("ab")]


@pytest.mark.parametrize("content", [None, False, [], {}, [None], {"parts": 1}, [[[[[["deep"]]]]]]])
def test_content_without_a_text_is_none(content: Any) -> None:
    assert content_of(delta_of(content=content), delta_of(content="a")) == [Text("a")]


def test_thinking_in_parts_of_other_forms() -> None:
    parts = [{"thinking": {"text": "hm"}}, "a", {"thinking": ["m", 1]}]
    assert content_of(delta_of(content=parts)) == [Thought("hm"), Text("a"), Thought("m1")]
    reasoning = delta_of(reasoning={"text": "hm"}, refusal=False)
    assert content_of(reasoning, delta_of(content=4)) == [Thought("hm"), Text("4")]


@pytest.mark.parametrize("none", [False, 0, [], {}, ""])
def test_a_finish_reason_that_states_nothing_ends_no_answer(none: Any) -> None:
    assert content_of(delta_of(none, content="a"), delta_of(none, content="b")) == [Text("ab")]
    with pytest.raises(ServerError, match="without a finish reason"):
        deltas_of(delta_of(none, content="a"), reason=None)


def test_a_finish_reason_that_is_no_text_is_an_unknown_one() -> None:
    assert content_of(delta_of(True, content="a"), reason=None) == [Text("a")]
    half = {"index": 0, "id": "a", "function": {"name": "get_weather", "arguments": '{"city":'}}
    with pytest.raises(ServerError, match=r'{"type":"new"}'):
        content_of(pieces_of(half), delta_of({"type": "new"}), reason=None)


def test_calls_in_other_forms() -> None:
    function = {"name": ["get_", "weather"], "arguments": {"city": "Rome"}}
    assert content_of(delta_of(tool_calls={"index": 0.0, "id": 1.5, "function": function})) == [
        EXPECTED["get_weather"],
        CallArguments('{"city":"Rome"}'),
        CallEnded(),
    ]


@pytest.mark.parametrize("index", ["0", "1", 0.5, True, None, {"at": 0}, []])
def test_an_index_of_a_choice_that_is_no_number_says_nothing(index: Any) -> None:
    answer = {"choices": [{"index": index, "delta": {"content": "hi"}}]}
    further = {"choices": [{"index": 1, "delta": {"content": "other"}}]}
    assert content_of(answer, further) == [Text("hi")]


def test_a_digit_that_is_sent_as_a_number_is_not_lost() -> None:
    assert content_of(delta_of(content=1), delta_of(content=0)) == [Text("10")]
    assert content_of(delta_of(reasoning_content=0), delta_of(content="a")) == [Thought("0"), Text("a")]


@pytest.mark.parametrize("nothing", [False, [0], {}, None, 0.5])
def test_a_call_may_be_named_and_numbered_by_nothing(nothing: Any) -> None:
    function = {"name": "get_weather", "arguments": '{"city":"Rome"}'}
    assert calls_of({"index": nothing, "id": nothing, "function": function}) == [
        ("get_weather", {"city": "Rome"})
    ]


def test_calls_may_be_numbered_by_texts_and_named_by_numbers() -> None:
    pieces: list[Json] = [
        {"index": "0", "id": 7, "function": {"name": "get_weather", "arguments": '{"city":'}},
        {"index": "1", "id": 8, "function": {"name": "add", "arguments": '{"a":'}},
        {"index": "0", "function": {"arguments": '"Rome"}'}},
        {"index": "1", "function": {"arguments": "1}"}},
    ]
    assert calls_of(*pieces) == [("get_weather", {"city": "Rome"}), ("add", {"a": 1})]


def test_a_whole_message_after_its_deltas_repeats_them() -> None:
    called = {"id": "a", "function": {"name": "get_weather", "arguments": '{"city":"Rome"}'}}
    streamed = [delta_of(content="hi"), pieces_of({"index": 0, **called})]
    whole = {"content": "hi", "tool_calls": [{"function": called["function"]}]}
    last = {"choices": [{"index": 0, "message": whole, "finish_reason": "tool_calls"}]}
    assert content_of(*streamed, last) == content_of(*streamed)


def test_details_of_reasoning_are_joined_by_their_type_index_and_id() -> None:
    def of(*pieces: Any) -> Any:
        details = Details()
        for piece in pieces:
            details.add([piece])
        return details.joined()

    text, sealed = {"type": "reasoning.text", "index": 0}, {"type": "reasoning.encrypted"}
    assert of(
        {**text, "text": "a", "signature": None}, {**text, "text": "b"}, {**text, "signature": "s"}
    ) == [{**text, "text": "ab", "signature": "s"}]
    assert of({**text, "text": None}, {**text, "text": "b"}) == [{**text, "text": "b"}]
    each = [{**sealed, "id": "1", "data": "x"}, {**sealed, "id": "2", "data": "y"}]
    assert of(*each) == each
    assert of({**sealed, "id": "1", "data": "x"}, {**sealed, "data": "y"}) == [
        {**sealed, "id": "1", "data": "xy"}
    ]
    assert of() == []


def test_details_that_are_too_long_are_not_collected() -> None:
    details = Details()
    for _ in range(100):
        details.add([{"type": "a", "text": "x" * 10_000, "more": [1]}])
    assert details.joined() == []
    assert details._growing == {}


@asynccontextmanager
async def running(**options: Any) -> AsyncIterator[tuple[FakeChatServer, Running]]:
    fake = FakeChatServer()
    await fake.start()
    try:
        quick = {"first_token_timeout_s": 10.0, "idle_timeout_s": 10.0, "retries": 0}
        async with serve(fake.engine(**{**quick, **options})) as server:
            yield fake, server
    finally:
        await fake.close()


async def test_a_steer_that_waited_for_outputs_leaves_the_calls_in_the_conversation() -> None:
    rest = asyncio.Event()
    async with running() as (fake, server), server.connect() as socket:
        fake.script(Call("get_weather", "{}"), Say(("I", "look"), rest=rest), Stop())
        await socket.create(input="go", tools=[WEATHER])
        begun = await socket.until("response.output_text.delta")
        target = begun[0]["response"]["id"]
        await socket.send(type="response.steer", previous_response_id=target, input="quickly")
        await socket.until("response.steer.accepted")
        rest.set()
        (owed,) = (await socket.until("response.steer.pending"))[-1]["required_input"]
        await socket.create(input=[{**owed, "output": "sunny"}], previous_response_id=target)
        await socket.until("response.completed")
    sent = fake.requests[1]["messages"]
    assert [each["role"] for each in sent] == ["user", "assistant", "tool", "user"]
    assert [each["function"]["name"] for each in sent[1]["tool_calls"]] == ["get_weather"]
    assert (sent[2]["content"], sent[3]["content"]) == ("sunny", "quickly")


async def test_a_chain_of_calls_is_sent_as_one_conversation() -> None:
    async with running() as (fake, server), server.connect() as socket:
        fake.script(Think(("hm",)), Call("files__add", "{}"), Call("files__shell", '{"input":"ls"}'), Stop())
        asked = {"tools": [FILES], "instructions": "Be kind.", "store": False}
        first = await socket.response(input="go", **asked)
        reasoning, add, shell = first["output"]
        assert reasoning["type"] == "reasoning"
        assert (add["name"], add["namespace"], add["arguments"]) == ("add", "files", "{}")
        assert (shell["type"], shell["namespace"], shell["input"]) == ("custom_tool_call", "files", "ls")
        outputs = [
            {"type": f"{each['type']}_output", "call_id": each["call_id"], "output": each["name"]}
            for each in (add, shell)
        ]
        fake.script(Say(("Done.",)), Stop())
        second = await socket.response(input=outputs, previous_response_id=first["id"], **asked)
        await socket.response(input="more", previous_response_id=second["id"], **asked)
        calls = [
            tool_call("files__add", "{}", add["call_id"]),
            tool_call("files__shell", '{"input":"ls"}', shell["call_id"]),
        ]
        conversation = [
            {"role": "system", "content": "Be kind."},
            {"role": "user", "content": "go"},
            {"role": "assistant", "content": None, "tool_calls": calls},
            {"role": "tool", "content": "add", "tool_call_id": short_id(add["call_id"])},
            {"role": "tool", "content": "shell", "tool_call_id": short_id(shell["call_id"])},
            {"role": "assistant", "content": "Done."},
            {"role": "user", "content": "more"},
        ]
        assert fake.requests[2]["messages"] == conversation
        # Who sends everything again sends the same bytes.
        whole = [{"role": "user", "content": "go"}, *first["output"], *outputs, *second["output"]]
        await socket.response(input=[*whole, {"role": "user", "content": "more"}], **asked)
        assert fake.bodies[3] == fake.bodies[2]


async def test_forks_continue_the_same_history() -> None:
    async with running() as (fake, server), server.connect() as socket:
        first = await socket.response(**ASK)
        for lane in ("a", "b"):
            await socket.response(input=lane, previous_response_id=first["id"], stream_id=lane, store=False)
        assert [each["messages"][-1]["content"] for each in fake.requests] == ["hello", "a", "b"]
        assert [len(each["messages"]) for each in fake.requests] == [1, 3, 3]


async def test_formats_are_sent_as_response_format() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string"}}}
    named = {"type": "json_schema", "name": "n", "schema": schema, "strict": True}
    async with running() as (fake, server), server.connect() as socket:
        await socket.response(**ASK, text={"format": named})
        await socket.response(**ASK, text={"format": {"type": "json_object"}})
        inner = {"name": "n", "schema": schema, "strict": True}
        assert fake.requests[0]["response_format"] == {"type": "json_schema", "json_schema": inner}
        assert fake.requests[1]["response_format"] == {"type": "json_object"}


async def test_unsupported_requests_are_refused_before_a_response_exists() -> None:
    async with running() as (fake, server), server.connect() as socket:
        refused = await socket.error(**ASK, truncation="auto")
        assert (refused["status"], refused["error"]["param"]) == (400, "truncation")
        image = {"type": "input_image", "image_url": IMAGE}
        refused = await socket.error(input=[{"role": "user", "content": [image]}], store=False)
        assert refused["error"]["param"] == "input[0].content[0]"
        refused = await socket.error(**ASK, top_logprobs=1)
        assert refused["error"]["param"] == "top_logprobs"
        assert fake.requests == []


async def test_a_warmup_sends_nothing_unless_the_option_is_set() -> None:
    async with running() as (fake, server), server.connect() as socket:
        warm = await socket.response(**ASK, generate=False)
        assert (warm["usage"]["input_tokens"], warm["output"], fake.requests) == (0, [], [])
        await socket.response(input="more", previous_response_id=warm["id"], store=False)
        assert [each["content"] for each in fake.requests[0]["messages"]] == ["hello", "more"]
    async with running(warmup=True) as (fake, server), server.connect() as socket:
        fake.script(Say(("thrown away",)), Stop("length", input_tokens=9, cached_tokens=2))
        warm = await socket.response(**ASK, generate=False)
        assert fake.requests[0]["max_tokens"] == 1
        assert (warm["status"], warm["output"]) == ("completed", [])
        assert (warm["usage"]["input_tokens"], warm["usage"]["output_tokens"]) == (9, 0)
        await socket.response(generate=False, store=False)
        assert len(fake.requests) == 1


async def test_a_connection_cut_after_the_role_is_retried() -> None:
    async with running(retries=1) as (fake, server), server.connect() as socket:
        fake.script(Say(()), HangUp())
        fake.script(Say(("there",)), Stop())
        response = await socket.response(**ASK)
        assert response["status"] == "completed"
        assert len(fake.requests) == 2


async def test_an_error_in_the_middle_fails_the_response() -> None:
    async with running() as (fake, server), server.connect() as socket:
        error = {"error": {"message": "too long", "type": "invalid_request_error", "code": None}}
        fake.script(Say(("one",)), Send(b": keep-alive\n\n", error))  # type: ignore[arg-type]
        response = await socket.response(**ASK)
        assert (response["status"], response["error"]["code"]) == ("failed", "invalid_prompt")
        assert "too long" in response["error"]["message"]


async def test_a_server_without_counts_is_supported() -> None:
    async with running(stream_usage=False) as (_fake, server), server.connect() as socket:
        response = await socket.response(**ASK)
        assert (response["status"], response["usage"]["total_tokens"]) == ("completed", 0)


async def test_a_server_that_lists_no_models_passes_the_probe() -> None:
    engine = ChatEngine(ChatOptions(url="http://127.0.0.1:9/v1/nowhere", model="m"))
    await engine.start()
    try:
        with pytest.raises(Retryable):
            await engine._probe()
    finally:
        await engine.close()
    async with running() as (fake, _server):
        engine = ChatEngine(ChatOptions(url=f"{fake.url}/nowhere", model="m"))
        await engine.start()
        try:
            await engine._probe()
        finally:
            await engine.close()


async def test_the_key_is_sent_with_every_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLIPRING_TEST_CHAT_KEY", "sk-1")
    async with running(key_env="SLIPRING_TEST_CHAT_KEY") as (fake, server), server.connect() as socket:
        fake.script(Refuse(401, "bad key sk-1"))
        assert "sk-1" not in json.dumps(await socket.response(**ASK))
        assert fake.headers[0]["authorization"] == "Bearer sk-1"


async def test_models_can_change_along_a_chain() -> None:
    async with running(model="a;b") as (fake, server), server.connect() as socket:
        first = await socket.response(**ASK)
        await socket.response(input="more", previous_response_id=first["id"], model="b", store=False)
        assert [each["model"] for each in fake.requests] == ["a", "b"]
        assert [each["content"] for each in fake.requests[1]["messages"]] == ["hello", "ok", "more"]


async def test_an_error_instead_of_the_first_token_is_retried() -> None:
    async with running(retries=1) as (fake, server), server.connect() as socket:
        fake.script(Send({"error": {"message": "Provider returned error", "code": 502}}))  # type: ignore[arg-type]
        response = await socket.response(**ASK)
        assert (response["status"], len(fake.requests)) == ("completed", 2)


async def test_a_server_gets_the_usual_spelling_of_a_data_url() -> None:
    spelled = IMAGE.replace("data:image/png;base64,", "DATA:image/PNG;name=a;BASE64,")
    assert spelled != IMAGE
    content = [{"type": "input_image", "image_url": spelled}]
    async with running(images=True) as (fake, server), server.connect() as socket:
        await socket.response(input=[{"role": "user", "content": content}])
        assert fake.requests[0]["messages"][0]["content"][0]["image_url"] == {"url": IMAGE}


async def test_images_are_sent_again_along_a_chain() -> None:
    shown = [{"type": "input_text", "text": "Look."}, {"type": "input_image", "image_url": IMAGE}]
    async with running(images=True) as (fake, server), server.connect() as socket:
        first = await socket.response(input=[{"role": "user", "content": shown}], store=False)
        await socket.response(input="And?", previous_response_id=first["id"], store=False)
        assert fake.requests[1]["messages"][0] == fake.requests[0]["messages"][0]
        assert fake.requests[1]["messages"][0]["content"][1]["image_url"] == {"url": IMAGE}


async def test_added_tools_and_updates_apply_to_later_turns() -> None:
    added = [
        {"type": "additional_tools", "role": "developer", "tools": [ADD]},
        {"type": "configuration_update", "reasoning": {"effort": "high"}},
        {"role": "user", "content": "go"},
    ]
    async with running() as (fake, server), server.connect() as socket:
        first = await socket.response(input=added, tools=[WEATHER], store=False)
        await socket.response(input="on", tools=[WEATHER], previous_response_id=first["id"], store=False)
        for sent in fake.requests:
            assert [tool["function"]["name"] for tool in sent["tools"]] == ["get_weather", "add"]
            assert sent["reasoning_effort"] == "high"
        assert [each["content"] for each in fake.requests[1]["messages"]] == ["go", "ok", "on"]


async def test_a_cut_after_the_finish_reason_fails_no_answer() -> None:
    async with running() as (fake, server), server.connect() as socket:
        fake.script(Send({"choices": [{"delta": {"content": "all"}, "finish_reason": "stop"}]}), HangUp())  # type: ignore[arg-type]
        response = await socket.response(**ASK)
        assert (response["status"], response["output"][0]["content"][0]["text"]) == ("completed", "all")


@pytest.mark.parametrize("status", [401, 403, 500, 503])
async def test_the_log_has_the_reason_of_a_failure(status: int, caplog: pytest.LogCaptureFixture) -> None:
    async with running() as (fake, server), server.connect() as socket:
        fake.script(Refuse(status, "no GPU is left in rack 3"))
        response = await socket.response(**ASK)
        assert response["status"] == "failed"
        assert "rack" not in json.dumps(response)
        assert f"{status} error: no GPU is left in rack 3" in caplog.text


@pytest.mark.parametrize(
    ("status", "message", "code", "http_status"),
    [
        (400, "This model's maximum context length is 9 tokens.", "context_length_exceeded", 400),
        (429, "You exceeded your current quota.", "insufficient_quota", 429),
        (404, "The model `x` does not exist.", "model_not_found", 404),
    ],
)
async def test_codes_that_clients_act_on_are_kept(
    status: int, message: str, code: str, http_status: int
) -> None:
    async with running() as (fake, server), server.connect() as socket:
        fake.script(Refuse(status, message))
        failed = await socket.response(**ASK)
        assert (failed["status"], failed["error"]["code"]) == ("failed", code)
        fake.script(Refuse(status, message))
        posted, body = await server.post(**ASK)  # type: ignore[arg-type]
        assert (posted, body["error"]["code"]) == (http_status, code)


async def test_a_query_and_another_header_for_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """As Azure wants them."""
    monkeypatch.setenv("AZURE_KEY", "hush\n")
    fake = FakeChatServer()
    await fake.start()
    try:
        options = read_options(f"{fake.url}?api-version=1,key_env=AZURE_KEY,key_header=api-key,model=m")
        engine = ChatEngine(options)
        async with serve(engine) as server, server.connect() as socket:
            assert (await socket.response(**ASK))["status"] == "completed"
        assert fake.headers[0]["api-key"] == "hush"
        assert "authorization" not in fake.headers[0]
        assert fake.queries == ["api-version=1"]
    finally:
        await fake.close()


def test_addresses_with_passwords_are_refused_without_repeating_them() -> None:
    with pytest.raises(StartupError, match="key_env=") as refused:
        read_options("http://me:hush@127.0.0.1:9/v1")
    assert "hush" not in str(refused.value)


SIGNATURE = {"google": {"thought_signature": "c2lnbmVk"}}


def signed_call(name: str, extra: Any) -> Any:
    call = {
        "index": 0,
        "id": f"id-{name}",
        "function": {"name": name, "arguments": "{}"},
        "extra_content": extra,
    }
    return {"choices": [{"index": 0, "delta": {"tool_calls": [call]}}]}


async def test_what_a_server_wants_back_is_sent_back_along_the_chain() -> None:
    """Gemini signs its calls, and refuses the next step without the signature."""
    details = [{"type": "reasoning.text", "index": 0, "text": text, "signature": None} for text in ("h", "m")]
    thoughts = [{"choices": [{"delta": {"reasoning_details": [each]}}]} for each in details]
    stop = {"choices": [{"delta": {}, "finish_reason": "tool_calls"}]}
    joined_details = [{**details[0], "text": "hm"}]
    async with running() as (fake, server), server.connect() as socket:
        asked = {"tools": [WEATHER, ADD], "store": False}
        fake.script(Send(*thoughts, signed_call("get_weather", SIGNATURE), stop))  # type: ignore[arg-type]
        first = await socket.response(input="go", **asked)
        assert "c2lnbmVk" not in json.dumps(first)
        output = {
            "type": "function_call_output",
            "call_id": first["output"][-1]["call_id"],
            "output": "sunny",
        }
        fake.script(Send(signed_call("add", {"n": 2}), stop))  # type: ignore[arg-type]
        second = await socket.response(input=[output], previous_response_id=first["id"], **asked)
        more = {"type": "function_call_output", "call_id": second["output"][-1]["call_id"], "output": "3"}
        third = await socket.response(input=[more], previous_response_id=second["id"], **asked)
        await socket.response(input="thanks", previous_response_id=third["id"], **asked)
        for request in fake.requests[1:]:
            called = request["messages"][1]
            assert called["tool_calls"][0]["extra_content"] == SIGNATURE
            assert called["reasoning_details"] == joined_details
        for request in fake.requests[2:]:
            called = request["messages"][3]
            assert called["tool_calls"][0]["extra_content"] == {"n": 2}
            assert "reasoning_details" not in called
        last = fake.requests[3]["messages"]
        assert [set(each) for each in last[5:]] == [{"role", "content"}, {"role", "content"}]
        # A whole history continues the chain as long as it is known, and other servers get none of it.
        whole = [{"role": "user", "content": "go"}, *first["output"], output, *second["output"], more]
        await socket.response(input=whole, **asked)
        assert fake.requests[4]["messages"] == last[:5]


def test_fields_that_are_too_large_are_not_kept() -> None:
    big = {"x": "y" * 2**18}
    for extra, is_kept in ((SIGNATURE, True), (big, False)):
        answer = ChatAnswer(Written(WRITER, WRITER.extend(None, ()), BOX))
        deltas, _ = answer.read([json.dumps(signed_call("get_weather", extra)).encode()])
        taken(answer, delta_of(finish_reason="stop"))
        finished = answer.finish()[-1]
        assert isinstance(finished, Finished)
        assert isinstance(finished.position, Written)
        assert (finished.position.returned.size_bytes > 0) == is_kept
        assert (finished.position.size_bytes > finished.context.size_bytes) == is_kept
        assert deltas


def test_dynamo_reads_hints_where_it_is_asked_to() -> None:
    asked = job(message("user", "a"))
    assert "nvext" not in body_of(asked)
    hints = body_of(asked, hints="dynamo")["nvext"]["agent_hints"]
    assert hints == {"priority": 1, "speculative_prefill": True}
    warmup = structs.replace(asked, generate=False)
    assert body_of(warmup, hints="dynamo")["nvext"]["agent_hints"] == {"priority": 0}
    with pytest.raises(StartupError, match="option 'hints' must be dynamo"):
        ChatEngine.from_options("http://127.0.0.1:9/v1,hints=all")
