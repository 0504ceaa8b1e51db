"""Lark grammars enforced on the real embedded model."""

from slipring.protocol.tools.grammars_and_schemas import Grammar
from tests.engines.constraints.test_json_string_grammar import PATCH, SQL
from tests.engines.fitting import fits
from tests.model import ServeModel

SUM = r"""
start: term (OPERATOR term)~1..4
term: NUMBER | "(" term OPERATOR term ")"
OPERATOR: /[-+*]/
NUMBER: /[0-9]{1,4}/
%ignore / {1,2}/
"""
QUOTED = r"""
start: (STRING NEWLINE){1,3}
STRING: /"([^"\\\n]|\\["\\n]){1,8}"/
NEWLINE: /\r?\n/
"""
GRAMMARS = {
    "sum": SUM,
    "sql": SQL.replace("NAME)*\nvalue", "NAME)~0..2\nvalue"),
    "patch": PATCH,
    "quoted": QUOTED,
}


async def test_the_input_that_a_model_writes_matches_the_lark_grammar(tiny: ServeModel) -> None:
    async with tiny(slots=1) as server, server.connect() as socket:
        for name, definition in GRAMMARS.items():
            format = {"type": "grammar", "syntax": "lark", "definition": definition}
            completed = 0
            for seed in range(3):
                response = await socket.response(
                    input="Write something with the tool.",
                    tools=[{"type": "custom", "name": "write", "format": format}],
                    tool_choice={"type": "custom", "name": "write"},
                    parallel_tool_calls=False,
                    temperature=1.5,
                    seed=seed,
                    max_output_tokens=100,
                    store=False,
                )
                (call,) = response["output"]
                assert call["type"] == "custom_tool_call"
                # An input that was cut off matches so far: otherwise the response would have failed.
                assert response["status"] == "incomplete" or fits(Grammar("lark", definition), call["input"])
                completed += response["status"] == "completed"
            assert completed, name
