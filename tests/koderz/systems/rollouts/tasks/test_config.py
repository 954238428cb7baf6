"""What a configuration says, what is said of one that is wrong, and the arms to which settings of entries belong."""

from __future__ import annotations

from pathlib import Path

import pytest

from koderz.errors import KoderzError
from koderz.suites.matrix import Matrix
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


MEDIAN, SLUGS = "sample/median", "sample/slugs"


def _entries(folder: Path, *entries: str, top: str = 'model = "m"') -> Path:
    path = folder / "nightly.toml"
    sections = (f'[[tasks]]\nprepared_dir = "{SAMPLE}/{entry}' for entry in entries)
    path.write_text("\n".join([top, *sections, ""]))
    return path


def _matrix(path: Path, *without: str) -> Matrix:
    return matrix_of(read_config(path), agent=None, model=None, rollouts=None, without=without)


def _cells(matrix: Matrix) -> list[tuple[str, str, int]]:
    return [(cell.task, cell.arm, cell.samples) for cell in matrix.cells_of([MEDIAN, SLUGS], 1) or []]


def test_settings_that_differ_within_a_task_make_arms(tmp_path: Path) -> None:
    fast = 'environment_variables = {MODE = "fast"}'
    matrix = _matrix(_entries(tmp_path, 'median"', f'median"\n{fast}', 'slugs"', f'slugs"\n{fast}\nrollouts = 2'))
    assert _cells(matrix) == [
        (MEDIAN, "koderz · m", 1),
        (MEDIAN, "koderz · m · MODE=fast", 1),
        (SLUGS, "koderz · m", 1),
        (SLUGS, "koderz · m · MODE=fast", 2),
    ]
    name = "environment_variables.MODE"
    assert [arm.settings for arm in matrix.arms] == [{name: None}, {name: "fast"}]


def test_settings_of_each_kind_are_in_the_names_of_arms(tmp_path: Path) -> None:
    (tmp_path / "tools").mkdir()
    lines = ("timeout_sec = 90", "max_diff_mb = 2", 'sandbox = "docker"', f'agent_mounts = ["{tmp_path}/tools"]')
    matrix = _matrix(_entries(tmp_path, 'median"', *(f'median"\n{line}' for line in lines)))
    names = ("timeout_sec=90", "max_diff_mb=2", "sandbox=docker", "agent_mounts=tools")
    assert [arm.name for arm in matrix.arms] == ["koderz · m", *(f"koderz · m · {name}" for name in names)]


def test_settings_that_no_task_has_several_of_stay_with_tasks(tmp_path: Path) -> None:
    path = _entries(tmp_path, 'median"\ntimeout_sec = 60', 'slugs"\ntimeout_sec = 90', 'slugs"\ntimeout_sec = 90')
    matrix = _matrix(path)
    assert _cells(matrix) == [(MEDIAN, "koderz · m", 1), (SLUGS, "koderz · m", 2)]
    assert [arm.settings for arm in matrix.arms] == [None]  # as before arms had any, so that old runs resume


def test_settings_tell_arms_of_different_agents_apart_on_one_task(tmp_path: Path) -> None:
    matrix = _matrix(_entries(tmp_path, 'median"', 'median"\nagent = "nop"\ntimeout_sec = 5'))
    assert _cells(matrix) == [(MEDIAN, "koderz · m", 1), (MEDIAN, "nop · timeout_sec=5", 1)]


def test_settings_of_secret_names_or_looks_are_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_TOKEN", "hush-hush-17")
    token = "ghp_" + "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8"
    values = ('API_KEY = "one"', 'API_KEY = "two"', f'PLAIN = "{token}"', 'PLAIN = "hush-hush-17"')
    path = _entries(tmp_path, *(f'median"\nenvironment_variables = {{{value}}}' for value in values))
    names = [arm.name for arm in _matrix(path).arms]
    assert names == [f"koderz · m · {each}" for each in ("API_KEY=#1", "API_KEY=#2", "PLAIN=#1", "PLAIN=#")]
    monkeypatch.delenv("MY_TOKEN")
    assert _matrix(path).arms[0].settings == {
        "environment_variables.API_KEY": "#1",
        "environment_variables.PLAIN": None,
    }


def test_settings_with_a_key_in_an_address_are_numbered(tmp_path: Path) -> None:
    values = ("http://h/v1", "http://h/0123456789abcdef0123456789abcdef/v1")
    path = _entries(tmp_path, *(f'median"\nenvironment_variables = {{PLACE_URL = "{value}"}}' for value in values))
    assert [arm.name for arm in _matrix(path).arms] == [
        "koderz · m · PLACE_URL=http://h/v1",
        "koderz · m · PLACE_URL=#2",
    ]


def test_settings_that_would_be_called_the_same_have_numbers(tmp_path: Path) -> None:
    long = "x" * 60
    values = (f"{long}1", f"{long}2")
    many = ", ".join(f'V{number} = "{long[:20]}"' for number in range(9))
    entries = [f'median"\nenvironment_variables = {{A = "{value}"}}' for value in values]
    entries += [f'median"\nenvironment_variables = {{{many}, Z = "{value}"}}' for value in values]
    names = [arm.name for arm in _matrix(_entries(tmp_path, *entries)).arms]
    assert names[:2] == [f"koderz · m · A={long[:32]}…", f"koderz · m · A={long[:32]}…#2"]
    assert names[3] == f"{names[2]} #2"
    assert max(map(len, names)) < 100


def test_settings_that_the_run_says_are_of_no_arm(tmp_path: Path) -> None:
    path = _entries(tmp_path, 'median"\nsandbox = "docker"', 'median"\nsandbox = "local"')
    assert _cells(_matrix(path, "sandbox")) == [(MEDIAN, "koderz · m", 2)]


def _suite(path: Path) -> RolloutsSuite:
    return RolloutsSuite.load(SuiteSource(path, RolloutsOptions()))


def test_settings_of_an_arm_are_those_that_its_task_has(tmp_path: Path) -> None:
    path = _entries(tmp_path, 'median"\ntimeout_sec = 60', 'median"', 'median"\nenvironment_variables = {A = "1"}')
    suite, matrix = _suite(path), _matrix(path)
    task = suite.tasks[0]
    found = [suite.set_up(task, arm.settings or {}) for arm in matrix.arms]
    assert {each.id for each in found} == {MEDIAN}
    assert len({each.digest for each in found}) == 3
    assert [(each.payload.agent_seconds, dict(each.payload.environment)) for each in found] == [
        (60.0, {}),
        (1800.0, {}),
        (1800.0, {"A": "1"}),
    ]
    assert [each.id for each in suite.tasks] == [MEDIAN, f"{MEDIAN}#2", f"{MEDIAN}#3"]  # where a run has no such arms


def test_settings_that_no_entry_has_any_more_are_named(tmp_path: Path) -> None:
    suite = _suite(_entries(tmp_path, 'median"'))
    with pytest.raises(KoderzError, match=r"nightly.toml: no entry has the task sample/median with timeout_sec=7"):
        suite.set_up(suite.tasks[0], {"timeout_sec": "7"})
