"""Whether a template opens the assistant turn with the same text after every conversation.

Most templates end with ``{% if add_generation_prompt %}…{% endif %}``. If nothing before that asks whether an
answer is wanted, and what stands there depends on options only, then that text is the whole difference of an
open assistant turn: a conversation need not be written twice to find it.

This is decided by the syntax of a template alone, for options that are no lists or dicts: those a template
could change. In doubt, the text counts as not fixed.
"""

from collections.abc import Iterable

from jinja2 import nodes

_ASKED = "add_generation_prompt"
_CONVERSATION = ("messages", "tools", "documents", "tools_ts_str")
"""The variables that differ from one conversation to the next, besides the one that asks."""
_FIXED_SYNTAX = (
    nodes.Output,
    nodes.TemplateData,
    nodes.Const,
    nodes.Name,
    nodes.Filter,
    nodes.If,
    nodes.CondExpr,
    nodes.Compare,
    nodes.Operand,
    nodes.Test,
    nodes.UnaryExpr,
    nodes.BinExpr,
    nodes.Concat,
)
_FIXED_FILTERS = ("default",)
"""Syntax and filters that give the same for the same variables. Calls may give anything."""


def has_fixed_prompt(template: nodes.Template) -> bool:
    """Whether it does. Templates that never ask whether an answer is wanted write the same in any case."""
    asked = [name for name in template.find_all(nodes.Name) if name.name == _ASKED]
    if not asked:
        return True
    *before, last = template.body
    macros = {macro.name for macro in template.find_all(nodes.Macro)}
    if not isinstance(last, nodes.If) or asked != [last.test] or _ASKED in macros:
        return False
    if last.elif_ or last.else_:
        return False
    varying = {*_CONVERSATION, *macros}
    _add_varying(before, varying)
    return all(_is_fixed(node, varying) for node in last.body)


def _add_varying(body: Iterable[nodes.Node], varying: set[str]) -> None:
    """Add the variables that may depend on the conversation after these nodes. What stands in a branch is set
    by options alone only if no test of all branches depends on more."""
    for node in body:
        if isinstance(node, nodes.Assign) and isinstance(node.target, nodes.Name):
            if not _is_fixed(node.node, varying):
                varying.add(node.target.name)
        elif isinstance(node, nodes.If) and all(
            _is_fixed(branch.test, varying) for branch in (node, *node.elif_)
        ):
            for branch in (node, *node.elif_):
                _add_varying(branch.body, varying)
            _add_varying(node.else_, varying)
        else:
            varying.update(name.name for name in node.find_all(nodes.Name) if name.ctx != "load")


def _is_fixed(node: nodes.Node, varying: set[str]) -> bool:
    """Whether what a node writes, or its value, depends on no variable that varies."""
    return all(
        isinstance(each, _FIXED_SYNTAX)
        and not (isinstance(each, nodes.Name) and each.name in varying)
        and not (isinstance(each, nodes.Filter) and each.name not in _FIXED_FILTERS)
        for each in (node, *node.find_all(nodes.Node))
    )
