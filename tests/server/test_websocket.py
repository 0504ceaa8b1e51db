"""The socket as a client sees it."""

from tests.harness import WEATHER, serve


async def test_a_tool_loop_sends_only_what_is_new() -> None:
    async with serve("simulated:tokens_per_s=0,tool_calls=2") as server, server.connect() as socket:
        response = await socket.response(model="simulated", input="weather?", tools=[WEATHER], store=False)
        for _ in range(2):
            (call,) = response["output"]
            assert call["type"] == "function_call"
            response = await socket.response(
                model="simulated",
                previous_response_id=response["id"],
                input=[{"type": "function_call_output", "call_id": call["call_id"], "output": "sunny"}],
                tools=[WEATHER],
                store=False,
            )
        assert response["output"][0]["type"] == "message"
        assert response["usage"]["input_tokens_details"]["cached_tokens"] > 0
