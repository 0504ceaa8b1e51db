"""Checks after a crash that the store has everything that was acknowledged to clients, and nothing
incomplete."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable
from random import Random
from typing import Any, TypeVar

import aiohttp

from tests.crash.clients import Counts
from tests.crash.ledger import Json, Ledger, Note, Talk, Turn, as_line

_T = TypeVar("_T")
_AT_ONCE = 16
_SAMPLE = 10
"""How many older responses are checked in full after each crash. At the end, all are."""
_PATIENCE_S = 300.0
_UNKNOWN = "not known whether"
"""In the error of a response that may be stored although it failed."""
_TERMINAL = ("response.completed", "response.failed", "response.incomplete")


class Findings:
    """The faults that were found."""

    def __init__(self) -> None:
        self.lost: list[str] = []
        self.half: list[str] = []
        self.twice: list[str] = []
        self.whole = 0
        """Complete responses that were stored but not acknowledged: the crash came in between."""

    def __bool__(self) -> bool:
        return bool(self.lost or self.half or self.twice)


class Inspector:
    """Checks everything in the ledger with a server that has just been started."""

    def __init__(self, url: str, ledger: Ledger, findings: Findings, random: Random, counts: Counts) -> None:
        self._url = url
        self._ledger = ledger
        self._findings = findings
        self._random = random
        self._counts = counts
        self.strangers: list[Json] = []
        """Stored responses that belong to no turn, or to one that has another response."""
        self._http: aiohttp.ClientSession

    async def inspect(self, since: int, *, everything: bool = False, stored: Iterable[str] = ()) -> None:
        """Check all turns. ``since`` is the number of the first new turn, ``stored`` are the ids that were
        read directly from the database."""
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=_AT_ONCE)) as self._http:
            await _each(self._settle_run, self._ledger.open_runs())
            await _each(self._settle, [turn for turn in self._ledger.turns[since:] if _is_unsettled(turn)])
            known = [turn for turn in self._ledger.turns if turn.id and turn.response]
            await _each(self._read, self._choose(known, since, everything))
            chosen = self._choose(self._ledger.acknowledged(), since, everything)
            await _each(self._read_input, chosen)
            talks = self._ledger.talks
            unsettled = [talk for talk in talks if not talk.is_settled]
            settled = [talk for talk in talks if talk.is_settled]
            if not everything:
                settled = self._random.sample(settled, min(_SAMPLE, len(settled)))
            await _each(self._read_talk, unsettled + settled)
            runs = [turn for turn in self._ledger.turns if turn.is_background and turn.id and turn.response]
            await _each(self._read_run, [run for run in runs if everything or run.number >= since])
            tips = [turn for turn in chosen if turn.talk is None]
            await _each(self._go_on, self._random.sample(tips, min(_SAMPLE, len(tips))))
            ids = {turn.id for turn in self._ledger.turns}
            await _each(self._identify, [each for each in stored if each not in ids])

    def _choose(self, turns: list[Turn], since: int, everything: bool) -> list[Turn]:
        """The new turns and some of the older ones."""
        new = [turn for turn in turns if turn.number >= since]
        old = [turn for turn in turns if turn.number < since]
        return new + (old if everything else self._random.sample(old, min(_SAMPLE, len(old))))

    # Single responses.

    async def _read(self, turn: Turn) -> None:
        """An acknowledged response is stored unchanged; one with ``store: false`` cannot be found."""
        status, found = await self._get(f"/responses/{turn.id}")
        if turn.deletion == "asked" and status == 404:
            turn.deletion = "done"
        if turn.deletion == "done" or not turn.is_stored:
            if status != 404:
                self._findings.half.append(f"turn {turn.number} must not be stored: {found}")
        elif (status, found) != (200, turn.response):
            self._findings.lost.append(f"turn {turn.number}: {status} {found}, not {turn.response}")
        elif turn.deletion == "asked":
            turn.deletion = ""  # the client did not receive it

    async def _settle(self, turn: Turn) -> None:
        """A response whose beginning the client received is stored completely or not at all."""
        status, found = await self._get(f"/responses/{turn.id}")
        if status == 404:
            turn.id = None
        else:
            self._take(turn, found)
            self._findings.whole += 1

    async def _identify(self, response_id: str) -> None:
        """Find the turn of a response that no client received: the crash came before the first event."""
        _, found = await self._get(f"/responses/{response_id}")
        number = found.get("metadata", {}).get("turn")
        if number is None or self._ledger.turns[int(number)].id is not None:
            self.strangers.append(found)
            return
        turn = self._ledger.turns[int(number)]
        if turn.is_background:  # its server may have been killed before it answered the request
            turn.id = response_id
            await self._settle_run(turn)
            return
        self._take(turn, found)
        self._findings.whole += 1
        await self._read_input(turn)
        if turn.talk is not None and turn not in turn.talk.entries:
            self._findings.half.append(f"turn {turn.number} is stored, but not in its conversation")

    def _take(self, turn: Turn, found: Json) -> None:
        """Check that a stored response is a complete answer to this turn. From now on it must stay
        stored."""
        turn.id, turn.response = found["id"], found
        try:
            assert found["status"] == self._counts.ending, found
            assert turn.is_stored
            assert not turn.is_forbidden, "a check has to refuse it"
            assert not turn.failure or _UNKNOWN in turn.failure, turn.failure
            assert found["metadata"] == {"turn": str(turn.number)}
            self._counts.check_output(found)
            self._counts.check(turn)
        except Exception as error:
            self._findings.half.append(f"turn {turn.number}: {type(error).__name__} {error}: {found}")

    async def _read_input(self, turn: Turn) -> None:
        """The listed input items of a response are complete and in order."""
        found = await self._list(f"/responses/{turn.id}/input_items")
        if [as_line(item) for item in found] != turn.input_lines():
            self._findings.lost.append(f"the input of turn {turn.number} is {found}")
        if len({item["id"] for item in found}) != len(found):
            self._findings.half.append(f"the input of turn {turn.number} has an item twice: {found}")

    async def _go_on(self, turn: Turn) -> None:
        """A response can be continued, with its whole history."""
        follow_up = self._ledger.ask(parent=turn)
        body = {
            **self._counts.settings,
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
        """A conversation has every acknowledged turn once and in order. An interrupted turn is there
        completely or not at all, as is its response."""
        items = await self._list(f"/conversations/{talk.id}/items")
        lines = [as_line(item) for item in items]
        if not talk.is_settled:
            await self._settle_talk(talk, items)
        if lines != talk.lines():
            self._findings.lost.append(f"conversation {talk.id} is {lines}, not {talk.lines()}")
        if len({item["id"] for item in items}) != len(items):
            self._findings.half.append(f"conversation {talk.id} has an item twice: {items}")

    async def _settle_talk(self, talk: Talk, items: list[Json]) -> None:
        """Find out whether the last entry was stored. Only the last can be uncertain, because clients do not
        use an unsettled conversation."""
        talk.is_settled = True
        last = talk.entries[-1]
        places = [index for index, item in enumerate(items) if as_line(item) == ("user", last.text)]
        if not places:
            talk.entries.pop()
            if isinstance(last, Turn) and last.id is not None:
                self._findings.half.append(f"turn {last.number} is stored, but not in its conversation")
        elif isinstance(last, Note):
            last.is_acknowledged = True
        elif not last.is_acknowledged:
            await self._settle_in_talk(last, items[places[0] + 1 :])

    async def _settle_in_talk(self, turn: Turn, output: list[Json]) -> None:
        """A turn that is in its conversation must also be stored, unless it had ``store: false``."""
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
        """An open run ends soon: as failed, or as the response that was saved."""
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
        """The events of an ended run have no gap and one terminal event, which matches the response."""
        async with self._http.get(f"{self._url}/responses/{turn.id}?stream=true") as answer:
            lines = [line[6:] for line in (await answer.read()).splitlines() if line.startswith(b"data: {")]
        events = [json.loads(data) for data in lines]
        numbers = [event["sequence_number"] for event in events]
        ends = [event for event in events if event["type"] in _TERMINAL]
        if numbers != list(range(len(events))) or len(ends) != 1 or ends[0] is not events[-1]:
            self._findings.half.append(f"run {turn.number}: {numbers}, ends {ends}")
        elif ends[0]["response"] != turn.response:
            self._findings.half.append(f"run {turn.number} ended as {ends[0]}, and is {turn.response}")

    # Requests.

    async def _get(self, path: str) -> tuple[int, Json]:
        async with self._http.get(f"{self._url}{path}") as answer:
            return answer.status, await answer.json()

    async def _list(self, path: str) -> list[Json]:
        """Return all pages of a list, oldest first."""
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
    """Call ``look`` for each subject, several at a time."""
    left = iter(list(subjects))

    async def work() -> None:
        for subject in left:
            await look(subject)

    await asyncio.gather(*(work() for _ in range(_AT_ONCE)))
