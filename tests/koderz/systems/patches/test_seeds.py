"""Seeds in test scripts: found, and replaced by others that are drawn."""

from __future__ import annotations

import ast

import pytest

from koderz.systems.patches.measuring.scripts import reseeded


@pytest.mark.parametrize(
    "line",
    [
        "random.seed(42)",
        "np.random.seed(42)",
        "rng = np.random.default_rng(42)",
        "rng = np.random.RandomState(42)",
        "torch.manual_seed(42); x = 'é'",
        "x = 'é'; torch.cuda.manual_seed_all(42)",
        "Faker.seed(42)",
        "SEED = 42",
        "self.seed: int = 42",
        "data = make_blobs(100, random_state=42)",
        "def setup(n, *, rows=3, seed=42): pass",
        "def setup(n, random_state=42, rows=3): pass",
    ],
)
def test_seeds_are_others_and_all_else_is_as_before(line: str) -> None:
    first, second = (reseeded(f"# -*- a script -*-\n\n{line}\n", drawn) for drawn in (1, 2))
    assert first != second
    (number,) = {each.value for each in ast.walk(ast.parse(first)) if isinstance(each, ast.Constant)} - {3, 100, "é"}
    assert number != 42
    assert first == f"# -*- a script -*-\n\n{line}\n".replace("42", str(number))
    assert reseeded(first, 1) != first


@pytest.mark.parametrize(
    "line", ["rows = 42", "random.seed()", "np.random.seed(None)", "seed = n + 1", "x = f(42)", "seed(True)", ""]
)
def test_seeds_of_a_script_without_them_are_none(line: str) -> None:
    assert reseeded(line, 1) == ""


def test_equal_seeds_stay_equal() -> None:
    source = reseeded("random.seed(7)\nnp.random.seed(7)\ntorch.manual_seed(8)\n", 5)
    one, two, three = (each.value for each in ast.walk(ast.parse(source)) if isinstance(each, ast.Constant))
    assert one == two != three
