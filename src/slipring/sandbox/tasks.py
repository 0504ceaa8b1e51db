"""Which functions run in child processes: by name, each with the module that has a function of that name.

A child runs no others. Modules are imported by the child when they are first needed; this layer knows only
their names.
"""

from collections.abc import Mapping

TASKS: Mapping[str, str] = {
    "check_grammar": "slipring.engines.constraints.tool_grammars",
    "draft_document": "slipring.engines.simulated.drafts",
    "draft_input": "slipring.engines.simulated.drafts",
    "write_constraint": "slipring.engines.constraints.constraint",
    "write_grammar": "slipring.engines.llama.answer_grammar",
}
