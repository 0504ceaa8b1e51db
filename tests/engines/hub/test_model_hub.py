"""Models of a hub that runs on this machine: what is fetched, resumed, checked, and used without the hub."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from slipring.base.errors import StartupError
from slipring.engines.hub.model_hub import HubName, ModelHub, hub_name
from tests.engines.fakes.hub import FakeHub

MODEL = "acme/tiny-GGUF"
NAME = HubName(MODEL)
FILES = {
    "tiny-Q4_K_M.gguf": b"four bits",
    "tiny-Q8_0-00001-of-00002.gguf": b"eight",
    "tiny-Q8_0-00002-of-00002.gguf": b" bits",
    "README.md": b"A model.",
}
TOKENIZER = {
    **{"tokenizer.json": b"{}", "tokenizer_config.json": b"{}", "config.json": b"{}"},
    **{"model.safetensors": b"weights", "chat_template.jinja": b"{{ messages }}"},
}
CHUNK = 10 * 2**20
"""What the hub's client writes at once."""


@pytest.fixture
def fake() -> Iterator[FakeHub]:
    hub = FakeHub({MODEL: dict(FILES), "acme/tiny": dict(TOKENIZER)})
    with hub.running():
        yield hub


@pytest.fixture
def hub(fake: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModelHub:
    monkeypatch.delenv("HF_TOKEN", raising=False)
    return ModelHub(fake.url, tmp_path / "cache")


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("Qwen/Qwen3-8B-GGUF", HubName("Qwen/Qwen3-8B-GGUF")),
        ("Qwen/Qwen3-8B-GGUF:Q8_0", HubName("Qwen/Qwen3-8B-GGUF", "Q8_0")),
        ("models/qwen3.gguf", None),
        ("/models/qwen3", None),
        ("./models/qwen3", None),
        ("../qwen3", None),
        ("http://127.0.0.1:8000", None),
        ("qwen3", None),
        ("a/b/c", None),
        ("a/b:", None),
        ("a b/c", None),
    ],
)
def test_names_of_the_hub_are_told_from_paths(text: str, name: HubName | None) -> None:
    assert hub_name(text) == name


def test_a_directory_that_exists_is_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "models" / "qwen3").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert hub_name("models/qwen3") is None


def test_a_model_is_fetched_once(fake: FakeHub, hub: ModelHub) -> None:
    variant, path, projector = hub.fetch_gguf(NAME, None)
    assert (variant.quantization, Path(path).read_bytes()) == ("Q4_K_M", b"four bits")
    assert projector == ""
    assert hub.fetch_gguf(NAME, None) == (variant, path, "")
    assert fake.downloads("tiny-Q4_K_M.gguf") == [""]


def test_all_parts_of_a_model_are_fetched_into_one_directory(hub: ModelHub) -> None:
    _, path, _ = hub.fetch_gguf(HubName(MODEL, "Q8_0"), None)
    names = sorted(each.name for each in Path(path).parent.iterdir())
    assert names == ["tiny-Q8_0-00001-of-00002.gguf", "tiny-Q8_0-00002-of-00002.gguf"]
    assert Path(path).read_bytes() == b"eight"


def test_a_download_that_was_cut_goes_on_where_it_ended(fake: FakeHub, hub: ModelHub) -> None:
    fake.repositories[MODEL] = {"tiny-Q4_K_M.gguf": bytes(3 * CHUNK)}
    fake.cuts = [CHUNK + CHUNK // 2]
    _, path, _ = hub.fetch_gguf(NAME, None)
    assert Path(path).stat().st_size == 3 * CHUNK
    assert fake.downloads("tiny-Q4_K_M.gguf") == ["", f"bytes={CHUNK}-"]


def test_a_download_that_stopped_goes_on_in_the_next_process(
    fake: FakeHub, hub: ModelHub, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    content = bytes(CHUNK) + b"1" * CHUNK + b"2" * CHUNK
    fake.repositories[MODEL] = {"tiny-Q4_K_M.gguf": content}
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    fake.cuts = [CHUNK + CHUNK // 2] + [0] * 9  # the client tries again a few times
    with pytest.raises(
        StartupError, match=r"the download stopped at 10\.5 MB of 31\.5 MB: .*start again to go on from there"
    ):
        hub.fetch_gguf(NAME, None)
    fake.cuts.clear()
    fake.requests.clear()
    with caplog.at_level("INFO", "slipring"):
        path = hub.fetch_gguf(NAME, None)[1]
    assert Path(path).read_bytes() == content
    assert fake.downloads("tiny-Q4_K_M.gguf") == [f"bytes={CHUNK}-"]
    assert "(31.5 MB, of which 10.5 MB are there)" in caplog.text


def test_a_file_that_was_left_with_another_content_is_removed(fake: FakeHub, hub: ModelHub) -> None:
    for left in (b"f0ur", b"longer than the file is"):
        blob = hub._blob(MODEL, hub.find_gguf(NAME, None).files[0])
        blob._unfinished.parent.mkdir(parents=True, exist_ok=True)
        blob._unfinished.write_bytes(left)
        with pytest.raises(StartupError, match="was damaged on its way"):
            hub.fetch_gguf(NAME, None)
        assert blob.held == 0
    assert Path(hub.fetch_gguf(NAME, None)[1]).read_bytes() == b"four bits"


def test_a_content_that_another_process_has_downloaded_meanwhile_is_used(
    fake: FakeHub, hub: ModelHub
) -> None:
    blob = hub._blob(MODEL, hub.find_gguf(NAME, None).files[0])
    blob._content.parent.mkdir(parents=True, exist_ok=True)
    blob._content.write_bytes(b"four bits")
    assert Path(hub.fetch_gguf(NAME, None)[1]).read_bytes() == b"four bits"
    assert fake.downloads("tiny-Q4_K_M.gguf") == []


def test_a_file_that_the_hub_does_not_give_as_a_whole_is_left_to_the_client(
    hub: ModelHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fake hub offers no other way, which the client says."""
    monkeypatch.setattr("huggingface_hub.constants.MAX_HTTP_DOWNLOAD_SIZE", 8)
    with pytest.raises(StartupError, match="acme/tiny-GGUF cannot be read: The file is too large to be"):
        hub.fetch_gguf(NAME, None)


def test_nothing_is_fetched_if_it_does_not_fit_or_must_not_be(
    fake: FakeHub, hub: ModelHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slipring.engines.hub.model_hub.free_bytes", lambda directory: 8)
    with pytest.raises(StartupError, match=r"0\.0 MB are to be fetched into .*, whose disk has 0\.0 MB left"):
        hub.fetch_gguf(NAME, None)

    def refuse() -> None:
        raise StartupError("the port is in use")

    with pytest.raises(StartupError, match="the port is in use"):
        ModelHub(fake.url, tmp_path / "other", refuse).fetch_gguf(NAME, None)
    assert fake.downloads("tiny-Q4_K_M.gguf") == []


def test_a_damaged_file_is_removed_and_fetched_again(fake: FakeHub, hub: ModelHub) -> None:
    fake.damages = True
    with pytest.raises(StartupError, match=r"tiny-Q4_K_M\.gguf of acme/tiny-GGUF was damaged"):
        hub.fetch_gguf(NAME, None)
    assert hub.held() == []
    fake.damages = False
    assert Path(hub.fetch_gguf(NAME, None)[1]).read_bytes() == b"four bits"


@pytest.mark.parametrize("status", [500, 503])
def test_without_the_hub_the_cache_is_used(fake: FakeHub, hub: ModelHub, status: int) -> None:
    variant, path, _ = hub.fetch_gguf(NAME, None)
    fake.status = status
    assert hub.fetch_gguf(NAME, None)[1] == path
    with pytest.raises(StartupError, match="acme/tiny-GGUF has no quantization Q8_0"):
        hub.fetch_gguf(HubName(MODEL, "Q8_0"), None)
    with pytest.raises(StartupError, match=f"the model hub answers {status}, and acme/x is not in the cache"):
        hub.fetch_gguf(HubName("acme/x"), None)
    assert variant.quantization == "Q4_K_M"


def test_a_hub_that_is_not_there(tmp_path: Path) -> None:
    hub = ModelHub("http://127.0.0.1:9", tmp_path)
    with pytest.raises(
        StartupError, match=r"the model hub cannot be reached \(.*acme/tiny-GGUF is not in the"
    ):
        hub.fetch_gguf(NAME, None)
    with pytest.raises(StartupError, match=r"cannot be reached .*, and acme/tiny is not in the cache"):
        hub.fetch_tokenizer("acme/tiny")


def test_models_that_the_hub_does_not_give(
    fake: FakeHub, hub: ModelHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    unknown = r"acme/none: no such file, and no such model on the hub \({}\)"
    with pytest.raises(StartupError, match=unknown.format("a private one needs HF_TOKEN")):
        hub.fetch_gguf(HubName("acme/none"), None)
    fake.gated.add(MODEL)
    with pytest.raises(StartupError, match=r"acme/tiny-GGUF is gated: .* set HF_TOKEN"):
        hub.fetch_gguf(NAME, None)
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    for name in (MODEL, "acme/tiny"):
        with pytest.raises(
            StartupError, match=f"{name}: the hub refuses your token: set HF_TOKEN to a valid"
        ):
            hub.fetch_gguf(HubName(name), None)
    monkeypatch.setenv("HF_TOKEN", "hf_right")
    with pytest.raises(StartupError, match=unknown.format("one that your token may not read")):
        hub.fetch_gguf(HubName("acme/none"), None)
    assert Path(hub.fetch_gguf(NAME, None)[1]).exists()


def test_a_projector_is_fetched_resumed_and_checked_like_the_model(
    fake: FakeHub, hub: ModelHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = bytes(CHUNK) + b"1" * CHUNK + b"2" * CHUNK
    fake.repositories[MODEL] |= {"mmproj-F16.gguf": content, "mmproj-F32.gguf": b"other"}
    assert hub.fetch_gguf(NAME, None)[2] == ""
    assert fake.downloads("mmproj-F16.gguf") == [], "it was not asked for"
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    fake.cuts = [CHUNK + CHUNK // 2] + [0] * 9  # the client tries again a few times
    with pytest.raises(StartupError, match=r"mmproj-F16\.gguf of .* the download stopped at 10\.5 MB"):
        hub.fetch_gguf(NAME, None, sees=True)
    fake.cuts.clear()
    fake.requests.clear()
    variant, path, projector = hub.fetch_gguf(NAME, None, sees=True)
    assert Path(projector).read_bytes() == content
    assert fake.downloads("mmproj-F16.gguf") == [f"bytes={CHUNK}-"]
    assert fake.downloads("mmproj-F32.gguf") == []
    fake.status = 503
    assert hub.fetch_gguf(NAME, None, sees=True)[1:] == (path, projector), "the cache has both"
    fake.status = 0
    fake.repositories[MODEL] = {"mmproj-F16.gguf": b"projector", **FILES}
    other = ModelHub(fake.url, tmp_path / "other")
    other.fetch_gguf(NAME, None)
    fake.damages = True
    with pytest.raises(StartupError, match=r"mmproj-F16\.gguf of acme/tiny-GGUF was damaged"):
        other.fetch_gguf(NAME, None, sees=True)
    assert other.missing_bytes(MODEL, variant.files) == 0


def test_the_disk_must_have_room_for_model_and_projector(
    fake: FakeHub, hub: ModelHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.repositories[MODEL]["mmproj-F16.gguf"] = b"projector"
    monkeypatch.setattr("slipring.engines.hub.model_hub.free_bytes", lambda directory: 17)
    with pytest.raises(StartupError, match="are to be fetched into"):
        hub.fetch_gguf(NAME, None, sees=True)
    assert fake.downloads(".gguf") == []
    monkeypatch.setattr("slipring.engines.hub.model_hub.free_bytes", lambda directory: 18)
    hub.fetch_gguf(NAME, None, sees=True)


def test_a_tokenizer_is_fetched_without_the_weights(fake: FakeHub, hub: ModelHub) -> None:
    directory = Path(hub.fetch_tokenizer("acme/tiny"))
    assert sorted(each.name for each in directory.iterdir()) == sorted(
        TOKENIZER.keys() - {"model.safetensors"}
    )
    assert fake.downloads("model.safetensors") == []
    with pytest.raises(StartupError, match=r"acme/tiny-GGUF has no tokenizer\.json"):
        hub.fetch_tokenizer(MODEL)


def test_what_describes_a_model_is_its_tokenizer_or_its_gguf_file(hub: ModelHub) -> None:
    assert Path(hub.fetch_description(HubName("acme/tiny"))).is_dir()
    assert Path(hub.fetch_description(NAME)).name == "tiny-Q4_K_M.gguf"


def test_models_in_the_cache_are_listed(hub: ModelHub) -> None:
    assert hub.held() == []
    for quantization in ("Q4_K_M", "Q8_0"):
        hub.fetch_gguf(HubName(MODEL, quantization), None)
    hub.fetch_tokenizer("acme/tiny")
    held = [(model.name, model.size) for model in hub.held()]
    assert held == [(f"{MODEL}:Q4_K_M", 9), (f"{MODEL}:Q8_0", 10)]
