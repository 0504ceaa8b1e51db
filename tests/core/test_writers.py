"""Each attribute of a turn's state is assigned by one module, read from the source.

A class assigns its own attributes, through ``self``. What a turn is bound to, prepared and planned as, and
how it ends are set by its program, and what it waits for by the code that resumes the program.
"""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

SRC = Path(__file__).parent.parent.parent / "src" / "slipring"

STATE = {
    "Turn": "core/turn/turn.py",
    "Steps": "core/turn/steps/step_jobs.py",
    "Rollout": "core/turn/steps/rollout.py",
    "Steers": "core/turn/steps/steered_ends.py",
    "Compaction": "core/turn/compaction.py",
    "TurnChecks": "core/turn/turn_checks.py",
    "JobProgress": "core/turn/stages.py",
    "Recognition": "core/chain/resent_history.py",
    "Stages": "core/turn/stages.py",
    "Output": "core/turn/output/output_events.py",
    "NumberedItems": "core/turn/output/numbered_items.py",
    "HostedCalls": "core/turn/output/hosted_calls.py",
    "Rejections": "core/turn/output/rejected_calls.py",
    "HostedLists": "core/turn/output/hosted_calls.py",
    "HostedRequest": "core/hosted_tools.py",
    "OpenCarry": "core/chain/input_items.py",
    "Stop": "core/generation.py",
    "ConnectionLifetime": "core/session/connection_lifetime.py",
    "GrowingOutputs": "core/session/growing_tool_outputs.py",
}
"""The classes that a turn's state consists of, and what its session decides about it; with their modules."""
WRITERS = {
    ("turn", "bound"): "core/session/turn_program.py",
    ("turn", "prepared"): "core/session/turn_program.py",
    ("turn", "planned"): "core/session/turn_program.py",
    ("turn", "ended"): "core/session/turn_program.py",
    ("turn", "wait"): "core/session/session.py",
    ("stop", "asked"): "core/turn/stages.py",
    ("_stop", "asked"): "core/turn/compaction.py",
}
"""Attributes that another object sets, by the names of their owner and of themselves."""
OTHERS = {
    *(("request", "input"), ("request", "tools"), ("response", "output"), ("lane", "current")),
    *(("growth", "running"), ("held", "size_bytes"), ("stretch", "settled")),
    *(("unread", "since"), ("unfinished", "since")),
}
"""Attributes of other objects that have the same names."""


def targets(node: ast.AST) -> Iterator[ast.expr]:
    """What a statement assigns or deletes."""
    found: list[ast.expr] = []
    if isinstance(node, ast.Assign | ast.Delete):
        found = list(node.targets)
    elif isinstance(node, ast.AugAssign | ast.AnnAssign | ast.For | ast.NamedExpr):
        found = [node.target]
    elif isinstance(node, ast.withitem) and node.optional_vars is not None:
        found = [node.optional_vars]
    for target in found:
        yield from (each for each in ast.walk(target) if isinstance(each, ast.Attribute | ast.Name))


def assignments(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """The attributes that a piece of source assigns, with the name of their owner: ``self.stop.asked`` is the
    ``asked`` of a ``stop``."""
    for node in ast.walk(tree):
        for target in targets(node):
            if isinstance(target, ast.Attribute) and isinstance(target.ctx, ast.Store | ast.Del):
                owner = target.value
                name = owner.attr if isinstance(owner, ast.Attribute) else getattr(owner, "id", "")
                yield name, target.attr


@cache
def state_attributes() -> frozenset[str]:
    found: set[str] = set()
    for name, path in STATE.items():
        tree = ast.parse((SRC / path).read_text())
        (owner,) = (n for n in ast.walk(tree) if isinstance(n, ast.ClassDef) and n.name == name)
        found |= {attr for receiver, attr in assignments(owner) if receiver == "self"}
    return frozenset(found)


def foreign_writes(source: str, path: str) -> list[str]:
    """The assignments of a module to attributes of a turn's state of which it is not the writer."""
    return [
        f"{path}: {owner}.{attr}"
        for owner, attr in assignments(ast.parse(source))
        if owner != "self" and attr in state_attributes() and (owner, attr) not in OTHERS
        if WRITERS.get((owner, attr)) != path
    ]


def test_each_attribute_of_a_turns_state_has_one_writer() -> None:
    modules = [path for part in ("core", "server") for path in (SRC / part).rglob("*.py")]
    assert len(modules) > 100
    found = [foreign_writes(path.read_text(), path.relative_to(SRC).as_posix()) for path in modules]
    assert [each for writes in found for each in writes] == []


def test_the_lists_of_the_rule_name_what_there_is() -> None:
    for (owner, attr), path in WRITERS.items():
        assert (owner, attr) in set(assignments(ast.parse((SRC / path).read_text())))
    everywhere = {
        pair
        for part in ("core", "server")
        for path in (SRC / part).rglob("*.py")
        for pair in assignments(ast.parse(path.read_text()))
    }
    assert everywhere >= OTHERS


def test_the_rule_finds_a_foreign_assignment() -> None:
    for source in (
        "turn.ended = None",
        "turn.progress.finished, x = None, 1",
        "work.turn.wait = y",
        "turn.planned.steps.is_last = True",
        "turn.stages.send_s += 1",
        "del turn.bound",
    ):
        assert foreign_writes(source, "core/turn/steps/between_steps.py"), source
    assert foreign_writes("turn.ended = None", "core/session/turn_program.py") == []
