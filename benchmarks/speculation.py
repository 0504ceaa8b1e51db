"""Measures speculation on an edit: the answer repeats a file of the context with a small change.

One server without speculation and one for each kind of it, all on the embedded model, take turns. Each round
is a new file in a new chain: the client sends it, asks for the whole file with one name changed, and reads a
fixed number of tokens. A second workload writes new text, where drafts cannot help.

    python benchmarks/speculation.py [--rounds 5]
"""

import argparse
import asyncio
import contextlib
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from common import Process, connected, keep, slipring, spread

KINDS = ("", "ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod")
LINES = 24
TOKENS = 160
SETTINGS = {"temperature": 0, "store": False, "max_output_tokens": TOKENS}


def file_of(number: int) -> str:
    """Return the first functions of one of the benchmarks' own files, another for each round."""
    files = sorted(Path(__file__).parent.glob("*.py"))
    code = files[number % len(files)].read_text().partition("\ndef ")[2]
    return "\n".join(f"def {code}".splitlines()[:LINES])


def request_of(workload: str, number: int) -> list[dict[str, Any]]:
    if workload == "edit":
        file = file_of(number)
        ask = f"Here is a file:\n```python\n{file}\n```\nWrite the file again with `return` in capitals."
    else:
        ask = f"Tell me story number {number} about a cat and a river, in many short sentences."
    return [{"role": "user", "content": ask}]


def child_of(server: Process) -> Process:
    """Return llama.cpp's process, the only child of the server that runs ``child_program.py``."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parent = int(path.read_text().rpartition(")")[2].split()[1])
            command = path.with_name("cmdline").read_text()
            if parent == server.pid and "child_program.py" in command:
                return Process(int(path.parent.name), server.url)
    raise RuntimeError("the server has no child that runs llama.cpp")


async def answer(server: Process, workload: str, number: int) -> dict[str, Any]:
    """Send one request; measure from the first delta to the end."""
    child = child_of(server)
    async with connected(server.url, "response.incomplete") as loop:
        # A warmup: what is measured is decoding, not the prefill of the file.
        warm, _ = await loop.turn(**SETTINGS, input=request_of(workload, number), generate=False)
        cpu_s, start = child.cpu_s(), time.perf_counter()
        response, _ = await loop.turn(**SETTINGS, input=[], previous_response_id=warm["id"])
        taken = {"wall_s": time.perf_counter() - start, "cpu_s": child.cpu_s() - cpu_s}
    tokens = response["usage"]["output_tokens"]
    text = "".join(part["text"] for item in response["output"] for part in item.get("content", ()))
    lines, file = [line for line in text.splitlines() if line.strip()], file_of(number)
    repeated = sum(line in file for line in lines) / max(len(lines), 1)
    return {**taken, "tokens": tokens, "text": text, "repeated": repeated}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--model", default="", help="a GGUF file; empty: the embedded model")
    parser.add_argument("--kinds", nargs="+", default=list(KINDS))
    given = parser.parse_args()
    seen: dict[str, dict[str, list[dict[str, Any]]]] = {}
    with contextlib.ExitStack() as running:
        servers = {
            kind: running.enter_context(
                slipring(f"llama:{given.model},slots=1,context=2048,spec={kind}", "--log-level", "error")
            )
            for kind in given.kinds
        }
        for number in range(given.rounds):
            kinds = given.kinds[number % len(given.kinds) :] + given.kinds[: number % len(given.kinds)]
            for workload in ("edit", "story"):
                for kind in kinds:
                    print(f"  round {number + 1}: {workload} {kind or 'none'} …", file=sys.stderr, flush=True)
                    taken = asyncio.run(answer(servers[kind], workload, number))
                    seen.setdefault(workload, {}).setdefault(kind or "none", []).append(taken)
    show(seen)
    keep("speculation", {"tokens": TOKENS, "lines": LINES, "rounds": figures(seen)})


def figures(seen: dict[str, dict[str, list[dict[str, Any]]]]) -> dict[str, Any]:
    """Return the figures without the texts, with the share of lines that the file has, and in how many rounds
    the text was that of ``none``."""
    return {
        workload: {
            kind: {
                "wall_s": [each["wall_s"] for each in rounds],
                "cpu_s": [each["cpu_s"] for each in rounds],
                "tokens": [each["tokens"] for each in rounds],
                "repeated": [each["repeated"] for each in rounds],
                "same_text": sum(
                    each["text"] == plain["text"]
                    for each, plain in zip(rounds, kinds.get("none", rounds), strict=True)
                ),
            }
            for kind, rounds in kinds.items()
        }
        for workload, kinds in seen.items()
    }


def show(seen: dict[str, dict[str, list[dict[str, Any]]]]) -> None:
    for workload, kinds in figures(seen).items():
        print(f"{workload}: tokens/s by wall clock; CPU ms per token")
        for kind, each in kinds.items():
            rates = spread([tokens / s for tokens, s in zip(each["tokens"], each["wall_s"], strict=True)])
            cpu = [s * 1e3 / tokens for tokens, s in zip(each["tokens"], each["cpu_s"], strict=True)]
            print(
                f"  {kind:13} {rates['median']:6.1f} ({rates['low']:.1f} – {rates['high']:.1f})"
                f"   {statistics.median(cpu):6.1f} ({min(cpu):.1f} – {max(cpu):.1f})"
                f"   lines of the file: {statistics.median(each['repeated']):.0%}"
                f"   the text of none: {each['same_text']} of {len(each['tokens'])}"
            )


if __name__ == "__main__":
    main()
