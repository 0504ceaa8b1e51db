"""The client of llama-server's API, in front of servers that do not answer as they should."""

import pytest
from aiohttp import web

from slipring.base.errors import ServerError
from slipring.engines.engine_hosts import Host
from slipring.engines.llama.answer import PrefillReader
from slipring.engines.llama.api import Api
from slipring.engines.llama.slots_and_saved_contexts import Slot
from tests.engines.remote.test_http_client import serving


@pytest.mark.parametrize("status", [200, 500])
async def test_an_answer_that_is_no_utf8_is_an_error_of_the_engine(status: int) -> None:
    async def answer(request: web.Request) -> web.Response:
        body = b'data: {"content": "\xe4"}\n\n' if status == 200 else b'{"error": {"message": "\xe4"}}'
        return web.Response(status=status, body=body)

    async with serving(answer, "/completion") as url:
        api = Api(Host("", url))
        await api.start()
        try:
            with pytest.raises(ServerError):
                await api.complete(b"{}", PrefillReader(Slot(0), "t"))
        finally:
            await api.close()
