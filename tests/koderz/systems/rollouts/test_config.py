"""What a configuration says, and what is said of one that is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from koderz.errors import KoderzError
from koderz.suites.suite import SuiteSource
from koderz.systems.rollouts.commands import matrix_of
from koderz.systems.rollouts.options import RolloutsOptions
from koderz.systems.rollouts.suite import SAMPLE, RolloutsSuite
from koderz.systems.rollouts.tasks.config import read_config


def _written(folder: Path, text: str) -> Path:
    path = folder / "nightly.toml"
    path.write_text(text.replace("SAMPLE", str(SAMPLE)))
    return path


def test_defaults_stand_at_the_top_and_entries_win(tmp_path: Path) -> None:
    text = 'parallel = 3\nmodel = "m"\nrollouts = 2\n[[tasks]]\nprepared_dir = "SAMPLE/median"\n'
    text += '[[tasks]]\nprepared_dir = "SAMPLE/median"\nmodel = "n"\nenvironment_variables = {TIMEOUT_SEC = "7"}\n'
    config = read_config(_written(tmp_path, text))
    assert (config.name, config.parallel) == ("nightly", 3)
    assert [(entry.model, entry.rollouts) for entry in config.entries] == [("m", 2), ("n", 2)]
    assert config.of_entries == ("sample/median", "sample/median#2")  # another limit is another task
    assert [task.agent_seconds for task in config.tasks] == [1800.0, 7.0]


def test_equal_entries_add_up_and_are_no_product(tmp_path: Path) -> None:
    text = (
        '[[tasks]]\nprepared_dir = "SAMPLE/median"\nmodel = "simulated"\nrollouts = 2\n'
        '[[tasks]]\nprepared_dir = "SAMPLE/median"\nmodel = "simulated"\n'
        '[[tasks]]\nprepared_dir = "SAMPLE/slugs"\nagent = "nop"\n'
    )
    config = read_config(_written(tmp_path, text))
    matrix = matrix_of(config, agent=None, model=None, rollouts=None)
    cells = matrix.cells_of([task.id for task in config.tasks], 1) or []
    assert [(cell.task, cell.arm, cell.samples) for cell in cells] == [
        ("sample/median", "koderz · simulated", 3),
        ("sample/slugs", "nop", 1),
    ]
    assert [task.id for task in RolloutsSuite.load(SuiteSource(config.path, RolloutsOptions())).tasks] == [
        "sample/median",
        "sample/slugs",
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", r"no \[\[tasks\]\]"),
        (
            '[[tasks]]\nprepared_dir = "SAMPLE/median"\nrolouts = 2\n',
            "line 3: unknown key 'rolouts'; did you mean rollouts",
        ),
        ('modle = "x"\n[[tasks]]\nprepared_dir = "SAMPLE/median"\n', "line 1: unknown key 'modle'; did you mean model"),
        ('[[tasks]]\nprepared_dir = "none"\n', "line 2: there is no folder none"),
        ('\n[[tasks]]\nmodel = "x"\n', "line 2 has no prepared_dir"),
        ('model = "x"\n[[tasks]]\nprepared_dir = "SAMPLE/median"\nname = "x"\n', "line 4: .*'name'; it stands above"),
        ('[[tasks]]\nprepared_dir = "SAMPLE/median"\nrollouts = 0\n', "line 3: rollouts has to be a whole number from"),
        ('[[tasks]]\nprepared_dir = "SAMPLE/median"\nrollouts = "2"\n', "line 3: rollouts .* not '2'"),
        ('[[tasks]]\nprepared_dir = "SAMPLE/median"\nmax_diff_mb = 0\n', "line 3: max_diff_mb .* from 1 to 1024"),
        ('timeout_sec = -1\n[[tasks]]\nprepared_dir = "SAMPLE/median"\n', "line 1: timeout_sec has to be a number of"),
        (
            '[[tasks]]\nprepared_dir = "SAMPLE/median"\n[tasks.environment_variables]\nTIMEOUT_SEC = "soon"\n',
            "line 3: environment_variables .* TIMEOUT_SEC is a number",
        ),
        ('[[tasks]]\nprepared_dir = "SAMPLE/median"\napply_overrides = 1\n', "line 3: .* true or false"),
        (
            '[[tasks]]\nprepared_dir = "SAMPLE/median"\nsandbox = "dokcer"\n',
            "line 3: sandbox has to be one of contained",
        ),
        ('overrides = "none.json"\n[[tasks]]\nprepared_dir = "SAMPLE/median"\n', "line 1: there is no file none.json"),
        (
            'overrides = "SAMPLE/median/overrides.json"\n[[tasks]]\nprepared_dir = "SAMPLE/greeting"\n',
            "line 1: .*greeting has no tb_meta.json",
        ),
        (
            '[[tasks]]\nprepared_dir = "SAMPLE/median"\nrollouts = 2\n[[tasks]]\nprepared_dir = "none"\n',
            "line 5: there is no folder none",
        ),
        ('name = "../x"\n[[tasks]]\nprepared_dir = "SAMPLE/median"\n', "line 1: name has to be"),
        ("[[tasks", "nightly.toml: "),
    ],
)
def test_config_errors_are_told(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(KoderzError, match=said):
        read_config(_written(tmp_path, text))


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ("", "needs a model"),
        ('agent = "codx"', "line 3: there is no agent 'codx'; did you mean codex"),
        ('agent = "x"', "line 3: there is no agent 'x'; there are aider, claude-code, codex, koderz, mini-swe-agent"),
        ('agent = "scripted"', "line 1: .*needs a file"),
        ('agent = "scripted"\nscript = "none.sh"', "line 4: .*needs a file.*there is no file none.sh"),
    ],
)
def test_config_entry_that_cannot_run_is_told(tmp_path: Path, entry: str, said: str) -> None:
    config = read_config(_written(tmp_path, f'[[tasks]]\nprepared_dir = "SAMPLE/median"\n{entry}\n'))
    with pytest.raises(KoderzError, match=said):
        matrix_of(config, agent=None, model=None, rollouts=None)


def test_folders_shown_to_agents_are_beside_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "tools").mkdir()
    path = tmp_path / "c.toml"
    entry = f'agent_mounts = ["tools"]\n[[tasks]]\nprepared_dir = "{SAMPLE}/median"\n'
    path.write_text(entry)
    (task,) = read_config(path).tasks
    assert task.agent_mounts == (str(tmp_path / "tools"),)
    path.write_text(entry.replace("tools", "none"))
    with pytest.raises(KoderzError, match="agent_mounts: "):
        read_config(path)


def test_folder_in_place_of_a_configuration_is_told_how_to_run_tasks(tmp_path: Path) -> None:
    with pytest.raises(KoderzError, match=r"is a folder; .* koderz rollouts run --dataset .* --agent koderz"):
        read_config(tmp_path)
