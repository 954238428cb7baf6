"""Arms and cells that a suite states itself, through `koderz benchmark`."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.conftest import Shell, lines_of

SUITE = """
from koderz.extend import Matrix, MatrixArm, MatrixCells, Suite, Task


class Letters(Suite):
    name, source, scorer = "letters", "here", "equals"
    tasks = tuple(Task(each, f"Say {each}.", payload=each, needs=frozenset(), digest=each) for each in "abc")

    def simulate(self, messages, sampling):
        return messages[0]["content"][4]

    def arms(self, tasks, settings):
        if [task.id for task in tasks] == ["c"]:
            return None
        names = [f"reader {number}" for number in range(ARMS)]
        readers = tuple(MatrixArm(name, "zero-shot", baseline="reader 0" * (name != "reader 0")) for name in names)
        return Matrix(readers, (MatrixCells(("reader 0",), samples=2), MatrixCells(("OTHER",), (tasks[0].id,))))
"""


def run(koderz: Shell, *arguments: object, arms: str = "2", other: str = "reader 1", code: int = 0) -> str:
    (koderz.folder / "letters.py").write_text(SUITE.replace("ARMS", arms).replace("OTHER", other))
    said = ("--suite", "letters.py:Letters", "--model", "simulated", *arguments)
    return koderz("benchmark", *said, code=code).err


def arms_of(koderz: Shell) -> Counter[str]:
    return Counter(each["arm"] for each in lines_of(koderz.results, "experiment"))


def test_suite_states_the_arms_and_cells_of_its_runs(koderz: Shell) -> None:
    run(koderz)

    summary = koderz.summary()
    assert arms_of(koderz) == {"reader 0": 6, "reader 1": 1}
    assert (summary["mode"], summary["status"]) == ("letters", "complete")


def test_suite_that_states_no_arms_for_its_tasks_has_those_of_the_mode(koderz: Shell) -> None:
    run(koderz, "--problems", "c", "--max-iterations", 2)

    assert [*arms_of(koderz)] == ["iterative"]


@pytest.mark.parametrize("said", [("--solver", "zero-shot"), ("--mode", "zero-shot")])
def test_suite_arms_give_way_to_solvers_that_the_user_names(koderz: Shell, said: tuple[str, str]) -> None:
    run(koderz, *said)

    assert arms_of(koderz) == {"zero-shot": 3}


@pytest.mark.parametrize(
    ("arms", "other", "said"),
    [
        ("0", "reader 1", "the suite letters states no arms"),
        ("2", "nobody", "the suite letters: there is no arm 'nobody'; there are reader 0, reader 1"),
    ],
)
def test_suite_arms_that_cannot_be_are_refused(koderz: Shell, arms: str, other: str, said: str) -> None:
    assert said in run(koderz, arms=arms, other=other, code=2)
