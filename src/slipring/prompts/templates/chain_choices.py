"""What a chain keeps as the model's context had it, where the template writes the whole history otherwise.

A chain reads as the template writes its whole history, or it is rendered in full and the turn reports why.
These are the exceptions: rendering in full would make the engine read the last answer again in every turn.
Which of them a model's template makes necessary is found when its renderer is made; ``slipring inspect``
names them.
"""

from msgspec import Struct


class ChainChoice(Struct, frozen=True):
    """Something that stays in a chain although the template drops it."""

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
    "white space as the model read it, where the template changes it once more follows",
    "it is a token or two; changed, the engine would read the last answer again in every turn",
)
LOOP_THOUGHTS = ChainChoice(
    "loop_thoughts",
    "thoughts of a tool loop, until another message than an output follows",
    "the model goes on with what it thought, and the engine need not read the last call again in every step",
)
CHAIN_CHOICES = (EMPTY_THOUGHTS, WHITE_SPACE, LOOP_THOUGHTS)
