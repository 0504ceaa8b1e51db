"""Where the key of an engine's server comes from, and how it is sent."""

from pathlib import Path

import pytest

from slipring.base.errors import StartupError
from slipring.engines.remote.server_key import key_headers


def test_keys_come_from_variables_and_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SOME_KEY", "from-variable")
    assert key_headers("chat", "SOME_KEY", "", "") == {"Authorization": "Bearer from-variable"}
    (tmp_path / "key").write_text("from-file\n")
    assert key_headers("chat", "", str(tmp_path / "key"), "api-key") == {"api-key": "from-file"}
    assert key_headers("chat", "", "", "") == {}
    with pytest.raises(StartupError, match="NO_KEY"):
        key_headers("chat", "NO_KEY", "", "")
    with pytest.raises(StartupError, match="cannot read"):
        key_headers("chat", "", str(tmp_path / "none"), "")
