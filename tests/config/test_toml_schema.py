"""The JSON schema of the TOML file: it knows every key, accepts what the server reads, and marks mistakes."""

import json
import re
import tomllib
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from slipring.commands.cli import main
from slipring.config import toml_schema
from slipring.config.settings import SETTINGS

ROOT = Path(__file__).parents[2]
VALIDATOR = Draft202012Validator(toml_schema.schema())
EXAMPLES = [
    (page.name, example)
    for page in sorted((ROOT / "docs").rglob("*.md"))
    for example in re.findall(r"```toml\n(.*?)```", page.read_text(), re.DOTALL)
    if "[mcp_servers" not in example and "[model_providers" not in example  # files of other programs
]


def test_the_schema_is_one() -> None:
    Draft202012Validator.check_schema(toml_schema.schema())


def test_every_setting_is_in_the_schema() -> None:
    properties = toml_schema.schema()["properties"]
    for setting in SETTINGS:
        place = properties["limits"]["properties"] if setting.is_limit else properties
        assert place[setting.key[-1]]["description"] == setting.help


@pytest.mark.parametrize("example", [example for _, example in EXAMPLES], ids=[name for name, _ in EXAMPLES])
def test_examples_of_the_pages_are_valid(example: str) -> None:
    VALIDATOR.validate(tomllib.loads(example))


@pytest.mark.parametrize(
    "mistake",
    [
        "prot = 8000",
        'port = "8000"',
        "[limits]\nmax_connection = 5",
        '[models.a]\nmodel = "x"',
        '[models.a]\nengine = "llama"\nhosted_tools = "there"',
        '[[mcp]]\nurl = "http://h"',
        '[[check]]\nname = "a"\nsource = "patterns"\naction = "stop"',
        '[policies]\nscope = "everything"',
        '[builtin_tools.web]\nserver = "a"\ntool = "b"',
    ],
)
def test_mistakes_are_marked(mistake: str) -> None:
    assert not VALIDATOR.is_valid(tomllib.loads(mistake))


def test_the_command_prints_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "schema"]) == 0
    assert json.loads(capsys.readouterr().out) == toml_schema.schema()


def test_settings_are_checked_without_starting_anything(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "slipring.toml"
    file.write_text(
        'engine = "simulated"\nstore = "memory"\n[models.a]\nengine = "simulated:tokens_per_s=9"\n'
    )
    assert main(["config", "check", "--config", str(file)]) == 0
    assert capsys.readouterr().out == "ok: engine simulated; 1 models\n"
    file.write_text("prot = 1\n")
    assert main(["config", "check", "--config", str(file)]) == 2
    assert "did you mean port?" in capsys.readouterr().err
    assert main(["config", "check", "--store", "memory", "--engine", "simulated:speed=1"]) == 3
