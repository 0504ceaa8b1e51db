"""`make clients` reports passed, failed and skipped checks, here of fake clients."""

import json
import sys
from pathlib import Path

import pytest

from tests.clients.real import aider, cline, codex, continue_cli, open_webui, opencode, pi
from tests.clients.real.__main__ import main
from tests.clients.real.client import Client
from tests.clients.real.installing import CannotInstall, Workshop, pins
from tests.clients.real.roster import CLIENTS
from tests.clients.real.stage import Stage, require_delta, say

DOCUMENT = Path(__file__).parents[2] / "docs" / "clients.md"
ASK = """
import json, os, sys, urllib.request
body = json.dumps({"model": "simulated", "input": "hello"}).encode()
url = os.environ["OPENAI_BASE_URL"] + "/responses"
request = urllib.request.Request(url, body, {"content-type": "application/json"})
with urllib.request.urlopen(request) as answer:
    print(json.dumps({"text": json.load(answer)["output"][0]["content"][0]["text"]}))
"""


def fake(name: str) -> Client:
    return Client(name, f"the {name} one", version=lambda: "1.2.3")


def passing() -> Client:
    client = fake("good")

    @client.check("HTTP", "asks a real server")
    async def _(stage: Stage) -> None:
        async with stage.serve([say("Hi.")]) as relay:
            ended = await stage.run(sys.executable, "-c", ASK, OPENAI_BASE_URL=relay.url)
        assert ended.result == {"text": "Hi."}
        assert [exchange.status for exchange in relay.exchanges] == [200]

    return client


def failing() -> Client:
    client = fake("bad")

    @client.check("HTTP", "does nothing")
    async def _(stage: Stage) -> None:
        pass

    @client.check("HTTP", "ends with an error")
    async def _(stage: Stage) -> None:
        (await stage.run(sys.executable, "-c", "raise SystemExit('no luck')")).require_success()

    return client


def unavailable() -> Client:
    def refuse() -> str:
        raise CannotInstall("no such package")

    client = Client("gone", "the gone one", version=refuse)

    @client.check("HTTP", "is not run")
    async def _(stage: Stage) -> None:
        raise AssertionError

    return client


def test_the_table_lists_passed_failed_and_skipped_checks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--workshop", str(tmp_path)], [passing(), failing(), unavailable()]) == 1
    printed = capsys.readouterr().out
    table = printed.partition("\n\n")[2]
    assert table.startswith(
        "client        version  transport  checks passed\n"
        "------------  -------  ---------  ------------------------\n"
        "the good one  1.2.3    HTTP       1 of 1\n"
        "the bad one   1.2.3    HTTP       1 of 2\n"
        "the gone one                      skipped: no such package\n"
    )
    assert "FAILED the bad one, HTTP: ends with an error" in table
    assert "no luck" in table


def test_a_skipped_client_is_not_a_failure(tmp_path: Path) -> None:
    clients = [failing(), unavailable(), passing()]
    where = ["--workshop", str(tmp_path)]
    assert main([*where, "--only", "good", "--only", "gone"], clients) == 0
    assert main([*where, "--only", "gone"], clients) == 1  # no check passed


async def test_a_client_that_does_not_finish_is_killed(tmp_path: Path) -> None:
    stage = Stage(Workshop(tmp_path), tmp_path)
    with pytest.raises(AssertionError, match=r"not done after 0\.5 s"):
        await stage.run(sys.executable, "-c", "import threading; threading.Event().wait()", within_s=0.5)


def test_items_that_are_sent_twice_are_reported() -> None:
    calls = [{"type": "function_call", "call_id": "call_1"}]
    output = {"type": "function_call_output", "call_id": "call_1", "output": "sunny"}
    responses = [{"id": "resp_1", "output": calls}]
    first = {"input": "weather?"}
    require_delta([first, {"previous_response_id": "resp_1", "input": [output]}], responses)
    with pytest.raises(AssertionError):
        require_delta([first, {"input": [*calls, output]}], responses)
    with pytest.raises(AssertionError, match="sent again"):
        require_delta([first, {"previous_response_id": "resp_1", "input": [*calls, output]}], responses)


def test_installed_packages_are_not_installed_again(tmp_path: Path) -> None:
    workshop = Workshop(tmp_path)
    there = tmp_path / "codex"
    there.mkdir()
    (there / ".installed").write_text(json.dumps(pins()["codex"], sort_keys=True))
    assert workshop.install("codex") == there
    assert workshop.package("codex") == there / "node_modules" / "@openai/codex"


@pytest.mark.parametrize(
    "text",
    [
        *(codex.CONFIG, codex.ASKING, pi.MODELS, opencode.CONFIG),
        *(cline.SETUP, cline.CHAT, continue_cli.CONFIG, aider.SETUP, open_webui.SETUP),
    ],
)
def test_the_documented_configurations_are_those_that_are_tested(text: str) -> None:
    assert text in DOCUMENT.read_text()


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)
def test_the_document_names_the_version_of_every_client(client: Client) -> None:
    version = (
        Workshop(Path()).version(client.name) if client.name in pins() else client.prepare(Workshop(Path()))
    )
    assert f"{client.title} | {version}" in DOCUMENT.read_text()
    assert client.checks
