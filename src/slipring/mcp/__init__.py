"""slipring's MCP client: a pool of connections to MCP servers, for tools that the server runs itself.

    async with slipring.mcp.pool.Pool() as pool:
        server = HttpServer("weather", parse_url("https://mcp.example.com/mcp"))
        for tool in (await pool.tools(server)).tools: ...
        result = await pool.call(server, "forecast", {"city": "Oslo"}, progress=print)

From the bottom up: ``protocol`` is the protocol without I/O, ``transports`` drives it, ``servers`` decides
what may be called, ``pool`` keeps the connections. ``pool`` and what is below it are imported for the first
request with MCP tools: most servers get none.
"""
