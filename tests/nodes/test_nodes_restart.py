"""Two nodes behind a load balancer are restarted one after the other under load: no stored turn fails."""

from tests.nodes.rolling import fleet, stop_during_a_turn, traffic


async def test_a_rolling_restart_fails_no_stored_turn(postgres_url: str) -> None:
    async with fleet(postgres_url) as (nodes, url):
        for index in range(2):
            await nodes.start(index)
        async with traffic(url) as clients:
            await clients.progress()
            for index in range(2):
                await stop_during_a_turn(nodes.nodes[index], clients.http)
                await clients.progress()
                await nodes.start(index)
                await clients.progress()
            await clients.stop()
            # At least one node before and one after a restart have made a part of every chain.
            await clients.check(makers=2)
            assert clients.repeated > 0, "at least one client had to move"
