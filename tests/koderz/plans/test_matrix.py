"""Arms and cells from a file, and what is said of one that is wrong."""

from __future__ import annotations

import os
from pathlib import Path
from typing import cast

import pytest

from koderz.errors import KoderzError
from koderz.plans.arms import make_arms
from koderz.suites.matrix import Matrix, MatrixArm, MatrixCells, read_matrix
from koderz_tracker.records import Cell
from tests.koderz.world import settings_of

TASKS = ["T/0", "T/1", "T/2"]

TWO = """
[[arms]]
name = "quick"
solver = "zero-shot"
model = "a"

[[arms]]
name = "three tries"
solver = "iterative"
roles = {spec = "openai/s"}
max-iterations = 3
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "matrix.toml"
    path.write_text(text)
    return path


def test_arms_have_the_models_roles_and_parameters_of_the_file(tmp_path: Path) -> None:
    settings = settings_of(local_model="m", max_iterations=9)
    arms = make_arms(settings, {}, read_matrix(written(tmp_path, TWO)))

    assert {arm.name: (arm.solver.name, dict(arm.models)) for arm in arms} == {
        "quick": ("zero-shot", {"main": "a"}),
        "three tries": ("iterative", {"main": "m", "spec": "openai/s"}),
    }
    assert arms[1].solver.parameters["max_iterations"] == arms[1].record.parameters["max_iterations"] == 3


def test_arms_without_a_model_are_there_once_for_each_of_the_run(tmp_path: Path) -> None:
    settings = settings_of(local_model="m", models=("m", "n"))
    arms = make_arms(settings, {}, read_matrix(written(tmp_path, TWO)))
    assert [arm.name for arm in arms] == ["quick", "three tries · m", "three tries · n"]


BASELINE = """
[[arms]]
name = "once"
solver = "zero-shot"

[[arms]]
name = "twice"
solver = "iterative"
baseline = "once"
max-iterations = 2

[[arms]]
name = "thrice"
solver = "iterative"
baseline = "{baseline}"
max-iterations = 3
"""


def test_baseline_is_there_once_for_each_model(tmp_path: Path) -> None:
    settings = settings_of(local_model="m", models=("m", "n"))
    arms = make_arms(settings, {}, read_matrix(written(tmp_path, BASELINE.format(baseline="once"))))

    assert {arm.name: arm.record.baseline for arm in arms} == {
        "once · m": "",
        "twice · m": "once · m",
        "thrice · m": "once · m",
        "once · n": "",
        "twice · n": "once · n",
        "thrice · n": "once · n",
    }


def test_cells_are_all_tasks_in_all_arms_unless_the_file_says_which(tmp_path: Path) -> None:
    cells = """
[[cells]]
arms = ["quick"]
samples = 2

[[cells]]
problems = ["T/1"]
"""
    assert read_matrix(written(tmp_path, TWO)).cells_of(TASKS, 1) is None
    assert read_matrix(written(tmp_path, TWO + cells)).cells_of(TASKS, 1) == [
        Cell("T/0", "quick", 2),
        Cell("T/1", "quick", 3),
        Cell("T/1", "three tries", 1),
        Cell("T/2", "quick", 2),
    ]


def test_cells_of_a_task_and_arm_are_merged_with_their_samples() -> None:
    stated = (MatrixCells(("a",), ("T/1",), 2, ("x", "y")), MatrixCells(("a",), ("T/1",), 1, ("z",)))
    found = Matrix((), stated).cells_of(TASKS, 1)
    assert found == [Cell("T/1", "a", 3, ("x", "y", "z"))]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "has no [[arms]]"),
        ("x = 1", "x is neither [[arms]] nor [[cells]]"),
        ("arms = 3", "write [[arms]]"),
        ("[[arms]]", "[[arms]] number 1: give a solver"),
        ("[[arms]]\nname = 'a'\nsolvr = 'none'", "[[arms]] number 1: it has no solver; is 'solvr' meant for it?"),
        ("[[arms]]\nsolver = 'none'\n[[cells]]\nsample = 1", "number 1: unknown key 'sample'; did you mean 'samples'?"),
        ("[[arms]]\nsolver = 3", "[[arms]] number 1: Expected `str`, got `int`"),
        ("[[arms]]\nsolver = 'zero-shot'\n" * 2, "two arms are called 'zero-shot'"),
        ("[[arms]]\nsolver = 'nope'", "there is no solver 'nope'"),
        ("[[arms]]\nsolver = 'zero-shot'\nheat = 3", "zero-shot: the solver zero-shot has no parameter heat"),
        ("[[arms]]\nsolver = 'iterative'\nmax-iterations = 0", "iterative, max-iterations: invalid value 0"),
        ("[[arms]]\nsolver = 'zero-shot'\nroles = {spec = 's'}", "the solver zero-shot has no such role"),
        ("[[arms]]\nsolver = 'zero-shot'\n[[cells]]\narms = ['x']", "there is no arm 'x'; there are zero-shot"),
        ("[[arms]]\nsolver = 'zero-shot'\nbaseline = 'x'", "there is no arm 'x'; there are zero-shot"),
        ("[[arms]]\nsolver = 'zero-shot'\nbaseline = 'zero-shot'", "'zero-shot' can't be its own baseline"),
        ("[[arms]]\nsolver = 'zero-shot'\n[[cells]]\nsamples = 0", "samples go from 1 to 100,000"),
        ("[[arms]]\nsolver = 'zero-shot'\n[[cells]]\nproblems = ['T/7']", "the run has no task 'T/7'"),
        ("[[arms", "matrix.toml:"),
    ],
)
def test_matrix_error_names_the_cause(tmp_path: Path, text: str, said: str) -> None:
    settings = settings_of(local_model="m")

    def plan() -> None:
        matrix = read_matrix(written(tmp_path, text))
        make_arms(settings, {}, matrix)
        matrix.cells_of(TASKS, 1)

    with pytest.raises(KoderzError) as error:
        plan()
    assert said in str(error.value)


def test_matrix_from_a_pipe_is_read_once(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.write(writing, TWO.encode())
    os.close(writing)
    try:
        path = Path(f"/dev/fd/{reading}")
        assert read_matrix(path) is read_matrix(path)
    finally:
        os.close(reading)


def test_matrix_that_has_changed_is_read_again(tmp_path: Path) -> None:
    before = read_matrix(written(tmp_path, TWO))
    after = read_matrix(written(tmp_path, TWO + "[[cells]]\nsamples = 5\n"))

    assert (len(before.cells), len(after.cells)) == (0, 1)


ARM = MatrixArm("a", "zero-shot")


@pytest.mark.parametrize(
    "matrix",
    [
        Matrix((ARM,), (MatrixCells(samples=0),)),
        Matrix((ARM,), (MatrixCells(samples=-3),)),
        Matrix((ARM,), (MatrixCells(samples=10**9),)),
        Matrix((ARM,), (MatrixCells(samples=cast("int", 1.5)),)),
        Matrix((ARM,), (MatrixCells(samples=cast("int", "3")),)),
        Matrix((ARM,), (MatrixCells(problems=cast("tuple[str, ...]", "ab")),)),
        Matrix((ARM,), cast("tuple[MatrixCells, ...]", ("a",))),
        Matrix(cast("tuple[MatrixArm, ...]", ARM)),
        Matrix(cast("tuple[MatrixArm, ...]", (each for each in [ARM]))),
        Matrix((MatrixArm("a" * 5000, "zero-shot"),)),
        Matrix((MatrixArm("\x1b[2J\n", "zero-shot"),)),
        Matrix((MatrixArm("", "zero-shot"),)),
        Matrix((MatrixArm(cast("str", 3), "zero-shot"),)),
        Matrix((MatrixArm("a", "zero-shot", parameters=cast("dict[str, str]", None)),)),
        Matrix((MatrixArm("a", "zero-shot", baseline="a"),)),
        Matrix(()),
    ],
)
def test_matrix_that_no_run_can_hold_is_one_error(matrix: Matrix) -> None:
    with pytest.raises(KoderzError, match=r"^the suite letters") as told:
        matrix._replace(source="the suite letters").checked()
    assert len(str(told.value)) < 300
    assert str(told.value).isprintable()


def test_matrix_of_odd_values_that_can_be_planned_is_taken() -> None:
    arm = MatrixArm("a", "zero-shot", parameters={"each": [object()]}, settings={"pick": None})
    assert Matrix((arm,), (MatrixCells(names=("x", "y"), samples=2),), "here").checked().arms == (arm,)
