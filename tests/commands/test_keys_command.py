"""``slipring keys``: its output on each stream, its exit codes, and that secrets are not kept."""

import asyncio
import json
import re
import shlex
from pathlib import Path

import aiohttp
import pytest

from slipring.commands.cli import main
from tests.commands.test_cli import COMMAND, FAST, environment, launched
from tests.test_docs import ROOT, commands

KEY = re.compile(r"sk-slip-([0-9a-f]{16})\.([A-Za-z0-9_-]{43})\n")
HEADINGS = [
    "ID",
    "TENANT",
    "NAME",
    "MODELS",
    "MCP",
    "REQUESTS/MIN",
    "TOKENS/DAY",
    "IMAGES/MIN",
    "CREATED",
    "REVOKED",
]


@pytest.fixture(autouse=True)
def in_a_directory_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SLIPRING_STORE", raising=False)


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Run a command; return its exit code, standard output and standard error."""
    try:
        code = main(["keys", *arguments])
    except SystemExit as end:
        code = int(end.code or 0)
    return code, *capsys.readouterr()


def create(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[str, str]:
    """Create a key; return its id and secret."""
    code, out, err = run(capsys, "create", "--store", "sqlite:keys.db", *arguments)
    assert code == 0
    found = KEY.fullmatch(out)
    assert found is not None
    key_id, secret = found.groups()
    assert key_id in err
    assert secret not in err
    return key_id, secret


def columns(line: str) -> list[str]:
    return re.split(r"  +", line)


def test_a_key_is_printed_once_and_listed_without_its_secret(capsys: pytest.CaptureFixture[str]) -> None:
    plain = create(capsys, "--tenant", "a")
    limits = ["--requests-per-minute", "60", "--tokens-per-day", "2000000", "--images-per-minute", "7"]
    limits += ["--mcp-server", "weather", "--mcp-tool", "weather.now", "--mcp-tool", "weather.a.b"]
    limited = create(
        capsys, "--tenant", "b", "--name", "nightly run", *("--model", "x", "--model", "y"), *limits
    )
    code, table, err = run(capsys, "list", "--store", "sqlite:keys.db")
    assert (code, err) == (0, "")
    heading, *lines = table.splitlines()
    assert columns(heading) == HEADINGS
    rows = {columns(line)[0]: columns(line)[1:] for line in lines}
    assert rows.keys() == {plain[0], limited[0]}
    assert rows[plain[0]][:7] == ["a", "-", "all", "all", "-", "-", "-"]
    assert rows[limited[0]][:4] == ["b", "nightly run", "x, y", "weather, weather.now, weather.a.b"]
    assert rows[limited[0]][4:7] == ["60", "2000000", "7"]
    assert rows[limited[0]][8] == "-"
    code, text, _ = run(capsys, "list", "--store", "sqlite:keys.db", "--json")
    keys = {key["tenant"]: key for key in json.loads(text)}
    assert all(key.pop("created_at") for key in keys.values())
    assert keys["b"] == {
        "id": limited[0],
        "tenant": "b",
        "name": "nightly run",
        "models": ["x", "y"],
        "mcp_servers": ["weather"],
        "mcp_tools": ["weather.now", "weather.a.b"],
        "requests_per_minute": 60,
        "tokens_per_day": 2000000,
        "images_per_minute": 7,
        "revoked_at": None,
    }
    assert keys["a"]["requests_per_minute"] is None
    for _, secret in (plain, limited):
        assert secret not in table + text


def test_a_key_without_mcp_is_listed_as_such(capsys: pytest.CaptureFixture[str]) -> None:
    create(capsys, "--tenant", "a", "--no-mcp")
    _, table, _ = run(capsys, "list", "--store", "sqlite:keys.db")
    assert columns(table.splitlines()[1])[4] == "none"
    both = ("create", "--store", "sqlite:keys.db", "--tenant", "a", "--no-mcp", "--mcp-server", "weather")
    code, out, err = run(capsys, *both)
    assert (code, out) == (2, "")
    assert "not allowed with" in err


REVOKE = ("revoke", "--store", "sqlite:keys.db")


def test_a_key_is_revoked_once(capsys: pytest.CaptureFixture[str]) -> None:
    key_id, _ = create(capsys, "--tenant", "a")
    assert run(capsys, *REVOKE, key_id) == (0, "", f"slipring: key {key_id} is revoked\n")
    code, out, err = run(capsys, *REVOKE, key_id)
    assert (code, out) == (1, "")
    assert err.startswith(f"slipring: key {key_id} was revoked before, at 20")
    unknown = "0123456789abcdef"
    complaint = f"slipring: there is no key {unknown} in this store\n"
    assert run(capsys, *REVOKE, unknown) == (1, "", complaint)
    _, table, _ = run(capsys, "list", "--store", "sqlite:keys.db")
    assert columns(table.splitlines()[1])[-1].endswith("Z")


@pytest.mark.parametrize(
    "form", ["sk-slip-{id}.{secret}", " sk-slip-{id}.{secret}\n", "sk-slip-{id}", "{id}."]
)
def test_a_pasted_key_is_revoked_by_its_id(capsys: pytest.CaptureFixture[str], form: str) -> None:
    key_id, secret = create(capsys, "--tenant", "a")
    given = form.format(id=key_id, secret=secret)
    assert run(capsys, *REVOKE, given) == (0, "", f"slipring: key {key_id} is revoked\n")
    assert columns(run(capsys, "list", "--store", "sqlite:keys.db")[1].splitlines()[1])[-1] != "-"


@pytest.mark.parametrize("given", ["sk-other-0123456789", "0123", "sk-slip-0123456789", ""])
def test_what_is_no_key_of_a_store_is_refused_without_repeating_it(
    capsys: pytest.CaptureFixture[str], given: str
) -> None:
    create(capsys, "--tenant", "a")
    code, out, err = run(capsys, *REVOKE, given)
    assert (code, out) == (2, "")
    assert "must be the id of a key in the store" in err
    assert not given or given not in err


def test_the_store_is_named_as_for_serve(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    key_id, _ = create(capsys, "--tenant", "a")
    Path("slipring.toml").write_text('store = "sqlite:keys.db"\n')
    assert key_id in run(capsys, "list", "--config", "slipring.toml")[1]
    monkeypatch.setenv("SLIPRING_STORE", "sqlite:keys.db")
    assert key_id in run(capsys, "list")[1]
    assert key_id not in run(capsys, "list", "--store", "sqlite:other.db")[1]


def test_without_a_command_the_help_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys)
    assert (code, err) == (0, "")
    assert out.startswith("usage: slipring keys ")


@pytest.mark.parametrize("command", [["create", "--tenant", "a"], ["list"], ["revoke", "0123456789abcdef"]])
def test_the_store_in_memory_is_refused_in_one_line(
    capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    line = (
        "slipring: the store 'memory' does not keep keys after this command: name a database with --store or"
        " SLIPRING_STORE\n"
    )
    assert run(capsys, *command, "--store", "memory") == (2, "", line)


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (
            ["craete"],
            "slipring keys: unknown command 'craete': did you mean create? (see slipring keys --help)",
        ),
        (["create"], "slipring keys create: the following arguments are required: --tenant"),
        (["revoke"], "slipring keys revoke: the following arguments are required: ID"),
        (
            ["create", "--tenant", "a", "--mcp-tool", "weather"],
            "slipring keys create: argument --mcp-tool: must be SERVER.TOOL",
        ),
        (["create", "--tenant", " "], "slipring keys create: argument --tenant: must be printable and not"),
        (
            ["create", "--tenant", "a\nb"],
            "slipring keys create: argument --tenant: must be printable and not",
        ),
        (
            ["create", "--tenant", "a", "--requests-per-minute", "0"],
            "slipring keys create: argument --requests-per-minute: must be a whole number above 0",
        ),
        (
            ["create", "--tenant", "a", "--tokens-per-day", "1e6"],
            "slipring keys create: argument --tokens-per-day: must be a whole number above 0",
        ),
        (
            ["create", "--tenant", "a", "--tokens-per-day", str(2**63)],
            "slipring keys create: argument --tokens-per-day: must be a whole number above 0",
        ),
    ],
)
def test_a_mistake_is_reported_in_one_line(
    capsys: pytest.CaptureFixture[str], arguments: list[str], line: str
) -> None:
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (2, "")
    assert err.startswith(line)
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize("store", ["sqlite:/dev/null/keys.db", "sqlite:missing/keys.db", "sqlite:.", "attic"])
def test_a_store_that_cannot_be_used_is_reported_in_one_line(
    capsys: pytest.CaptureFixture[str], store: str
) -> None:
    code, out, err = run(capsys, "list", "--store", store)
    assert (code, out) == (3, "")
    assert err.startswith("slipring: ")
    assert len(err.splitlines()) == 1


def test_the_commands_of_the_page_do_what_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    documented = [shlex.split(line)[2:] for where, line in commands() if where.startswith("keys.md:")]
    assert [words[0] for words in documented] == ["create", "create", "list", "list", "revoke"]
    *creations, listing, as_json, revoking = documented
    ids = [found.group(1) for words in creations if (found := KEY.fullmatch(run(capsys, *words)[1]))]
    assert len(run(capsys, *listing)[1].splitlines()) == 3
    assert {key["id"] for key in json.loads(run(capsys, *as_json)[1])} == set(ids)
    assert run(capsys, *revoking)[0] == 1  # the id on the page is an example
    assert run(capsys, *revoking[:-1], ids[0])[0] == 0
    assert "slipring.db" in {path.name for path in Path().iterdir()}
    assert (ROOT / "docs" / "keys.md").exists()


# With a server process.


async def keys(*arguments: str) -> str:
    """Run a command as a process; return its standard output."""
    process = await asyncio.create_subprocess_exec(
        *COMMAND, "keys", *arguments, env=environment(SLIPRING_STORE="sqlite:keys.db"), stdout=-1, stderr=-1
    )
    out, err = await asyncio.wait_for(process.communicate(), 300)
    assert process.returncode == 0, err.decode()
    return out.decode()


async def ask(http: aiohttp.ClientSession, url: str, key: str) -> int:
    headers = {"Authorization": f"Bearer {key}"}
    async with http.post(f"{url}/responses", json={"input": "hello"}, headers=headers) as answer:
        return answer.status


def all_bytes(directory: Path) -> bytes:
    return b"".join(path.read_bytes() for path in directory.iterdir())


async def test_a_server_accepts_keys_from_creation_until_they_are_revoked(tmp_path: Path) -> None:
    first = (await keys("create", "--tenant", "a", "--requests-per-minute", "1")).strip()
    flags = ("--store", "sqlite:keys.db", "--log-level", "debug")
    async with launched(*FAST, *flags) as server, aiohttp.ClientSession() as http:
        assert "  API keys   those in the store" in server.output
        assert server.output[-1].endswith("OPENAI_API_KEY=YOUR_KEY")
        assert await ask(http, server.url, "any") == 401
        assert await ask(http, server.url, first) == 200
        second = (await keys("create", "--tenant", "b")).strip()
        async with http.ws_connect(
            f"{server.url}/responses", headers={"Authorization": f"Bearer {second}"}
        ) as ws:
            ids = {key["tenant"]: key["id"] for key in json.loads(await keys("list", "--json"))}
            assert ids.keys() == {"a", "b"}
            await keys("revoke", ids["b"])
            await ws.send_json({"type": "response.create", "input": "hello"})
            event = await ws.receive_json(timeout=300)
            assert (event["type"], event["status"]) == ("error", 401)
        assert await ask(http, server.url, second) == 401
        secrets = [key.partition(".")[2] for key in (first, second)]
        kept = all_bytes(tmp_path)
        assert await server.stop() == 0
        printed = "\n".join(server.output) + await server.errors()
    assert ids["a"].encode() in kept
    kept += all_bytes(tmp_path)
    for secret in secrets:
        assert secret.encode() not in kept
        assert secret not in printed
