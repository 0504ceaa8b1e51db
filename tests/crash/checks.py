"""Whether a store that was crashed upon holds what clients were told, all of it and nothing half."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable
from random import Random
from typing import Any, TypeVar

import aiohttp

from tests.crash.clients import check_count
from tests.crash.ledger import Json, Ledger, Note, Talk, Turn, as_line

_T = TypeVar("_T")
_AT_ONCE = 16
_SAMPLE = 20
"""Older responses that are looked at in full after each crash; at the end, all are."""
_PATIENCE_S = 30.0
_TERMINAL = ("response.completed", "response.failed", "response.incomplete")


class Findings:
    """What was found wrong."""

    def __init__(self) -> None:
        self.lost: list[str] = []
        self.half: list[str] = []
        self.whole = 0
        """Responses that were there though no client had been told: the crash came in between."""

    def __bool__(self) -> bool:
        return bool(self.lost or self.half)


class Inspector:
    """Asks a server that has just been started about everything in the ledger."""

    def __init__(self, url: str, ledger: Ledger, findings: Findings, random: Random) -> None:
        self._url = url
        self._ledger = ledger
        self._findings = findings
        self._random = random
        self._http: aiohttp.ClientSession

    async def inspect(self, since: int, *, everything: bool = False, stored: Iterable[str] = ()) -> None:
        """``since``: the number of the first turn that is new. ``stored``: the ids that a look into the store
        itself has found."""
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=_AT_ONCE)) as self._http:
            await _each(self._settle_run, self._ledger.open_runs())
            await _each(self._settle, [turn for turn in self._ledger.turns[since:] if _is_unsettled(turn)])
            await _each(self._read, [turn for turn in self._ledger.turns if turn.id and turn.response])
            new = [turn for turn in self._ledger.acknowledged() if turn.number >= since]
            old = [turn for turn in self._ledger.acknowledged() if turn.number < since]
            chosen = new + (old if everything else self._random.sample(old, min(_SAMPLE, len(old))))
            await _each(self._read_input, chosen)
            await _each(self._read_talk, self._ledger.talks)
            runs = [turn for turn in self._ledger.turns if turn.is_background and turn.id and turn.response]
            await _each(self._read_run, [run for run in runs if everything or run.number >= since])
            tips = [turn for turn in chosen if turn.talk is None]
            await _each(self._go_on, self._random.sample(tips, min(_SAMPLE, len(tips))))
            known = {turn.id for turn in self._ledger.turns}
            await _each(self._identify, [each for each in stored if each not in known])

    # Single responses.

    async def _read(self, turn: Turn) -> None:
        """What was acknowledged is there as it was told; what was not to be stored cannot be found."""
        status, found = await self._get(f"/responses/{turn.id}")
        if turn.deletion == "asked" and status == 404:
            turn.deletion = "done"
        if turn.deletion == "done" or not turn.is_stored:
            if status != 404:
                self._findings.half.append(f"turn {turn.number} is there, and must not be: {found}")
        elif (status, found) != (200, turn.response):
            self._findings.lost.append(f"turn {turn.number}: {status} {found}, not {turn.response}")
        elif turn.deletion == "asked":
            turn.deletion = ""  # it was not heard

    async def _settle(self, turn: Turn) -> None:
        """What a client saw the beginning of is not there, or is whole."""
        status, found = await self._get(f"/responses/{turn.id}")
        if status == 404:
            turn.id = None
        else:
            self._take(turn, found)
            self._findings.whole += 1

    async def _identify(self, response_id: str) -> None:
        """A response that no client has heard of: its request was cut off before."""
        _, found = await self._get(f"/responses/{response_id}")
        number = found.get("metadata", {}).get("turn")
        if number is None or self._ledger.turns[int(number)].id is not None:
            self._findings.half.append(f"nobody asked for {response_id}, or twice: {found}")
            return
        turn = self._ledger.turns[int(number)]
        self._take(turn, found)
        self._findings.whole += 1
        await self._read_input(turn)
        if turn.talk is not None and turn not in turn.talk.entries:
            self._findings.half.append(f"turn {turn.number} is stored, but not in its conversation")

    def _take(self, turn: Turn, found: Json) -> None:
        """Whether a response that was found is a whole answer to this turn; from now on it has to stay."""
        turn.id, turn.response = found["id"], found
        try:
            assert found["status"] == "completed", found
            assert turn.is_stored
            assert found["metadata"] == {"turn": str(turn.number)}
            (item,) = found["output"]
            assert item["status"] == "completed"
            assert len(as_line(item)[1].split()) == found["usage"]["output_tokens"]
            check_count(turn)
        except Exception as error:
            self._findings.half.append(f"turn {turn.number}: {type(error).__name__} {error}: {found}")

    async def _read_input(self, turn: Turn) -> None:
        """All items that went into a response, in order."""
        found = await self._list(f"/responses/{turn.id}/input_items")
        if [as_line(item) for item in found] != turn.input_lines():
            self._findings.lost.append(f"the input of turn {turn.number} is {found}")
        if len({item["id"] for item in found}) != len(found):
            self._findings.half.append(f"the input of turn {turn.number} has an item twice: {found}")

    async def _go_on(self, turn: Turn) -> None:
        """A response can be continued, with all that came before."""
        follow_up = self._ledger.ask(parent=turn)
        body = {
            "input": follow_up.text,
            "previous_response_id": turn.id,
            "metadata": {"turn": str(follow_up.number)},
        }
        async with self._http.post(f"{self._url}/responses", json=body) as answer:
            found = await answer.json()
        if answer.status != 200:
            self._findings.lost.append(f"turn {turn.number} cannot be continued: {found}")
        else:
            self._take(follow_up, found)

    # Conversations.

    async def _read_talk(self, talk: Talk) -> None:
        """Every acknowledged turn once and in order; one that was cut off whole or not at all, and together
        with its response."""
        items = await self._list(f"/conversations/{talk.id}/items")
        lines = [as_line(item) for item in items]
        if not talk.is_settled:
            await self._settle_talk(talk, items)
        if lines != talk.lines():
            self._findings.lost.append(f"conversation {talk.id} is {lines}, not {talk.lines()}")
        if len({item["id"] for item in items}) != len(items):
            self._findings.half.append(f"conversation {talk.id} has an item twice: {items}")

    async def _settle_talk(self, talk: Talk, items: list[Json]) -> None:
        """Only its last entry can be in doubt: nobody goes on in a conversation that is not settled."""
        talk.is_settled = True
        last = talk.entries[-1]
        places = [place for place, item in enumerate(items) if as_line(item) == ("user", last.text)]
        if not places:
            talk.entries.pop()
            if isinstance(last, Turn) and last.id is not None:
                self._findings.half.append(f"turn {last.number} is stored, but not in its conversation")
        elif isinstance(last, Note):
            last.is_acknowledged = True
        elif not last.is_acknowledged:
            await self._settle_in_talk(last, items[places[0] + 1 :])

    async def _settle_in_talk(self, turn: Turn, output: list[Json]) -> None:
        """The turn is in its conversation, so its response has to be there too, if it was to be stored."""
        if not turn.is_stored:
            turn.response = {"status": "completed", "output": output}
            return
        response_id = f"resp_{output[0]['id'].partition('_')[2][:32]}" if output else "resp_none"
        status, found = await self._get(f"/responses/{response_id}")
        if status == 200:
            self._take(turn, found)
            self._findings.whole += 1
        else:
            self._findings.half.append(f"turn {turn.number} is in its conversation, but not stored")
            turn.response = {"status": "completed", "output": output}

    # Background runs.

    async def _settle_run(self, turn: Turn) -> None:
        """An open run has an end soon: it failed, or had been finished."""
        async with asyncio.timeout(_PATIENCE_S):
            while True:
                status, found = await self._get(f"/responses/{turn.id}")
                if status != 200:
                    self._findings.lost.append(f"run {turn.number} is gone: {found}")
                    turn.id = None
                    return
                if found["status"] not in ("queued", "in_progress"):
                    break
                await asyncio.sleep(0.05)
        if found["status"] == "failed" or (turn.is_cancelled and found["status"] == "cancelled"):
            turn.response = found
        else:
            self._take(turn, found)
            self._findings.whole += 1
        await self._read_run(turn)

    async def _read_run(self, turn: Turn) -> None:
        """The events of a run that is over: without a gap, with one end, which says what the response is."""
        async with self._http.get(f"{self._url}/responses/{turn.id}?stream=true") as answer:
            told = [line[6:] for line in (await answer.read()).splitlines() if line.startswith(b"data: {")]
        events = [json.loads(data) for data in told]
        numbers = [event["sequence_number"] for event in events]
        ends = [event for event in events if event["type"] in _TERMINAL]
        if numbers != list(range(len(events))) or len(ends) != 1 or ends[0] is not events[-1]:
            self._findings.half.append(f"run {turn.number}: {numbers}, ends {ends}")
        elif ends[0]["response"] != turn.response:
            self._findings.half.append(f"run {turn.number} ended as {ends[0]}, and is {turn.response}")

    # How to ask.

    async def _get(self, path: str) -> tuple[int, Json]:
        async with self._http.get(f"{self._url}{path}") as answer:
            return answer.status, await answer.json()

    async def _list(self, path: str) -> list[Json]:
        """All pages of a list, oldest first."""
        items: list[Json] = []
        while True:
            after = f"&after={items[-1]['id']}" if items else ""
            status, page = await self._get(f"{path}?order=asc&limit=100{after}")
            if status != 200:
                self._findings.lost.append(f"{path}: {page}")
                return items
            items += page["data"]
            if not page["has_more"]:
                return items


def _is_unsettled(turn: Turn) -> bool:
    return turn.id is not None and turn.response is None and not turn.is_background


async def _each(look: Callable[[_T], Awaitable[Any]], subjects: Iterable[_T]) -> None:
    """At all of these, some at a time."""
    left = iter(list(subjects))

    async def work() -> None:
        for subject in left:
            await look(subject)

    await asyncio.gather(*(work() for _ in range(_AT_ONCE)))
