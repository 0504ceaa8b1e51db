"""Where slipring differs from an independent implementation on purpose, and why."""

from fnmatch import fnmatchcase
from typing import NamedTuple


class Choice(NamedTuple):
    """A difference that is meant."""

    families: str
    """Names of families, separated by spaces."""
    sources: str
    """Where the template comes from: ``own`` (``families/``), ``builtin`` or ``official``."""
    cases: tuple[str, ...]
    """Names of cases; ``*`` stands for anything."""
    reason: str


_ANY = "own builtin official"
_SHORT = "The template of the tests is short: its words are not the family's."
_TEXT = "White space between text and a call is no part of the text."
_NO_FIELD = (
    "The template has no place for thoughts. A context that has some all the same is rendered without them; "
    "renderers keeps the ids."
)

CHOICES = (
    Choice(
        "deepseek_r1",
        _ANY,
        ("chain: loop of two, *: parsed",),
        "The answer closes a thought that slipring's prompt has not opened. A mark that closes nothing is "
        "never text here.",
    ),
    Choice(
        "qwen3_5 qwen3_6 qwen3_8 nemotron_3 glm_4_5 glm_4_7 glm_5_1 glm_5_3 "
        "laguna_xs_2 laguna_s_2_1 hunyuan_3 minimax_m2",
        _ANY,
        ("chain: strings with lines and marks, 0: parsed",),
        "renderers removes the white space at the ends of a string. slipring removes only the line ends "
        "that the format itself writes: a command or a patch may begin with spaces.",
    ),
    Choice(
        "qwen3_5 nemotron_3",
        _ANY,
        ("chain: values of all types, 0: parsed",),
        "The template writes False for false. renderers reads a string, slipring the boolean that the tool's "
        "schema asks for.",
    ),
    Choice(
        "qwen3_5 qwen3_6 qwen3_8",
        "official",
        ("prompt: calls: ids",),
        "renderers encodes an earlier text and the line ends after it separately; they are one piece here.",
    ),
    Choice("qwen3_8", "own", ("prompt: effort low", "prompt: effort high"), _SHORT),
    Choice("nemotron_3", "own", ("prompt: dialogue with thoughts",), _SHORT),
    Choice(
        "glm_4_5",
        _ANY,
        ("chain: text, call, 0: parsed",),
        "The prompt has closed the thought, so the answer begins with a line end. Text that no mark precedes "
        "is passed on as it is written, because it is streamed before a call is seen.",
    ),
    Choice(
        "glm_4_5",
        _ANY,
        ("chain: *thoughts, * parsed", "chain: loop of two, *: parsed"),
        "The line ends next to the marks of thoughts are no part of thoughts and text.",
    ),
    Choice(
        "glm_4_5",
        "official",
        ("prompt: calls",),
        "GLM-4.6's template writes a line end between calls, GLM-4.5's does not.",
    ),
    Choice(
        "laguna_xs_2 laguna_s_2_1",
        "own",
        ("prompt: question", "prompt: effort *", "prompt: dialogue with thoughts"),
        _SHORT,
    ),
    Choice(
        "laguna_xs_2",
        _ANY,
        ("prompt: *: ids", "chain: *: ids"),
        "renderers encodes texts and the line ends after them separately; they are one piece here.",
    ),
    Choice(
        "laguna_xs_2",
        _ANY,
        ("chain: *: added", "kept: *: added"),
        "The template writes a line end after every answer. renderers leaves it out where it appends.",
    ),
    Choice(
        "laguna_xs_2",
        _ANY,
        ("chain: text, call, 0: parsed", "chain: *text, user, 0: parsed", "chain: loop of two, 2: parsed"),
        "The template writes line ends around the text. They are passed on, because text is streamed before "
        "it is known whether more follows.",
    ),
    Choice(
        "kimi_k2",
        "official",
        ("prompt: *tools", "prompt: *call", "prompt: calls", "prompt: loop", "chain: *: whole"),
        "The code of Moonshot's tokenizer sorts the keys of tools before the template writes them.",
    ),
    Choice("kimi_k2", "own", ("prompt: question", "prompt: dialogue*"), _SHORT),
    Choice("kimi_k2 llama_3_1 deepseek_v3", _ANY, ("chain: thoughts, text, user, 1: appended",), _NO_FIELD),
    Choice("llama_3_1", "own", ("prompt: *",), _SHORT),
    Choice("minimax_m2", "own", ("prompt: question", "prompt: dialogue with thoughts"), _SHORT),
    Choice(
        "minimax_m2",
        "official",
        ("prompt: *", "chain: *: whole"),
        "Without a system message, renderers writes that of MiniMax-M2.5, the template that of MiniMax-M2.",
    ),
    Choice(
        "minimax_m2",
        _ANY,
        ("chain: text, user, 1: appended",),
        "The answer closes an empty thought, of which the template keeps nothing. slipring keeps the ids; "
        "renderers renders all messages again whenever the user speaks.",
    ),
    Choice(
        "deepseek_r1",
        _ANY,
        ("chain: *, [12]: added",),
        "After outputs, the template leaves it to the model whether to think; renderers opens a thought.",
    ),
    Choice(
        "deepseek_v3",
        _ANY,
        ("chain: two calls, 1*", "chain: *three calls, 1*", "chain: strings that look like JSON, 1*"),
        "DeepSeek's template writes a line end between outputs.",
    ),
    Choice(
        "deepseek_v4",
        "own builtin",
        ("prompt: *effort high",),
        "V4's encoder writes words for the effort max, that of Flash-0731 for high.",
    ),
    Choice(
        "deepseek_v4",
        "official",
        ("prompt: *", "chain: *: whole"),
        "The template was written for llama.cpp and leaves out the line ends before the tools, which the "
        "encoder writes even without a system message.",
    ),
    Choice("deepseek_v4", _ANY, ("chain: *text, call, 0: parsed",), _TEXT),
    Choice(
        "gemma_4",
        _ANY,
        (
            "chain: *thoughts, *: added",
            "chain: loop of two*",
            "prompt: *call",
            "prompt: calls",
            "prompt: loop",
        ),
        "renderers follows a later template, which opens a thought after the outputs of tools.",
    ),
    Choice(
        "gemma_4",
        _ANY,
        ("chain: output and user, 1: added",),
        "The template does not end the model's turn between an output and a user's message.",
    ),
    Choice(
        "gemma_4",
        "official",
        ("chain: *text, call, 1: appended",),
        "The template moves text that precedes calls behind their outputs, so the context is rendered again.",
    ),
    Choice(
        "mistral_nemo",
        _ANY,
        ("chain: *, 1: added", "prompt: call", "chain: *: whole"),
        "The template writes an output into JSON without quotes; mistral-common quotes it.",
    ),
    Choice(
        "mistral_nemo mistral_small",
        _ANY,
        ("chain: text, user, 1: appended", "chain: output and user, 1*"),
        "mistral-common moves the tools to the last user message and refuses a user message after outputs "
        "with tools at the beginning; the template leaves them, and needs an answer in between.",
    ),
    Choice(
        "mistral_small ministral_3",
        "official",
        ("prompt: *", "chain: *: whole"),
        "Without a system message, the template writes one of its own, mistral-common none.",
    ),
    Choice(
        "ministral_3",
        _ANY,
        ("chain: output and user, 1: added",),
        "The template refuses a user's message after an output: an answer is put between them.",
    ),
    Choice("ministral_3", "own", ("prompt: question", "prompt: dialogue with thoughts"), _SHORT),
    Choice(
        "gpt_oss",
        "builtin",
        ("prompt: *call", "prompt: loop"),
        "Earlier calls are written as gpt-oss' own template does, which says that their content is JSON.",
    ),
    Choice(
        "gpt_oss",
        "builtin",
        ("prompt: calls",),
        "Text before a call is a preamble: Harmony has it in the channel commentary. renderers writes final.",
    ),
    Choice(
        "gpt_oss",
        "official",
        ("*",),
        "slipring does not use the template of gpt-oss but one that writes what openai-harmony writes.",
    ),
)


def reason_for(family: str, source: str, case: str) -> str | None:
    """Why slipring differs in a case; None if it should not."""
    for choice in CHOICES:
        is_here = family in choice.families.split() and source in choice.sources.split()
        if is_here and any(fnmatchcase(case, pattern) for pattern in choice.cases):
            return choice.reason
    return None
