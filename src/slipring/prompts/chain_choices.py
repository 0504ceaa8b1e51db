"""What a chain keeps although a rendering of its whole history would drop or change it.

Without it, the engine would have to read the last answer again in every turn. Which of these choices the
template of a model makes necessary is found when its renderer is made; ``slipring inspect`` names them.
"""

from msgspec import Struct


class ChainChoice(Struct, frozen=True):
    """Something that stays in a chain although a rendering of all items drops it."""

    name: str
    kept: str
    reason: str


EMPTY_THOUGHTS = ChainChoice(
    "empty_thoughts",
    "thoughts without content, which the template writes in a prompt or for the latest answers only",
    "they are a few tokens; without them, the engine would read the last answer again in every turn",
)
WHITE_SPACE = ChainChoice(
    "white_space",
    "white space as the model read it, where the template changes it once another message follows",
    "it is a token or two; changed, the engine would read the last answer again in every turn",
)
CALL_TEXTS = ChainChoice(
    "call_texts",
    "texts before calls, which the template never writes",
    "the model goes on with what it said, and the engine need not read the last call again in every step",
)
LOOP_THOUGHTS = ChainChoice(
    "loop_thoughts",
    "thoughts of a tool loop, until a message other than a tool output follows",
    "the model goes on with what it thought, and the engine need not read the last call again in every step",
)
CALL_IDS = ChainChoice(
    "call_ids",
    "calls without ids, as the model wrote them, where the template adds ids once another message follows",
    "the model never writes them; with them, the engine would read the last call again in every step",
)
ALL_THOUGHTS = ChainChoice(
    "all_thoughts",
    "thoughts of all earlier answers",
    "the option thinking=keep says so, or a built-in template for any model writes the context",
)
CHAIN_CHOICES = (EMPTY_THOUGHTS, WHITE_SPACE, CALL_IDS, CALL_TEXTS, LOOP_THOUGHTS, ALL_THOUGHTS)
