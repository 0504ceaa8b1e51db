"""API keys and terminal escapes in texts of servers."""

from pathlib import Path

from aiohttp import web

from slipring.commands.bench import results
from slipring.commands.bench.client.redaction import Redactor
from slipring.commands.bench.command import Bench
from slipring.commands.bench.options import BenchOptions
from slipring.commands.bench.subject.endpoint import Target
from tests.commands.bench.faulty import Faulty, running
from tests.commands.bench.stage import Watching, tiny

KEY = "sk-SECRET-0123456789"


def test_keys_and_escapes_are_redacted() -> None:
    redact = Redactor(KEY)
    assert redact(f"Incorrect key: Bearer {KEY}.") == "Incorrect key: Bearer …."
    assert "\x1b" not in redact("\x1b]0;owned\x07a\x1b[2Jb")
    assert Redactor("")("as it is") == "as it is"
    assert Redactor("x")("exit x") == "exit …"  # short keys are redacted as whole words only


class Echo(Faulty):
    """Repeats the key in its errors: at once for stored responses, else after a few turns."""

    async def post(self, request: web.Request) -> web.StreamResponse:
        is_stored = (await request.json())["store"]
        if is_stored or len(self.requests) > 3:
            message = f"Invalid token: {request.headers['Authorization']}\x1b[2J"
            return web.json_response({"error": {"message": message}}, status=401)
        return await super().post(request)


async def test_a_key_repeated_by_the_server_is_not_stored(tmp_path: Path) -> None:
    async with running(Echo()) as url:
        options = BenchOptions(
            target=Target(url=url, key=KEY, timeout_s=60), modes=("http-full", "http-chained"), repeats=1
        )
        bench = Bench(options, [tiny()], Watching())
        await bench.run()
    results.write(bench.record, tmp_path / "record.json")
    kept = (tmp_path / "record.json").read_text()
    assert "Bearer …" in bench.record.skipped["http-chained"]
    assert "Bearer …" in (bench.record.loops[0].error or "")
    assert KEY not in kept
    assert "\\u001b" not in kept


async def test_redaction_does_not_change_requests() -> None:
    faulty = Faulty()
    async with running(faulty) as url:
        options = BenchOptions(
            target=Target(url=url, key="faulty", timeout_s=60), modes=("http-full",), repeats=1
        )
        await Bench(options, [tiny()], Watching()).run()
    assert {request["model"] for request in faulty.requests} == {"faulty"}
