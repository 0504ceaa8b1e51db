"""Generates texts that look like those of real loops: source, diffs, test runs, search results, chat.

Generated from a seed, so that every run sends the same texts, and without repetition, so that compression and
caches gain no more than they would in a real loop.
"""

import random
from collections.abc import Callable

INSTRUCTIONS = """\
You are a coding agent. You work in a workspace on the user's machine through the tools below, and you go on
until the task is done: the user does not see your tools' outputs and cannot answer questions while you
work.

# How to work

Read before you write. Find the code that the task is about with search_text and list_directory, read it
with read_file, and read the tests that cover it. Follow a name to its definition before you change what it
means. Look at how the neighbouring code is written and write yours in the same manner: names, layout, error
handling, and how much is said in comments.

Make a plan with update_plan when the task has more than three steps. Keep it short, one line for a step,
and bring it up to date as you go. Do not plan what is obvious.

Make the smallest change that solves the whole problem. Mend causes and not symptoms. Do not rename what
need not be renamed, do not reformat what you do not change, and do not mend unrelated faults: mention them
at the end. Never change a test so that it passes unless the task says that its expectation is wrong.

Run the tests that cover your change with run_tests, then those of the packages that depend on it. If a test
fails, read the whole traceback before you touch anything. When you do not understand a failure, add a print
or a smaller test, look again, and take out what you added. A test that fails now and then is a fault: find
out what it waits for.

# Tools

Prefer apply_patch to write_file for files that exist. A patch needs three lines of context for every hunk;
if it does not apply, read the file again, because it is not what you think it is. Use run_command for
everything that has no tool of its own. Never run a command that needs a terminal, that waits for input, or
that runs for ever. Commands that remove files outside the workspace, change the configuration of the
machine, or write to version control other than the work tree are not allowed.

Outputs are cut when they are long. What was cut is not known to you: ask for a smaller part. Paths are
relative to the root of the workspace. Lines are counted from 1.

# Code

- Functions do one thing and are named for it. Data that belongs together is one type.
- Errors are raised where they are found, with a message that says what was expected and what was there.
- Nothing is caught that is not handled. Nothing is logged that is also raised.
- Public functions have a docstring that says what they promise. Comments say why, never what.
- Every file that is opened is closed, every lock is released, every task is awaited, in all paths.
- Input from outside is checked at the border; inside, types are trusted.
- No dependency is added without being asked for.
- Times are in seconds as floats with the unit in the name; sizes are in bytes.
- Tests state one fact each, do not depend on their order, use no network, and do not sleep.

# The workspace

A service in Python 3.12 with its tests beside it: `src` holds one package for each part of the business,
`tests` mirrors it, `tools` has scripts that people run by hand, `migrations` the steps of the database,
oldest first, never edited once they are released. Settings come from the environment alone. The tests need
no service that is not in the workspace; those marked `slow` are run by the build and not by you. Generated
files say so in their first line: change what they are made from.

# When you are done

Look at the whole change once more with show_changes, as a reviewer would: is anything left over, is
anything missing, is there a case that nobody has tested? Then write a short report for the user, in plain
sentences: what was wrong, what you changed and why in this way, what you have run to be sure of it, and
what you have seen on the way that deserves attention. Give paths with line numbers where they help. Do not
praise the code or yourself, do not repeat the task, and do not end with an offer to do more. If the task
could not be done, say so in the first sentence and say what stood in the way.
"""

_NOUNS = (
    "account address archive batch border branch bucket buffer bundle carrier catalogue channel"
    " client cluster column contract country courier currency cursor customer deadline delivery"
    " deposit device digest discount driver envelope factor feature field filter folder forecast"
    " format fragment gateway header holiday import index interval invoice journal key label ledger"
    " lock margin market matrix message meter minute mirror model node notice number offer offset"
    " option order origin outlet owner package page parcel partner path payment period permit person"
    " pickup place point policy pool portion position price printer profile project quota rate reader"
    " reason receipt record refund region release rental replica report reserve result return route"
    " row rule sample scale schedule season sector segment sender session shard share shelf shipment"
    " signal slot snapshot source stage stamp station status stock storage stream supplier surcharge"
    " switch table target tariff tax tenant ticket token total tracker trade transfer treaty trip unit"
    " user vault vendor version voucher warehouse watch weight window worker writer yard zone"
).split()
_VERBS = (
    "accept add apply balance bind build cancel charge check claim clear close collect commit compare"
    " compute convert copy count create credit decode deduct derive dispatch divide drain encode"
    " estimate expand expire export extract fetch find fold group hold insert issue join keep limit"
    " load lock map mark match measure merge move normalise open pack parse pay pick plan post prepare"
    " print publish pull push quote raise rank read rebuild receive record reduce refuse release"
    " remove render repair replace reserve resolve restore return round route save scan schedule seal"
    " search select send settle share sort split start stop store submit sum swap sweep take tally"
    " track trim unpack update validate verify void wait weigh withdraw wrap write"
).split()
_TYPES = ("int", "str", "float", "bool", "Decimal", "datetime", "bytes")


class Prose:
    """Generates texts from one seed."""

    def __init__(self, seed: str) -> None:
        self._random = random.Random(seed)

    def tool_output(self, size_bytes: int) -> str:
        """A tool output of a coding agent, truncated to this size."""
        kinds: tuple[Callable[[], str], ...] = (self._function, self._diff, self._test_run, self._matches)
        write = self._random.choice(kinds)
        pieces: list[str] = []
        length = 0
        while length < size_bytes:
            pieces.append(write())
            length += len(pieces[-1]) + 1
        return "\n".join(pieces)[:size_bytes]

    def sentence(self, words: int) -> str:
        """A meaningless sentence of ordinary words, for a chat."""
        chosen = [self._random.choice(_NOUNS if place % 2 else _VERBS) for place in range(words)]
        return f"{' the '.join(chosen).capitalize()}."

    def task(self) -> str:
        """A task that a user gives to a coding agent."""
        module, verb, noun = self._path(), self._random.choice(_VERBS), self._random.choice(_NOUNS)
        return (
            f"The test of {verb}_{noun} in {module} fails since the last release, but only when a"
            f" {self._noun()} has more than one {self._noun()}. Find out why and mend it; {self._noun()} and"
            f" {self._noun()} must stay as they are."
        )

    def _noun(self) -> str:
        return self._random.choice(_NOUNS)

    def _name(self) -> str:
        return f"{self._random.choice(_VERBS)}_{self._noun()}"

    def _path(self) -> str:
        return f"src/{self._noun()}s/{self._noun()}_{self._noun()}.py"

    def _function(self) -> str:
        pick, first, second, third = self._random, self._noun(), self._noun(), self._noun()
        kind, inner, error = pick.choice(_TYPES), pick.choice(_TYPES), f"{third.capitalize()}Error"
        return "\n".join(
            [
                f"    def {self._name()}_{third}(self, {first}: {kind}, {second}: list[{inner}]) -> {kind}:",
                f'        """{self.sentence(3)} Raises {error} if there is no {self._noun()}."""',
                f"        if {first} is None or len({second}) > {pick.randrange(2, 900)}:",
                f'            raise {error}(f"no {self._noun()} for {{{first}!r}} in {self._noun()}")',
                f"        {third} = self._{self._noun()}s.get({first}, {pick.randrange(100)})",
                f"        for {self._noun()} in {second}:",
                f"            {third} += self.{self._name()}({third}, {pick.random():.4f})",
                f"            self._{self._noun()}_count -= {pick.randrange(1, 9)}",
                f"        return {kind}({third}) if {third} else self.{self._name()}({first})",
                "",
            ]
        )

    def _diff(self) -> str:
        path, line = self._path(), self._random.randrange(10, 900)
        old, new, share = self._name(), self._name(), self._random.random()
        return "\n".join(
            [
                f"--- a/{path}",
                f"+++ b/{path}",
                f"@@ -{line},7 +{line},8 @@ class {self._noun().capitalize()}{self._noun().capitalize()}:",
                f"         {self._noun()} = self._{self._noun()}[{self._random.randrange(64)}]",
                f"         {self._noun()} = {self._name()}({self._noun()}, {self._noun()}={share:.3f})",
                f"-        return self.{old}({self._noun()}, {self._noun()})",
                f"+        with self._{self._noun()}_lock:",
                f"+            return self.{new}({self._noun()}, {self._noun()}, {self._noun()}=None)",
                f"         # {self.sentence(4)}",
            ]
        )

    def _test_run(self) -> str:
        pick, path, noun = self._random, self._path(), self._noun()
        found, expected = pick.randrange(10_000), pick.randrange(10_000)
        test = f"tests/test_{noun}_{self._noun()}.py::test_{self._name()}_{self._noun()}"
        where = f"<{noun.capitalize()} {self._noun()}={pick.randrange(10**6)}>"
        return "\n".join(
            [
                f"{test} FAILED [{pick.randrange(100):3}%]",
                f"{path}:{pick.randrange(900)}: in {self._name()}",
                f"    {noun} = self.{self._name()}({self._noun()}, {self._noun()}={pick.random():.5f})",
                f"{self._path()}:{pick.randrange(900)}: in {self._name()}",
                f"    assert {noun}.{self._noun()} == {expected}, {self._noun()}",
                f"E   AssertionError: {self._noun()} 0x{pick.randrange(16**10):010x}",
                f"E   assert {found} == {expected}",
                f"E    +  where {found} = {where}.{self._noun()}",
                f"{pick.randrange(40)} failed, {pick.randrange(900)} passed in {pick.random() * 90:.2f}s",
            ]
        )

    def _matches(self) -> str:
        path, line = self._path(), self._random.randrange(1, 800)
        return "\n".join(
            f"{path}:{line + place}: {self._noun()}.{self._name()}({self._noun()},"
            f" {self._random.randrange(999)})  # {self._noun()} {self._random.choice(_VERBS)}"
            for place in range(self._random.randrange(2, 6))
        )
