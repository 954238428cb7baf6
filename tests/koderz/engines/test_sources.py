"""The sources of a command's settings: flags, variables and koderz.toml."""

from __future__ import annotations

from pathlib import Path

import pytest

from koderz.engines import sources
from koderz.engines.sources import read_sources
from koderz.settings.toml import ConfigFile, read_file
from koderz.systems.long_context.ruler.options import RulerOptions


def test_sources_read_the_file_once_for_what_it_chooses_and_for_its_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "koderz.toml").write_text('[suite]\nname = "ruler"\n[suite.ruler]\ntasks-per-length = 3\n')
    monkeypatch.chdir(tmp_path)
    reads: list[Path] = []

    def counted(folder: Path) -> ConfigFile | None:
        reads.append(folder)
        return read_file(folder)

    monkeypatch.setattr(sources, "read_file", counted)

    found = read_sources({"samples": 2}, {"KODERZ_SEED": "7"}, schema=None)

    assert found.settings.of(RulerOptions).tasks_per_length == 3
    assert found.given == {"suite", "tasks_per_length", "samples", "seed"}
    assert found.is_ours == {"samples": 2, "seed": 7}
    assert reads == [tmp_path]
