"""Fixtures for the tests of the MCP client."""

from collections.abc import AsyncIterator

import pytest

from slipring.mcp.pool import Pool
from tests.mcp.fakes import FakeServer, FakeSseServer, serving


@pytest.fixture
async def pool() -> AsyncIterator[Pool]:
    async with Pool() as pool:
        yield pool


@pytest.fixture
async def modern() -> AsyncIterator[FakeServer]:
    async with serving(FakeServer(modern=True)) as fake:
        yield fake


@pytest.fixture
async def legacy() -> AsyncIterator[FakeServer]:
    async with serving(FakeServer(modern=False)) as fake:
        yield fake


@pytest.fixture(params=["modern", "legacy"])
async def fake(request: pytest.FixtureRequest) -> AsyncIterator[FakeServer]:
    """A streamable HTTP server of either era."""
    async with serving(FakeServer(modern=request.param == "modern")) as fake:
        yield fake


@pytest.fixture
async def old() -> AsyncIterator[FakeSseServer]:
    async with serving(FakeSseServer()) as fake:
        assert isinstance(fake, FakeSseServer)
        yield fake
