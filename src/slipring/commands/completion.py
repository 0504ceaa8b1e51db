"""``slipring completion``: prints what a shell needs to complete commands and flags."""

import argparse
from collections.abc import Iterator

SHELLS = ("bash", "zsh", "fish")
_PROGRAM = "slipring"


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=SHELLS, help="the shell that reads the script")


def script(shell: str, parser: argparse.ArgumentParser) -> str:
    """The script for a shell, made from the commands and flags of ``parser``."""
    if shell == "fish":
        return "\n".join(_fish(parser)) + "\n"
    lines = list(_bash(parser))
    return (
        "\n".join(["autoload -U +X bashcompinit && bashcompinit", *lines] if shell == "zsh" else lines) + "\n"
    )


def _commands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    return {}


def _paths(
    parser: argparse.ArgumentParser, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], argparse.ArgumentParser]]:
    """Every parser with the words that lead to it."""
    yield path, parser
    for name, inner in _commands(parser).items():
        if complete := getattr(inner, "complete", None):
            complete()  # adds the flags that are deferred
        yield from _paths(inner, (*path, name))


def _flags(parser: argparse.ArgumentParser) -> dict[str, str]:
    """The long flags of a parser with what they do."""
    return {
        flag: " ".join((action.help or "").replace("%%", "%").split())
        for action in parser._actions
        if action.help != argparse.SUPPRESS
        for flag in action.option_strings
        if flag.startswith("--")
    }


def _choices(parser: argparse.ArgumentParser) -> list[str]:
    """The words that an argument without a flag can be."""
    plain = (action for action in parser._actions if not action.option_strings and action.choices)
    return [str(choice) for action in plain for choice in action.choices or ()]


def _bash(parser: argparse.ArgumentParser) -> Iterator[str]:
    yield f"_{_PROGRAM}() {{"
    yield '  local current="${COMP_WORDS[COMP_CWORD]}" words'
    yield '  case "${COMP_WORDS[*]:1:COMP_CWORD-1} " in'
    # The longest path comes first, because a shell takes the first pattern that matches.
    for path, inner in sorted(_paths(parser), key=lambda each: -len(each[0])):
        words = " ".join((*_choices(inner), *_flags(inner)))
        pattern = '"' + " ".join(path) + ' "*' if path else "*"
        yield f'    {pattern}) words="{words}" ;;'
    yield "  esac"
    yield '  COMPREPLY=($(compgen -W "$words" -- "$current"))'
    yield "}"
    yield f"complete -o default -F _{_PROGRAM} {_PROGRAM}"


def _fish(parser: argparse.ArgumentParser) -> Iterator[str]:
    for path, inner in _paths(parser):
        names = list(_commands(inner))
        seen = " and ".join(f"__fish_seen_subcommand_from {name}" for name in path)
        other = f"not __fish_seen_subcommand_from {' '.join(names)}" if names else ""
        condition = " and ".join(filter(None, (seen, other)))
        when = f" -n '{condition}'" if condition else ""
        for name in _choices(inner):
            yield f"complete -c {_PROGRAM}{when} -f -a {name}"
        for flag, help in _flags(inner).items():
            yield f"complete -c {_PROGRAM}{when} -l {flag[2:]} -d {_quoted(help)}"


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
