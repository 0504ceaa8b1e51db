"""Describes models to Codex, so that it uses the model's real context window and does not warn that it knows
nothing about the model.

Codex requires instructions in every description and sends them as its own. Those here are short, because a
local model reads every token of them. Users replace them with Codex' setting ``model_instructions_file``.
"""

from slipring.core.generation import Model
from slipring.protocol.endpoints.reply_bodies import CodexModel, EffortLevel, TruncationPolicy
from slipring.server.access.model_permissions import Selection

_INSTRUCTIONS = """\
You are a coding agent in a terminal. You and the user work in the same directory. You read and change it, and
run programs in it, with the tools that you have.

How to work
- Find out before you change anything: list and search files (`rg`, `rg --files`), and read those that matter.
- Call tools to do the work; do not describe commands for the user to run. Go on until the request is done, or
  until you need an answer that only the user can give.
- Calls that do not depend on each other may be made together.
- Make the smallest change that does what was asked, at the place where the fault is. Keep the style of the
  code around it. Leave unrelated faults alone, and mention them.
- A file named AGENTS.md holds rules for the directory that it is in and everything below. Obey the nearest
  one; what the user says in the conversation comes first.
- Check your work with the project's own tests, linters or build, beginning with those closest to the change.
  If a command fails, read what it printed before you try again.
- The work tree may hold changes that are not yours. Never undo them. Commit, push, or delete what cannot be
  restored only if the user asked for it.
- If a command is refused, or the sandbox does not allow it, say so, and look for a way that is allowed.

How to answer
- Be short and exact. Say what you changed, where (`path:line`), and how you checked it.
- Report what you saw: if a test failed or was not run, say so.
- Answer a question with an answer; do not change files for it.
"""
_OUTPUT_BYTES = 10_000
"""How much of a tool's output Codex sends by default."""
_EFFORTS = {
    "none": "does not think before it answers",
    "minimal": "thinks as little as it can",
    "low": "thinks a little",
    "medium": "thinks",
    "high": "thinks longer",
    "xhigh": "thinks as long as it can",
    "max": "thinks without a limit",
}


def describe_for_codex(models: Selection) -> list[CodexModel]:
    """The models in Codex' form, the default first, and then their other names.

    Models of another Responses server are left out: Codex may know them better than this server does.
    """
    known = {model.name: model for model in models if not model.is_upstream}
    names = [*known, *(alias for alias, name in models.aliases.items() if name in known)]
    return [
        _describe(known[models.aliases.get(name, name)], name, priority)
        for priority, name in enumerate(names)
    ]


def _describe(model: Model, name: str, priority: int) -> CodexModel:
    described = CodexModel(
        slug=name,
        display_name=name,
        description=f"{model.own_name or model.name} ({model.owner})",
        base_instructions=_INSTRUCTIONS,
        supported_reasoning_levels=[EffortLevel(effort, _EFFORTS[effort]) for effort in model.efforts],
        visibility="list" if name == model.name else "hide",
        priority=priority,
        truncation_policy=TruncationPolicy(_OUTPUT_BYTES),
        input_modalities=["text", "image"] if model.capabilities.images else ["text"],
    )
    if model.defaults.effort in model.efforts and model.defaults.effort is not None:
        described.default_reasoning_level = model.defaults.effort
    if model.context_tokens is not None:
        described.context_window = described.max_context_window = model.context_tokens
        # A byte for each token of the context is about a quarter of it.
        described.truncation_policy.limit = min(_OUTPUT_BYTES, model.context_tokens)
    return described
