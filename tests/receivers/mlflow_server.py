"""A real MLflow server: it receives traces over OTLP/HTTP, and its REST API shows them."""

import asyncio
import base64
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from msgspec import Struct

from tests.free_port import free_port

PATIENCE_S = 300.0
"""A first start imports hundreds of modules and creates a database."""


class Span(Struct):
    """A span as MLflow shows it. It does not keep the kind."""

    name: str
    span_id: str
    parent_id: str | None
    start_ns: int
    end_ns: int
    is_error: bool
    attributes: dict[str, Any]
    links: list[tuple[str, str]]
    """Trace and span of each."""


class Trace(Struct):
    """A trace as MLflow shows it."""

    trace_id: str
    state: str
    """``IN_PROGRESS`` until its root has arrived, whose status it takes then."""
    metadata: dict[str, str]
    tags: dict[str, str]
    spans: list[Span]
    text: str
    """All of the answer, as JSON."""

    @property
    def turns(self) -> list[Span]:
        """In the order in which they started."""
        turns = [span for span in self.spans if span.name.partition(" ")[0] == "chat"]
        return sorted(turns, key=lambda span: span.start_ns)

    def children(self, parent: Span) -> list[Span]:
        children = [span for span in self.spans if span.parent_id == parent.span_id]
        return sorted(children, key=lambda span: (span.start_ns, span.end_ns))


class Experiment:
    """A place for traces in a server of MLflow, empty at first."""

    def __init__(self, http: aiohttp.ClientSession, url: str, experiment_id: str) -> None:
        self._http = http
        self.url = url
        self._id = experiment_id

    @property
    def headers(self) -> dict[str, str]:
        """Those with which spans are sent to this experiment."""
        return {"x-mlflow-experiment-id": self._id}

    @property
    def headers_variable(self) -> str:
        """The same, as the value of ``OTEL_EXPORTER_OTLP_HEADERS``."""
        return ",".join(f"{name}={value}" for name, value in self.headers.items())

    async def until(self, holds: Callable[[list[Trace]], bool]) -> list[Trace]:
        """The traces, once they satisfy a condition: servers send them some time after their turns."""
        traces: list[Trace] = []
        try:
            async with asyncio.timeout(PATIENCE_S):
                while not holds(traces := await self._traces()):  # noqa: ASYNC110
                    await asyncio.sleep(0.2)
        except TimeoutError:
            pytest.fail(f"not the traces that were expected: {traces}")
        return traces

    async def _traces(self) -> list[Trace]:
        place = {"type": "MLFLOW_EXPERIMENT", "mlflow_experiment": {"experiment_id": self._id}}
        path = f"{self.url}/api/3.0/mlflow/traces"
        async with self._http.post(f"{path}/search", json={"locations": [place]}) as answer:
            found = (await answer.json()).get("traces", [])
        traces = []
        for each in found:
            async with self._http.get(f"{path}/get", params={"trace_id": each["trace_id"]}) as answer:
                traces.append(_trace((await answer.json())["trace"], await answer.text()))
        return traces


class Mlflow:
    """A running server."""

    def __init__(self, http: aiohttp.ClientSession, url: str) -> None:
        self._http = http
        self._url = url

    async def experiment(self, name: str) -> Experiment:
        """Create an experiment."""
        create = f"{self._url}/api/2.0/mlflow/experiments/create"
        async with self._http.post(create, json={"name": name}) as answer:
            return Experiment(self._http, self._url, (await answer.json())["experiment_id"])


@asynccontextmanager
async def mlflow(directory: Path) -> AsyncIterator[Mlflow]:
    """A server on a free loopback port, which keeps all that it writes in this directory."""
    executables = os.environ.get("SLIPRING_TEST_TRACES")
    if not executables:
        pytest.fail("SLIPRING_TEST_TRACES is not set: it names a directory of executables", pytrace=False)
    port = free_port()
    with (directory / "log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *(
                f"{executables}/mlflow",
                "server",
                "--host",
                "127.0.0.1",
                "--port",
                str(port),
                "--workers",
                "1",
            ),
            *("--backend-store-uri", f"sqlite:///{directory}/traces.db"),
            *("--artifacts-destination", str(directory / "artifacts")),
            # Nothing of it is to connect to anywhere else; jobs would be four more processes.
            env={
                **os.environ,
                "MLFLOW_DISABLE_TELEMETRY": "true",
                "DO_NOT_TRACK": "true",
                "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
            },
            cwd=directory,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    url = f"http://127.0.0.1:{port}"
    try:
        async with aiohttp.ClientSession() as http:
            async with asyncio.timeout(PATIENCE_S):
                while not await _is_healthy(http, url):
                    assert process.returncode is None, (directory / "log").read_text()
                    await asyncio.sleep(0.2)
            yield Mlflow(http, url)
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
            await process.wait()


async def _is_healthy(http: aiohttp.ClientSession, url: str) -> bool:
    try:
        async with http.get(f"{url}/health") as answer:
            return answer.status == 200
    except aiohttp.ClientError:
        return False


def _trace(shown: dict[str, Any], text: str) -> Trace:
    info = shown["trace_info"]
    return Trace(
        trace_id=info["trace_id"].removeprefix("tr-"),
        state=info["state"],
        metadata=info.get("trace_metadata", {}),
        tags=info.get("tags", {}),
        spans=[_span(each) for each in shown["spans"]],
        text=text,
    )


def _span(shown: dict[str, Any]) -> Span:
    parent = shown.get("parent_span_id")
    return Span(
        name=shown["name"],
        span_id=_hex(shown["span_id"]),
        parent_id=_hex(parent) if parent else None,
        start_ns=int(shown["start_time_unix_nano"]),
        end_ns=int(shown["end_time_unix_nano"]),
        is_error=shown["status"].get("code") == "STATUS_CODE_ERROR",
        attributes={each["key"]: _value(each["value"]) for each in shown["attributes"]},
        links=[(_hex(each["trace_id"]), _hex(each["span_id"])) for each in shown.get("links", [])],
    )


def _value(shown: dict[str, Any]) -> Any:
    ((kind, value),) = shown.items()
    if kind == "array_value":
        return [_value(each) for each in value["values"]]
    return value


def _hex(encoded: str) -> str:
    return base64.b64decode(encoded).hex()
