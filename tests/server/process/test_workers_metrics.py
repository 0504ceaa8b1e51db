"""Metrics of several workers: the supervisor serves their sum, and counters survive the death of a worker."""

import asyncio
import os
import signal

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from tests.commands.test_cli import FAST
from tests.server.admin.watching import ANY_PORT
from tests.server.process.test_workers import PATIENCE_S, is_alive, pids_of, until, workers

_TURNS = 8


class Scraper:
    """Reads metrics again and again, and sees that no counter falls."""

    def __init__(self, url: str, http: aiohttp.ClientSession) -> None:
        self._url = f"{url}metrics"
        self._http = http
        self._counters: dict[str, float] = {}
        self.values: dict[str, float] = {}

    async def scrape(self) -> None:
        async with self._http.get(self._url) as answer:
            families = list(text_string_to_metric_families(await answer.text()))
        self.values = {}
        for family in families:
            for sample in family.samples:
                series = f"{sample.name}{sorted(sample.labels.items())}"
                self.values[sample.name] = self.values.get(sample.name, 0.0) + sample.value
                if family.type != "gauge":
                    assert sample.value >= self._counters.get(series, 0.0), f"{series} has fallen"
                    self._counters[series] = sample.value

    async def until(self, name: str, value: float) -> None:
        """Workers report once a second: scrape until their sum is as expected."""
        async with asyncio.timeout(PATIENCE_S):
            while self.values.get(name) != value:
                await self.scrape()
                await asyncio.sleep(0.1)


async def test_counters_do_not_fall_when_a_worker_is_killed_and_replaced() -> None:
    async with workers("--admin", ANY_PORT, *FAST) as server, aiohttp.ClientSession() as http:
        (url,) = [line.split()[-1] for line in server.output if "live page" in line]
        scraper = Scraper(url, http)
        for _ in range(_TURNS):
            async with (
                aiohttp.ClientSession() as other,  # each connection may lead to another worker
                other.post(f"{server.url}/responses", json={"input": "hello"}) as answer,
            ):
                assert answer.status == 200
        await scraper.until("slipring_turns_total", _TURNS)
        await scraper.until("slipring_processes", 2)
        assert scraper.values["slipring_turn_seconds_count"] == _TURNS
        assert scraper.values["process_open_fds"] > 0
        killed = min(await pids_of(server.url))
        os.kill(killed, signal.SIGKILL)
        await until(lambda: not is_alive(killed))
        await scraper.scrape()
        assert scraper.values["slipring_turns_total"] == _TURNS
        await pids_of(server.url)
        await scraper.until("slipring_processes", 2)
        assert scraper.values["slipring_turns_total"] == _TURNS
        async with http.post(f"{server.url}/responses", json={"input": "hello"}) as answer:
            assert answer.status == 200
        await scraper.until("slipring_turns_total", _TURNS + 1)
