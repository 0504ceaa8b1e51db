"""Which MCP servers a request may use, by URL, connector and label, with which key, and what it may send."""

from typing import Any

import pytest

from slipring.base.errors import StartupError
from slipring.config.settings import Config
from slipring.config.tables import HeaderVariable, McpRegistration
from slipring.core.limits import Limits
from slipring.mcp.servers import HttpServer, StdioServer
from slipring.mcp.transports.addresses import Reach
from slipring.protocol.tools.mcp_tools import McpTool
from slipring.server.hosted_tools.permitted_servers import Registry, ServerRefused, Target
from slipring.stores.keys import Key
from tests.stores.samples import key

TOKEN = "operator-token-1234567890"
WEATHER = McpRegistration(
    "weather",
    url="http://10.0.0.7:9000/mcp",
    headers=(HeaderVariable("Authorization", "WEATHER_TOKEN", "Bearer"),),
    allowed_tools=("now", "forecast"),
    approval="always",
    timeout_s=900.0,
    on_list_error="continue",
)
PLAIN = McpRegistration("plain", url="http://10.0.0.7:9000/mcp")
FILES = McpRegistration("files", command=("mcp-files", "/srv"), env=("FILES_TOKEN",), parallel=2)
ENVIRONMENT = {"WEATHER_TOKEN": TOKEN, "FILES_TOKEN": "files-token", "OTHER": "not passed on"}


def registry(*registered: McpRegistration, policy: str = "registered") -> Registry:
    return Registry(Config(mcp=registered or (WEATHER, PLAIN, FILES), mcp_urls=policy), ENVIRONMENT)


def find(
    label: str = "mine", permissions: Key | None = None, policy: str = "registered", **tool: Any
) -> Target:
    return registry(policy=policy).find(McpTool(label, **tool), permissions)


def refused(
    label: str = "mine", permissions: Key | None = None, policy: str = "registered", **tool: Any
) -> str:
    with pytest.raises(ServerRefused) as caught:
        find(label, permissions, policy, **tool)
    assert str(caught.value) == caught.value.reason
    return f"{caught.value.field}: {caught.value.reason}"


def test_a_registered_server_has_its_settings() -> None:
    target = find(server_url=WEATHER.url)
    server = target.server
    assert isinstance(server, HttpServer)
    assert target.name == "weather"
    assert (target.permitted, target.always_approve, target.goes_on) == ({"now", "forecast"}, True, True)
    assert server.credential.headers == {"Authorization": f"Bearer {TOKEN}"}
    assert (server.limits.call_timeout_s, server.limits.call_total_s) == (900, 900)
    assert server.limits.max_result_bytes == 1024 * 1024
    assert TOKEN not in repr(target)


def test_a_message_has_room_for_the_largest_result() -> None:
    config = Config(mcp=(PLAIN,), limits=Limits(max_tool_result_bytes=64 * 2**20))
    limits = Registry(config, {}).find(McpTool("plain"), None).server.limits
    assert limits.max_result_bytes < limits.max_message_bytes < limits.max_stream_bytes
    assert find("plain").server.limits.max_message_bytes < 5 * 2**20


def test_a_process_gets_the_variables_that_its_table_names() -> None:
    server = find("files").server
    assert isinstance(server, StdioServer)
    assert (server.command, server.env, server.cwd) == (
        ("mcp-files", "/srv"),
        {"FILES_TOKEN": "files-token"},
        None,
    )
    assert (server.per_tenant, server.parallel) == (True, 2)
    assert "files-token" not in repr(server)


def test_clients_name_servers_by_url_connector_and_label() -> None:
    assert find(server_url=WEATHER.url).name == "weather"
    assert find(server_url=WEATHER.url.replace("http:", "HTTP:")).name == "weather"
    assert find(connector_id="plain").name == "plain"
    assert find("files").name == "files"


def test_the_label_chooses_among_servers_with_one_url() -> None:
    assert find("plain", server_url=WEATHER.url).name == "plain"
    assert find("plain", server_url=WEATHER.url).credential.headers == {}


@pytest.mark.parametrize(
    ("registered", "named"),
    [
        ("https://example.com/mcp", "https://example.com:443/mcp"),
        ("https://example.com:443/mcp", "https://example.com/mcp"),
        ("http://example.com/mcp", "http://example.com:80/mcp"),
    ],
)
def test_a_usual_port_may_be_spelled_out(registered: str, named: str) -> None:
    servers = registry(McpRegistration("s", url=registered))
    assert servers.find(McpTool("mine", server_url=named), None).name == "s"


@pytest.mark.parametrize(
    ("tool", "complaint"),
    [
        ({}, "server_label: no MCP server with this name is registered here"),
        (
            {"connector_id": "connector_gmail"},
            "connector_id: no MCP server with this name is registered here",
        ),
        ({"server_url": "https://example.com/mcp"}, "server_url: the server's URL is not registered here"),
        ({"server_url": f"{WEATHER.url}/../admin"}, "server_url: the server's URL is not registered here"),
        ({"server_url": f"{WEATHER.url}?x=1"}, "server_url: the server's URL is not registered here"),
        (
            {"server_url": "http://u:p@10.0.0.7:9000/mcp"},
            "server_url: the server's URL must not contain a user",
        ),
        ({"server_url": "file:///etc/passwd"}, "server_url: the server's URL must be an absolute http"),
    ],
)
def test_everything_else_is_refused_by_default(tool: dict[str, Any], complaint: str) -> None:
    assert refused(**tool).startswith(complaint)


@pytest.mark.parametrize(
    "url",
    [
        *(
            "http://example.com/mcp",
            "https://example.com:22/mcp",
            "https://localhost/mcp",
            "https://localhost./",
        ),
        *("https://127.0.0.1/mcp", "https://2130706433/mcp", "https://0x7f.1/mcp", "https://10.0.0.8/mcp"),
        *(
            "https://169.254.169.254/latest/meta-data",
            "https://metadata.google.internal/",
            "https://intranet/",
        ),
        *("https://[::1]/mcp", "https://[::ffff:127.0.0.1]/mcp", "https://[64:ff9b::7f00:1]/mcp"),
        *("https://[2002:7f00:1::]/mcp", "https://[fe80::1%25eth0]/mcp", "https://[fd00::1]/mcp"),
    ],
)
def test_the_public_policy_refuses_what_leads_inside(url: str) -> None:
    assert refused(policy="public", server_url=url).startswith("server_url: the server's URL must ")


def test_the_policies_admit_urls_of_clients() -> None:
    public = find(policy="public", server_url="https://mcp.example.com/mcp")
    assert isinstance(public.server, HttpServer)
    assert (public.name, public.permitted, public.always_approve) == (None, None, False)
    assert public.server.reach is Reach.PUBLIC
    assert public.server.limits.max_result_bytes == 1024 * 1024
    inside = find(policy="any", server_url="http://127.0.0.1:5000/mcp")
    assert isinstance(inside.server, HttpServer)
    assert inside.server.reach is Reach.UNRESERVED
    # A registered server on a private address is the operator's choice, whatever the policy.
    assert find(policy="public", server_url=WEATHER.url).name == "weather"


def test_for_a_key_only_its_servers_exist() -> None:
    bound = key("k", mcp_servers=("files",))
    assert find("files", bound).name == "files"
    answer = "no MCP server with this name is registered here"
    assert refused("plain", bound) == f"server_label: {answer}"
    assert refused("x", bound, connector_id="plain") == f"connector_id: {answer}"
    unregistered = refused("x", bound, server_url="http://10.0.0.99/")
    assert refused("x", bound, server_url=PLAIN.url) == unregistered


def test_for_a_key_without_mcp_no_server_exists() -> None:
    bound = key("k", mcp_servers=())
    assert "no MCP server with this name" in refused("files", bound)
    assert "not registered" in refused("x", bound, "any", server_url=PLAIN.url)


BOUND = [{"mcp_servers": ("files",)}, {"mcp_servers": ()}, {"mcp_tools": ("files.read",)}]


@pytest.mark.parametrize("policy", ["public", "any"])
@pytest.mark.parametrize("bound", BOUND)
def test_a_key_with_permissions_has_none_for_other_urls(policy: str, bound: dict[str, Any]) -> None:
    for url in ("https://mcp.example.com/mcp", "http://10.0.0.7:9000/other"):
        assert "not registered" in refused("x", key("k", **bound), policy, server_url=url)


@pytest.mark.parametrize(
    ("tools", "permitted"),
    [
        ((), {"now", "forecast"}),
        (("weather.now", "weather.delete"), {"now"}),
        (("weather.delete",), set()),
        (("plain.x", "weather2.y"), {"now", "forecast"}),
    ],
)
def test_a_key_narrows_the_tools_of_the_operator(tools: tuple[str, ...], permitted: set[str]) -> None:
    assert find("weather", key("k", mcp_tools=tools)).permitted == permitted


def test_a_key_narrows_the_tools_of_a_server_without_a_list() -> None:
    bound = key("k", mcp_tools=("plain.read.all",))
    assert find("plain", bound).permitted == {"read.all"}
    assert find("files", bound).permitted is None


@pytest.mark.parametrize(
    ("tool", "complaint"),
    [
        ({"headers": {"Host": "evil-value"}}, "headers: the header 'Host' cannot be set"),
        ({"headers": {"Mcp-Session-Id": "evil-value"}}, "headers: the header 'Mcp-Session-Id' cannot be set"),
        (
            {"headers": {"X-A": "evil-value\r\nHost: b"}},
            "headers: the value of the header 'X-A' is empty or has",
        ),
        ({"headers": {"evil-value\n": "b"}}, "headers: a header's name is not valid"),
        ({"authorization": "evil-value\r\nX: y"}, "authorization: it is empty or has characters"),
        ({"authorization": ""}, "authorization: it is empty or has characters"),
        (
            {"authorization": "evil-value", "headers": {"authorization": "evil-value"}},
            "headers: both 'authorization' and an Authorization header are given",
        ),
    ],
)
def test_what_could_smuggle_is_refused_by_its_field_and_not_repeated(
    tool: dict[str, Any], complaint: str
) -> None:
    found = refused("plain", **tool)
    assert found.startswith(complaint)
    assert "evil-value" not in found


def test_a_request_may_bring_its_own_token_and_no_other_header_of_the_operator() -> None:
    team = McpRegistration(
        "team",
        url="http://10.0.0.7/mcp",
        headers=(
            HeaderVariable("Authorization", "WEATHER_TOKEN", "Bearer"),
            HeaderVariable("X-Team", "OTHER"),
        ),
    )
    found = registry(team).find(McpTool("team", authorization="mine", headers={"X-Mine": "1"}), None)
    assert found.credential.headers == {"Authorization": "Bearer mine", "X-Mine": "1"}
    with pytest.raises(ServerRefused, match="is set by the operator") as caught:
        registry(team).find(McpTool("team", headers={"x-team": "admins"}), None)
    assert caught.value.field == "headers"


@pytest.mark.parametrize("field", [{"authorization": "token"}, {"headers": {"X-A": "b"}}])
def test_a_process_is_sent_no_headers(field: dict[str, Any]) -> None:
    assert "is a process, which cannot be sent headers" in refused("files", **field)
    assert find("files", headers={}).name == "files"


@pytest.mark.parametrize(
    ("registered", "complaint"),
    [
        (
            McpRegistration("a", url="http://h/", headers=(HeaderVariable("X", "MISSING"),)),
            "mcp server 'a': the environment variable MISSING is not set",
        ),
        (
            McpRegistration("a", command=("x",), env=("MISSING",)),
            "mcp server 'a': the environment variable MISSING is not set",
        ),
        (
            McpRegistration("a", url="http://h/", headers=(HeaderVariable("Host", "WEATHER_TOKEN"),)),
            "mcp server 'a': the header 'Host' cannot be set",
        ),
        (
            McpRegistration("a", url="http://u:hush@h/"),
            "mcp server 'a': the server's URL must not contain a user name or password",
        ),
    ],
)
def test_a_server_that_cannot_be_used_prevents_the_start(registered: McpRegistration, complaint: str) -> None:
    with pytest.raises(StartupError) as caught:
        registry(registered)
    assert str(caught.value) == complaint


def test_the_secrets_of_the_operator_are_known_to_who_removes_them() -> None:
    assert {TOKEN, f"Bearer {TOKEN}", "files-token"} <= set(registry().secrets())
    assert registry().names == ("weather", "plain", "files")
