"""``slipring inspect``: what it reports about files, directories and servers, and how it exits."""

import asyncio
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from slipring.commands.cli import main
from slipring.commands.inspection.model_facts import Report
from slipring.commands.inspection.printed_report import show
from slipring.commands.inspection.verdict import report_of
from slipring.engines.llama.engine import LlamaEngine
from slipring.engines.llama.options import LlamaOptions
from tests.commands.inspection.model_directories import ENDS, write_directory, write_family
from tests.engines.fakes.sglang import FakeSglang
from tests.engines.fakes.tokens import tokenizer_directory
from tests.engines.fakes.vllm import FakeVllm
from tests.model import SharedModel
from tests.prompts.gguf_writer import write_hollow_model
from tests.prompts.template_texts import PLAIN
from tests.prompts.templates.family_templates import source_of
from tests.prompts.vocabulary import small_metadata

KEYS = {
    *("works", "problems", "warnings", "model", "writer", "format", "stop_tokens", "variables"),
    *("adapted_forms", "sampling", "tokenizer", "appending", "kept", "sample", "parsed_call"),
}
WITHOUT_CALLS = (
    "{% if tools %}{{ tools | tojson }}{% endif %}"
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
DROPS = "the template drops earlier thoughts"


def inspected(engine: str) -> Report:
    return asyncio.run(report_of(engine))


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    """The exit code and the output of the command; standard error must stay empty."""
    code = main(["inspect", *arguments])
    printed = capsys.readouterr()
    assert printed.err == ""
    return code, printed.out


def whats(findings: Any) -> str:
    return "\n".join(finding.what for finding in findings)


# A GGUF file


def test_the_packaged_model_works_and_says_how(capsys: pytest.CaptureFixture[str]) -> None:
    code, printed = run(capsys, "llama")
    assert code == 0
    assert max(map(len, printed.splitlines())) <= 80
    assert "\x1b" not in printed
    for part in ("smollm2-135m-instruct", "chat template", "temperature 0.2", "pre-tokenizer smollm"):
        assert part in printed
    assert "[1 <|im_start|>]" not in printed
    assert " tokens; --tokens shows them\n\n" in printed
    assert printed.endswith("It works.\n")
    assert main(["inspect", "llama", "--tokens"]) == 0
    assert "[1 <|im_start|>]" in capsys.readouterr().out
    assert printed.endswith("It works.\n")


def test_the_sample_of_a_gguf_file_has_the_ids_that_the_engine_sends() -> None:
    report = inspected("llama")
    assert report.sample is not None
    vocabulary = LlamaEngine(LlamaOptions()).renderer.vocabulary
    ids = [token.id for token in report.sample.tokens]
    assert ids[0] == vocabulary.control("<|im_start|>")
    assert "".join(token.text or "" for token in report.sample.tokens) == report.sample.text
    controls = [token.text for token in report.sample.tokens if token.control]
    assert set(controls) == {"<|im_start|>", "<|im_end|>"}


def test_a_vocabulary_that_slipring_cannot_build_is_a_warning(tmp_path: Path) -> None:
    path = tmp_path / "future-Q4_K_M.gguf"
    metadata = small_metadata(pre="of-the-future") | {"tokenizer.chat_template": source_of("qwen3")}
    end = metadata["tokenizer.ggml.tokens"].index("<|im_end|>")
    write_hollow_model(path, metadata | {"tokenizer.ggml.eos_token_id": end})
    report = inspected(str(path))
    assert (report.works, report.model.name) == (True, "future")
    assert "pre-tokenizer 'of-the-future'" in whats(report.warnings)
    assert report.tokenizer is not None
    assert (report.tokenizer.place, report.tokenizer.pre_tokenizer) == ("server", "of-the-future")
    assert report.sample is not None
    assert report.sample.tokens == ()
    assert "<|im_start|>user\nWhat is the weather in Rome?" in report.sample.text
    # The engine can be made for such a file: all control tokens are known before llama.cpp runs.
    assert end in LlamaEngine(LlamaOptions(model=str(path))).renderer.stop_ids()


def test_no_package_that_runs_models_is_imported_for_a_file() -> None:
    code = (
        "import sys; sys.modules['xllamacpp'] = None; from slipring.commands.cli import main;"
        " sys.exit(main(['inspect', 'llama', '--json']))"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, b"")


# Directories


@pytest.mark.parametrize("family", sorted(ENDS.keys() - {"mistral_nemo"}))
def test_directories_of_families_work(tmp_path: Path, family: str) -> None:
    report = inspected(write_family(tmp_path / family, family))
    assert report.problems == ()
    assert report.works
    assert report.model.name == family
    assert report.parsed_call is not None
    assert report.parsed_call.is_right
    assert report.parsed_call.name == "get_weather"
    assert json.loads(report.parsed_call.arguments or "") == {"city": "Rome", "days": 2}
    assert ENDS[family] in [token.name for token in report.stop_tokens]


def test_facts_about_a_thinking_model(tmp_path: Path) -> None:
    path = write_family(tmp_path / "model", "qwen3_5")
    added = json.loads((tmp_path / "model" / "tokenizer.json").read_text())["added_tokens"]
    ends = [token["id"] for token in added if token["content"] in ("<|im_end|>", "<|im_start|>")]
    generation = {"eos_token_id": ends, "temperature": 0.6, "top_p": 0.95, "top_k": 20}
    (tmp_path / "model" / "generation_config.json").write_text(json.dumps(generation))
    (tmp_path / "model" / "config.json").write_text(json.dumps({"model_type": "qwen3_5"}))
    report = inspected(path)
    assert report.model.architecture == "qwen3_5"
    assert report.writer is not None
    assert (report.writer.kind, report.writer.template_engine) == ("template", "minijinja")
    assert report.format is not None
    assert report.format.found == "tagged arguments, found by rendering the template"
    assert report.format.layout == "tagged"
    assert report.format.calls is not None
    assert report.format.calls["key_open"] == "<parameter="
    assert report.format.thoughts is not None
    assert report.format.thoughts.open == "<think>\n"
    sources = {token.name: token.sources for token in report.stop_tokens}
    assert sources["<|im_end|>"] == ("files", "eos_token", "template")
    assert report.variables is not None
    assert report.variables.by_effort["none"] == {"enable_thinking": False}
    assert report.variables.keep == {"preserve_thinking": True}
    assert report.sampling == {
        "temperature": 0.6,
        "top_p": 0.95,
        "top_k": 20,
        "min_p": None,
        "repetition_penalty": None,
        "penalty_window": None,
    }
    assert [each.form for each in report.adapted_forms] == [
        "several system messages at the beginning",
        "a system message after others",
    ]
    appending = report.appending
    assert appending is not None
    assert appending.tool_loop is not None
    assert appending.tool_loop_with_thoughts is not None
    assert appending.user_turn_after_thoughts is not None
    assert appending.tool_loop.appends
    assert appending.tool_loop_with_thoughts.appends
    assert (appending.user_turn_after_thoughts.appends, appending.user_turn_after_thoughts.reason) == (
        False,
        DROPS,
    )
    assert "thinking=keep" in report.warnings[-1].remedy
    assert [each.name for each in report.kept] == ["empty_thoughts"]


def test_options_after_a_path_are_those_of_engines(tmp_path: Path) -> None:
    path = write_family(tmp_path / "model", "qwen3_5")
    report = inspected(f"{path},thinking=keep,variables=enable_thinking:false")
    assert report.variables is not None
    assert (report.variables.thinking, report.variables.given) == ("keep", {"enable_thinking": False})
    assert report.appending is not None
    assert report.appending.user_turn_after_thoughts is not None
    assert report.appending.user_turn_after_thoughts.appends
    assert report.warnings == ()
    named = inspected(f"{path},dialect=chatml").writer
    assert named is not None
    assert (named.kind, named.name, named.why) == (
        "builtin_template",
        "chatml",
        "the option dialect names it",
    )
    assert [each.name for each in inspected(f"{path},dialect=chatml").kept] == ["all_thoughts"]


def test_a_built_in_template_is_named(tmp_path: Path) -> None:
    report = inspected(write_family(tmp_path / "model", "gpt_oss"))
    assert report.writer is not None
    assert (report.writer.kind, report.writer.name) == ("builtin_template", "harmony")
    assert report.format is not None
    assert report.format.layout == "harmony"
    assert report.appending is not None
    assert report.appending.user_turn is not None
    assert report.appending.user_turn.appends


# Models that do not work


@pytest.mark.parametrize(
    ("template", "problem"),
    [
        (
            "{% for message in messages %}",
            "the model's chat template cannot be used: The chat template cannot",
        ),
        ("{{ raise_exception('never') }}", "cannot render a user message"),
        ("", "the model has no chat template"),
        (WITHOUT_CALLS, "no format of calls was found"),
    ],
)
def test_a_model_that_does_not_work_is_reported_as_such(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], template: str, problem: str
) -> None:
    path = write_directory(tmp_path / "model", template, eos_token="<|im_end|>")
    code, printed = run(capsys, path)
    assert code == 1
    assert problem in re.sub(r"\s+", " ", printed)
    assert "→ name its format with dialect=" in printed
    assert printed.endswith("It does not work.\n")


def write_published_with_code(path: Path, family: str) -> str:
    """Write the files of a DeepSeek model that comes with code instead of a template."""
    directory = Path(write_family(path, "deepseek_v4", chat_template="", eos_token="<｜end▁of▁sentence｜>"))
    (directory / "config.json").write_text(json.dumps({"model_type": family}))
    return str(directory)


def test_a_model_without_a_template_gets_the_format_of_its_architecture(tmp_path: Path) -> None:
    report = inspected(write_published_with_code(tmp_path / "model", "deepseek_v41"))
    assert report.works
    assert report.writer is not None
    assert report.writer.name == "deepseek-v4.1"
    assert report.parsed_call is not None
    assert "</think>\n\n<｜DSML｜ calls>\n" in report.parsed_call.written


def test_the_format_of_an_unknown_architecture_is_not_guessed_from_its_tokens(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, printed = run(capsys, write_published_with_code(tmp_path / "model", "deepseek_v99"))
    assert code == 1
    assert (
        "the model has no chat template, and none is known for its architecture deepseek_v99: its calls"
        " would not be understood" in re.sub(r"\s+", " ", printed)
    )


def test_loops_that_never_append_are_a_problem(tmp_path: Path) -> None:
    report = inspected(write_family(tmp_path / "model", "mistral_nemo"))
    assert not report.works
    assert whats(report.problems).startswith("tool loops never append (the template rewrites earlier turns)")


def test_answers_that_nothing_ends_are_a_problem(tmp_path: Path) -> None:
    report = inspected(write_directory(tmp_path / "model", PLAIN))
    assert "no token that ends an answer is known" in whats(report.problems)


def test_a_stop_token_that_the_vocabulary_lacks_is_a_warning(tmp_path: Path) -> None:
    path = Path(write_family(tmp_path / "model", "qwen3"))
    config = json.loads((path / "tokenizer_config.json").read_text())
    (path / "tokenizer_config.json").write_text(json.dumps({**config, "eos_token": "<|gone|>"}))
    report = inspected(str(path))
    assert report.works
    assert report.stop_tokens[-1].id is None
    assert "the model's files name <|gone|>" in whats(report.warnings)


def test_a_dialect_whose_control_tokens_are_missing_does_not_work(tmp_path: Path) -> None:
    path = write_family(tmp_path / "model", "qwen3")
    report = inspected(f"{path},dialect=llama3")
    assert "do not meet at a control token" in whats(report.problems)


def test_a_vocabulary_of_another_kind_does_not_work(tmp_path: Path) -> None:
    path = Path(write_family(tmp_path / "model", "qwen3"))
    described = {"model": {"type": "WordPiece", "vocab": {}}, "added_tokens": []}
    (path / "tokenizer.json").write_text(json.dumps(described))
    report = inspected(str(path))
    assert not report.works
    assert "tokenizer.json of model 'WordPiece'" in whats(report.problems)


@pytest.mark.parametrize(
    ("engine", "message"),
    [
        ("nowhere.gguf", "there is no file or directory nowhere.gguf"),
        (
            "vlm:http://127.0.0.1:9",
            "there is no file or directory vlm:http://127.0.0.1:9: did you mean vllm?",
        ),
        ("llama:nowhere.gguf", "llama: cannot read nowhere.gguf: No such file or directory; a model is"),
        ("http://127.0.0.1:9", "name the kind of the server, as in vllm:http://127.0.0.1:9"),
        ("vllm:http://127.0.0.1:9", "vllm: cannot reach http://127.0.0.1:9"),
        ("chat:http://127.0.0.1:9", "chat: there is nothing to inspect"),
        ("{path},dialect=morse", "inspect: unknown dialect 'morse'"),
        ("{path},slots=2", "inspect: unknown option 'slots'"),
    ],
)
def test_what_cannot_be_opened_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], engine: str, message: str
) -> None:
    path = write_family(tmp_path / "model", "qwen3")
    assert main(["inspect", engine.format(path=path)]) == 3
    printed = capsys.readouterr()
    (line,) = printed.err.splitlines()
    assert line.startswith("slipring: ")
    assert message in line
    assert printed.out == ""


# Servers


async def test_a_vllm_server_that_tells_its_template_is_asked_for_everything() -> None:
    fake = FakeVllm()
    await fake.start()
    try:
        report = await report_of(f"vllm:{fake.url},dialect=chatml")
        plain = await report_of(f"vllm:{fake.url}")
        fake.tells_template = False
        silent = await report_of(f"vllm:{fake.url}")
        local = await report_of(f"vllm:{fake.url},tokenizer={tokenizer_directory()},dialect=chatml")
    finally:
        await fake.close()
    assert (report.model.name, report.model.context_tokens) == ("smollm2", 8192)
    assert report.works
    assert report.tokenizer is not None
    assert report.tokenizer.place == "server"
    assert "tokenizer=" in report.warnings[0].remedy
    assert local.tokenizer is not None
    assert local.tokenizer.place == "local"
    # The ids are the server's; their texts are known for control tokens only.
    assert report.sample is not None
    assert local.sample is not None
    assert [token.id for token in report.sample.tokens] == [token.id for token in local.sample.tokens]
    assert report.sample.text == local.sample.text
    assert {token.text for token in report.sample.tokens} == {None, "<|im_start|>", "<|im_end|>"}
    assert plain.writer is not None
    assert (plain.writer.kind, plain.problems) == ("template", ())
    assert "the template describes no tools" in whats(plain.warnings)
    assert "--enable-tokenizer-info-endpoint" in silent.problems[0].remedy


async def test_an_sglang_server_is_inspected_by_its_tokenizer() -> None:
    fake = FakeSglang()
    await fake.start()
    try:
        report = await report_of(f"sglang:{fake.url}")
    finally:
        await fake.close()
    assert report.works
    assert (report.model.name, report.model.engine) == ("smollm2", "sglang")
    assert report.sampling is not None
    assert report.sampling["temperature"] == 0.6
    assert report.writer is not None
    assert report.writer.kind == "template"


async def test_a_llama_server_is_inspected(real_model: SharedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INSPECTED_KEY", real_model.key)
    report = await report_of(f"llama:{real_model.url},key_env=INSPECTED_KEY,dialect=chatml")
    assert report.works
    assert (report.model.name, report.model.context_tokens) == ("smollm2-135m-instruct", SharedModel.context)
    assert report.sample is not None
    own = await report_of("llama:dialect=chatml")
    assert own.sample is not None
    # Text that spells a mark is cut before it is sent to the server: some of its ids are others.
    assert report.sample.text == own.sample.text
    controls = [[token.id for token in each.tokens if token.control] for each in (report.sample, own.sample)]
    assert controls[0] == controls[1]


# JSON


def keys_of(document: dict[str, Any]) -> dict[str, set[str]]:
    return {name: set(value) for name, value in document.items() if isinstance(value, dict)}


def test_json_is_one_document_with_documented_keys(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, printed = run(capsys, write_family(tmp_path / "model", "qwen3"), "--json")
    document = json.loads(printed)
    assert (code, document["works"]) == (0, True)
    assert document.keys() == KEYS
    page = (Path(__file__).parents[3] / "docs" / "inspect.md").read_text()
    documented = set(re.findall(r"`([a-z_.]+)`", page))
    for name, inner in keys_of(document).items():
        assert name in documented
        missing = {f"{name}.{key}" for key in inner} - documented
        assert not missing, f"docs/inspect.md lacks {missing}"


def test_json_of_a_broken_model_has_the_same_keys(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, printed = run(capsys, write_directory(tmp_path / "model", "{% if %}"), "--json")
    document = json.loads(printed)
    assert (code, document.keys()) == (1, KEYS)
    assert document["problems"][0].keys() == {"what", "remedy"}
    assert document["writer"] is None


# Printing


def test_texts_of_files_do_not_control_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = source_of("qwen3").replace("# Tools", "# To\\u001b]0;title\\u0007ols\\u202e")
    show(inspected(write_directory(tmp_path / "model", source, eos_token="<|im_end|>")))
    printed = capsys.readouterr().out
    assert "# To\\x1b]0;title\\x07ols\\u202e" in printed
    assert "\x1b" not in printed
