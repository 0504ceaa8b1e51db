"""Why a context is rendered from all its items, instead of the new ones being appended to its tokens: what
``fallback`` says in the timing of a turn."""


class CannotAppend(Exception):
    """The delta cannot be appended to the parent's tokens. The message says why."""


OTHER_WRITER = "the parent was not rendered by this model"
CANNOT_SEE = "the parent has pictures, which this model cannot see"
HEAD_CHANGED = "the head changed"
EFFORT_CHANGED = (
    "the effort of reasoning changed, which the template writes at the beginning or in earlier answers"
)
OPENED_OTHERWISE = "the effort of reasoning changed, with which the template may open answers otherwise"
CONTEXT_CHANGED = "the request asks for the thoughts of other turns than the one before"
ASKED_TO_DROP = "the request asks for the thoughts of the current turn only"
DROPS_THOUGHTS = "the template drops earlier thoughts"
REWRITES_EARLIER = "the template rewrites earlier turns"
COUNTS_MESSAGES = "the template counts messages"
MOVES_EARLIER = "the template writes earlier parts among the new ones"
NO_BOUNDARY = "the template's parts do not meet at a control token"
CONTINUES_ASSISTANT = "the delta continues an assistant message"
REFUSES_PART = "the template cannot write a part of the conversation alone"
