"""A safety check that finds prompt injections, with the classifier that stackone-defender contains.

Install it beside slipring, and tell slipring where this file is:

    pip install 'stackone-defender[onnx]'
    PYTHONPATH=examples slipring serve --config slipring.toml

slipring.toml:

    [[check]]
    name = "injection"
    source = "python:injection_check:injection_check"
    subjects = ["tool_output"]
    action = "block"
    max_chars = 800 # the classifier reads 256 tokens: longer texts are inspected in pieces
"""

from collections.abc import Callable
from importlib.metadata import version

from stackone_defender.classifiers.onnx_classifier import OnnxClassifier

from slipring.core.checks.verdicts import Subject


def injection_check() -> Callable[[Subject], dict[str, float]]:
    """The factory: slipring calls it once, and the function that it returns for each text, in a thread."""
    classifier = OnnxClassifier()
    classifier.warmup()

    def inspect(subject: Subject) -> dict[str, float]:
        return {"injection": classifier.classify(subject.text)}

    inspect.version = version("stackone-defender")  # type: ignore[attr-defined]
    return inspect
