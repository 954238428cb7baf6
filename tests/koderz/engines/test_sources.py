"""The sources of a command's settings: flags, variables and koderz.toml."""

from __future__ import annotations

from pathlib import Path

import pytest

from koderz.engines import sources
from koderz.engines.sources import read_sources
from koderz.errors import KoderzError
from koderz.settings.layers import ConfigFile, read_file
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


@pytest.mark.parametrize(
    "text",
    [
        "model = 5",
        "local-model = true",
        "models = true",
        "roles = 5",
        "solvers = 5",
        "solvers = [1]",
        'role-options = 5\n[roles.judge]\nmodel = "simulated"\nmax-tokens = 5',
        'model-options = 5\n[models."x"]\nrpm = 5',
        'prices = 3\n[models."x"]\nprice = [1, 2]',
        "[roles.judge]\nextra-body = {a = 99999999999999999999}",
    ],
)
def test_sources_refuse_a_value_of_another_type(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    (tmp_path / "koderz.toml").write_text(text)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(KoderzError, match=r"koderz\.toml"):
        read_sources({}, {}, schema=None)


def test_options_of_roles_add_up_however_their_key_is_spelt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = 'role_options = ["judge.max-tokens=5"]\n[roles.judge]\nmodel = "simulated"\ntemperature = 0'
    (tmp_path / "koderz.toml").write_text(own)
    monkeypatch.chdir(tmp_path)
    variables = {"KODERZ_ROLE_OPTIONS": "judge.base-url=http://localhost:1/v1"}

    found = read_sources({"role_options": ("judge.reasoning-effort=low",)}, variables, schema=None, trust_config=True)

    options = [
        "judge.temperature=0",
        "judge.max-tokens=5",
        "judge.base-url=http://localhost:1/v1",
        "judge.reasoning-effort=low",
    ]
    assert sorted(found.settings.role_options) == sorted(options)
    assert sorted(found.is_ours["role_options"]) == sorted(options[2:])
