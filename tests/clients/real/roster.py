"""All clients of `make clients`, in the order of its table."""

from tests.clients.real.agents_js import agents_js
from tests.clients.real.ai_sdk import ai_sdk
from tests.clients.real.aider import aider
from tests.clients.real.claude_agent_sdk import claude_agent_sdk
from tests.clients.real.claude_code import claude_code
from tests.clients.real.cline import cline
from tests.clients.real.codex import codex
from tests.clients.real.continue_cli import continue_cli
from tests.clients.real.langchain import langchain
from tests.clients.real.langchain_anthropic import langchain_anthropic
from tests.clients.real.litellm import litellm
from tests.clients.real.open_webui import open_webui
from tests.clients.real.openai_agents import openai_agents
from tests.clients.real.openai_node import openai_node
from tests.clients.real.openai_python import openai_python
from tests.clients.real.opencode import opencode
from tests.clients.real.pi import pi

CLIENTS = (
    *(codex, claude_code, claude_agent_sdk, openai_python, openai_node, openai_agents, agents_js, ai_sdk),
    *(langchain, langchain_anthropic, litellm, opencode, pi, cline, continue_cli, aider, open_webui),
)
