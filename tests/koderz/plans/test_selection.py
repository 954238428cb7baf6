"""Which tasks a run is about: ranges, names, files, shuffled and limited."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koderz.errors import KoderzError
from koderz.plans.selection import find_id, read_problems, select_tasks, split_problems
from koderz.settings.schema import Settings
from koderz.types import Task

TASKS = [Task(f"T/{i}", "", "f") for i in range(10)]


def selected(span: range | None = None, **how: Any) -> list[int]:
    return [int(task.id[2:]) for task in select_tasks(Settings(**how), span, TASKS)]


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ({}, list(range(10))),
        ({"span": range(3)}, [0, 1, 2]),
        ({"span": range(9, 10)}, [9]),
        ({"limit": 3}, [0, 1, 2]),
        ({"limit": 99}, list(range(10))),
        ({"problems": ("T/7", "T/3")}, [3, 7]),
        ({"problems": ("T/3", "T/3")}, [3]),
        ({"span": range(2, 8), "problems": ("T/1", "T/5", "T/7")}, [5, 7]),
        ({"span": range(2, 8), "problems": ("T/1", "T/5", "T/7"), "limit": 1}, [5]),
    ],
)
def test_selection_keeps_the_order_of_the_suite(how: dict[str, Any], expected: list[int]) -> None:
    assert selected(**how) == expected


@pytest.mark.parametrize(
    ("ids", "name", "found"),
    [
        (("HumanEval/0", "HumanEval/1"), "1", "HumanEval/1"),
        (("HumanEval/0", "HumanEval/1"), "HumanEval/1", "HumanEval/1"),
        (("Mbpp/2", "Mbpp/3", "Mbpp/4"), "2", "Mbpp/2"),  # its number
        (("Mbpp/2", "Mbpp/3", "Mbpp/4"), "0", "Mbpp/2"),  # no such number, so its index
        (("sort", "search"), "1", "search"),
        (("own/sort", "own/search"), "search", "own/search"),
        (("3", "1"), "1", "1"),
        (("a/1", "b/1", "c/2"), "1", None),  # two have that number
        (("a/1", "b/2"), "7", None),
        (("a/1",), "9" * 5000, None),
        (("a/1",), "\N{SUPERSCRIPT TWO}", None),
        (("a/1",), "", None),
        (("a/1",), "-1", None),
    ],
)
def test_problem_is_named_by_its_id_number_or_index(ids: tuple[str, ...], name: str, found: str | None) -> None:
    assert find_id(name, ids) == found


def test_problems_may_be_named_by_numbers() -> None:
    assert selected(problems=("7", "T/3", "3")) == [3, 7]


@given(st.integers(0, 2**31 - 1), st.integers(1, 10))
def test_shuffle_keeps_the_tasks_and_follows_from_the_seed(seed: int, limit: int) -> None:
    mixed = selected(shuffle=True, seed=seed)

    assert sorted(mixed) == list(range(10))
    assert selected(shuffle=True, seed=seed, limit=limit) == mixed[:limit]


def test_shuffle_changes_with_the_seed() -> None:
    assert len({tuple(selected(shuffle=True, seed=seed)) for seed in range(20)}) > 15


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"span": range(5, 3)}, "END has to be above START"),
        ({"span": range(3, 3)}, "3 4 is one task"),
        ({"span": range(11)}, "the suite has 10 tasks, so END is at most 10, not 11"),
        ({"span": range(10, 11)}, "so END is at most 10"),
        ({"span": range(-1, 3)}, "a range begins at 0"),
        ({"span": range(-1)}, "a range begins at 0"),
        ({"problems": ("T/3", "T/99", "x\x1b[31m")}, r"no task 'T/99', 'x\\x1b\[31m'; they are named like T/0"),
        ({"span": range(3), "problems": ("T/5",)}, "none of the tasks named lies in the range 0 to 3"),
    ],
)
def test_range_beyond_the_suite_is_told(how: dict[str, Any], said: str) -> None:
    with pytest.raises(KoderzError, match=said):
        selected(**how)


def test_selection_from_an_empty_suite_is_told() -> None:
    with pytest.raises(KoderzError, match="the suite mbpp has no tasks"):
        select_tasks(Settings(suite="mbpp"), None, ())


@pytest.mark.parametrize("text", ["T/1,T/2", "T/1, T/2", " T/1\tT/2 ", ",T/1,,T/2,"])
def test_names_may_be_separated_by_commas_or_blanks(text: str) -> None:
    assert split_problems(text) == ("T/1", "T/2")


def test_problems_file_may_have_comments_and_several_a_line(tmp_path: Path) -> None:
    path = tmp_path / "problems.txt"
    path.write_text("# the hard ones\nT/1  # why\n\nT/2, T/3\r\nT/4")

    assert read_problems(path) == ("T/1", "T/2", "T/3", "T/4")


@pytest.mark.parametrize("data", [None, b"\xff\xfe\x00"])
def test_problems_file_that_cannot_be_read_is_named(tmp_path: Path, data: bytes | None) -> None:
    path = tmp_path / "problems.txt"
    if data:
        path.write_bytes(data)

    with pytest.raises(KoderzError, match=f"--problems-file {path} can't be read"):
        read_problems(path)
